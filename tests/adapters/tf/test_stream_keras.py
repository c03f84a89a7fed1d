"""to_tf under Keras: fit iterates it once an epoch, and so moves from variant to variant."""

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy

keras = lazy("keras")
tf = lazy("tensorflow")
Recorder = lazy("tests.adapters.tf.recorder:Recorder")

EPOCH = 70


def make_model(**options):
    model = Recorder()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **options)
    model(np.zeros((1, 64, 64, 3)))
    return model


def with_samples(url, **options):
    """Elements are ({"image", "sample"}, label): Keras weighs classes if nothing comes after the label."""
    dataset = tpufeed.Loader(url, columns=None, **options).to_tf()
    return dataset.map(lambda each: ({"image": each["image"], "sample": each["sample"]}, each["label"]))


def test_two_epochs_of_fit_see_variant_0_then_1(cache_url, stored):
    variants = [stored(cache_url, "train", number).pixels for number in (0, 1)]
    assert not any(np.array_equal(*pair) for pair in zip(*variants, strict=True))
    dataset = tpufeed.Loader(cache_url, batch_size=7, columns=["image", "label", "sample"]).to_tf()
    model = make_model(steps_per_execution=3)
    before = [weight.numpy() for weight in model.trainable_weights]
    history = model.fit(dataset, epochs=2, verbose=0).history
    assert len(model.seen) == 20
    for epoch, batches in enumerate((model.seen[:10], model.seen[10:])):
        for images, labels, samples in batches:
            np.testing.assert_array_equal(images, variants[epoch][samples])
            np.testing.assert_array_equal(labels, stored(cache_url).labels[samples])
        assert sorted(np.concatenate([samples for *_, samples in batches])) == list(range(EPOCH))
    first, second = ([samples.tolist() for *_, samples in part] for part in (model.seen[:10], model.seen[10:]))
    assert first != second
    assert len(history["loss"]) == 2
    model.seen.clear()
    model.fit(dataset, verbose=0)  # a second fit continues with the next epoch
    for images, _, samples in model.seen:
        np.testing.assert_array_equal(images, variants[0][samples])
    assert np.isfinite(history["loss"]).all()
    assert all((old != new.numpy()).any() for old, new in zip(before, model.trainable_weights, strict=True))


def test_three_epochs_of_live_crops_with_validation_and_class_weights(dataset_url, stored, ops):
    train = with_samples(dataset_url, batch_size=7, ops=ops)
    val = tpufeed.Loader(dataset_url, "val", batch_size=13, shuffle=False, ops=ops).to_tf()
    weights = tpufeed.open_dataset(dataset_url).class_weights("train")
    model = make_model(steps_per_execution=4)
    given = {"validation_data": val, "class_weight": weights, "epochs": 3, "verbose": 0}
    history = model.fit(train, **given).history
    assert np.isfinite(history["loss"] + history["val_loss"]).all()
    assert len(history["val_accuracy"]) == 3
    assert model.optimizer.iterations.numpy() == len(model.seen) == 30
    orders, pixels = [], []
    for start in (0, 10, 20):
        images, labels, samples, weighed = map(np.concatenate, zip(*model.seen[start : start + 10], strict=True))
        assert sorted(samples) == list(range(EPOCH))
        np.testing.assert_array_equal(labels, stored(dataset_url).labels[samples])
        np.testing.assert_allclose(weighed, [weights[label] for label in labels])
        orders.append(samples.tolist())
        pixels.append(images[np.argsort(samples)])
    assert len(set(map(tuple, orders))) == 3
    for one, other in ((0, 1), (0, 2), (1, 2)):  # a crop may be drawn twice, most are not
        assert (pixels[one] != pixels[other]).any((1, 2, 3)).sum() > 60


