"""keras_state: whatever stops a training, the next start takes the steps that were left, on each backend of Keras."""

import itertools

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import DamageError, OptionError

Recorder = lazy("tests.adapters.keras.training:Recorder")
Seen = lazy("tests.adapters.keras.training:Seen")
all_steps = lazy("tests.adapters.keras.training:all_steps")
find_saved = lazy("tests.adapters.keras.training:find_saved")
make_feed = lazy("tests.adapters.keras.training:make_feed")
make_model = lazy("tests.adapters.keras.training:make_model")
stop = lazy("tests.adapters.keras.training:stop")
train = lazy("tests.adapters.keras.training:train")

keras = lazy("keras")
tf = lazy("tensorflow")

EPOCH, MOST = 10, 1000  # steps


@pytest.mark.parametrize(
    "given",
    [
        {"save_freq": "epoch"},
        {"save_freq": 3, "place_first": True, "deterministic": True},
        {"save_freq": 4, "spe": 4},  # an epoch is 4, 4 and 2 steps
        {"save_freq": 4, "spe": 4, "fit": {"steps_per_epoch": 6, "epochs": 3}, "repeat": True},  # Keras takes 8
    ],
    ids=str,
)
def test_stopped_again_and_again_it_takes_each_step_that_was_left(cache_url, tmp_path, given):
    """Also in an epoch in which it went on: there Keras' own backup has forgotten which epoch it was."""
    epoch_steps = 8 if "fit" in given else EPOCH
    expected = all_steps(cache_url, epoch_steps=epoch_steps)
    expected = expected[: epoch_steps * given["fit"]["epochs"]] if "fit" in given else expected
    saved = 0
    for steps in (6, 3, 9):
        taken, _ = train(cache_url, tmp_path, steps=steps, **given)
        assert taken == expected[saved : saved + len(taken)]
        # Backups count from where a start began.
        saved = saved + len(taken)
        if given["save_freq"] == "epoch":
            saved -= saved % epoch_steps
        else:
            saved = find_saved(tmp_path)
    taken, _ = train(cache_url, tmp_path, **given)
    assert taken == expected[saved:]


def test_a_mixture_goes_on_in_a_later_epoch(cache_url, tmp_path):
    mixture = tpufeed.Mixture({cache_url: 1})
    expected = all_steps(mixture)
    taken, _ = train(mixture, tmp_path, steps=2 * EPOCH + 4)
    assert taken == expected[: 2 * EPOCH + 4]
    assert train(mixture, tmp_path)[0] == expected[find_saved(tmp_path) :]


def test_a_mixture_leaves_nothing_out_if_the_batch_changes(cache_url, tmp_path):
    mixture = tpufeed.Mixture({cache_url: 1})
    with tpufeed.Loader(tpufeed.Mixture({cache_url: 1}, stop="never"), batch_size=1, columns=["sample"]) as loader:
        stream = [int(sample) for sample, _ in zip(itertools.chain.from_iterable(loader), range(300), strict=False)]
    train(mixture, tmp_path, steps=14, save_freq=1)
    saved = 14 * 7
    for _ in range(2):  # the second start continues in a later epoch
        taken, _ = train(mixture, tmp_path, batch=9, steps=8, save_freq=1)
        given = [sample for _, samples in taken for sample in samples]
        assert given == stream[saved : saved + len(given)]
        saved += len(given)


def test_any_backup_of_weights_with_their_optimizer_will_do(cache_url, tmp_path):
    """A model that was saved, and the backup before the last one, which a kill had damaged."""
    expected = [samples for _, samples in all_steps(cache_url)]
    callback, place = keras.callbacks, tmp_path / "feed.json"
    saves = callback.ModelCheckpoint(str(tmp_path / "{epoch}-{batch}.keras"), save_freq=7)
    backup = callback.BackupAndRestore(str(tmp_path), save_freq=8, double_checkpoint=True, delete_checkpoint=False)
    assert fit(make_feed(cache_url), place, callbacks=[saves, backup], epochs=3) == expected
    model = keras.models.load_model(tmp_path / "2-4.keras", custom_objects={"Seen": Seen})
    seen = Seen(7)
    model.compile(model.optimizer, "mse", metrics=[seen])
    assert fit(make_feed(cache_url), place, (model, seen), epochs=3) == expected[14:]
    weights = tmp_path / "latest.weights.h5"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert fit(make_feed(cache_url), place, callbacks=[backup], epochs=3) == expected[16:]


