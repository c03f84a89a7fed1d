"""Dataset -> batches in a training step: numpy, tf.data, torch and torch_xla."""
