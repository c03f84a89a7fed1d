"""Keras 3 on any of its backends. Only its TensorFlow backend needs TensorFlow."""
