"""tf.data: the host stream as a dataset, or a graph that TensorFlow reads by itself."""
