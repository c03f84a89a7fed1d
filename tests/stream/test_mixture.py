"""Mixtures at the loaders: shares, worlds, resuming, classes, columns, and what is refused."""

import json
import pickle
import shutil
import threading
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.engines.contract import wait_until
from tests.frameworks import lazy
from tests.gcs_server import GcsServer
from tpufeed import Mixture, cache
from tpufeed.errors import OptionError, RecordError
from tpufeed.images import CenterCrop, MixUp, RandomResizedCrop, Resize
from tpufeed.stream.mixture import parse_mixture

KerasFeed = lazy("tpufeed.adapters.keras.dataset:KerasFeed")
keras = lazy("keras")

OPS = [Resize(16), CenterCrop(16)]
LANES = 8
COLUMNS = ["sample", "source", "label", "image"]


def make_images(folder: Path, count: int, classes: list[str], seed: int, size: tuple[int, int] = (20, 24)) -> Path:
    random = np.random.default_rng(seed)
    for number in range(count):
        path = folder / classes[number % len(classes)] / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (*size, 3), np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Three datasets of 160, 80 and 24 images, of other sizes and classes; the third is a raw cache of two variants."""
    folder = tmp_path_factory.mktemp("mixtures")
    made = []
    for number, (count, classes) in enumerate(((160, ["cat", "dog"]), (80, ["dog", "emu"]), (24, ["emu", "cat"]))):
        raw = make_images(folder / f"raw{number}", count, classes, number, (20 + number, 24))
        tpufeed.shard(raw, folder / str(number), shards=4 - number, workers=1)
        made.append(str(folder / str(number)))
    cache.warmup(made[2], f"{made[2]}-cache", ops=[RandomResizedCrop(16)], variants=2, shard_bytes="6KB", workers=1)
    return [*made[:2], f"{made[2]}-cache"]


def make(mixture, **options):
    given = {"batch_size": 8, "ops": OPS, "columns": COLUMNS, "lanes": LANES, "processes": 0, "threads": 2}
    return tpufeed.Loader(mixture, **given | options)


def rows_of(batches):
    """Each sample as (sample, source, label, CRC of the image); of the first four columns."""
    found = []
    for sample, source, label, image, *_ in batches:
        found += zip(
            sample.tolist(), source.tolist(), label.tolist(), [zlib.crc32(each) for each in image], strict=True
        )
    return found


def epoch_of(mixture, world=(0, 1), epochs=1, **options):
    with make(mixture, world=world, batch_size=8 // world[1], **options) as loader:
        return [rows_of(loader) for _ in range(epochs)]


def interleaved(ranks):
    """The global sequence of the ranks' epochs."""
    return [[row for group in zip(*epoch, strict=True) for row in group] for epoch in zip(*ranks, strict=True)]


@pytest.fixture(scope="module")
def mixture(urls):
    return Mixture({urls[0]: 6, urls[1]: 3, urls[2]: 1})


@pytest.mark.all
@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_world_sees_the_same_sequence(mixture, size):
    alone = epoch_of(mixture, epochs=2)
    assert interleaved([epoch_of(mixture, (rank, size), 2) for rank in range(size)]) == alone


