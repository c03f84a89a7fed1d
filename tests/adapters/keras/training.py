"""Trainings with Keras that write down which samples each step took, on the backend that KERAS_BACKEND names.

As a program: `training.py URL FOLDER STEP` trains without a break and with breaks after some steps, and
says what differs; then it trains until it kills itself after STEP steps, and another process goes on there. Both
processes are forks of one that has imported the frameworks, which takes longer than to train; these start in each.
"""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from keras import ops

import tpufeed

MOST_STEPS = 64


class Seen(keras.metrics.Metric):
    """Keeps the labels of all batches of an epoch, which are numbers of samples."""

    def __init__(self, batch):
        super().__init__(name="seen")
        self.rows = self.add_variable((MOST_STEPS, batch), "zeros", name="rows")
        self.count = self.add_variable((), "zeros", name="count", dtype="int32")

    def get_config(self):
        return {"batch": self.rows.shape[1]}

    def update_state(self, y_true, y_pred, sample_weight=None):
        here = ops.expand_dims(ops.one_hot(self.count, MOST_STEPS), 1)
        self.rows.assign_add(here * ops.reshape(ops.cast(y_true, "float32"), (1, -1)))
        self.count.assign_add(1)

    def result(self):
        return ops.cast(self.count, "float32")


class Stopped(Exception):
    """Instead of a kill, in the same process."""


class Recorder(keras.callbacks.Callback):
    """Collects (epoch, samples) of each step, and calls `stop` after `steps` of them."""

    def __init__(self, seen, steps, stop):
        super().__init__()
        self.seen, self.steps, self.stop = seen, steps, stop
        self.taken = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.known = epoch, 0

    def on_train_batch_end(self, batch, logs=None):
        assert self.model is not None  # with JAX this also puts the metric's values in their place
        count = int(ops.convert_to_numpy(self.seen.count))
        rows = ops.convert_to_numpy(self.seen.rows)[self.known : count]
        self.known = count
        self.taken += [[self.epoch, row.astype(int).tolist()] for row in rows]
        if len(self.taken) >= self.steps:
            self.stop()


def stop():
    raise Stopped


def make_model(batch, steps_per_execution=1, optimizer=None):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((64, 64, 3), dtype="uint8")
    outputs = keras.layers.Rescaling(1 / 255)(inputs)
    outputs = keras.layers.AveragePooling2D(32)(outputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(outputs)))
    seen = Seen(batch)
    model.compile(
        optimizer or keras.optimizers.Adam(0.01), "mse", metrics=[seen], steps_per_execution=steps_per_execution
    )
    return model, seen


def make_feed(url, batch=7, **options):
    """The loader, and what `fit` takes. The label of an image is its number in the split."""
    exact = options.pop("deterministic", False)
    loader = tpufeed.Loader(url, batch_size=batch, columns=["image", "sample"], processes=0, threads=1, **options)
    return loader, loader.to_tf(deterministic=True) if exact else loader.to_keras()


def train(url, folder, *, steps=10**9, end=stop, save_freq=4, spe=1, batch=7, fit=None, place_first=False, **options):
    """One start of the same program: its steps, until it is stopped after `steps` of them, and weights at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    loader, feed = make_feed(url, batch, **options)
    model, seen = make_model(batch, spe)
    recorder = Recorder(seen, steps, end)
    backup = keras.callbacks.BackupAndRestore(str(folder / "backup"), save_freq=save_freq, delete_checkpoint=False)
    place = tpufeed.keras_state(loader, folder / "feed.json")
    both = [place, backup] if place_first else [backup, place]
    try:
        model.fit(feed, **{"epochs": 3, "verbose": 0, "callbacks": [*both, recorder], **(fit or {})})
    except Stopped:
        return recorder.taken, None
    return recorder.taken, sum(float(np.abs(ops.convert_to_numpy(weight)).sum()) for weight in model.weights)


def all_steps(url, epochs=3, batch=7, epoch_steps=None):
    """[Keras' epoch, samples] of each step of a training that nobody stops."""
    with tpufeed.Loader(url, batch_size=batch, columns=["sample"]) as loader:
        batches = [samples.tolist() for _ in range(epochs) for samples in loader]
    return [[number // (epoch_steps or len(batches) // epochs), samples] for number, samples in enumerate(batches)]


def saved_after(steps, save_freq, epoch_steps):
    """Steps that the newest backup holds after `steps` steps; with "epoch" these are whole epochs."""
    return steps - steps % (epoch_steps if save_freq == "epoch" else save_freq)


def find_saved(folder, batch=7):
    """The steps whose weights the newest backup holds."""
    model, _ = make_model(batch)
    model.optimizer.build(model.trainable_variables)
    model.load_weights(folder / "backup/latest.weights.h5")
    return int(ops.convert_to_numpy(model.optimizer.iterations))


def train_until_killed(url, folder, step):
    whole, weights = train(url, folder / "whole")
    stops = {}
    for steps in (9, 10, 14) if keras.backend.backend() == "tensorflow" else ():
        place = folder / str(steps)
        first, _ = train(url, place, steps=steps)
        rest, again = train(url, place)
        stops[steps] = [first, rest, again]
    print(json.dumps([whole, weights, stops]), flush=True)
    train(url, folder / "killed", steps=step, end=lambda: os.kill(os.getpid(), signal.SIGKILL))


def go_on(url, folder):
    print(json.dumps(train(url, folder / "killed")), flush=True)


def main(url, folder, step):
    folder, statuses = Path(folder), []
    for run in (lambda: train_until_killed(url, folder, int(step)), lambda: go_on(url, folder)):
        child = os.fork()
        if not child:
            run()
            sys.exit()
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(statuses))


if __name__ == "__main__":
    main(*sys.argv[1:])
