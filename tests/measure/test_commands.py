"""Commands of advice, as a shell takes them."""

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

import tpufeed
from tests.cli.conftest import run_here
from tpufeed.measure.commands import make_again, name_beside


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with all that options may speak of."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    rows = []
    for number in range(24):
        Image.new("RGB", (40 + number, 30), (number, 0, 0)).save(folder / f"{number}.png")
        Image.new("L", (40 + number, 30), number).save(folder / f"{number}-mask.png")
        boxes, points = [[1, 2, 9, 9]], [[3, 4, 2], [5, 6, 2]]
        row = {
            "path": f"{number}.png",
            "mask_path": f"{number}-mask.png",
            "kind": ["a b"],
            "box": boxes,
            "point": points,
        }
        rows.append(row | {"hard": [1], "tags": [1, 2], "part": "train" if number % 2 else "val"})
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "table.jsonl"


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split_by": "part", "shards": 2, "seed": 5, "names": "kaggle"},
        {"splits": {"train": 1 / 3, "val": 2 / 3}, "shard_bytes": "1KB", "hosts": 2},
        {"splits": "train=0.5,val=0.5", "images": tpufeed.Images(alpha="black", bands="reject")},
        {"images": tpufeed.Images(encode="jpeg", quality=71, progressive="baseline", check="header", min_side=3)},
        {"images": tpufeed.Images(presize=40, presize_mode="fit", max_pixels=10_000, encode="webp")},
        {"label": "kind", "boxes": tpufeed.Boxes(column="box", format="xywh", columns=["hard"], outside="clip")},
        {
            "boxes": tpufeed.Boxes(keypoints="point", flip_pairs=[(0, 1)]),
            "columns": {"tags": "int64[]"},
            "label": "none",
        },
        {"image_columns": {"mask": "mask_path:mask"}, "label": "none", "columns": {"tags": "float32[2]"}},
    ],
    ids=lambda options: ",".join(options) or "none",
)
def test_the_command_makes_the_same_dataset_but_for_what_changes(table: Path, options: dict[str, Any]) -> None:
    first = tpufeed.open_dataset(tpufeed.shard(table, table.parent / "first", workers=1, **options).url).manifest
    command = make_again(first, str(table.parent / "again"), presize=24)
    assert command is not None
    done = run_here(*shlex.split(command)[1:], "--workers", "1")
    assert done.returncode == 0, done.stderr
    again = tpufeed.open_dataset(table.parent / "again").manifest
    assert again.options == first.options | {"presize": 24}
    assert {name: split.records for name, split in again.splits.items()} == {
        name: split.records for name, split in first.splits.items()
    }


def test_another_size_of_shards_takes_the_place_of_their_number(table: Path) -> None:
    first = tpufeed.open_dataset(tpufeed.shard(table, table.parent / "first", workers=1, shards=2).url).manifest
    command = make_again(first, "new place", shard_bytes=128 * 10**6)
    assert command == f"tpufeed shard {shlex.quote(str(table))} 'new place'"
    assert (make_again(first, "x", shard_bytes=10**6) or "").endswith(" x --shard-size 1000000")


def test_what_no_single_command_has_made_has_none(table: Path) -> None:
    url = tpufeed.shard(table, table.parent / "first", workers=1, label="none").url
    dataset = tpufeed.open_dataset(url)
    tpufeed.cache.warmup(url, table.parent / "cache", size=8, workers=1)
    named = msgspec.structs.replace(dataset.manifest, options=dataset.manifest.options | {"classes": ["a"]})
    Image.new("RGB", (8, 8)).save(table.parent / "new.png")
    more = table.read_text().splitlines()[0].replace('"0.png"', '"new.png"')
    (table.parent / "more.jsonl").write_text(more + "\n")
    tpufeed.append(table.parent / "more.jsonl", url, workers=1)
    for manifest in (tpufeed.open_dataset(table.parent / "cache").manifest, named, tpufeed.open_dataset(url).manifest):
        assert make_again(manifest, "x") is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("photos", "photos-224"),
        ("photos/", "photos-224"),
        ("gs://b/raw/train-*.tar", "gs://b/raw/train-224"),
        ("a/tars/{0..9}.tar", "a/tars-224"),
        ("my photos/flowers.csv", "'my photos/flowers-224'"),
        ("../flowers", "../flowers-224"),
        ("train=a.json,val=b.json", "DATASET-224"),
        ("*.parquet", "DATASET-224"),
        ("https://x.org/a?b=c", "DATASET-224"),
    ],
)
def test_names_of_results_are_beside_their_source(url: str, name: str) -> None:
    assert name_beside(url, "224") == name
