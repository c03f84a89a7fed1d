"""tf_dataset under Keras: fit iterates it anew each epoch, and so moves from variant to variant."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tpufeed

EPOCH = 70


class Recorder(keras.Model):
    """A small classifier that writes down which samples and pixels its compiled training step was given."""

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
        for layer in self.layers_:
            images = layer(images)
        return images

    def train_step(self, data):
        images, labels, samples = data

        def record(images, labels, samples):
            self.seen.append((images.numpy(), labels.numpy(), samples.numpy()))

        tf.py_function(record, [images, labels, samples], [])
        return super().train_step((images, labels))


def make_model(**options):
    model = Recorder()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **options)
    model(np.zeros((1, 64, 64, 3)))
    return model


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_two_epochs_of_fit_see_variant_0_then_1(cache_url, stored, steps_per_execution):
    variants = [stored(cache_url, "train", number).pixels for number in (0, 1)]
    assert not any(np.array_equal(*pair) for pair in zip(*variants, strict=True))
    dataset = tpufeed.tf_dataset(cache_url, batch_size=7, columns=["image", "label", "sample"])
    model = make_model(steps_per_execution=steps_per_execution)
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
    assert np.isfinite(history["loss"]).all()
    assert all((old != new.numpy()).any() for old, new in zip(before, model.trainable_weights, strict=True))


def test_a_second_fit_goes_on_with_the_next_epoch(cache_url, stored):
    dataset = tpufeed.tf_dataset(cache_url, batch_size=10, columns=["image", "label", "sample"])
    model = make_model()
    for epoch in range(3):
        model.seen.clear()
        model.fit(dataset, verbose=0)
        for images, _, samples in model.seen:
            np.testing.assert_array_equal(images, stored(cache_url, "train", epoch % 2).pixels[samples])


def test_steps_per_epoch_with_repeat_carries_on_within_the_epochs(cache_url):
    dataset = tpufeed.tf_dataset(cache_url, batch_size=7, columns=["image", "label", "sample"]).repeat()
    model = make_model()
    model.fit(dataset, epochs=4, steps_per_epoch=5, verbose=0)
    samples = np.concatenate([samples for *_, samples in model.seen])
    assert sorted(samples[:EPOCH]) == sorted(samples[EPOCH:]) == list(range(EPOCH))


def test_evaluation_weighs_padding_with_nothing(cache_url, stored):
    """(image, label, mask) is Keras' (x, y, sample_weight): each sample counts once; each evaluation is an epoch."""
    keras.utils.set_random_seed(0)
    dataset = tpufeed.tf_dataset(cache_url, "val", batch_size=8, shuffle=False, remainder="pad")
    assert len(dataset) == 4
    inputs = keras.Input((64, 64, 3))
    outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(inputs)))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile("sgd", loss, weighted_metrics=["accuracy"])
    for variant in range(2):
        held = stored(cache_url, "val", variant)
        result = model.evaluate(dataset, verbose=0, return_dict=True)
        logits = model.predict(held.pixels, verbose=0)
        assert result["accuracy"] == pytest.approx((logits.argmax(1) == held.labels).mean())
    train = tpufeed.tf_dataset(cache_url, batch_size=10)
    history = model.fit(train, validation_data=dataset, epochs=2, verbose=0).history
    assert len(history["val_accuracy"]) == 2


def test_an_error_of_the_source_stops_fit(cache_url, damage):
    damaged = damage(cache_url, 33)
    dataset = tpufeed.tf_dataset(damaged.url, batch_size=5, shuffle=False, columns=["image", "label", "sample"])
    model = make_model()
    with pytest.raises(tf.errors.OpError, match=f"{damaged.shard}, record {damaged.record}"):
        model.fit(dataset, epochs=2, verbose=0)
    assert [samples.tolist() for *_, samples in model.seen] == np.arange(30).reshape(6, 5).tolist()


def test_under_a_strategy_each_epoch_is_whole_and_of_another_variant(cache_url, stored):
    """There Keras 3 takes one batch to build the model, which uses up an epoch."""
    dataset = tpufeed.tf_dataset(cache_url, batch_size=7, columns=["image", "label", "sample"])
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
