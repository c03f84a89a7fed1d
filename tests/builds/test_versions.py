"""Versions of a dataset that has grown: the manifest of the next one, its readers, and what is refused."""

import copy
import json
import pickle
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpufeed
from tpufeed.builds.destination import Destination
from tpufeed.builds.versions import append_layout, join_manifests, publish
from tpufeed.dataset.manifest import (
    IndexFile,
    Manifest,
    Markers,
    Part,
    Shard,
    Split,
    Variant,
    decode_manifest,
    encode_manifest,
)
from tpufeed.dataset.naming import part_folder
from tpufeed.dataset.reader import Dataset, find_versions, open_dataset, reopen_dataset
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import BuildError, DatasetNotFoundError, ManifestError, ObjectChangedError

FEATURES = (FeatureSpec("image/encoded", "bytes"), FeatureSpec("image/class/label", "int64"))
TAGS = FeatureSpec("tags", "int64", None)

SHARD_RECORDS = st.lists(st.integers(1, 9), max_size=4)
SPLITS = st.dictionaries(st.sampled_from(["train", "val", "test"]), SHARD_RECORDS, min_size=1)


def a_manifest(records, classes, lengths, run_id):
    splits = {}
    for name, counts in records.items():
        shards = tuple(
            Shard(f"{name}-{number:05d}-of-{len(counts):05d}.tfrecord", 100 * count, number, count)
            for number, count in enumerate(counts)
        )
        index = IndexFile(f"{name}.index.npy", 128 + 8 * sum(count + 1 for count in counts), 7)
        by_class = [0] * len(classes)
        by_class[-1] = sum(counts)
        splits[name] = Split(sum(counts), tuple(by_class), (Variant(shards, index),))
    return Manifest(
        run_id=run_id,
        tool_version="0.1.0",
        splits=splits,
        class_names=classes,
        features=(*FEATURES, msgspec.structs.replace(TAGS, lengths=lengths)),
        options={"command": "shard", "source": "photos"},
        input_digest=run_id,
        rejects={"truncated": 1},
        images={"jpeg": sum(map(sum, records.values()))},
        odd={},
        markers=Markers(2, 10, {"tiny": 1}),
    )


def add_part(base, part):
    number = base.number + 1
    added = Part(
        kind="append",
        folder=f"part-{number:05d}",
        source="more",
        run_id=part.run_id,
        input_digest=part.input_digest,
        records={name: split.records for name, split in part.splits.items()},
    )
    layout = append_layout(base, part)
    indexes = {name: (IndexFile(f"{name}-version-{number}.index.npy", 128 + 8 * 100, 3),) for name in layout}
    return join_manifests(base, part, added, indexes, layout)


@given(st.lists(st.tuples(SPLITS, st.integers(0, 3), st.integers(0, 5)), min_size=2, max_size=5))
def test_parts_join_to_one_dataset(builds):
    classes, manifests = ("a",), []
    for number, (records, more, most) in enumerate(builds):
        classes = (*classes, *(f"{number}-{each}" for each in range(more)))
        manifests.append(a_manifest(records, classes, (min(1, most), most), f"run-{number}"))
    joined = manifests[0]
    for part in manifests[1:]:
        joined = add_part(joined, part)
    assert decode_manifest(encode_manifest(joined), "here") == joined
    assert (joined.version, joined.format_version, len(joined.history)) == (len(builds), 1, len(builds))
    assert joined.class_names == classes
    for name in {name for records, _, _ in builds for name in records}:
        split = joined.splits[name]
        assert [shard.records for shard in split.variants[0].shards] == [n for b in builds for n in b[0].get(name, [])]
        assert sum(split.class_counts) == split.records == sum(part.records.get(name, 0) for part in joined.parts)
        assert len(split.class_counts) == len(classes)
    assert joined.features[-1].lengths == (
        min(each.features[-1].lengths[0] for each in manifests),
        max(each.features[-1].lengths[1] for each in manifests),
    )
    assert joined.rejects == {"truncated": len(builds)}
    assert joined.markers == Markers(2 * len(builds), 10 * len(builds), {"tiny": len(builds)})
    assert joined.images.get("jpeg", 0) == sum(split.records for split in joined.splits.values())


def test_a_dataset_that_never_grew_has_no_word_of_versions():
    written = json.loads(encode_manifest(a_manifest({"train": [3]}, ("a",), (1, 1), "run")))
    assert written["format_version"] == 1
    assert not {"version", "parts"} & written.keys()


def _grown():
    base = a_manifest({"train": [3]}, ("a",), (1, 1), "one")
    return json.loads(encode_manifest(add_part(base, a_manifest({"train": [2]}, ("a",), (1, 1), "two"))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("version"), "2 parts in version 1"),
        (lambda m: m.update(version=3), "2 parts in version 3"),
        (lambda m: m["parts"].pop(), "1 parts in version 2"),
        (lambda m: m.pop("parts"), "1 parts in version 2"),
        (lambda m: m["parts"][1]["records"].update(train=1), "samples"),
        (lambda m: m["parts"][1]["records"].update(val=1), "samples"),
        (lambda m: m["parts"][0]["records"].update(train=-1), "samples"),
    ],
)
def test_parts_that_contradict_the_splits_are_refused(change, message):
    manifest = copy.deepcopy(_grown())
    change(manifest)
    with pytest.raises(ManifestError, match=message):
        decode_manifest(json.dumps(manifest).encode(), "here")


