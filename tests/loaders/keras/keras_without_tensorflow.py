"""keras_dataset without TensorFlow, on KERAS_BACKEND: `keras_without_tensorflow.py DATASET CACHE FOLDER`."""

# ruff: noqa: E402
import os
import sys
from pathlib import Path


class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if os.environ["KERAS_BACKEND"] == "jax":  # torch asks whether there is a tensorflow, and imports nothing of it
    sys.meta_path.insert(0, NotInstalled())

import keras
import numpy as np
from keras_training import Recorder, Seen, find_saved, train

import tpufeed
from tpufeed.images import CenterCrop, Resize

EPOCH, SIDE = 70, 64
OPS = [Resize(SIDE), CenterCrop(SIDE)]


def make_model(batch, outputs=1, loss="mse", **compiled):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((SIDE, SIDE, 3), dtype="uint8")
    pooled = keras.layers.AveragePooling2D(32)(keras.layers.Rescaling(1 / 255)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(outputs)(keras.layers.Flatten()(pooled)))
    seen = Seen(batch)
    model.compile("adam", loss, metrics=[seen], **compiled)
    return model, seen


def fit(feed, batch, **options):
    """[Keras' epoch, samples] of each step."""
    model, seen = make_model(batch)
    recorder = Recorder(seen, 10**9, None)
    model.fit(feed, verbose=0, callbacks=[recorder], **options)
    return recorder.taken


def expected(url, batch, epochs):
    with tpufeed.numpy_loader(url, batch_size=batch, columns=["sample"]) as loader:
        return [samples.tolist() for _ in range(epochs) for samples in loader]


def check_epochs(url):
    """Epochs follow each other; the batch that builds the model is not lost; a second fit goes on."""
    feed = tpufeed.keras_dataset(url, batch_size=7, columns=["image", "sample"])
    assert len(feed) == feed.num_batches == EPOCH // 7
    model, seen = make_model(7)
    recorder, other = Recorder(seen, 10**9, None), Recorder(seen, 10**9, None)
    model.fit(feed, epochs=2, verbose=0, callbacks=[recorder])
    model.fit(feed, epochs=1, verbose=0, callbacks=[other])
    batches = expected(url, 7, 3)
    assert recorder.taken == [[number // 10, samples] for number, samples in enumerate(batches[:20])]
    assert [samples for _, samples in other.taken] == batches[20:]
    assert feed.stats().samples >= 3 * EPOCH


def check_steps(url):
    """Keras' epochs are 4 steps, the dataset's 10; and those of one step go on, too."""
    for options, steps, epochs in (({"repeat": True}, 4, 5), ({"repeat": True}, 1, 3), ({}, 1, 3), ({}, 4, 2)):
        feed = tpufeed.keras_dataset(url, batch_size=7, columns=["image", "sample"], **options)
        taken = fit(feed, 7, steps_per_epoch=steps, epochs=epochs)
        batches = expected(url, 7, 2)[: steps * epochs]
        assert taken == [[number // steps, samples] for number, samples in enumerate(batches)], (options, steps)
    one = tpufeed.keras_dataset(url, batch_size=EPOCH, columns=["image", "sample"])
    first, second = (sorted(samples) for _, samples in fit(one, EPOCH, epochs=2))
    assert first == second == list(range(EPOCH))


def check_weights(url):
    """Padding and classes weigh samples; what `evaluate` says is what numpy says; `predict` gives a row a sample."""
    given = {"batch_size": 8, "ops": OPS, "shuffle": False, "remainder": "pad"}
    weights = {0: 2.0, 1: 0.5}
    val = tpufeed.keras_dataset(url, "val", class_weight=weights, **given)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    keras.utils.set_random_seed(1)
    inputs = keras.Input((SIDE, SIDE, 3), dtype="uint8")
    scores = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(inputs)))
    model = keras.Model(inputs, scores)
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="true")
    model.compile("adam", loss, weighted_metrics=[metric])
    measured = model.evaluate(val, verbose=0, return_dict=True)["true"]
    with tpufeed.numpy_loader(url, "val", batch_size=8, ops=OPS, shuffle=False, remainder="pad") as loader:
        images, labels, mask = (np.concatenate(column) for column in zip(*loader, strict=True))
    records = tpufeed.open_dataset(url).split("val").records
    alone = tpufeed.keras_dataset(url, "val", columns=["image"], **given)
    predicted = model.predict(alone, verbose=0)
    assert len(predicted) == len(images) > records
    each = keras.ops.convert_to_numpy(keras.losses.sparse_categorical_crossentropy(labels, predicted, from_logits=True))
    weighed = np.array([weights.get(int(label), 1.0) for label in labels]) * mask
    np.testing.assert_allclose(measured, (each * weighed).sum() / weighed.sum(), rtol=1e-4)
    train = tpufeed.keras_dataset(url, batch_size=7, ops=OPS)
    history = model.fit(train, validation_data=val, epochs=2, class_weight={0: 1.0, 1: 2.0, 2: 1.0}, verbose=0).history
    assert np.isfinite(history["loss"] + history["val_true"]).all()


def check_resume(url, folder):
    """A training that is stopped twice takes each step that was left, also of epochs that are Keras' own."""
    steps = {"repeat": True, "fit": {"steps_per_epoch": 6, "epochs": 4}}
    together = [{"spe": 4}, steps | {"spe": 2}] if keras.backend.backend() == "jax" else []
    for number, given in enumerate([steps, *together]):
        whole, _ = train(url, folder / f"whole-{number}", **given)
        saved = 0
        for most in (9, 5, 10**9):
            taken, _ = train(url, folder / str(number), steps=most, **given)
            assert taken == whole[saved : saved + len(taken)], (given, saved, taken, whole)
            done, saved = saved + len(taken), find_saved(folder / str(number))
        assert done == len(whole), (given, done)


def check_data_parallel(url):
    import jax

    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=jax.devices()))
    assert len(jax.devices()) == 8
    feed = tpufeed.keras_dataset(url, batch_size=8, columns=["image", "sample"])
    assert [samples for _, samples in fit(feed, 8, epochs=2)] == expected(url, 8, 2)


if __name__ == "__main__":
    dataset, cache, folder = sys.argv[1:]
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        jax.default_backend = lambda: "tpu"  # Keras sends a batch ahead there, which no other of these tests has
    check_epochs(cache)
    check_steps(cache)
    check_weights(dataset)
    check_resume(cache, Path(folder))
    if backend == "jax":
        check_data_parallel(cache)
    assert backend == "torch" or "tensorflow" not in sys.modules
    print("ok")
