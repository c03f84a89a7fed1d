"""A model of Keras that writes down what its training step was given."""

import keras
import tensorflow as tf


class Recorder(keras.Model):
    """A small classifier that writes down what its compiled training step was given: images, labels, and either sample
    ids or, where those come within x, ids and sample weights."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.layers_ = [
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(4, 5, strides=4, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]

    def call(self, images):
        images = images["image"] if isinstance(images, dict) else images
        for layer in self.layers_:
            images = layer(images)
        return images

    def train_step(self, data):
        images, labels, *others = data
        if isinstance(images, dict):
            given = [images["image"], labels, images["sample"], *(each for each in others if each is not None)]
        else:
            given, data = data, (images, labels)
        tf.py_function(lambda *columns: self.seen.append([column.numpy() for column in columns]), given, [])
        return super().train_step(data)
