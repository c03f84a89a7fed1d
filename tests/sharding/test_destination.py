"""A destination that holds something else."""

import os
import shutil
from pathlib import Path

import pytest

import tpufeed
from tests.sharding.previews import preview_shard
from tpufeed.errors import DuplicateWriterError, OptionError


@pytest.mark.parametrize("number", [-1, None], ids=["last shard", "index"])
def test_a_foreign_file_under_a_name_of_the_build_is_not_touched(
    build_options, number, photo_folder, undisturbed, tmp_path
):
    shards = sorted(path.name for path in Path(undisturbed.url).glob("*.tfrecord"))
    name = "train.index.npy" if number is None else shards[number]
    foreign = tmp_path / "d" / name
    foreign.parent.mkdir()
    foreign.write_bytes(b"years of work")
    with pytest.raises(DuplicateWriterError, match=name):
        tpufeed.shard(photo_folder, tmp_path / "d", workers=1, **build_options)
    assert foreign.read_bytes() == b"years of work"
    assert [path.name for path in (tmp_path / "d").rglob("*") if path.is_file()] == [name]


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"seed": 1}, "seed"),
        ({"shard_bytes": "50KB"}, "shard_bytes"),
        ({"classes": ["cat", "coffee"]}, "classes"),
        ({"images": tpufeed.Images(alpha="black")}, "alpha"),
        ({"splits": "train"}, "splits"),
        ({"images": tpufeed.Images(check="header")}, "check"),
    ],
)
def test_another_option_belongs_to_another_build(build_options, change, option, photo_folder, unfinished):
    before = {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()}
    with pytest.raises(DuplicateWriterError, match=option):
        tpufeed.shard(photo_folder, unfinished, workers=1, **{**build_options, **change})
    assert {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()} == before


def test_another_source_belongs_to_another_build(build_options, photo_folder, unfinished, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "others")
    os.utime(next((tmp_path / "others").glob("*/*")))
    with pytest.raises(DuplicateWriterError, match="source"):
        tpufeed.shard(tmp_path / "others", unfinished, workers=1, **build_options)


@pytest.mark.parametrize("is_table", [False, True])
def test_the_same_inputs_under_another_path_continue_a_build(is_table, photo_folder, tmp_path, bytes_of):
    """A folder is mounted elsewhere the next day."""
    shutil.copytree(photo_folder, tmp_path / "one")
    rows = [f"{path.relative_to(tmp_path / 'one')},{path.parent.name}" for path in (tmp_path / "one").glob("*/*.jpg")]
    (tmp_path / "one/table.csv").write_text("\n".join(["image,label", *rows]))
    name = "table.csv" if is_table else ""
    first = tpufeed.shard(tmp_path / "one" / name, tmp_path / "d", shards=4, workers=1)
    whole = bytes_of(tmp_path / "d")
    lost = next((tmp_path / "d").glob("train-00002-*"))
    for path in (lost, tmp_path / "d/manifest.json", tmp_path / "d/_tpufeed/reports/000002.json"):
        path.unlink()
    (tmp_path / "one").rename(tmp_path / "two")
    result = tpufeed.shard(tmp_path / "two" / name, tmp_path / "d", shards=4, workers=1)
    assert 0 < result.earlier_images < result.images == first.images
    assert bytes_of(tmp_path / "d") == whole
    again = tpufeed.shard(tmp_path / "two" / name, tmp_path / "d", shards=4, workers=1)
    assert again.earlier_images == again.images


def test_a_budget_for_rejects_belongs_to_no_plan(build_options, photo_folder, unfinished, undisturbed):
    result = tpufeed.shard(photo_folder, unfinished, workers=1, max_rejects="50%", **build_options)
    assert result.manifest == undisturbed.manifest


def test_a_place_within_the_source_is_no_part_of_it(photo_folder, tmp_path):
    source = shutil.copytree(photo_folder, tmp_path / "photos")
    first = tpufeed.shard(source, source / "out", workers=1)
    assert tpufeed.shard(source, source / "out", workers=1).earlier_images == first.images
    again = tpufeed.shard(source, source / "out", workers=1, overwrite=True)
    assert again.manifest.content_digest == first.manifest.content_digest
    assert again.manifest.class_names == first.manifest.class_names


def test_a_place_beside_a_table_s_images(photo_folder, tmp_path):
    source = shutil.copytree(photo_folder, tmp_path / "photos")
    names = [str(path.relative_to(source)) for path in source.glob("*/*.jpg")]
    (source / "table.csv").write_text("\n".join(["path", *names]))
    assert tpufeed.shard(source / "table.csv", source / "out", workers=1).images == len(names)


@pytest.mark.parametrize("below", ["", "x/y"])
def test_a_file_is_no_place(below, photo_folder, tmp_path):
    (tmp_path / "file").write_bytes(b"years of work")
    for build in (tpufeed.shard, preview_shard):
        with pytest.raises(OptionError, match=f"{tmp_path}/file"):
            build(photo_folder, tmp_path / "file" / below, workers=1)
