"""`overwrite=True` removes what a build has made, manifest first, once the new build can begin."""

import json
import shutil
from pathlib import Path

import pytest

import tpufeed
from tpufeed.builds.destination import Destination
from tpufeed.errors import BuildError, DatasetExistsError, DuplicateWriterError, NoInputsError, OptionError, SourceError
from tpufeed.storage.local import LocalStore


@pytest.fixture
def finished(undisturbed, tmp_path):
    """A copy of a dataset, and files beside it that no build has named."""
    folder = Path(shutil.copytree(undisturbed.url, tmp_path / "d"))
    (folder / "notes.txt").write_text("mine")
    (folder / "train-00000-of-00099.tfrecord").write_bytes(b"mine")
    return folder


def state_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("state", ["finished", "orphans only"])
def test_the_new_build_is_as_in_an_empty_place(state, photo_folder, finished, bytes_of, tmp_path):
    if state == "orphans only":
        shutil.rmtree(finished / "_tpufeed/reports")
        (finished / "manifest.json").unlink()
    result = tpufeed.shard(photo_folder, finished, overwrite=True, seed=5, shard_bytes="90KB", workers=1)
    fresh = tpufeed.shard(photo_folder, tmp_path / "fresh", seed=5, shard_bytes="90KB", workers=1)
    assert result.earlier_images == 0
    names = {path.relative_to(fresh.url) for path in Path(fresh.url).rglob("*") if path.is_file()}
    mine = {Path("notes.txt"), Path("train-00000-of-00099.tfrecord")}
    assert {path.relative_to(finished) for path in finished.rglob("*") if path.is_file()} == names | mine
    assert {name: data for name, data in bytes_of(finished).items() if data != b"mine"} == bytes_of(fresh.url)
    assert tpufeed.verify(finished).records == 90


def test_the_same_command_builds_anew(build_options, photo_folder, finished, undisturbed):
    before = (finished / "manifest.json").stat().st_mtime_ns
    result = tpufeed.shard(photo_folder, finished, overwrite=True, workers=1, **build_options)
    assert result.manifest.content_digest == undisturbed.manifest.content_digest
    assert result.manifest.run_id != undisturbed.manifest.run_id
    assert (finished / "manifest.json").stat().st_mtime_ns != before


@pytest.mark.parametrize("source", ["missing", "empty", "small shards", "table", "damaged"])
def test_a_source_that_is_refused_costs_nothing(source, photo_folder, finished, tmp_path):
    before = state_of(finished)
    (tmp_path / "empty").mkdir()
    (tmp_path / "t.csv").write_text("photo\nx.jpg\n")
    (tmp_path / "x.tar").write_bytes(b"no tar")
    sources = {"missing": "typo", "empty": "empty", "table": "t.csv", "damaged": "x.tar"}
    src = photo_folder if source == "small shards" else tmp_path / sources[source]
    with pytest.raises((SourceError, NoInputsError, OptionError)) as raised:
        tpufeed.shard(src, finished, overwrite=True, shard_bytes="1KB", workers=1)
    assert raised.value.exit_code == 2
    assert state_of(finished) == before
    assert tpufeed.verify(finished).records == 90


def test_a_disk_that_is_too_small_costs_nothing_and_what_goes_makes_room(photo_folder, finished, monkeypatch):
    before = state_of(finished)
    monkeypatch.setattr(LocalStore, "free_bytes", lambda _: 1000)
    with pytest.raises(BuildError, match="room"):
        tpufeed.shard(photo_folder, finished, overwrite=True, images=tpufeed.Images(encode="png"), workers=1)
    assert state_of(finished) == before
    freed = sum(info.size_bytes for info in Destination(LocalStore(str(finished))).find_build())
    assert tpufeed.shard(photo_folder, finished, overwrite=True, workers=1).bytes < freed + 1000


def test_files_of_others_stand_in_the_way_before_anything_goes(photo_folder, finished):
    (finished / "train-00000-of-00001.tfrecord").write_bytes(b"mine")
    before = state_of(finished)
    with pytest.raises(DuplicateWriterError, match=r"train-00000-of-00001\.tfrecord"):
        tpufeed.shard(photo_folder, finished, overwrite=True, shards=1, workers=1)
    assert state_of(finished) == before


@pytest.mark.parametrize("text", ['{"name":"a web page"}', "", "no JSON"])
def test_a_manifest_of_something_else_stays(text, photo_folder, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/manifest.json").write_text(text)
    (tmp_path / "site/rejects.jsonl").write_text("mine")
    before = state_of(tmp_path / "site")
    with pytest.raises(DatasetExistsError, match="manifest") as raised:
        tpufeed.shard(photo_folder, tmp_path / "site", overwrite=True, workers=1)
    assert raised.value.exit_code == 2
    assert state_of(tmp_path / "site") == before


@pytest.mark.parametrize("damage", ["manifest", "plan", "report"])
def test_what_is_damaged_can_be_built_anew(damage, photo_folder, finished):
    path = {"plan": "_tpufeed/plan.jsonl", "report": "_tpufeed/reports/000001.json"}.get(damage, "manifest.json")
    data = (finished / path).read_bytes()
    (finished / path).write_bytes(data[:-30])
    result = tpufeed.shard(photo_folder, finished, overwrite=True, shard_bytes="90KB", workers=1)
    assert result.images == 90
    shards = {path.name for path in finished.glob("*.tfrecord")}
    named = {shard.name for shard in result.manifest.splits["train"].variants[0].shards}
    assert shards == named | {"train-00000-of-00099.tfrecord"}


def test_the_manifest_goes_first_and_the_plan_last(finished):
    names = [info.name for info in Destination(LocalStore(str(finished))).find_build()]
    assert (names[0], names[-1]) == ("manifest.json", "_tpufeed/plan.jsonl")
    assert "rejects.jsonl" in names
    assert not {"notes.txt", "train-00000-of-00099.tfrecord"} & set(names)
    assert len(set(names)) == len(names)


def test_reports_name_no_old_shard(photo_folder, finished):
    tpufeed.shard(photo_folder, finished, overwrite=True, shards=2, workers=1)
    reports = [json.loads(path.read_text()) for path in sorted((finished / "_tpufeed/reports").glob("*.json"))]
    assert [report["shards"][0]["name"] for report in reports] == [
        "train-00000-of-00002.tfrecord",
        "train-00001-of-00002.tfrecord",
    ]
