"""A cache of a dataset that has grown: what is new is warmed, and records are those of one warmed at once."""

import re
import shutil
from pathlib import Path

import pytest

import tpufeed
from tests.sharding.previews import preview_warmup
from tpufeed.cache import warmup
from tpufeed.cache.recipe import CacheRecipe
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import BuildError, DatasetExistsError, DuplicateWriterError, ObjectChangedError

OPTIONS = {"size": 32, "variants": 2, "shard_bytes": "100KB", "workers": 1}


@pytest.fixture(scope="module")
def whole(photo_folder, tmp_path_factory):
    """The folders of the three fixtures below; not to be changed."""
    folder = tmp_path_factory.mktemp("grown")
    for number, path in enumerate(sorted(photo_folder.glob("*/*"))):
        target = folder / str(number % 3) / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    tpufeed.shard(folder / "0", folder / "d", shard_bytes="100KB", splits="train=0.8,val=0.2", workers=1)
    warmup(folder / "d", folder / "c", **OPTIONS)
    return folder


@pytest.fixture
def photos(whole, tmp_path):
    """Thirds of the photographs, as folders."""
    return [shutil.copytree(whole / str(number), tmp_path / str(number)) for number in range(3)]


@pytest.fixture
def source(whole, tmp_path):
    """A dataset of the first third."""
    return str(shutil.copytree(whole / "d", tmp_path / "d"))


@pytest.fixture
def cache(whole, tmp_path):
    """A cache of `source`."""
    return str(shutil.copytree(whole / "c", tmp_path / "c"))


def records_of(url, version=None):
    dataset = open_dataset(url, version)
    return {
        (split, variant): [bytes(payload) for payload in dataset.reader(split, variant).iter_payloads(0, entry.records)]
        for split, entry in dataset.manifest.splits.items()
        for variant in range(len(entry.variants))
    }


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.all
def test_records_are_those_of_a_cache_that_was_warmed_at_once(source, photos, cache, tmp_path):
    before, old = files_of(cache), records_of(cache)
    for version, folder in enumerate(photos[1:], 2):
        tpufeed.append(folder, source, workers=1)
        grown = warmup(source, cache, **OPTIONS)
        assert (grown.manifest.number, grown.added) == (version, 20)
        assert (grown.images, grown.earlier_images) == (40, 0)
    whole = warmup(source, tmp_path / "whole", **OPTIONS)
    assert records_of(cache) == records_of(whole.url)
    assert records_of(cache, version=1) == old
    assert tpufeed.verify(cache).records == 120
    after = files_of(cache)
    assert {name for name, data in before.items() if after[name] != data} == {Path("manifest.json")}
    mine, theirs = open_dataset(cache).manifest, whole.manifest
    assert (mine.cache, mine.options, mine.class_names) == (theirs.cache, theirs.options, theirs.class_names)
    assert mine.options["source_version"] == 3
    assert [part.kind for part in mine.history] == ["cache warmup", "warmup", "warmup"]


def test_a_cache_that_is_up_to_date_is_finished(source, photos, cache):
    tpufeed.append(photos[1], source, workers=1)
    warmup(source, cache, **OPTIONS)
    before = files_of(cache)
    again = warmup(source, cache, **OPTIONS)
    assert (again.images, again.earlier_images, again.seconds) == (80, 80, 0.0)
    assert files_of(cache) == before


@pytest.mark.all
def test_several_appends_are_warmed_at_once_and_new_classes_are_there(source, photos, cache, tmp_path):
    classes = open_dataset(source).manifest.class_names
    (photos[2] / classes[0]).rename(photos[2] / "Aardvark")
    for folder in photos[1:]:
        tpufeed.append(folder, source, workers=1)
    grown = warmup(source, cache, **OPTIONS).manifest
    assert (grown.number, grown.class_names) == (2, (*classes, "Aardvark"))
    assert records_of(cache) == records_of(warmup(source, tmp_path / "whole", **OPTIONS).url)
    tpufeed.verify(cache)


def test_an_older_version_that_was_pruned_is_known_all_the_same(source, photos, cache):
    tpufeed.append(photos[1], source, workers=1)
    shutil.rmtree(Path(source, "_tpufeed/versions"))
    assert warmup(source, cache, **OPTIONS).added == 20


