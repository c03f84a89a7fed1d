"""The `tpufeed shard` that the doctor prints for a dataset makes the same one, but for what it is to change."""

import csv
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tpufeed
from tpufeed.cli.app import app
from tpufeed.diagnosis.advice import Provenance, find_provenance
from tpufeed.diagnosis.samples import Scenario, take_sample, try_storages
from tpufeed.errors import StoreError
from tpufeed.images.windows import RandomResizedCrop
from tpufeed.loaders.options import LoaderOptions
from tpufeed.sharding import build
from tpufeed.sharding.options import ShardOptions

KEYWORDS: list[dict[str, Any]] = [
    {},
    {"label": "species", "split_by": "subset"},
    {"label": "-of a 'kind", "image": "a path", "split": {"train": 0.7, "val": 0.29, "rare": 0.01}},
    {"label": "none", "shards": 12, "hosts": 4, "seed": 7, "min_side": 16, "max_pixels": 10**6},
    {"shard_bytes": "64MB", "check": "header", "encode": "webp", "quality": 80, "presize_mode": "fit"},
    {"policy": {"alpha": "black", "greyscale": "rgb", "animated": "reject"}, "presize": 512},
    {"classes": ["rose", "a tulip"]},
]


@pytest.mark.parametrize("keywords", KEYWORDS, ids=str)
def test_the_flags_say_what_the_manifest_does(
    keywords: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = ShardOptions(**keywords).to_dict()  # type: ignore[arg-type]
    provenance = find_provenance({"command": "shard", "source": "/raw/my photos.csv", **made})
    given: dict[str, Any] = {}

    def shard(src: str, dst: str, **keywords: Any) -> None:
        given.update(keywords, src=src)
        raise StoreError("that is enough")

    monkeypatch.setattr(build, "shard", shard)
    (tmp_path / "classes.txt").write_text("rose\na tulip\n")
    command = f"shard {shlex.quote(provenance.source)} new{provenance.flags} --presize 96"
    words = [str(tmp_path / "classes.txt") if word == "CLASSES" else word for word in shlex.split(command)]
    done = CliRunner().invoke(app, words, prog_name="tpufeed")
    assert "that is enough" in done.output
    assert given.pop("src") == "/raw/my photos.csv"
    own = {name: value for name, value in given.items() if name in {each.name for each in fields(ShardOptions)}}
    assert ShardOptions(**own).to_dict() == {**made, "presize": 96}  # type: ignore[arg-type]
    assert bool(provenance.remarks) == ("classes" in keywords)
    assert provenance.images == ShardOptions(**keywords).images  # type: ignore[arg-type]


def test_what_no_flag_says_is_said_in_words() -> None:
    found = find_provenance({"command": "shard", "source": "photos", "label": "kind", "sharpen": 2})
    assert found.flags == " --label kind"
    assert found.remarks == ("it was made with sharpen=2, which no option of `tpufeed shard` says",)
    (said,) = find_provenance({"command": "shard", "source": "photos", "classes": ["one"]}).remarks
    assert said.startswith("CLASSES stands for the file of its 1 class name, one a line")


def test_records_of_others_have_no_photographs() -> None:
    adopted = find_provenance({"command": "adopt", "source": "gs://bucket/tfrecords", "keys": {}})
    assert (adopted.source, adopted.flags) == ("PHOTOS", "")
    assert "the images that its TFRecords were made of" in adopted.remarks[0]
    assert find_provenance({}).source == "PHOTOS"
    assert replace(adopted, remarks=()) == Provenance()


def test_the_printed_command_makes_the_same_splits_and_classes(
    photos: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [("picture", "species", "subset")]
    for number, name in enumerate(["china.jpg", "flower.jpg"] * 4):
        Path(f"{number}.jpg").write_bytes(photos[name])
        rows.append((f"{number}.jpg", name[:-4], "val" if number >= 6 else "train"))
    with Path("my plants.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    tpufeed.shard("my plants.csv", "plants", image="picture", label="species", split_by="subset", workers=1)
    dataset = tpufeed.open_dataset("plants")
    scenario = Scenario(
        url="plants",
        source="encoded",
        provenance=find_provenance(dataset.manifest.options),
        records=6,
        sample=take_sample(dataset, "train", 10.0),
        options=LoaderOptions(batch_size=2),
        ops=(RandomResizedCrop(32),),
        size=(32, 32),
        folder=tmp_path / "samples",
        seconds=0.02,
    )
    presized = next(iter(try_storages(scenario)))
    assert not isinstance(presized, str), presized
    _, _, command = presized.do.partition(": ")
    assert command == (
        f"tpufeed shard '{tmp_path}/my plants.csv' DATASET-37 --split-by subset --image picture --label species "
        "--presize 37"
    )
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], "--workers", "1"], prog_name="tpufeed")
    assert done.exit_code == 0, done.output
    made = tpufeed.open_dataset("DATASET-37").manifest
    assert made.class_names == dataset.manifest.class_names == ("china", "flower")
    assert {name: split.records for name, split in made.splits.items()} == {"train": 6, "val": 2}
