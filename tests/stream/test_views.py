"""Views at the loaders: order, worlds, states, growth, what is read, every feed, and mixtures of classes."""

import copy
import json
import pickle
import zlib
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.gcs_server import GcsServer
from tpufeed import Mixture, cache
from tpufeed.dataset.records import Reader
from tpufeed.errors import OptionError
from tpufeed.images import HorizontalFlip, MixUp, RandomCrop

NAMES = ["ant", "bee", "cow", "dog", "eel"]
COUNTS = [60, 24, 8, 3, 1]
OPS = [RandomCrop(12), HorizontalFlip()]


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory):
    """Labels are kept here, and not in the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("xdg")))
        yield


def make_images(folder, counts, first=0):
    random = np.random.default_rng(first)
    for name, count in zip(NAMES, counts, strict=False):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            image = Image.fromarray(random.integers(0, 255, (18, 20, 3), np.uint8))
            image.save(folder / name / f"{first + number:03}.png")
    return folder


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """A long-tailed dataset in two versions, and a raw cache of three variants."""
    folder = tmp_path_factory.mktemp("views")
    tpufeed.shard(make_images(folder / "raw", COUNTS), folder / "data", shards=5, workers=1)
    cache.warmup(folder / "data", folder / "cache", ops=[RandomCrop(12)], variants=3, shard_bytes="9KB", workers=1)
    tpufeed.append(make_images(folder / "more", [20, 10, 4], 500), folder / "data", workers=1)
    return {name: str(folder / name) for name in ("data", "cache")}


@pytest.fixture(scope="module")
def dataset(urls):
    return tpufeed.open_dataset(urls["data"], 1)


@pytest.fixture(scope="module")
def whole(dataset):
    """By epoch what the whole dataset gives: (label, CRC of the pixels) of each sample."""
    with make(dataset, remainder="pad") as loader:
        return [{row[0]: row[1:] for row in rows_of(loader)} for _ in range(3)]


def make(data, **options):
    given = {"batch_size": 8, "ops": OPS, "columns": ["sample", "label", "image"], "seed": 3, "processes": 0}
    return tpufeed.Loader(data, **given | options)


def rows_of(batches):
    """Each sample as (sample, label, CRC of the image)."""
    found = []
    for sample, label, image, *mask in batches:
        rows = zip(*(np.asarray(each).tolist() for each in (sample, label)), np.asarray(image), strict=True)
        real = np.asarray(mask[-1]).tolist() if mask else [True] * len(sample)
        found += [
            (s, c, zlib.crc32(np.ascontiguousarray(i)))
            for (s, c, i), is_real in zip(rows, real, strict=True)
            if is_real
        ]
    return found


VIEWS = {
    "classes": {"classes": ["dog", "bee"]},
    "fold": {"fold": (1, 4)},
    "most": {"without_fold": (0, 5)},
    "drop": {"drop": [0, 5, 95]},
    "few": {"samples": [90, 7, 40]},
}


def expected_labels(view, whole, epoch):
    """What the whole dataset gives for the samples of a view, with its labels."""
    kept = view.samples("train").tolist()
    names = view.class_names
    return {s: (names.index(NAMES[whole[epoch][s][0]]), whole[epoch][s][1]) for s in kept}


# Order


@pytest.mark.parametrize("name", VIEWS)
def test_each_sample_comes_once_per_epoch_with_its_own_pixels(dataset, whole, name):
    view = dataset.select(**VIEWS[name])
    with make(view, remainder="pad") as loader:
        for epoch in range(3):
            rows = rows_of(loader)
            assert len({row[0] for row in rows}) == len(rows) == len(view.samples("train"))
            assert {row[0]: row[1:] for row in rows} == expected_labels(view, whole, epoch)
        assert loader.class_names == view.class_names
    with make(view, shuffle=False, lanes=1, remainder="pad") as loader:
        assert [row[0] for row in rows_of(loader)] == view.samples("train").tolist()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["classes", "most"])
def test_every_world_sees_the_same_sequence_and_continues_in_another(dataset, name):
    view = dataset.select(**VIEWS[name])
    with make(view, batch_size=4) as loader:
        alone = [rows_of(loader) for _ in range(2)]
        batches = iter(loader)
        taken = rows_of([next(batches)])
        state, rest = json.loads(json.dumps(loader.state_dict())), rows_of(batches)
    for size in (2, 4):
        ranks = []
        for rank in range(size):
            with make(view, batch_size=4 // size, lanes=16, world=(rank, size)) as loader:
                epochs = [rows_of(loader) for _ in range(2)]
                assert epochs[0]
                loader.load_state_dict(state)
                ranks.append([*epochs, rows_of(loader)])
        together = [[row for group in zip(*epoch, strict=True) for row in group] for epoch in zip(*ranks, strict=True)]
        assert together == [*alone, rest]
    assert not {row[0] for row in taken} & {row[0] for row in rest}


@pytest.mark.parametrize("remainder", ["drop", "pad", "repeat"])
def test_the_last_batch_is_that_of_a_dataset_of_as_many_samples(dataset, remainder):
    view = dataset.select(classes=["bee", "dog"])  # 27 samples
    with make(view, remainder=remainder) as loader:
        batches = list(loader)
    assert len(batches) == {"drop": 3, "pad": 4, "repeat": 4}[remainder]
    samples = [sample for batch in batches for sample in batch[0].tolist()]
    assert set(samples) <= set(view.samples("train").tolist())
    if remainder == "repeat":
        assert samples[27:] == samples[:5]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("processes", [0, 1])
def test_worker_processes_pickles_and_copies_give_the_same(dataset, processes):
    view = dataset.select(classes=["bee", "ant"])
    with make(view, processes=processes) as loader:
        expected = rows_of(loader)
    for change in (copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        with make(view) as first, change(first) as loader:
            assert rows_of(loader) == expected
            assert loader.class_names == ("bee", "ant")


def test_a_cache_reads_its_variants(urls):
    cached = tpufeed.open_dataset(urls["cache"])
    with make(cached, ops=None, remainder="pad") as loader:
        epochs = [{row[0]: row[1:] for row in rows_of(loader)} for _ in range(4)]
    view = cached.select(classes=["ant", "cow"], keep_ids=True)
    with make(view, ops=None, remainder="pad") as loader:
        for epoch in epochs:
            assert {row[0]: row[1:] for row in rows_of(loader)} == {s: epoch[s] for s in view.samples("train").tolist()}
    assert epochs[0] == epochs[3] != epochs[1]


# What is read


@pytest.mark.parametrize("name", VIEWS)
def test_records_that_are_left_out_are_not_read(urls, monkeypatch, name):
    cached = tpufeed.open_dataset(urls["cache"])
    view = cached.select(**VIEWS[name])
    found, original = set(), Reader.read_many

    def noted(self, places, *args):
        found.update(places)
        return original(self, places, *args)

    monkeypatch.setattr(Reader, "read_many", noted)
    with make(view, ops=None, remainder="pad") as loader:
        for _ in range(2):
            list(loader)
    starts = np.cumsum([0, *cached.shard_records("train")])
    assert {int(starts[shard]) + record for shard, record in found} == set(view.samples("train").tolist())
    found.clear()
    assert len(list(view.iter_payloads("train"))) == len(view.samples("train"))
    assert {int(starts[shard]) + record for shard, record in found} == set(view.samples("train").tolist())


# States


def test_bad_views_of_states_are_named(dataset):
    view, other = dataset.select(classes=["ant"]), dataset.select(classes=["bee"])
    states = {}
    for name, data in (("view", view), ("other", other), ("whole", dataset)):
        with make(data) as loader:
            next(iter(loader))
            states[name] = loader.state_dict()
    with make(view) as loader:
        with pytest.raises(OptionError, match="state is of the whole dataset"):
            loader.load_state_dict(states["whole"])
        with pytest.raises(OptionError, match=r"another view.*classes=ant"):
            loader.load_state_dict(states["other"])
    with make(dataset) as loader, pytest.raises(OptionError, match="content_digest"):
        loader.load_state_dict(states["view"])
    labels = dataset.labels("train").values
    same = dataset.select(samples=np.flatnonzero(labels == 0))
    kept = dataset.select(classes=["ant"], keep_ids=True)
    assert same.content_digest == kept.content_digest, "however it was selected"


# Remote datasets


def put_folder(server, folder, name):
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            server.put("bucket", f"{name}/{path.relative_to(folder)}", path.read_bytes())


@pytest.mark.all
def test_remote_records_that_are_left_out_are_not_read(urls, dataset, tmp_path):
    """A view of few records reads them by ranges; one of most copies whole shards."""
    with GcsServer() as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment().items():
            patch.setenv(key, value)
        put_folder(server, urls["cache"], "cache")
        remote, local = (tpufeed.open_dataset(url) for url in ("gs://bucket/cache", urls["cache"]))
        for name, copied in (("few", False), ("most", True)):
            server.clear_log()
            ways = VIEWS[name]
            with make(local.select(**ways), ops=None, remainder="pad") as loader:
                expected = [rows_of(loader) for _ in range(2)]
            view = remote.select(**ways)
            with make(view, ops=None, remainder="pad", local_dir=tmp_path / name) as loader:
                assert [rows_of(loader) for _ in range(2)] == expected
            reads = [each for each in server.requests(operation="read") if each.name.endswith(".tfrecord")]
            sizes = {each.name: len(server.get("bucket", each.name)) for each in reads}
            wholes = [each for each in reads if each.range == f"bytes=0-{sizes[each.name] - 1}"]
            assert bool(wholes) == copied
            if not copied:
                assert len({(each.name, each.range) for each in reads}) <= 3 * 3, "three records in each variant"
                bounds = [[int(at) for at in each.range.removeprefix("bytes=").split("-")] for each in reads]
                assert max(last - first for first, last in bounds) < 2 * 12 * 12 * 3, "one record each"
            images = tpufeed.TFRecordImages(view, columns=["sample", "image"])
            assert [images[at][0] for at in range(len(images))] == view.samples("train").tolist()


# Growth


@pytest.mark.parametrize("ways", [{"classes": ["bee", "ant"]}, {"without_fold": (0, 4)}], ids=["classes", "folds"])
def test_a_view_that_has_grown_continues_with_its_next_epoch(urls, dataset, ways):
    old, new = dataset.select(**ways), tpufeed.open_dataset(urls["data"], grown=True).select(**ways)
    with make(old) as loader:
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), rows_of(batches)
    with make(old) as loader:
        loader.load_state_dict(state)
        assert rows_of(loader) == rest
    with make(new, remainder="pad") as fresh, make(new, remainder="pad") as loader:
        loader.load_state_dict(state)
        fresh.set_epoch(1)
        assert rows_of(loader) == rows_of(fresh)
    refusing = tpufeed.open_dataset(urls["data"]).select(**ways)
    with make(refusing) as loader, pytest.raises(OptionError, match="state is of version 1"):
        loader.load_state_dict(state)


# Feeds


@pytest.mark.all
@pytest.mark.uses("torch")
def test_every_feed_gives_the_same_samples(dataset):
    from torch.utils.data import DataLoader

    view = dataset.select(classes=["cow", "ant"])
    with make(view) as loader:
        expected = rows_of(loader)
    for change in (
        lambda each: each.to_torch(),
        lambda each: tpufeed.device_loader(each.to_torch(), "cpu"),
        lambda each: each.to_jax(),
        lambda each: each.to_tf(deterministic=True),
        lambda each: each.to_tf(),
    ):
        with make(view) as loader:
            assert sorted(rows_of(change(loader))) == sorted(expected)
    options = {"columns": ["sample", "label", "image"], "ops": OPS, "seed": 3}
    images = tpufeed.TFRecordImages(view, **options)
    assert images.class_names == ("cow", "ant")
    sampler = tpufeed.LaneSampler(images, seed=3)
    for workers in (0, 1):
        sampler.set_epoch(0)
        batches = DataLoader(images, batch_size=8, sampler=sampler, num_workers=workers, drop_last=True)
        assert rows_of(batches) == expected
    source = tpufeed.grain_source(view, **options)
    assert source.class_names == ("cow", "ant")
    mapped = source.to_map_dataset()
    rows = [mapped[at] for at in range(len(source))]
    assert {(r["sample"], r["label"], zlib.crc32(r["image"])) for r in rows} >= set(expected)
    with make(view) as loader, pytest.raises(OptionError, match="direct"):
        loader.to_tf(direct=True)


def test_columns_of_a_view_are_those_of_a_dataset(dataset):
    view = dataset.select(classes=["cow", "ant"])
    with pytest.raises(OptionError, match="source"):
        make(view, columns=["source"])
    with make(view, columns=None) as loader, make(dataset, columns=None) as other:
        assert loader.stream.form.names == other.stream.form.names
    with make(view, columns=["image", "label"], device_ops=[MixUp()], processes=0) as loader:
        _, label = next(iter(loader.to_torch()))
        assert label.shape == (8, 2)


# Mixtures of classes


def of_mixture(mixture, epochs=1, **options):
    given = {"columns": ["sample", "source", "label", "image"], "lanes": 4}
    with make(mixture, **given | options) as loader:
        found = []
        for _ in range(epochs):
            found.append([(s, a, c, zlib.crc32(i)) for batch in loader for s, a, c, i in zip(*batch, strict=True)])
        return [[(int(s), int(a), int(c), crc) for s, a, c, crc in epoch] for epoch in found]


@pytest.mark.all
@pytest.mark.parametrize("weights", ["equal", "sqrt", {"ant": 1, "dog": 2, "eel": 1}], ids=["equal", "sqrt", "dict"])
def test_classes_come_in_exact_shares(dataset, weights):
    mixture = Mixture.by_class(dataset, weights)
    rows = [row for epoch in of_mixture(mixture, 8) for row in epoch]
    records = 96 if isinstance(weights, str) else 64
    assert len(rows) == 8 * records, "an epoch has as many samples as its classes"
    names = [NAMES[label] for _, _, label, _ in rows]
    given = weights if isinstance(weights, dict) else dict(zip(NAMES, COUNTS, strict=True))
    power = {"equal": 0, "sqrt": 0.5}.get(weights if isinstance(weights, str) else "", 1)
    total = sum(each**power for each in given.values())
    counts = [Counter(names[lane::4][:128]) for lane in range(4)]
    for name, each in given.items():
        share = 128 * each**power / total
        assert all(abs(lane[name] - share) <= 1 + 1e-6 for lane in counts)
    assert set(names) == set(given)
    labels = dataset.labels("train").values
    assert all(labels[sample] == label for sample, _, label, _ in rows)


def test_each_pass_of_a_rare_sample_has_its_own_crop(dataset):
    rows = [row for epoch in of_mixture(Mixture.by_class(dataset), 4) for row in epoch]
    (eel,) = set(sample for sample, _, label, _ in rows if label == 4)
    crops = [crc for sample, _, _, crc in rows if sample == eel]
    assert len(crops) > 70
    # 7 * 9 places of a crop, mirrored or not: some come twice by chance
    assert len(set(crops)) > 0.5 * min(len(crops), 126)
    dogs = Counter(sample for sample, _, label, _ in rows if label == 3)
    assert min(dogs.values()) > 0.5 * max(dogs.values())


@pytest.mark.all
@pytest.mark.parametrize("lanes", [4, 16])
def test_mixtures_of_classes_continue_exactly_in_another_world(dataset, lanes):
    mixture = Mixture.by_class(dataset, "sqrt")
    alone = of_mixture(mixture, 3, lanes=lanes, batch_size=4)
    with make(mixture, columns=["sample", "label"], lanes=lanes, batch_size=4) as loader:
        list(loader)
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
    again = pickle.loads(pickle.dumps(mixture))
    assert len({id(view.manifest) for view in again.open("train")}) == 1
    for size in (1, 2, 4):
        ranks = []
        for rank in range(size):
            options = {"columns": ["sample", "source", "label", "image"], "batch_size": 4 // size}
            with make(again, world=(rank, size), lanes=lanes, **options) as loader:
                loader.load_state_dict(state)
                ranks.append([tuple(map(int, row[:3])) for batch in loader for row in zip(*batch, strict=True)])
        assert [row for group in zip(*ranks, strict=True) for row in group] == [row[:3] for row in alone[1][20:]]


@pytest.mark.parametrize("lanes", [1, 4, 10, 64])
def test_an_epoch_in_total_is_as_long_as_all_classes_together(dataset, lanes):
    with make(Mixture.by_class(dataset), lanes=lanes, batch_size=1, columns=["sample"]) as loader:
        assert len(loader) == lanes * round(Fraction(96, lanes))


@pytest.mark.all
def test_classes_of_a_view_and_of_a_cache(urls, dataset):
    view = dataset.select(classes=["dog", "bee"])
    rows = [row for epoch in of_mixture(Mixture.by_class(view), 2) for row in epoch]
    labels = dataset.labels("train").values
    assert all({3: 0, 1: 1}[labels[sample]] == label for sample, _, label, _ in rows)
    cached = tpufeed.open_dataset(urls["cache"])
    rows = [row for epoch in of_mixture(Mixture.by_class(cached), 2, ops=None) for row in epoch]
    (eel,) = set(sample for sample, _, label, _ in rows if label == 4)
    assert len({crc for sample, _, _, crc in rows if sample == eel}) == 3, "one of each variant"
    with_workers = of_mixture(Mixture.by_class(cached), 2, ops=None, processes=1)
    assert [row for epoch in with_workers for row in epoch] == rows


def test_classes_that_cannot_be_mixed_are_named(dataset, urls):
    with pytest.raises(OptionError, match=r"'fox'.*no class of it: it has ant"):
        Mixture.by_class(dataset, {"ant": 1, "fox": 1})
    with pytest.raises(OptionError, match=r"'eel'.*no samples"):
        Mixture.by_class(
            dataset.select(classes=["ant", "eel"], drop=dataset.select(classes=["eel"]).samples("train")), {"eel": 1}
        )
    with pytest.raises(OptionError, match="0"):
        Mixture.by_class(dataset, {"ant": 1, "bee": 0})
    with pytest.raises(OptionError, match="split 'val'"):
        Mixture.by_class(dataset, split="val")
    with pytest.raises(OptionError, match="split='val'"):
        tpufeed.Loader(Mixture.by_class(dataset), "val")


def test_a_split_without_labels_has_no_classes(tmp_path):
    files = sorted(make_images(tmp_path / "raw", [4]).glob("*/*"))
    rows = [f"{file},{label}" for file, label in zip(files, ("ant,train", "ant,train", ",val", ",val"), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    tpufeed.shard(tmp_path / "t.csv", tmp_path / "data", unlabelled="keep", split_by="split", workers=1)
    with pytest.raises(OptionError, match="no sample of split 'val' has a class"):
        Mixture.by_class(tmp_path / "data", split="val")


def test_a_grown_mixture_of_classes_continues(urls, dataset):
    with make(Mixture.by_class(dataset), columns=["sample", "label"], lanes=16) as loader:
        list(loader)
        state = loader.state_dict()
    grown = tpufeed.open_dataset(urls["data"], grown=True)
    with make(Mixture.by_class(grown), columns=["sample", "label"], lanes=16) as loader:
        loader.load_state_dict(state)
        found = {sample for _ in range(3) for samples, _ in loader for sample in samples.tolist()}
    assert max(found) >= 96
    with make(Mixture.by_class(grown, "sqrt", reweight=True), columns=["sample", "label"], lanes=16) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == (8 * 16 - 96) // 8, "the rest of an epoch that is longer now"


# Weights of samples


def weigh(dataset, hard=(0, 7, 60), weight=9.0):
    """Most samples weigh 1, the samples of a list more, and one nothing."""
    weights = np.ones(dataset.split("train").records)
    weights[[*hard]], weights[3] = weight, 0
    return weights


def test_samples_come_as_often_as_their_weights_say_each_time_otherwise(dataset):
    weights = weigh(dataset)
    epochs = of_mixture(Mixture.by_weight(dataset, weights), 5, batch_size=19, lanes=5)
    expected = weights / weights.sum() * 95
    for epoch in epochs:
        counts = np.bincount([sample for sample, *_ in epoch], minlength=96)
        assert (np.abs(counts - expected) < 1).all()
    every = np.bincount([sample for epoch in epochs for sample, *_ in epoch], minlength=96)
    assert (np.abs(every - 5 * expected) < 2).all(), "what an epoch rounds off comes in another one"
    crops = [crc for sample, *_, crc in epochs[0] if sample == 7]
    assert len(crops) in (7, 8)
    assert len(set(crops)) > 0.7 * len(crops)
    labels = dataset.labels("train").values
    assert all(labels[sample] == label for sample, _, label, _ in epochs[0])


def test_an_epoch_is_a_pass_rounded_to_the_lanes(dataset):
    (epoch,) = of_mixture(Mixture.by_weight(dataset, np.arange(96) < 47), batch_size=4, lanes=16)
    assert len(epoch) == 48
    assert {sample for sample, *_ in epoch} == set(range(47)), "and one of the next pass"


@pytest.mark.uses("torch")
def test_shares_are_those_of_torchs_sampler(dataset):
    from torch.utils.data import WeightedRandomSampler

    weights = np.random.default_rng(5).exponential(size=96)
    given = np.bincount([s for epoch in of_mixture(Mixture.by_weight(dataset, weights), 40) for s, *_ in epoch])
    wanted = np.bincount(list(WeightedRandomSampler(weights, 96 * 400)), minlength=96) / 10
    error = np.sqrt(wanted + 1) / 3  # three standard deviations of ten times as many draws
    assert (np.abs(given - wanted) < 2 + 3 * error).all()


def test_weights_continue_exactly_in_another_world(dataset):
    mixture = Mixture.by_weight(dataset, weigh(dataset))
    alone = [sample for epoch in of_mixture(mixture, 2, batch_size=4) for sample, *_ in epoch]
    with make(mixture, columns=["sample"], lanes=4, batch_size=4) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
    ranks = []
    for rank in range(2):
        again = Mixture.by_weight(dataset, weigh(dataset).tolist())
        with make(again, columns=["sample"], lanes=4, batch_size=2, world=(rank, 2)) as loader:
            loader.load_state_dict(state)
            ranks.append([sample for _ in range(2) for batch in loader for sample in batch.tolist()])
    assert [sample for both in zip(*ranks, strict=True) for sample in both] == alone[20:]
    other = weigh(dataset, weight=2.0)
    with make(Mixture.by_weight(dataset, other)) as loader, pytest.raises(OptionError, match="reweight"):
        loader.load_state_dict(state)
    with make(Mixture.by_weight(dataset, other, reweight=True)) as loader:
        loader.load_state_dict(state)
        assert list(loader)


def test_weights_of_a_column_of_a_view_and_of_a_cache(urls, dataset):
    rows = of_mixture(Mixture.by_weight(dataset, "label"), batch_size=1)[0]
    counts = Counter(label for _, _, label, _ in rows)
    assert set(counts) == {1, 2, 3, 4}
    assert all(abs(counts[label] - 36 * label * COUNTS[label] / 53) < 1 for label in counts)
    view = dataset.select(classes=["dog", "bee"])
    rows = of_mixture(Mixture.by_weight(view, weigh(dataset)), batch_size=3)[0]
    assert {sample for sample, *_ in rows} <= set(view.samples("train").tolist())
    assert {label for _, _, label, _ in rows} == {0, 1}
    cached = Mixture.by_weight(urls["cache"], weigh(dataset))
    epochs = of_mixture(cached, 3, ops=None, processes=1)
    assert epochs == of_mixture(cached, 3, ops=None)
    assert [len({crc for sample, *_, crc in epoch if sample == 7}) for epoch in epochs] == [1, 1, 1], "of one variant"
    assert len({crc for epoch in epochs for sample, *_, crc in epoch if sample == 7}) == 3


def test_weights_grow_with_the_dataset(urls, dataset):
    with make(Mixture.by_weight(dataset, weigh(dataset)), columns=["sample"]) as loader:
        next(iter(loader))
        state = loader.state_dict()
    grown = tpufeed.open_dataset(urls["data"], grown=True)
    with make(Mixture.by_weight(grown, weigh(grown)), columns=["sample"]) as loader:
        loader.load_state_dict(state)
        assert max(sample for batch in loader for sample in batch.tolist()) >= 96


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.ones(95), r"96 samples.*\(95,\)"),
        (np.ones((96, 1)), r"\(96, 1\)"),
        (["1"] * 96, "<U1"),
        (np.where(np.arange(96) == 40, -1, 1), r"sample 40 has the weight -1\.0"),
        (np.where(np.arange(96) > 93, np.nan, 1), r"sample 94 has the weight nan, one of 2"),
        (np.where(np.arange(96) == 1, np.inf, 1), r"sample 1 has the weight inf"),
        (np.zeros(96), "all are 0"),
        ("loss", "'loss'"),
        ("filename", "column 'filename'.*<U"),
    ],
)
def test_impossible_weights_are_named(dataset, given, said):
    with pytest.raises(OptionError, match=said):
        Mixture.by_weight(dataset, given)
    with pytest.raises(OptionError, match="split='val'"):
        tpufeed.Loader(Mixture.by_weight(dataset, np.ones(96)), "val")


def test_renumbered_views_without_class_names_are_mixed_as_they_are(tmp_path):
    views = []
    for place in range(2):
        for number in range(12):
            path = tmp_path / f"{place}/{number % 3}/{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 20 * number + place, np.uint8)).save(path)
        tpufeed.shard(tmp_path / str(place), tmp_path / f"set-{place}", workers=1)
        dataset = tpufeed.open_dataset(tmp_path / f"set-{place}")
        nameless = replace(dataset, manifest=msgspec.structs.replace(dataset.manifest, class_names=()))
        views.append(nameless.select(classes=[2, 0]))
    mixture = Mixture(dict.fromkeys(views, 1), classes="as_is")
    with tpufeed.Loader(mixture, columns=["label"], batch_size=4, lanes=4, processes=0) as loader:
        labels = np.concatenate([np.ravel(batch) for batch in loader])
    assert set(labels.tolist()) == {0, 1}