def test_other_options_or_another_source_do_not_grow(source, photos, cache, tmp_path):
    tpufeed.append(photos[1], source, workers=1)
    before = files_of(cache)
    with pytest.raises(DatasetExistsError, match="size of RandomResizedCrop"):
        warmup(source, cache, **{**OPTIONS, "size": 64})
    other = tpufeed.shard(photos[2], tmp_path / "other", workers=1).url
    with pytest.raises(DatasetExistsError, match=other):
        warmup(other, cache, **OPTIONS)
    assert files_of(cache) == before
    assert warmup(source, cache, overwrite=True, **{**OPTIONS, "size": 64}).manifest.number == 1


def test_a_damaged_cache_does_not_grow(source, photos, cache):
    tpufeed.append(photos[1], source, workers=1)
    next(Path(cache).glob("train-v0*.tfrecord")).unlink()
    with pytest.raises(BuildError, match=r"damaged.*--overwrite"):
        warmup(source, cache, **OPTIONS)
    assert warmup(source, cache, overwrite=True, **OPTIONS).images == 80
    tpufeed.verify(cache)


@pytest.fixture
def interrupted(source, photos, cache, monkeypatch):
    """A warmup of version 2 that ended before it was published."""
    tpufeed.append(photos[1], source, workers=1)

    def stop(*_):
        raise BuildError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("tpufeed.builds.run.publish", stop)
        with pytest.raises(BuildError, match="stopped"):
            warmup(source, cache, **OPTIONS)
    assert open_dataset(cache).number == 1
    return cache


def test_an_interrupted_warmup_is_finished_by_its_command(source, interrupted, tmp_path):
    result = warmup(source, interrupted, **OPTIONS)
    assert (result.images, result.earlier_images) == (40, 40)
    assert records_of(interrupted) == records_of(warmup(source, tmp_path / "whole", **OPTIONS).url)


def test_what_another_command_left_is_discarded_as_is_said(source, photos, cache, monkeypatch, request):
    with monkeypatch.context() as patch:
        patch.setattr("tpufeed.cache.recipe.KIND", "compact")  # in the plan
        patch.setattr(CacheRecipe, "kind", "compact")
        request.getfixturevalue("interrupted")
    with pytest.raises(DuplicateWriterError, match="by removing") as caught:
        warmup(source, cache, **OPTIONS)
    shutil.rmtree(re.search(r"by removing (\S+)$", str(caught.value))[1])  # --overwrite would warm all again
    assert warmup(source, cache, **OPTIONS).images == 40  # of 80


@pytest.mark.all
def test_what_was_begun_for_a_version_that_grew_again_gives_way(source, photos, interrupted, tmp_path):
    tpufeed.append(photos[2], source, workers=1)
    assert preview_warmup(source, interrupted, **OPTIONS).splits
    assert warmup(source, interrupted, **OPTIONS).added == 40
    assert records_of(interrupted) == records_of(warmup(source, tmp_path / "whole", **OPTIONS).url)
    tpufeed.verify(interrupted)


def test_the_preview_is_of_what_is_new(source, photos, cache):
    tpufeed.append(photos[1], source, workers=1)
    before = files_of(cache)
    preview = preview_warmup(source, cache, **OPTIONS)
    assert (sum(split.inputs for split in preview.splits.values()), preview.complete) == (20, False)
    assert files_of(cache) == before


def test_a_loader_of_the_cache_before_goes_on(source, photos, cache):
    dataset = open_dataset(cache)
    reader = dataset.reader("train")
    reader.read(0, 0)
    tpufeed.append(photos[1], source, workers=1)
    warmup(source, cache, **OPTIONS)
    shards = dataset.split("train").variants[0].shards
    assert len(reader.read(len(shards) - 1, 0)) > 0
    warmup(source, cache, overwrite=True, **{**OPTIONS, "size": 16})
    with pytest.raises(ObjectChangedError):
        dataset.check_current()


@pytest.mark.parametrize("scheme", ["memory", "local"])
def test_a_cache_in_another_store_grows(scheme, photos, tmp_path):
    source, cache = f"{scheme}://{tmp_path}/d", f"{scheme}://{tmp_path}/c"
    tpufeed.shard(photos[0], source, workers=1)
    warmup(source, cache, **OPTIONS)
    tpufeed.append(photos[1], source, workers=1)
    assert warmup(source, cache, **OPTIONS).images == 40
    assert tpufeed.verify(cache).records == 80
