"""Byte layouts: CRC-32C, TFRecord framing and tf.train.Example, all without TensorFlow and without I/O."""
