"""Keras 3 on any of its backends; TensorFlow is needed for its own alone."""
