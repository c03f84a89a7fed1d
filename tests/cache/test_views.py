"""Caches of views: a view's samples with its labels, each as in a cache of the whole dataset, and nothing else read."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.cli.conftest import run_here
from tests.sharding.previews import preview_warmup
from tpufeed.cache import warmup
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetExistsError, DuplicateWriterError, OptionError

OPTIONS = {"size": 32, "variants": 2, "shard_bytes": "20KB", "workers": 1}
LABEL = "image/class/label"


@pytest.fixture(autouse=True)
def _labels_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "labels"))


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """A cache of the whole dataset; not to be changed."""
    return open_dataset(warmup(source, tmp_path_factory.mktemp("whole") / "c", **OPTIONS).url)


@pytest.fixture
def names(source):
    return open_dataset(source).class_names


def features_of(dataset, split, variant):
    found = [
        {name: (feature.kind, tuple(feature.values)) for name, feature in features.items()}
        for features in dataset.iter_examples(split, variant)
    ]
    return [
        each | {name: (kind, tuple(map(bytes, v))) for name, (kind, v) in each.items() if kind == "bytes"}
        for each in found
    ]


def check_cache(url, view, whole):
    """The samples of the cache are those of the view: as the whole dataset's cache has them, with the view's labels."""
    cache = open_dataset(url)
    places = {name: place for place, name in enumerate(view.class_names)}
    assert cache.class_names == view.class_names
    for split in cache.manifest.splits:
        assert cache.class_counts(split) == view.class_counts(split)
        for variant in range(2):
            expected = [features_of(whole, split, variant)[sample] for sample in view.samples(split).tolist()]
            for features in expected:
                name = whole.class_names[features[LABEL][1][0]]
                features[LABEL] = ("int64", (places[name],))
            assert features_of(cache, split, variant) == expected
    assert {split: len(view.samples(split)) for split in cache.manifest.splits} == {
        name: split.records for name, split in cache.manifest.splits.items()
    }


@pytest.mark.all
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("by", ["classes", "kept ids", "fold", "samples of a split"])
def test_samples_are_those_of_the_view(by, workers, source, whole, names, tmp_path):
    ways = {
        "classes": {"classes": [names[2], names[0]]},
        "kept ids": {"classes": [names[1]], "keep_ids": True},
        "fold": {"without_fold": (1, 3)},
        "samples of a split": {"samples": [1, 2, 40, 7], "split": "train"},
    }
    view = open_dataset(source).select(**ways[by])
    done = warmup(view, tmp_path / "c", **OPTIONS | {"workers": workers})
    check_cache(done.url, view, whole)
    assert done.manifest.options["select"] == view.selection.text
    assert warmup(view, tmp_path / "c", **OPTIONS).images == done.images
    assert len(pickle.dumps(view)) < 2000


def test_an_open_dataset_is_the_same_source_as_its_url(source, whole):
    again = warmup(open_dataset(source), whole.url, **OPTIONS)
    assert (again.earlier_images, again.manifest.content_digest) == (again.images, whole.content_digest)
    assert "select" not in again.manifest.options
    with pytest.raises(OptionError, match="has no option 'splits'"):
        warmup(open_dataset(source), whole.url, splits="a=1.0", **OPTIONS)


def test_records_that_a_view_leaves_out_are_not_read(source, tmp_path):
    copy = Path(shutil.copytree(source, tmp_path / "d"))
    view = open_dataset(copy).select(fold=(0, 20))
    for split, entry in view.manifest.splits.items():
        reader, kept, sample = view.reader(split), {*view.samples(split).tolist()}, 0
        for shard in entry.variants[0].shards:
            data, offset = bytearray((copy / shard.name).read_bytes()), 0
            for record in range(shard.records):
                size = len(reader.read(list(entry.variants[0].shards).index(shard), record)) + 16
                if sample not in kept:
                    data[offset : offset + size] = bytes(size)
                offset, sample = offset + size, sample + 1
            (copy / "new").write_bytes(data)
            (copy / "new").replace(copy / shard.name)
    done = warmup(open_dataset(copy).select(fold=(0, 20)), tmp_path / "c", max_rejects=0, **OPTIONS)
    assert done.images == 2 * sum(len(view.samples(split)) for split in view.manifest.splits) > 0


@pytest.mark.all
def test_a_split_without_samples_is_left_out_with_a_warning(source, whole, names, tmp_path):
    dataset = open_dataset(source)
    view = dataset.select(where=lambda c: c["sample"] >= len(dataset.samples("val")), columns=["sample"])
    done = warmup(view, tmp_path / "c", **OPTIONS)
    assert list(done.manifest.splits) == ["train"]
    assert any("no sample of split 'val'" in warning for warning in done.warnings)
    check_cache(done.url, view, whole)


def test_classes_that_are_numbered_anew_are_those_of_all_splits(source, names, tmp_path):
    dataset = open_dataset(source)
    made = warmup(dataset.select(classes=[names[1]], split="train"), tmp_path / "c", **OPTIONS).manifest
    assert made.class_names == (names[1],)
    assert all(split.class_counts == (split.records,) for split in made.splits.values())
    kept = dataset.select(classes=[names[1]], split="train", keep_ids=True)
    assert warmup(kept, tmp_path / "kept", **OPTIONS).manifest.class_names == names


def test_another_view_is_refused_in_the_same_place(source, tmp_path):
    dataset = open_dataset(source)
    warmup(dataset.select(fold=(0, 5)), tmp_path / "c", **OPTIONS)
    before = (tmp_path / "c/manifest.json").read_bytes()
    for other, text in ((dataset.select(fold=(1, 5)), "fold=1/5"), (dataset, "all samples")):
        with pytest.raises(DatasetExistsError, match=rf"from fold=0/5 of its source, not from {text}"):
            warmup(other, tmp_path / "c", **OPTIONS)
    assert (tmp_path / "c/manifest.json").read_bytes() == before
    (tmp_path / "ids.txt").write_text("1\n2\n")
    listed = {"samples": tmp_path / "ids.txt", "split": "train"}
    warmup(dataset.select(**listed), tmp_path / "listed", **OPTIONS)
    (tmp_path / "ids.txt").write_text("1\n3\n")
    with pytest.raises(DatasetExistsError, match=r"\(samples=.*ids.txt\) has changed"):
        warmup(dataset.select(**listed), tmp_path / "listed", **OPTIONS)


class Stop(Exception):
    pass


def stop(progress):
    if progress.images:
        raise Stop


def test_an_interrupted_build_continues_with_the_same_view_only(source, bytes_of, tmp_path):
    dataset = open_dataset(source)
    view = dataset.select(without_fold=(0, 5))
    whole = warmup(view, tmp_path / "whole", **OPTIONS)
    with pytest.raises(Stop):
        warmup(view, tmp_path / "c", listener=stop, **OPTIONS)
    with pytest.raises(DuplicateWriterError, match='"without_fold=0/5" there and "without_fold=1/5" here'):
        warmup(dataset.select(without_fold=(1, 5)), tmp_path / "c", **OPTIONS)
    done = warmup(open_dataset(source).select(without_fold=(0, 5)), tmp_path / "c", **OPTIONS)
    assert done.earlier_images > 0
    assert bytes_of(done.url) == bytes_of(whole.url)
    assert done.manifest.cache == whole.manifest.cache


def test_a_preview_counts_the_samples_of_the_view(source, tmp_path):
    view = open_dataset(source).select(fold=(1, 4))
    foretold = preview_warmup(view, tmp_path / "c", **OPTIONS)
    done = warmup(view, tmp_path / "c", **OPTIONS)
    assert foretold.fingerprint == done.manifest.cache.fingerprint
    assert {n: (s.inputs, s.shards) for n, s in foretold.splits.items()} == {
        name: (split.records, 2 * len(split.variants[0].shards)) for name, split in done.manifest.splits.items()
    }


@pytest.mark.all
@pytest.mark.parametrize("by", ["classes", "fold"])
def test_the_cache_of_a_view_grows_with_the_dataset(by, photo_folder, tmp_path):
    paths = sorted(photo_folder.glob("*/*"))
    for number, path in enumerate(paths):
        (tmp_path / str(number % 2) / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, tmp_path / str(number % 2) / path.parent.name / path.name)
    url = tmp_path / "d"
    tpufeed.shard(tmp_path / "0", url, shard_bytes="60KB", splits="train=0.8,val=0.2", workers=1)

    def select():
        dataset = open_dataset(url)
        return (
            dataset.select(classes=[dataset.class_names[2], dataset.class_names[1]])
            if by == "classes"
            else dataset.select(fold=(0, 2))
        )

    first = warmup(select(), tmp_path / "c", **OPTIONS)
    tpufeed.append(tmp_path / "1", url, workers=1)
    view = select()
    grown = warmup(view, tmp_path / "c", **OPTIONS)
    assert (grown.manifest.number, grown.earlier_images) == (2, 0)
    assert grown.added == sum(len(view.samples(split)) for split in ("train", "val")) - first.images // 2 > 0
    check_cache(grown.url, view, open_dataset(warmup(url, tmp_path / "whole", **OPTIONS).url))
    at_once = warmup(view, tmp_path / "at-once", **OPTIONS)
    assert (grown.manifest.cache, grown.manifest.options) == (at_once.manifest.cache, at_once.manifest.options)
    if by == "classes":  # a new photograph that is not in the view
        (tmp_path / "2" / view.manifest.class_names[0]).mkdir(parents=True)
        Image.new("RGB", (30, 30)).save(tmp_path / "2" / view.manifest.class_names[0] / "new.png")
        tpufeed.append(tmp_path / "2", url, workers=1)
        behind = warmup(select(), tmp_path / "c", **OPTIONS).manifest
        assert (behind.number, behind.splits) == (3, grown.manifest.splits)
        assert behind.cache.source_digest == select().content_digest != grown.manifest.cache.source_digest


def test_lists_of_labels_keep_their_ids(tmp_path):
    rows = []
    for number in range(12):
        Image.fromarray(np.full((20, 20, 3), number * 20, np.uint8)).save(tmp_path / f"{number}.png")
        rows.append({"image": f"{number}.png", "label": [["cat", "dog"], ["dog"], ["owl"]][number % 3]})
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tpufeed.shard(tmp_path / "table.jsonl", tmp_path / "d", label="label", workers=1)
    dataset = open_dataset(tmp_path / "d")
    done = warmup(dataset.select(classes=["dog"]), tmp_path / "c", **OPTIONS)
    whole = open_dataset(warmup(dataset, tmp_path / "whole", **OPTIONS).url)
    cache = open_dataset(done.url)
    assert (cache.class_names, cache.class_counts("train")) == (("cat", "dog", "owl"), (4, 8, 0))
    samples = dataset.select(classes=["dog"]).samples("train").tolist()
    assert features_of(cache, "train", 1) == [features_of(whole, "train", 1)[sample] for sample in samples]


@pytest.mark.all
def test_the_command_warms_what_it_selects(source, names, bytes_of, tmp_path):
    flags = ["--select", f"classes={names[1]},{names[0]}", "--select", "fold=0/2"]
    words = ["--size", "32", "--variants", "2", "--shard-size", "20KB", "--workers", "1"]
    foretold = run_here("cache", "warmup", source, tmp_path / "c", *flags, *words, "--dry-run", "--json")
    view = open_dataset(source).select(classes=[names[1], names[0]], fold=(0, 2))
    count = sum(len(view.samples(split)) for split in ("train", "val"))
    said = run_here("cache", "warmup", source, tmp_path / "c", *flags, *words, "--dry-run").stdout
    assert f"source: {view.label}" in said
    assert sum(split["inputs"] for split in json.loads(foretold.stdout)["splits"].values()) == count
    assert run_here("cache", "warmup", source, tmp_path / "c", *flags, *words).returncode == 0
    assert bytes_of(tmp_path / "c") == bytes_of(warmup(view, tmp_path / "same", **OPTIONS).url)
    refused = run_here("cache", "warmup", source, tmp_path / "c", *words, "--select", "fold=1/2")
    assert refused.returncode == 2
    assert f"classes={names[1]},{names[0]}, fold=0/2" in refused.stderr
    assert "not from fold=1/2" in refused.stderr