def test_what_was_trained_already_is_said(cache_url, tmp_path, caplog):
    train(cache_url, tmp_path, fit={"epochs": 2})
    assert train(cache_url, tmp_path, fit={"epochs": 2})[0] == []
    assert "2 epochs" in caplog.text
    assert train(cache_url, tmp_path, fit={"epochs": 3})[0] == all_steps(cache_url)[2 * EPOCH :]


def fit(feed, path, model=None, callbacks=(), **given):
    """Samples of each step, by what the model has seen."""
    loader, feed = feed
    model, seen = model or make_model(7)
    recorder = Recorder(seen, MOST, stop)
    model.fit(feed, verbose=0, callbacks=[*callbacks, tpufeed.keras_state(loader, path), recorder], **given)
    return [samples for _, samples in recorder.taken]


def test_a_second_fit_and_one_after_an_interruption_go_on(cache_url, tmp_path):
    """Another callback may stop training, and so make an epoch shorter."""
    expected = [samples for _, samples in all_steps(cache_url, 5)]
    feed, model = make_feed(cache_url), make_model(7)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                raise KeyboardInterrupt

    class Early(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    place = tmp_path / "feed.json"
    assert fit(feed, place, model, epochs=1) == expected[:10]
    with pytest.raises(KeyboardInterrupt):
        fit(feed, place, model, [Stop()], epochs=5)
    val = tpufeed.Loader(cache_url, "val", batch_size=7, columns=["image", "sample"], processes=0).to_tf()
    assert fit(feed, place, model, epochs=3, validation_data=val) == expected[14:30]
    with pytest.raises(KeyboardInterrupt):
        fit(feed, place, model, [Stop()], epochs=5)
    assert fit(feed, place, model, [Early()], epochs=5) == expected[34:40]
    assert fit(feed, place, model, epochs=5) == expected[40:]
    assert next(iter(feed[1]))[1].numpy().tolist() == all_steps(cache_url, 6)[50][1]


@pytest.mark.parametrize("repeat", [False, True])
def test_it_goes_on_with_another_batch_size_and_number_of_steps(cache_url, tmp_path, repeat):
    """After 14 steps of 7 samples, 42 are left of epoch 1."""
    given = {"fit": {"steps_per_epoch": 10}, "repeat": True} if repeat else {}
    train(cache_url, tmp_path, steps=14, save_freq=1, **given)
    with tpufeed.Loader(cache_url, batch_size=10, columns=["sample"]) as loader:
        loader.load_state_dict(loader.stream.state_at(1, 28))
        rest, whole = ([samples.tolist() for samples in loader] for _ in range(2))
    assert [len(rest), len(whole)] == [4, 7]
    if repeat:  # Keras' epoch of 10 steps has 6 left, and then it has 7
        given["fit"] = {"steps_per_epoch": 7}
    taken, _ = train(cache_url, tmp_path, batch=10, steps=9, save_freq=1, **given)
    assert [samples for _, samples in taken] == [*rest, *whole][:9]
    assert [epoch for epoch, _ in taken] == ([1] * 6 + [2] * 3 if repeat else [1] * 4 + [2] * 5)
    taken, _ = train(cache_url, tmp_path, batch=10, **given)  # another start with these sizes
    assert [samples for _, samples in taken][: 2 if repeat else 9] == [*rest, *whole][9:]
    assert [epoch for epoch, _ in taken] == ([2] * 4 if repeat else [2] * 2)


def test_gradients_that_are_added_up_count_as_steps(cache_url, tmp_path):
    expected = [samples for _, samples in all_steps(cache_url, 2)]
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)
    model = make_model(7, optimizer=optimizer)
    feed = make_feed(cache_url)
    assert fit(feed, tmp_path / "feed.json", model, epochs=2) == expected


def test_its_numbers_of_epochs_are_keras_own(cache_url):
    """If `fit` begins with the third epoch, so does the feed."""
    store = "memory://kerasstate/feed.json"
    feed, model = make_feed(cache_url), make_model(7)
    expected = [samples for _, samples in all_steps(cache_url, 4)]
    assert fit(feed, store, model, initial_epoch=2, epochs=3) == expected[20:30]
    assert fit(feed, store, model, epochs=4) == expected[30:]


