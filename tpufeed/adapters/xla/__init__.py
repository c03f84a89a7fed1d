"""torch_xla: batches on XLA devices, in ranks or under SPMD."""