@pytest.mark.parametrize("stop", ["shortest", "longest"])
def test_no_sample_comes_twice_before_its_source_is_through(urls, stop):
    mixed = Mixture({urls[0]: 6, urls[1]: 3, urls[2]: 1}, stop=stop)
    rows = [row for epoch in epoch_of(mixed, epochs=3) for row in epoch]
    counts = Counter(source for _, source, *_ in rows)
    for source, records in ((0, 160), (1, 80), (2, 24)):
        by_lane = {}
        for place, (sample, each, *_) in enumerate(rows):
            if each == source:
                by_lane.setdefault(place % LANES, []).append(sample)
        for samples in by_lane.values():
            own = records // LANES
            for first in range(0, len(samples), own):
                assert len(set(samples[first : first + own])) == len(samples[first : first + own])
        # What all lanes have read as their first epoch is the whole source.
        first = [sample for samples in by_lane.values() for sample in samples[: records // LANES]]
        if stop == "longest":
            assert sorted(first) == list(range(records))
    assert abs(counts[0] / len(rows) - 0.6) < 0.06


@pytest.mark.all
def test_an_epoch_is_as_long_as_stop_says(urls):
    lengths = {}
    for stop in ("shortest", "longest"):
        with make(Mixture({urls[0]: 1, urls[1]: 1}, stop=stop)) as loader:
            rows, lengths[stop] = rows_of(loader), len(loader)
            assert len(rows) == 8 * lengths[stop]
            most = max(Counter((sample, source) for sample, source, *_ in rows).values())
            assert (most > 1) == (stop == "longest")
    assert lengths["shortest"] < 160 / 8 < lengths["longest"]
    with make(Mixture({urls[0]: 1, urls[1]: 1}, stop="never")) as loader:
        batches = iter(loader)
        assert len([next(batches) for _ in range(lengths["longest"] + 5)]) == lengths["longest"] + 5


def test_one_source_is_read_as_without_a_mixture(urls):
    with make(Mixture({urls[0]: 2}), columns=COLUMNS) as mixed, make(urls[0], columns=["sample", "image"]) as alone:
        assert len(mixed) == len(alone)
        for _ in range(2):
            for (sample, _, _, image), (own, own_image) in zip(mixed, alone, strict=True):
                assert (sample == own).all()
                assert (image == own_image).all()


def test_variants_of_a_cache_follow_its_own_epochs(urls):
    (rows,) = epoch_of(Mixture({urls[0]: 1, urls[2]: 1}, stop="longest"))
    given, images = Counter(), {}
    for place, (sample, source, _, crc) in enumerate(rows):
        if source == 1:
            epoch = given[place % LANES] // (24 // LANES)
            given[place % LANES] += 1
            images.setdefault((sample, epoch % 2), set()).add(crc)
    assert len(images) == 48
    assert all(len(crcs) == 1 for crcs in images.values())
    assert all(images[sample, 0] != images[sample, 1] for sample in range(24))


@pytest.mark.all
@pytest.mark.parametrize(("processes", "stops", "hosts"), [(0, (0, 1, 7, -1), 4), (2, (7,), 2)])
def test_a_run_continues_at_any_sample_on_another_number_of_hosts(mixture, processes, stops, hosts):
    for stopped in stops:
        with make(mixture, processes=processes) as loader:
            batches = iter(loader)
            for _ in range(stopped % len(loader)):
                next(batches)
            state = json.loads(json.dumps(loader.state_dict()))
            rest, after = rows_of(batches), rows_of(loader)
        ranks = []
        for rank in range(hosts):
            given = {"batch_size": 8 // hosts, "world": (rank, hosts), "lanes": None, "processes": processes}
            with make(mixture, **given) as loader:
                loader.load_state_dict(state)
                ranks.append([rows_of(loader), rows_of(loader)])
        assert interleaved(ranks) == [rest, after]


@pytest.mark.all
def test_other_weights_are_refused_and_reweight_goes_on_without_a_sample_lost(urls):
    before, after = {urls[0]: 0.7, urls[1]: 0.3}, {urls[0]: 0.2, urls[1]: 0.5, urls[2]: 0.3}
    with make(Mixture(before, stop="longest")) as loader:
        batches = iter(loader)
        seen = rows_of(next(batches) for _ in range(9))
        state = loader.state_dict()
        going_on = rows_of(batches)
    with (
        make(Mixture(after, stop="longest")) as loader,
        pytest.raises(OptionError, match=r"=0\.7.*=0\.2") as told,
    ):
        loader.load_state_dict(state)
    assert "reweight=True" in str(told.value)
    with make(Mixture(before, stop="longest", reweight=True)) as loader:
        loader.load_state_dict(state)
        assert rows_of(loader) == going_on, "with the same weights nothing changes"
    with make(Mixture(after, stop="longest", reweight=True)) as loader:
        loader.load_state_dict(state)
        rows, later = rows_of(loader), loader.state_dict()
        following = rows_of(loader)
    counts = Counter(source for _, source, *_ in rows)
    assert 0.1 < counts[0] / len(rows) < 0.3
    assert 0.2 < counts[2] / len(rows) < 0.4
    for source, records in ((0, 160), (1, 80)):  # the first epoch of each lane continues
        lanes = {}
        for place, (sample, each, *_) in enumerate([*seen, *rows]):
            if each == source:
                lanes.setdefault(place % LANES, []).append(sample)
        for samples in lanes.values():
            own = samples[: records // LANES]
            assert len(set(own)) == len(own)
    # A state of then needs no `reweight`, on any number of ranks.
    ranks = []
    for rank in range(2):
        with make(Mixture(after, stop="longest"), batch_size=4, world=(rank, 2)) as loader:
            loader.load_state_dict(later)
            ranks.append([rows_of(loader)])
    assert interleaved(ranks) == [following]


def test_a_source_may_go_when_weights_change(urls):
    with make(Mixture({urls[0]: 1, urls[1]: 1, urls[2]: 1})) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with make(Mixture({urls[1]: 1, urls[0]: 3}, reweight=True)) as loader:
        loader.load_state_dict(state)
        rows = rows_of(loader)
        again = loader.state_dict()
    counts = Counter(source for _, source, *_ in rows)
    assert set(counts) == {0, 1}
    assert counts[1] > counts[0], "numbers of sources are those of the present mixture"
    with make(Mixture({urls[1]: 1, urls[0]: 3}, reweight=True)) as loader:
        loader.load_state_dict(again)
        assert len(rows_of(loader))


def given_of(loader, batches):
    """(sample, source) of the next batches of an iteration."""
    iterator = iter(loader)
    return [pair for _ in range(batches) for pair in zip(*(c.tolist() for c in next(iterator)[:2]), strict=True)]


@pytest.mark.parametrize("batch_size", [5, 8])
def test_new_weights_hold_from_the_very_next_sample(urls, batch_size):
    """Also in the midst of a row of lanes: a source that is left out gives no sample more, and no other one twice."""
    options = {"batch_size": batch_size, "lanes": 16, "columns": ["sample", "source"]}
    with make(Mixture({urls[0]: 1, urls[1]: 1}, stop="never"), **options) as loader:
        seen = [(sample, urls[source]) for sample, source in given_of(loader, 3)]
        state = loader.state_dict()
    with make(Mixture({urls[2]: 1, urls[0]: 1}, stop="never", reweight=True), **options) as loader:
        loader.load_state_dict(state)
        later = given_of(loader, 12)
        state = loader.state_dict()
    seen += [(sample, [urls[2], urls[0]][source]) for sample, source in later]
    assert {source for _, source in later} == {0, 1}
    # The dataset that was left out continues at its old place.
    with make(Mixture({urls[0]: 1, urls[1]: 1}, stop="never", reweight=True), **options) as loader:
        loader.load_state_dict(state)
        seen += [(sample, urls[source]) for sample, source in given_of(loader, 60 // batch_size)]
    for url in urls[:2]:
        samples = [sample for sample, source in seen if source == url]
        assert len(samples) == len(set(samples)), "no sample comes twice in the first epoch of a source"


def next_of(feed):
    """The next image and label. Keras asks by number."""
    if not hasattr(feed, "on_epoch_begin"):
        return map(np.asarray, next(iter(feed)))
    feed.on_epoch_begin()
    return map(np.asarray, feed[0])


MIXED = {"columns": ["image", "label"], "batch_size": 16, "device_ops": [MixUp()]}


@pytest.fixture
def state_of_more(urls):
    """A state that has cat, dog and emu, for a mixture of dog and emu."""
    with make(Mixture({urls[0]: 1, urls[1]: 1}), **MIXED) as loader:
        next(iter(loader))
        return loader.state_dict()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("jax", marks=pytest.mark.uses("jax")),
        pytest.param("keras", marks=pytest.mark.uses("jax", "keras")),
        pytest.param("torch", marks=pytest.mark.uses("torch")),
    ],
)
def test_a_feed_that_has_run_mixes_the_classes_of_a_state(urls, state_of_more, monkeypatch, kind):
    small = Mixture({urls[1]: 1}, reweight=True)
    with make(small, **MIXED) as reference, make(small, **MIXED) as loader:
        reference.load_state_dict(state_of_more)
        image, label = next(iter(reference))
        if kind == "keras":
            monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
        feeds = {"jax": loader.to_jax, "keras": lambda: KerasFeed(loader.stream)}
        feed = feeds.get(kind, lambda: loader.to_device("cpu"))()
        _, before = next_of(feed)
        assert before.shape == (16, 2)
        feed.load_state_dict(state_of_more)
        found, labels = next_of(feed)
    np.testing.assert_allclose(labels, label, atol=1e-6)
    assert np.abs(found.astype(int) - image).max() <= 1


@pytest.mark.uses("tensorflow", "keras")
@pytest.mark.parametrize("made", ["to_tf", "finish", "class_weight"])
def test_what_was_made_for_some_classes_refuses_others(urls, state_of_more, made):
    given = MIXED | ({"device_ops": None} if made == "class_weight" else {})
    with make(Mixture({urls[1]: 1}, reweight=True), **given) as loader:
        if made == "to_tf":
            loader.to_tf()
        elif made == "finish":
            loader.finish(next(loader.stream.iterate(on_device=True)))
        else:
            loader.to_keras(class_weight={0: 2.0})
        state = loader.state_dict()
        with pytest.raises(OptionError, match=f"'emu'.*{made}"):
            loader.load_state_dict(state_of_more)
        loader.load_state_dict(state)
        assert loader.class_names == ("dog", "emu")


def test_epochs_that_cannot_be_begun_again_say_so(urls):
    with make(Mixture({urls[0]: 1, urls[1]: 1})) as loader:
        given_of(loader, 2)
        state = loader.state_dict()
    with make(Mixture({urls[1]: 1, urls[2]: 1}, reweight=True)) as loader:
        loader.load_state_dict(state)
        assert len(rows_of(loader))
        for epoch, said in ((0, "sample 16"), (1 << 61, "epoch")):
            loader.set_epoch(epoch)
            with pytest.raises(OptionError, match=said):
                iter(loader)
        loader.set_epoch(2)
        later = loader.state_dict()
        assert len(rows_of(loader))
    with make(Mixture({urls[1]: 1, urls[2]: 1}), batch_size=6) as loader:
        loader.load_state_dict(later)
        loader.set_epoch(1)
        with pytest.raises(OptionError, match="epoch 2"):
            iter(loader)


def test_an_epoch_is_whole_though_the_one_after_it_is_not_known(urls):
    """Batches of the next epoch are prepared meanwhile, if they can be."""
    with make(Mixture({urls[0]: 1})) as loader:
        first = rows_of(loader)
        rows_of(loader)
        state = loader.state_dict()
    with make(Mixture({urls[0]: 1, urls[1]: 1}, reweight=True)) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(0)
        again = rows_of(loader)
        assert again[: len(first)] == first[: len(again)]
        with pytest.raises(OptionError, match="epoch 2"):
            iter(loader)


@pytest.mark.parametrize("stop", ["shortest", "never"])
@pytest.mark.parametrize("remainder", ["drop", "repeat"])
def test_an_epoch_begins_behind_the_last_sample_that_was_given(urls, stop, remainder):
    mixed = Mixture({urls[0]: 1, urls[1]: 1}, stop=stop)
    with make(mixed, batch_size=50, remainder=remainder, columns=["sample", "source"]) as loader:
        for given in range(1, 9):
            if given % len(loader) == 1 or given == 1:
                batches = iter(loader)
            next(batches)
            state = loader.state_dict()
            assert state["begun"] + state["samples"] == given * 50


def labels_of(mixture, state=None, **options):
    """By text the ids of the labels, the loader's classes, and the state."""
    options = {"columns": ["sample", "source", "text", "label"], **options}
    with make(mixture, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found, batches = {}, iter(loader)
        for _ in range(8):
            for text, label in zip(*(column.tolist() for column in next(batches)[2:]), strict=True):
                found.setdefault(str(text), set()).add(label)
        assert {name: {loader.class_names.index(name)} for name in found} == found
        return found, loader.class_names, loader.state_dict()


@pytest.mark.all
def test_ids_of_classes_stay_while_a_training_continues(urls, caplog):
    never = {"stop": "never"}
    before, names, state = labels_of(Mixture({urls[0]: 1, urls[1]: 1}, **never))
    assert names == ("cat", "dog", "emu")
    for mixed in (
        Mixture({urls[1]: 1, urls[0]: 1}, **never),  # another order, which is no other mixture
        Mixture({urls[1]: 1}, reweight=True, **never),
        Mixture({urls[2]: 2, urls[1]: 1, urls[0]: 1}, reweight=True, **never),
    ):
        caplog.clear()
        found, names, later = labels_of(mixed, state)
        assert all(found[name] == before[name] for name in found)
        assert names == ("cat", "dog", "emu")
        assert json.loads(later["mixture"])["classes"]["names"] == ["cat", "dog", "emu"]
        assert ("give the model as many outputs" in caplog.text) == (len(mixed.weights) == 1)
    # A copy of such a loader, and its worker processes, have the same ids.
    with make(Mixture({urls[1]: 1}, reweight=True, **never), columns=["text", "label"], processes=1) as loader:
        loader.load_state_dict(state)
        with pickle.loads(pickle.dumps(loader)) as copy:
            for texts, labels in (next(iter(loader)), next(iter(copy))):
                assert [names[label] for label in labels] == texts.tolist()
    offset = {"classes": "offset", "reweight": True, **never}
    _, names, state = labels_of_offset(Mixture({urls[0]: 1, urls[1]: 1}, **offset))
    assert names == ("cat", "dog", "dog", "emu")
    found, names, _ = labels_of_offset(Mixture({urls[2]: 1, urls[1]: 1}, **offset), state)
    assert names == ("cat", "dog", "dog", "emu", "cat", "emu")
    assert found == {(0, 4), (0, 5), (1, 2), (1, 3)}


def labels_of_offset(mixture, state=None):
    with make(mixture, columns=["source", "label"]) as loader:
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        found = {pair for _ in range(8) for pair in zip(*(c.tolist() for c in next(batches)), strict=True)}
        return found, loader.class_names, loader.state_dict()


def test_sources_of_equal_shards_have_orders_and_crops_of_their_own(tmp_path):
    urls = []
    for number in range(2):
        raw = make_images(tmp_path / f"raw{number}", 64, ["a"], number)
        tpufeed.shard(raw, tmp_path / str(number), shards=4, workers=1)
        urls.append(tmp_path / str(number))
    options = {"columns": ["sample", "source", "window"], "ops": [RandomResizedCrop(8)], "lanes": 1, "batch_size": 64}
    with make(Mixture({urls[0]: 1, urls[1]: 1}), **options) as loader:
        samples, sources, windows = next(iter(loader))
    assert samples[sources == 0].tolist() != samples[sources == 1].tolist()
    by_sample = [{s: tuple(w) for s, q, w in zip(samples, sources, windows, strict=True) if q == n} for n in range(2)]
    both = by_sample[0].keys() & by_sample[1].keys()
    assert len(both) > 5
    assert sum(by_sample[0][sample] == by_sample[1][sample] for sample in both) < len(both) / 2


@pytest.fixture
def grown(tmp_path):
    """A dataset in two versions; the second one has a class more."""
    tpufeed.shard(make_images(tmp_path / "raw", 64, ["cow", "cat"], 5), tmp_path / "grown", shards=2, workers=1)
    tpufeed.append(make_images(tmp_path / "more", 40, ["cat", "ant"], 6), tmp_path / "grown", workers=1)
    return str(tmp_path / "grown")


@pytest.mark.all
def test_a_source_that_has_grown_continues_with_its_next_epoch(urls, grown):
    first = tpufeed.open_dataset(grown, version=1)
    before, names, state = labels_of(Mixture({first: 1, urls[0]: 1}, stop="never"))
    assert names == ("cat", "cow", "dog")
    with make(Mixture({grown: 1, urls[0]: 1}, stop="never")) as loader:
        kept = loader.state_dict()
        with pytest.raises(OptionError, match="grown=True"):
            loader.load_state_dict(state)
        assert loader.state_dict() == kept
    mixed = Mixture({urls[0]: 1, tpufeed.open_dataset(grown, grown=True): 1}, stop="never")
    found, names, later = labels_of(mixed, state)
    assert names == ("cat", "cow", "dog", "ant")
    assert all(found[name] == before[name] for name in before)
    stored = json.loads(later["mixture"])
    assert [source[3:] for source in stored["sources"]] == [[0, 0], [1, 0], [0, 1]], "root 0 begins its epoch 1"
    with make(mixed, columns=["sample", "source"]) as loader:
        loader.load_state_dict(state)
        new = [sample for sample, source in given_of(loader, 12) if source == 1]
        assert len(new) == len(set(new)) > 30
    # Exactly where it was, with its own version.
    with make(Mixture({first: 1, urls[0]: 1}, stop="never")) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state


def test_classes_are_joined_by_name(mixture, urls):
    names = {url: tpufeed.open_dataset(url).manifest.class_names for url in urls}
    with make(mixture) as loader:
        assert loader.class_names == ("cat", "dog", "emu")
        own = {}
        for number, url in enumerate(urls):
            with make(url, columns=["sample", "label"], shuffle=False, lanes=1, batch_size=1) as single:
                own |= {(int(s[0]), number): names[url][int(label[0])] for s, label in single}
        for sample, source, label, _ in rows_of(loader):
            assert loader.class_names[label] == own[sample, source]
    with make(Mixture({urls[0]: 1, urls[1]: 1}, classes="offset")) as loader:
        assert loader.class_names == ("cat", "dog", "dog", "emu")
        assert {(source, label) for _, source, label, _ in rows_of(loader)} == {(0, 0), (0, 1), (1, 2), (1, 3)}
    with pytest.raises(OptionError, match=r"'cat'.*'dog'"):
        make(Mixture({urls[0]: 1, urls[1]: 1}, classes="as_is"))


@pytest.mark.all
@pytest.mark.xdist_group("frameworks")
def test_all_loaders_take_a_mixture(mixture):
    (rows,) = epoch_of(mixture)
    options = {"batch_size": 8, "ops": OPS, "columns": COLUMNS, "lanes": LANES, "processes": 0}
    on_host = tpufeed.Loader(mixture, **options).to_torch()
    assert rows_of([[column.numpy() for column in batch] for batch in on_host]) == rows
    assert on_host.dataset is None
    assert on_host.class_names == ("cat", "dog", "emu")
    on_device = tpufeed.device_loader(on_host, "cpu")
    on_device.set_epoch(0)
    assert rows_of([[column.numpy() for column in batch] for batch in on_device]) == rows
    with tpufeed.Loader(mixture, **options).to_jax() as loader:
        assert rows_of([[np.ascontiguousarray(column) for column in batch] for batch in loader]) == rows
        with pytest.raises(OptionError, match="sources"):
            _ = loader.stream.dataset
    loader = tpufeed.Loader(mixture, **options)
    assert rows_of([[column.numpy() for column in batch] for batch in loader.to_tf()]) == rows
    assert loader.class_names == ("cat", "dog", "emu")


def test_an_open_dataset_is_taken_as_well(urls):
    with make(tpufeed.open_dataset(urls[0]), columns=["sample"]) as given, make(urls[0], columns=["sample"]) as named:
        assert all((a == b).all() for a, b in zip(given, named, strict=True))


def test_a_mixture_and_its_loader_can_be_pickled(mixture):
    with make(mixture) as loader:
        batches = iter(loader)
        next(batches)
        copy = pickle.loads(pickle.dumps(loader))
        assert rows_of(copy) == rows_of(batches)
        copy.close()


def test_padded_lists_take_the_length_of_the_longest_source(tmp_path):
    urls = []
    for number, lengths in enumerate(([1, 2], [3, 3])):
        images = sorted(make_images(tmp_path / f"raw{number}", 16, ["a"], number).glob("*/*"))
        lines = [
            json.dumps({"path": str(path), "label": "a", "tags": list(range(lengths[place % 2]))})
            for place, path in enumerate(images)
        ]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
        tpufeed.shard(tmp_path / f"{number}.jsonl", tmp_path / str(number), workers=1)
        urls.append(tmp_path / str(number))
    with make(Mixture(dict.fromkeys(urls, 1)), columns=["source", "tags"], lanes=1) as loader:
        for source, tags, length in loader:
            assert tags.shape == (8, 3)
            assert (length[source == 1] == 3).all()


def test_lists_whose_names_begin_alike_are_padded_each_for_itself(tmp_path):
    urls = []
    for number, (most, most2) in enumerate(((5, 6), (3, 9))):
        images = sorted(make_images(tmp_path / f"raw{number}", 24, ["a"], number).glob("*/*"))
        lines = [
            json.dumps({"path": str(path), "tag": ["x"], "kp": [1] * (place % most), "kp2": [2] * (place % most2)})
            for place, path in enumerate(images)
        ]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
        label = ["tag", "none"][number]
        tpufeed.shard(tmp_path / f"{number}.jsonl", tmp_path / str(number), workers=1, label=label)
        urls.append(tmp_path / str(number))
    for columns in (["kp", "kp2"], ["kp2", "kp"]):
        with make(Mixture(dict.fromkeys(urls, 1)), columns=columns, lanes=4) as loader:
            assert {name: loader.stream.column(name).shape for name in columns} == {"kp": (4,), "kp2": (8,)}
    # One label a sample, and lists of labels: not a matter of lengths.
    raw = make_images(tmp_path / "single", 24, ["x"], 9)
    tpufeed.shard(raw, tmp_path / "single-dataset", workers=1)
    mixed = Mixture({urls[0]: 1, tmp_path / "single-dataset": 1})
    with pytest.raises(OptionError, match="'label'") as told:
        make(mixed, columns=["label"])
    assert "pad" not in str(told.value)


def test_a_bad_record_of_any_source_is_skipped_and_named(urls, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(urls[1], copy)
    shard = sorted(copy.glob("*.tfrecord"))[0]
    data = bytearray(shard.read_bytes())
    data[200] ^= 1
    shard.write_bytes(data)
    mixed = Mixture({urls[0]: 1, copy: 1}, stop="longest")
    with make(mixed) as loader, pytest.raises(RecordError, match=str(shard)):
        list(loader)
    with make(mixed, max_bad_records=1) as loader:
        masks = np.concatenate([batch[-1] for batch in loader])
        assert loader.stats().bad_records == 1
    assert not masks.all()


def test_what_cannot_be_mixed_is_refused_and_both_sides_are_named(urls, tmp_path):
    for weight in (0, -1, float("nan"), float("inf"), "1", True):
        with pytest.raises(OptionError, match="weight"):
            Mixture({urls[0]: weight, urls[1]: 1})
    with pytest.raises(OptionError, match="twice"):
        Mixture({urls[0]: 1, f"{urls[0]}/": 1})
    with pytest.raises(OptionError, match="dict"):
        Mixture([urls[0]])
    with pytest.raises(OptionError, match="stop"):
        Mixture({urls[0]: 1}, stop="last")
    with pytest.raises(OptionError, match="67,108,864"):
        Mixture({urls[0]: 1, urls[1]: 1e-9})
    shutil.copytree(urls[0], tmp_path / "copy")
    with pytest.raises(OptionError, match="copy"):
        make(Mixture({urls[0]: 1, tmp_path / "copy": 1}))
    with pytest.raises(OptionError, match=r"\(20, 24, 3\).*\(16, 16, 3\)"):
        make(Mixture({urls[0]: 1, urls[2]: 1}), ops=None)
    cache.warmup(urls[1], tmp_path / "cache", ops=[CenterCrop(12)], workers=1)
    with pytest.raises(OptionError, match=r"\(16, 16, 3\).*\(12, 12, 3\)"):
        make(Mixture({urls[2]: 1, tmp_path / "cache": 1}), ops=None)
    with pytest.raises(OptionError, match="'no'"):
        make(Mixture({urls[0]: 1, urls[2]: 1}), columns=["no"])
    with pytest.raises(OptionError, match="'test'"):
        make(Mixture({urls[0]: 1, urls[1]: 1}), split="test")


def test_states_of_other_things_are_refused(urls, mixture):
    with make(urls[0], columns=["sample"]) as single, make(mixture) as loader:
        with pytest.raises(OptionError, match="Mixture"):
            loader.load_state_dict(single.state_dict())
        with pytest.raises(OptionError, match="content_digest"):
            single.load_state_dict(loader.state_dict())
        state = loader.state_dict()
        with pytest.raises(OptionError, match="mixture"):
            loader.load_state_dict(state | {"mixture": "{"})
        with pytest.raises(OptionError, match="begun"):
            loader.load_state_dict(state | {"begun": -1})
    with (
        make(Mixture({urls[0]: 6, urls[1]: 3, urls[2]: 1}, seed=5)) as other,
        pytest.raises(OptionError, match=r"seed=0.*seed=5"),
    ):
        other.load_state_dict(state)
    with (
        make(Mixture({urls[0]: 6, urls[1]: 3, urls[2]: 1}, classes="offset")) as other,
        pytest.raises(OptionError, match=r"'by_name'.*'offset'"),
    ):
        other.load_state_dict(state)
    whole = json.loads(state["mixture"])
    for forged in (
        {"phases": []},
        {"phases": [[0, [[0, 5]]]]},
        {"phases": [[4, [[0, 1 << 40]]]]},
        {"phases": [[0, [[9, 1 << 40]]]]},
        {"sources": [[*source[:3], 7, 0] for source in whole["sources"]]},
        {"sources": [[*source[:2], 3, *source[3:]] for source in whole["sources"]]},
    ):
        with make(mixture) as loader, pytest.raises(OptionError, match="mixture"):
            loader.load_state_dict(state | {"mixture": json.dumps(whole | forged)})


def test_the_command_line_spells_mixtures(urls):
    assert parse_mixture("gs://b/a") == "gs://b/a"
    assert parse_mixture("gs://b/a?x=1,y") == "gs://b/a?x=1,y"
    found = parse_mixture(f"{urls[0]}=0.7,{urls[1]}=3e-1")
    assert isinstance(found, Mixture)
    assert found.weights == {urls[0]: 0.7, urls[1]: 0.3}
    with pytest.raises(OptionError, match="twice"):
        parse_mixture("a=1,a=2")


@pytest.fixture(scope="module")
def server(urls):
    with GcsServer(process=True, md5=False) as found, pytest.MonkeyPatch.context() as patch:
        for key, value in found.environment().items():
            patch.setenv(key, value)
        for number, url in enumerate(urls):
            for path in sorted(Path(url).rglob("*")):
                if path.is_file():
                    found.put("bucket", f"{number}/{path.relative_to(url)}", path.read_bytes())
        yield found


@pytest.mark.all
@pytest.mark.parametrize("processes", [0, 1])
def test_remote_datasets_share_one_folder_of_copies(server, urls, mixture, tmp_path, processes):
    remote = Mixture({f"gs://bucket/{number}": weight for number, weight in enumerate((6, 3, 1))})
    local = epoch_of(mixture, epochs=2)
    server.clear_log()
    with make(remote, local_dir=tmp_path, processes=processes) as loader:
        found = [rows_of(loader), rows_of(loader)]
        # Two epochs may end before the first shard is whole. It comes for as long as the loader is open.
        wait_until(lambda: any(tmp_path.rglob("*.shard")))
    assert found == local
    server.clear_log()
    with make(remote, local_dir=tmp_path, processes=0) as loader:
        assert rows_of(loader) == local[0]
        fetching = [thread for thread in threading.enumerate() if thread.name.startswith("tpufeed-copies")]
    assert len(fetching) == 17, "as many as for one source"


def test_sources_that_are_rarely_due_are_read_by_ranges(server, urls, tmp_path):
    remote = Mixture({"gs://bucket/0": 0.98, "gs://bucket/1": 0.02})
    shards = tpufeed.open_dataset(urls[0]).split("train").variants[0].shards
    budget = sum(shard.bytes for shard in shards) + 2000
    server.clear_log()
    with make(remote, local_dir=tmp_path, local_bytes=budget) as loader:
        rows = rows_of(loader) + rows_of(loader)
    assert {source for _, source, *_ in rows} == {0, 1}
    whole = {
        record.name
        for record in server.requests(operation="read", name="*.tfrecord")
        if record.range == f"bytes=0-{len(server.get('bucket', record.name)) - 1}"
    }
    assert whole
    assert all(name.startswith("0/") for name in whole)


@pytest.mark.all
def test_a_rank_reads_its_share_of_the_shards_of_each_source(tmp_path):
    urls = []
    for number in range(2):
        raw = make_images(tmp_path / f"raw{number}", 256, ["a"], number, (4, 4))
        tpufeed.shard(raw, tmp_path / str(number), shards=32, workers=1)
        urls.append(tmp_path / str(number))
    mixed = Mixture({urls[0]: 0.6, urls[1]: 0.4})
    with GcsServer(md5=False) as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment().items():
            patch.setenv(key, value)
        remote = {}
        for number, url in enumerate(urls):
            for path in sorted(Path(url).rglob("*")):
                if path.is_file():
                    server.put("bucket", f"{number}/{path.relative_to(url)}", path.read_bytes())
            remote[f"gs://bucket/{number}"] = (0.6, 0.4)[number]
        mixed = Mixture(remote)
        server.clear_log()
        options = {"columns": ["sample"], "ops": None, "lanes": 16, "local_bytes": 0, "batch_size": 4}
        with make(mixed, world=(3, 8), **options) as loader:
            list(loader)
        touched = {record.name for record in server.requests(operation="read", name="*.tfrecord")}
    assert len(touched) <= 2 * (32 // 8 + 2 * 2), "two lanes of each source, and a shard more at each cut"
