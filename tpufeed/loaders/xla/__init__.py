"""torch_xla: batches on XLA devices, through its ParallelLoader or a thread of our own."""