@pytest.mark.parametrize("repeat", [False, True])
def test_what_others_take_of_the_feed_between_epochs_is_trained_with_all_the_same(cache_url, tmp_path, repeat):
    class Peek(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            next(iter(feed[1]))

    feed = make_feed(cache_url, repeat=repeat)
    expected = [samples for _, samples in all_steps(cache_url)]
    given = {"epochs": 3, "steps_per_epoch": EPOCH if repeat else None}
    assert fit(feed, tmp_path / "feed.json", callbacks=[Peek()], **given) == expected


def test_under_a_strategy_the_first_epoch_is_the_first(cache_url, tmp_path):
    """Keras takes a batch there to build the model."""
    expected = [samples for _, samples in all_steps(cache_url, 2)]
    feed = make_feed(cache_url)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = make_model(7)
    assert fit(feed, tmp_path / "feed.json", model, epochs=2) == expected


# Refusals


def test_feeds_and_fits_whose_place_it_cannot_tell_are_refused(cache_url, tmp_path):
    feed, place = make_feed(cache_url), tmp_path / "feed.json"
    for other in (feed[1], np.zeros(3)):
        with pytest.raises(OptionError, match=r"tpufeed\.Loader"):
            tpufeed.keras_state(other, place)
    with tpufeed.Loader(cache_url, batch_size=7) as loader:
        kept = loader.to_tf(direct=True)
        with pytest.raises(OptionError, match="call that first"):
            tpufeed.keras_state(loader, place)
        loader.load_state_dict(loader.stream.state_at(1, 0))
        kept = loader.to_keras()
        with pytest.raises(OptionError, match="load_state_dict"):
            tpufeed.keras_state(loader, place)
        del kept
    with pytest.raises(OptionError, match=r"5 steps .*10 batches"):
        fit(feed, place, steps_per_epoch=5)
    (loader, endless), model = make_feed(cache_url, repeat=True), make_model(7)[0]
    with pytest.raises(OptionError, match="steps"):
        model.fit(endless, verbose=0, callbacks=[tpufeed.keras_state(loader, place)])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(OptionError, match="optimizer"):
        fit(feed, place, make_model(7, optimizer=optimizer))
    assert not place.exists()


def test_files_of_other_trainings_are_refused(cache_url, dataset_url, ops, tmp_path):
    place = tmp_path / "feed.json"
    fit(make_feed(cache_url), place)
    with pytest.raises(OptionError, match=r"feed.json.*seed is 0"):
        fit(make_feed(cache_url, seed=3), place)
    with pytest.raises(OptionError, match=r"feed.json.*content_digest"):
        fit(make_feed(dataset_url, ops=ops), place)
    whole = place.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"{}", whole.replace(b'"steps": 10', b'"steps": 0')):
        place.write_bytes(damaged)
        with pytest.raises(DamageError, match=r"feed.json"):
            fit(make_feed(cache_url), place)
    assert [path.name for path in tmp_path.iterdir()] == ["feed.json"]


def test_weights_without_their_optimizer_are_refused(cache_url, tmp_path, caplog):
    feed, place, trained = make_feed(cache_url), tmp_path / "feed.json", make_model(7)
    fit(feed, place, trained, epochs=2)
    with pytest.raises(OptionError, match=r"epoch 1 .*0 steps"):
        fit(feed, place, initial_epoch=1, epochs=2)
    fit(feed, tmp_path / "other.json", trained)
    assert "other.json does not exist" in caplog.text
    with pytest.raises(OptionError, match="20 steps"):
        fit(feed, tmp_path / "other.json")

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model._initial_epoch = 1

    with pytest.raises(OptionError, match=r"epoch 1 .*optimizer"):
        fit(feed, place, callbacks=[Restore()], epochs=2)


def test_a_training_whose_optimizer_is_new_begins_again_and_says_so(cache_url, tmp_path, caplog):
    """As after a kill before the first backup, or if weights alone were loaded."""
    feed, place = make_feed(cache_url), tmp_path / "feed.json"
    expected = [samples for _, samples in all_steps(cache_url, 1)]
    assert fit(feed, place) == expected
    assert "begins again" not in caplog.text
    assert fit(feed, place) == expected
    assert "begins again at epoch 0" in caplog.text


@pytest.mark.parametrize("repeat", [False, True])
def test_another_feed_than_that_of_fit_is_refused(cache_url, tmp_path, repeat):
    steps = {"steps_per_epoch": EPOCH} if repeat else {}
    loader, _kept = make_feed(cache_url, repeat=repeat)
    place = tpufeed.keras_state(loader, tmp_path / "feed.json")
    with pytest.raises(OptionError, match="keras_state"):
        make_model(7)[0].fit(make_feed(cache_url, repeat=repeat)[1], verbose=0, callbacks=[place], **steps)


def test_a_step_that_is_no_batch_is_found_at_the_end_of_the_epoch(cache_url, tmp_path):
    feed, model = make_feed(cache_url), make_model(7)

    class Twice(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.optimizer._iterations.assign_add(1)

    with pytest.raises(OptionError, match="optimizer"):
        fit(feed, tmp_path / "feed.json", model, [Twice()], epochs=2)