def test_repeat_carries_epochs_through_fit_s_own(cache_url, stored):
    """Keras' epochs of 5 steps are halves of the dataset's, whose variants alternate."""
    dataset = tpufeed.Loader(cache_url, batch_size=7, columns=["image", "label", "sample"], repeat=True).to_tf()
    val = tpufeed.Loader(cache_url, "val", batch_size=13, repeat=True).to_tf()
    model = make_model()
    history = model.fit(dataset, epochs=4, steps_per_epoch=5, validation_data=val, validation_steps=2, verbose=0)
    assert len(history.history["val_loss"]) == 4
    assert len(model.seen) == 20
    for epoch, batches in enumerate((model.seen[:10], model.seen[10:])):
        for images, _, samples in batches:
            np.testing.assert_array_equal(images, stored(cache_url, "train", epoch).pixels[samples])
        assert sorted(np.concatenate([samples for *_, samples in batches])) == list(range(EPOCH))


def test_after_a_state_the_first_epoch_is_the_rest_and_all_later_ones_are_whole(cache_url):
    with tpufeed.Loader(cache_url, batch_size=7, columns=["sample"]) as loader:
        loader.load_state_dict(loader.stream.state_at(1, 28))
        expected = [samples.tolist() for _ in range(3) for samples in loader]
    resumed = tpufeed.Loader(cache_url, batch_size=7, columns=["image", "label", "sample"])
    resumed.load_state_dict(loader.stream.state_at(1, 28))
    dataset = resumed.to_tf()
    model = make_model(steps_per_execution=4)
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(dataset, epochs=3, shuffle=False, verbose=0)
    assert [samples.tolist() for *_, samples in model.seen] == expected
    assert len(expected) == 6 + 10 + 10


def test_evaluation_weighs_padding_with_nothing(cache_url, stored):
    """(image, label, mask) is Keras' (x, y, sample_weight): each sample counts once; each evaluation is an epoch."""
    keras.utils.set_random_seed(0)
    dataset = tpufeed.Loader(cache_url, "val", batch_size=8, shuffle=False, remainder="pad").to_tf()
    assert len(dataset) == 4
    inputs = keras.Input((64, 64, 3))
    outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(inputs)))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    entropy = keras.metrics.SparseCategoricalCrossentropy("entropy", from_logits=True)
    model.compile("sgd", loss, weighted_metrics=["accuracy", entropy], steps_per_execution=2)
    for variant in range(2):
        held = stored(cache_url, "val", variant)
        result = model.evaluate(dataset, verbose=0, return_dict=True)
        logits = model.predict(held.pixels, verbose=0)
        assert result["accuracy"] == pytest.approx((logits.argmax(1) == held.labels).mean())
        expected = keras.losses.sparse_categorical_crossentropy(held.labels, logits, from_logits=True)
        assert result["entropy"] == pytest.approx(np.mean(expected))
        assert result["loss"] == pytest.approx(np.sum(expected) / 32)  # Keras divides by the batches' sizes
    train = tpufeed.Loader(cache_url, batch_size=10).to_tf()
    history = model.fit(train, validation_data=dataset, epochs=2, verbose=0).history
    assert len(history["val_accuracy"]) == 2


def test_under_a_strategy_each_epoch_is_whole_and_of_another_variant(cache_url, stored):
    """There Keras 3 takes one batch to build the model, which uses up an epoch."""
    dataset = tpufeed.Loader(cache_url, batch_size=7, columns=["image", "label", "sample"]).to_tf()
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = make_model()
    model.fit(dataset, epochs=3, verbose=0)
    seen = []
    for batches in (model.seen[:10], model.seen[10:20], model.seen[20:]):
        assert sorted(np.concatenate([samples for *_, samples in batches])) == list(range(EPOCH))
        matches = [
            all(
                np.array_equal(images, stored(cache_url, "train", number).pixels[samples])
                for images, _, samples in batches
            )
            for number in (0, 1)
        ]
        assert matches.count(True) == 1
        seen.append(matches.index(True))
    assert seen in ([0, 1, 0], [1, 0, 1])
