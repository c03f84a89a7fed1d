"""A destination that something else has a claim on."""

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
    with pytest.raises(DuplicateWriterError, match=rf"{name} \(1 such files\), which no known build"):
        tpufeed.shard(photo_folder, tmp_path / "d", workers=1, **build_options)
    assert foreign.read_bytes() == b"years of work"
    assert [path.name for path in (tmp_path / "d").rglob("*") if path.is_file()] == [name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"shard_bytes": "50KB"}, "shard_bytes is 40000 there and 50000 here"),
        ({"classes": ["cat", "coffee"]}, r'classes is not set there and \["cat","coffee"\] here'),
        ({"policy": {"alpha": "black"}}, 'alpha is "white" there and "black" here'),
        ({"splits": "train"}, r"splits is \{.*0\.8.*\} there and \{\"train\":1\.0\} here"),
        ({"check": "header"}, 'check is "full" there and "header" here'),
    ],
)
def test_another_option_belongs_to_another_build(build_options, change, message, photo_folder, unfinished):
    before = {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()}
    with pytest.raises(DuplicateWriterError, match=f"another build: {message}; "):
        tpufeed.shard(photo_folder, unfinished, workers=1, **{**build_options, **change})
    assert {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()} == before


def test_another_source_belongs_to_another_build(build_options, photo_folder, unfinished, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "others")
    with pytest.raises(DuplicateWriterError, match=r"source is .*photos.* there and .*others.* here"):
        tpufeed.shard(tmp_path / "others", unfinished, workers=1, **build_options)


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
        with pytest.raises(OptionError, match=rf"{tmp_path}/file is a file; take another destination"):
            build(photo_folder, tmp_path / "file" / below, workers=1)
