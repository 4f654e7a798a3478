"""The same net in Keras 3, on its torch backend: there a Keras model is a torch module like any other."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from keras import layers


def keras_net():
    # Keras numbers layers through a whole process, and checkpoints know weights by name
    keras.utils.clear_session()
    keras.config.set_image_data_format("channels_first")
    return keras.Sequential(
        [
            keras.Input((1, 32, 64)),
            layers.Conv2D(8, 5, strides=2, padding="same", activation="elu"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="elu"),
            layers.Conv2D(24, 3, strides=2, padding="same", activation="elu"),
            layers.Flatten(),
            layers.Dense(32, activation="elu"),
            layers.Dense(1),
        ]
    )