@pytest.fixture(scope="session")
def halves(photo_folder, tmp_path_factory):
    """Two folders with half of the photographs each."""
    folder = tmp_path_factory.mktemp("halves")
    for number, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))):
        target = folder / "ab"[number % 2] / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder / "a", folder / "b"


def build_part(base, source):
    """A part that follows the version `base`, and what publishes it."""
    store = Destination(base.store).part(part_folder(base.number + 1)).store
    result = tpufeed.shard(source, store.url, shard_bytes="60KB", splits="train=0.8,val=0.2", workers=1)
    about = Part(
        kind="append",
        folder=part_folder(base.number + 1),
        source=str(source),
        run_id=result.manifest.run_id,
        input_digest=result.manifest.input_digest,
        records={name: split.records for name, split in result.manifest.splits.items()},
    )
    return base, Dataset(store, result.manifest), about


@pytest.fixture(scope="module")
def versions(halves, tmp_path_factory):
    """The folders of a dataset in its first and in its second version; not to be changed."""
    first, second = (tmp_path_factory.mktemp("versions") / name for name in "12")
    tpufeed.shard(halves[0], first, shard_bytes="60KB", splits="train=0.8,val=0.2", workers=1)
    shutil.copytree(first, second)
    publish(*build_part(open_dataset(second), halves[1]))
    return first, second


@pytest.fixture
def grown(versions, tmp_path):
    """A dataset of two versions, and the dataset of version 1 as it was opened before."""
    first, second = versions
    before = open_dataset(shutil.copytree(first, tmp_path / "d"))
    return shutil.copytree(second, tmp_path / "d", dirs_exist_ok=True), before


def payloads(dataset, split="train"):
    return [dict(example)["image/filename"].values[0] for example in dataset.iter_examples(split)]


def test_a_part_becomes_the_next_version_and_the_one_before_can_still_be_read(grown):
    url, before = grown
    after = open_dataset(url)
    assert (before.number, after.number) == (1, 2)
    first, all_of = payloads(before), payloads(after)
    assert all_of[: len(first)] == first
    assert len(all_of) == after.split("train").records > len(first)
    assert tpufeed.verify(url).records == 40
    old = open_dataset(url, version=1)
    assert old.content_digest == before.content_digest
    assert payloads(old) == first
    assert open_dataset(url, version=2).content_digest == after.content_digest
    assert find_versions(after.store, after) == [1, 2]


def test_a_version_that_is_not_there_is_named_with_those_that_are(grown):
    with pytest.raises(DatasetNotFoundError, match="version 3"):
        open_dataset(grown[0], version=3)


def test_another_process_opens_the_version_that_was_sent(grown):
    url, before = grown
    for dataset in (before, open_dataset(url)):
        sent = pickle.loads(pickle.dumps(dataset))
        assert (sent.number, sent.content_digest) == (dataset.number, dataset.content_digest)
    assert reopen_dataset(str(url), before.content_digest, 1).number == 1
    with pytest.raises(ObjectChangedError, match=str(url)):
        reopen_dataset(str(url), "0" * 32)


def test_what_was_built_anew_is_no_version(grown, halves):
    url, before = grown
    tpufeed.shard(halves[1], url, overwrite=True, workers=1)
    with pytest.raises(ObjectChangedError, match=str(url)):
        before.check_current()
    assert open_dataset(url).number == 1
    left = {str(path.relative_to(url)) for path in url.rglob("*") if path.is_file()}
    assert not [name for name in left if name.startswith("part-") or "version" in name]


def test_a_version_that_is_no_longer_current_is_followed_by_nothing(grown, halves, tmp_path):
    """Of two that saw version 1, the second finds version 2 there and changes nothing."""
    url, _ = grown
    stale = tmp_path / "stale"
    shutil.copytree(url, stale)
    shutil.rmtree(stale / "part-00002")
    shutil.copy(stale / "_tpufeed/versions/1.json", stale / "manifest.json")
    current = open_dataset(stale)
    part = build_part(current, halves[1])
    moved = shutil.copy(url / "manifest.json", stale / "manifest.json")
    before = Path(moved).read_bytes()
    with pytest.raises(BuildError, match="version"):
        publish(*part)
    assert Path(moved).read_bytes() == before


def test_a_part_is_published_once(grown, halves):
    url, _ = grown
    current = open_dataset(url)
    part = build_part(current, halves[0])
    once = publish(*part)
    assert publish(*part).manifest == once.manifest == open_dataset(url).manifest
    assert open_dataset(url).number == 3
    assert tpufeed.verify(url).records == 60


def test_a_part_with_other_class_names_is_not_published(grown, halves):
    """Existing labels would mean other classes."""
    url, _ = grown
    base, part, about = build_part(open_dataset(url), halves[0])
    before = (url / "manifest.json").read_bytes()
    for names in (part.manifest.class_names[::-1], part.manifest.class_names[:-1]):
        renamed = msgspec.structs.replace(part.manifest, class_names=names)
        with pytest.raises(BuildError, match=base.manifest.class_names[-1]):
            publish(base, Dataset(part.store, renamed), about)
    assert (url / "manifest.json").read_bytes() == before


def test_a_part_whose_shards_are_gone_is_not_published(grown, halves):
    url, _ = grown
    current = open_dataset(url)
    part = build_part(current, halves[0])
    next((url / "part-00003").glob("train*.tfrecord")).unlink()
    with pytest.raises(BuildError, match="Version 3"):
        publish(*part)
    assert open_dataset(url).number == 2
