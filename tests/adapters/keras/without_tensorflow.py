"""to_keras() without TensorFlow, on KERAS_BACKEND: `without_tensorflow.py DATASET CACHE FOLDER`."""

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
from keras import ops
from training import Recorder, Seen, all_steps, find_saved, train

import tpufeed
from tpufeed.images import CenterCrop, HorizontalFlip, Resize

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
    with tpufeed.Loader(url, batch_size=batch, columns=["sample"]) as loader:
        return [samples.tolist() for _ in range(epochs) for samples in loader]


def check_epochs(url):
    """Epochs follow each other; the batch that builds the model is not lost; a second fit continues."""
    feed = tpufeed.Loader(url, batch_size=7, columns=["image", "sample"]).to_keras()
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
    """Keras' epochs are 4 steps, the dataset's 10; epochs of one step continue, too."""
    for options, steps, epochs in (({"repeat": True}, 4, 5), ({"repeat": True}, 1, 3), ({}, 1, 3), ({}, 4, 2)):
        feed = tpufeed.Loader(url, batch_size=7, columns=["image", "sample"], **options).to_keras()
        taken = fit(feed, 7, steps_per_epoch=steps, epochs=epochs)
        batches = expected(url, 7, 2)[: steps * epochs]
        assert taken == [[number // steps, samples] for number, samples in enumerate(batches)], (options, steps)
    for batch in (EPOCH, EPOCH // 2):  # Keras builds the model with all batches of an epoch
        feed = tpufeed.Loader(url, batch_size=batch, columns=["image", "sample"]).to_keras()
        assert [samples for _, samples in fit(feed, batch, epochs=2)] == expected(url, batch, 2)


class Echo(keras.Model):
    """Returns the numbers of the samples. A layer is not built before a batch is there."""

    fails = False

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def call(self, batch):
        if self.fails:
            raise ValueError("the first try of somebody")
        return ops.cast(batch["sample"], "float32")[:, None] + 0 * self.layer(
            ops.cast(batch["image"][:, 0, 0], "float32")
        )


class Judged(keras.callbacks.Callback):
    """Collects the samples of each validation."""

    def __init__(self, seen):
        super().__init__()
        self.seen, self.taken = seen, []

    def on_test_end(self, logs=None):
        assert self.model is not None  # as in Recorder
        self.taken.append(rows(self.seen))


def calls(url, steps, repeat, count):
    """Samples of each step of `count` calls: each begins the epoch after that of the last batch that was used."""
    batches, epoch, found = expected(url, 7, count * (1 + steps // 10)), 0, []
    for _ in range(count):
        found.append(batches[10 * epoch : 10 * epoch + steps])
        epoch += 1 + (steps - 1) // 10 * repeat
    return found


def check_calls(url, cases):
    """Each call of fit, evaluate and predict continues; a batch comes twice only if Keras built a model from it."""
    for repeat, steps, together in cases:
        wanted = calls(url, steps, repeat, 3)
        fitted, evaluated, validated, told, train = (
            tpufeed.Loader(url, batch_size=7, columns=columns, repeat=repeat).to_keras()
            for columns in [["image", "sample"]] * 3 + [None, ["image", "sample"]]
        )
        (model, seen), (other, judged) = (make_model(7, steps_per_execution=together) for _ in range(2))
        echo, found = Echo(), []
        for number in range(3):
            if number == 2:  # its metrics are to be built once more
                model.compile("adam", "mse", metrics=[seen := Seen(7)], steps_per_execution=together)
            recorder = Recorder(seen, 10**9, None)
            model.fit(fitted, steps_per_epoch=steps, verbose=0, callbacks=[recorder])
            other.evaluate(evaluated, steps=steps, verbose=0)
            predicted = echo.predict(told, steps=steps, verbose=0).astype(int).reshape(-1, 7)
            found.append([[samples for _, samples in recorder.taken], rows(judged), predicted.tolist()])
        assert found == [[samples] * 3 for samples in wanted], (repeat, steps, found, wanted)
        model, seen = make_model(7)
        notes = Judged(seen)
        given = {"validation_data": validated, "validation_steps": steps}
        model.fit(train, epochs=3, steps_per_epoch=1, verbose=0, callbacks=[notes], **given)
        assert notes.taken == wanted, (repeat, steps, notes.taken, wanted)


def check_failed_build(url):
    """The batch of a model that could not be built is not lost."""
    feed, model = tpufeed.Loader(url, batch_size=7, columns=None).to_keras(), Echo()
    model.compile("adam", "mse")
    model.fails = True
    try:
        model.fit(feed, verbose=0)
    except (ValueError, RuntimeError):
        model.fails = False
    predicted = model.predict(feed, verbose=0).astype(int).reshape(-1, 7)
    assert predicted.tolist() == expected(url, 7, 1)


def rows(seen):
    count = int(ops.convert_to_numpy(seen.count))
    return ops.convert_to_numpy(seen.rows)[:count].astype(int).tolist()


def check_weights(url):
    """Padding and classes weigh samples; what `evaluate` says is what numpy says; `predict` gives a row a sample."""
    given = {"batch_size": 8, "ops": OPS, "shuffle": False, "remainder": "pad"}
    weights = {0: 2.0, 1: 0.5}
    val = tpufeed.Loader(url, "val", **given).to_keras(class_weight=weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    keras.utils.set_random_seed(1)
    inputs = keras.Input((SIDE, SIDE, 3), dtype="uint8")
    scores = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(inputs)))
    model = keras.Model(inputs, scores)
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="true")
    model.compile("adam", loss, weighted_metrics=[metric])
    measured = model.evaluate(val, verbose=0, return_dict=True)["true"]
    with tpufeed.Loader(url, "val", batch_size=8, ops=OPS, shuffle=False, remainder="pad") as loader:
        images, labels, mask = (np.concatenate(column) for column in zip(*loader, strict=True))
    records = tpufeed.open_dataset(url).split("val").records
    alone = tpufeed.Loader(url, "val", columns=["image"], **given).to_keras()
    predicted = model.predict(alone, verbose=0)
    assert len(predicted) == len(images) > records
    each = keras.ops.convert_to_numpy(keras.losses.sparse_categorical_crossentropy(labels, predicted, from_logits=True))
    weighed = np.array([weights.get(int(label), 1.0) for label in labels]) * mask
    np.testing.assert_allclose(measured, (each * weighed).sum() / weighed.sum(), rtol=1e-4)
    train = tpufeed.Loader(url, batch_size=7, ops=OPS).to_keras()
    history = model.fit(train, validation_data=val, epochs=2, class_weight={0: 1.0, 1: 2.0, 2: 1.0}, verbose=0).history
    assert np.isfinite(history["loss"] + history["val_true"]).all()


def check_resume(url, folder):
    """A training that is stopped twice takes each step that was left, also of epochs that are Keras' own."""
    steps = {"repeat": True, "fit": {"steps_per_epoch": 6, "epochs": 4}}
    together = [{"spe": 4}, steps | {"spe": 2}] if keras.backend.backend() == "jax" else []
    short = {"repeat": True, "fit": {"steps_per_epoch": 3, "epochs": 6}}  # 3 of them begin after the rest of one
    for number, given in enumerate([steps, short, *together]):
        fit = given.get("fit", {"steps_per_epoch": 10, "epochs": 3})
        whole = all_steps(url, epoch_steps=fit["steps_per_epoch"])[: fit["steps_per_epoch"] * fit["epochs"]]
        saved = 0
        for most in (9, 5, 10**9):
            taken, _ = train(url, folder / str(number), steps=most, **given)
            assert taken == whole[saved : saved + len(taken)], (given, saved, taken, whole)
            done, saved = saved + len(taken), find_saved(folder / str(number))
        assert done == len(whole), (given, done)


def check_place(url, folder):
    """What others take of the feed between epochs is trained with all the same."""
    loader = tpufeed.Loader(url, batch_size=7, columns=["image", "sample"], repeat=True)
    feed = loader.to_keras()
    (model, seen), (other, _) = make_model(7), make_model(7)
    recorder = Recorder(seen, 10**9, None)
    between = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: other.evaluate(feed, steps=1, verbose=0))
    callbacks = [tpufeed.keras_state(loader, folder / "place.json"), between, recorder]
    model.fit(feed, epochs=3, steps_per_epoch=4, verbose=0, callbacks=callbacks)
    assert [samples for _, samples in recorder.taken] == expected(url, 7, 2)[:12]


def check_device_ops(url):
    """They run on JAX's device; for torch, whose batches Keras takes from the host, they run there."""
    given = {"batch_size": 7, "columns": ["image", "sample"]}
    with tpufeed.Loader(url, **given) as loader:
        images, _ = next(iter(loader))
    feed = tpufeed.Loader(url, device_ops=[HorizontalFlip(p=1.0)], **given).to_keras()
    feed.on_epoch_begin()
    assert feed.num_batches == EPOCH // 7
    mirrored, _ = feed[0]
    assert isinstance(mirrored, np.ndarray) == (keras.backend.backend() == "torch")
    np.testing.assert_array_equal(np.asarray(mirrored), images[:, :, ::-1])
    feed.set_epoch(0)
    assert [samples for _, samples in fit(feed, 7, epochs=2)] == expected(url, 7, 2)


def check_data_parallel(url):
    import jax

    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=jax.devices()))
    assert len(jax.devices()) == 8
    feed = tpufeed.Loader(url, batch_size=8, columns=["image", "sample"]).to_keras()
    assert [samples for _, samples in fit(feed, 8, epochs=2)] == expected(url, 8, 2)


if __name__ == "__main__":
    dataset, cache, folder = sys.argv[1:]
    backend = keras.backend.backend()
    check_calls(cache, [(True, 1, 1)])
    if backend == "jax":
        import jax

        jax.default_backend = lambda: "tpu"  # Keras sends a batch ahead there, which no other of these tests has
    check_calls(cache, [(True, 10, 2 if backend == "jax" else 1), (False, 2, 1)])
    check_failed_build(cache)
    check_epochs(cache)
    check_steps(cache)
    check_weights(dataset)
    check_resume(cache, Path(folder))
    check_place(cache, Path(folder))
    check_device_ops(cache)
    if backend == "jax":
        check_data_parallel(cache)
    assert backend == "torch" or "tensorflow" not in sys.modules
    print("ok")
