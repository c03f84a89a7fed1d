"""Every command and program of the pages on sharding, caches and gs:// runs, among sources of all kinds."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.gcs_server import GcsServer
from tests.repo.docs.layouts import write_hub
from tests.repo.docs.pages import ROOT, blocks, commands, make_photos, ran, run, run_here, run_program, text_of
from tests.tfrecords import encode_features, encode_record
from tpufeed.tfrecord.example import Feature

RUNS = {
    "shard.md": "",
    "samples.md": "",
    "mixtures.md": "",
    "views.md": "",
    "growing.md": "",
    "cache.md": "",
    "gcs.md": "",
}

AUGMENT = """
def heavy(image, rng):
    return image ^ rng.integers(0, 4, image.shape, "uint8")
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    make_photos(folder, 60, "300x225")
    photos = sorted((folder / "photos").glob("*/*.jpg"))
    with (folder / "flowers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "species", "subset", "height_cm", "plant", "note"])
        for number, photo in enumerate(photos):
            subset = "val" if number % 6 == 0 else "train"
            plant, note = number // 3, "" if number % 2 else "x"
            writer.writerow([photo.relative_to(folder), photo.parent.name, subset, number / 2, plant, note])
    for number, photo in enumerate(photos):
        target = folder / "splits" / ("val" if number % 6 == 0 else "train") / photo.parent.name / photo.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, target)
    (folder / "tars").mkdir()
    for part in range(2):
        with tarfile.open(folder / f"tars/flowers-{part:04d}.tar", "w") as tar:
            for number, photo in enumerate(photos[part::2]):
                for suffix, data in (("jpg", photo.read_bytes()), ("cls", str(number % 3).encode())):
                    info = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    write_hub(folder / "hub", [(photo.parent.name, photo.read_bytes()) for photo in photos])
    (folder / "foreign").mkdir()
    for part in range(2):
        examples = (
            encode_features({"image": Feature("bytes", [photo.read_bytes()]), "class": Feature("int64", [number % 3])})
            for number, photo in enumerate(photos[part::2])
        )
        (folder / f"foreign/train-{part:05d}-of-00002.tfrecord").write_bytes(b"".join(map(encode_record, examples)))
    return folder


def test_the_commands_for_sharding_run_as_they_stand(sources: Path) -> None:
    in_table = re.findall(r"^\|.*\| \[?`(tpufeed [^`]*)`", text_of("shard.md"), re.MULTILINE)
    lines = [*in_table, *(line for line in commands("shard.md") if line not in in_table)]
    assert {line.split()[1] for line in lines} == {"shard", "info", "verify", "show", "card", "adopt"}
    run_here(lines, sources)
    assert set(tpufeed.open_dataset(sources / "out/by-folder").manifest.splits) == {"train", "val"}
    table = tpufeed.open_dataset(sources / "out/table")
    assert {spec.name: spec.dtype for spec in table.manifest.features}["height_cm"] == "float32"
    assert tpufeed.open_dataset(sources / "out/tars").manifest.class_names == ("0", "1", "2")
    assert set(tpufeed.open_dataset(sources / "out/hub").manifest.splits) == {"train", "validation"}
    assert not (sources / "out/never").exists()
    assert (sources / "sheet.png").stat().st_size > 1000
    assert 'pretty_name: "table"' in (sources / "card.md").read_text()
    assert run_program("\n".join(blocks("shard.md")), sources).startswith("BuildResult(url=")
    assert set(tpufeed.open_dataset(sources / "out/python").manifest.splits) == {"train", "val"}


def test_the_commands_for_samples_of_every_kind_run_as_they_stand(sources: Path, tmp_path: Path) -> None:
    make_scenes(sorted((sources / "photos").glob("*/*.jpg"))[:12], tmp_path)
    run_here(commands("samples.md"), tmp_path)
    types = {
        name: {spec.name: spec.type_text for spec in tpufeed.open_dataset(tmp_path / "out" / name).manifest.features}
        for name in ("vectors", "tags", "masks", "scenes", "street", "boxes", "coco", "outlines", "yolo", "voc")
    }
    assert (types["vectors"]["embedding"], types["vectors"]["lanes"]) == ("float32[4]", "int32[0 to 3]")
    assert types["tags"]["image/class/label"] == "int64[1 to 2]"
    assert (types["masks"]["mask"], types["street"]["mask"]) == ("mask", "mask")
    assert types["scenes"]["depth"] == "depth"
    assert types["outlines"]["mask"] == "mask"
    assert types["boxes"]["poses"] == "float32[2, 2, 3] keypoints (flips 0:1)"
    assert types["boxes"]["boxes"] == "float32[2, 4] boxes"
    assert types["yolo"]["boxes"] == "float32[2, 4] boxes"
    assert types["voc"]["difficult"] == "int64[1] of boxes"
    assert types["coco"]["boxes"] == "float32[0 to 2, 4] boxes"
    printed = run_program("\n".join(blocks("samples.md")), tmp_path)
    assert "boxes float32 (4, 8, 4)\n" in printed
    assert "poses_visible bool (4, 8, 2)\n" in printed
    assert tpufeed.open_dataset(tmp_path / "out/by-image").split("train").records == 12
    assert "(4, 2, 64, 64, 3) (4, 4, 32, 32, 3)\n" in printed
    assert "int32 (4, 77) int32\n" in printed


def test_the_commands_and_programs_for_mixtures_run_as_they_stand(sources: Path, tmp_path: Path) -> None:
    photos = sorted((sources / "photos").glob("*/*.jpg"))
    for number, photo in enumerate(photos):
        target = tmp_path / ("raw-flowers", "raw-leaves")[number % 3 == 0] / photo.parent.name / photo.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, target)
    for name in ("flowers", "leaves"):
        tpufeed.shard(tmp_path / f"raw-{name}", tmp_path / name, workers=1)
    printed = run_program("\n".join(blocks("mixtures.md")), tmp_path)
    assert re.search(
        r"other weights or datasets: there \S*flowers=0.7, \S*leaves=0.3, here \S*flowers=0.2, \S*leaves=0.8", printed
    )
    run_here(commands("mixtures.md"), tmp_path)


@pytest.fixture
def tailed(sources: Path, tmp_path: Path) -> Path:
    """A folder with `flowers`, whose five classes have 12, 9, 7, 4 and 3 samples."""
    for name, count in (("astronaut", 12), ("cat", 9), ("coffee", 7), ("flower", 4), ("china", 3)):
        for photo in sorted((sources / "photos" / name).glob("*.jpg"))[:count]:
            target = tmp_path / "raw" / name / photo.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(photo, target)
    tpufeed.shard(tmp_path / "raw", tmp_path / "flowers", workers=1)
    return tmp_path


def test_the_programs_for_views_run_as_they_stand(tailed: Path) -> None:
    printed = run_program("\n".join(blocks("views.md")), tailed, TPUFEED_PROCESSES="0", XDG_CACHE_HOME=str(tailed))
    assert "('cat', 'coffee') 16 samples, by class: (9, 7)\n" in printed
    assert "by class, in 320 samples: [64, 64, 64, 64, 64]\n" in printed
    assert printed.endswith("the hard ones came [3, 3, 3] times, the others at most 1\n")


def test_the_commands_for_views_run_as_they_stand(tailed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tailed))
    (tailed / "bad.csv").write_text("sample\n0\n3\n")  # of the programs
    run_here(commands("views.md"), tailed)
    assert tpufeed.open_dataset(tailed / "cats-64").manifest.class_names == ("cat", "coffee")
    assert (tailed / "suspects.png").stat().st_size > 1000


def test_the_commands_and_programs_for_growing_run_as_they_stand(sources: Path, tmp_path: Path) -> None:
    for number, photo in enumerate(sorted((sources / "photos").glob("*/*.jpg"))):
        target = tmp_path / ("photos", "more")[number % 4 == 0] / photo.parent.name / photo.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, target)
    lines = commands("growing.md")
    before = next(number for number, line in enumerate(lines) if " compact " in line)
    run_here(lines[:before], tmp_path)
    assert tpufeed.open_dataset(tmp_path / "grown").number == 2
    run_program("\n".join(blocks("growing.md")), tmp_path)
    run_here(lines[before:], tmp_path)
    tpufeed.verify(tmp_path / "grown")


LABELLED = ("yolo/images", "yolo/labels", "voc/JPEGImages", "voc/Annotations")


def label_boxes(folder: Path, number: int) -> None:
    """Write the boxes of a photograph for YOLO and Pascal VOC."""
    (folder / f"yolo/labels/{number}.txt").write_text("0 0.5 0.5 0.2 0.2\n1 0.1 0.1 0.3 0.1 0.2 0.3\n")
    (folder / "yolo/data.yaml").write_text("train: images\nnames: [car, bus]\n")
    box = "<bndbox><xmin>5</xmin><ymin>5</ymin><xmax>50</xmax><ymax>40</ymax></bndbox>"
    text = f"<annotation><object><name>car</name>{box}</object></annotation>"
    (folder / f"voc/Annotations/{number}.xml").write_text(text)


def make_scenes(photos: list[Path], folder: Path) -> None:
    """The sources of the page: photographs of 300x225 with masks, depth, boxes and more, drawn at random."""
    rng = np.random.default_rng(0)
    rows, annotations = [], []
    for name in (
        "road",
        "street/images",
        "street/masks",
        "scenes",
        "coco/annotations",
        "coco/val2017",
        "folder",
        *LABELLED,
    ):
        (folder / name).mkdir(parents=True)
    members: dict[str, list[tuple[str, bytes]]] = {"0000": [], "0001": []}
    for number, photo in enumerate(photos):
        mask, depth = io.BytesIO(), io.BytesIO()
        Image.fromarray(rng.integers(0, 5, (225, 300), np.uint8)).save(mask, "PNG")
        Image.fromarray(rng.integers(0, 9000, (225, 300), np.uint16)).save(depth, "PNG")
        boxes = [[10 * number, 20, 50, 60], [0, 0, 300, 225]]
        rows.append(
            {
                "path": f"{number}.jpg",
                "mask_path": f"{number}.png",
                "embedding": rng.random(4).tolist(),
                "lanes": list(range(number % 4)),
                "tags": ["car", "bus"][: 1 + number % 2],
                "boxes": boxes,
                "kinds": ["car", "road"],
                "hidden": [0, 1],
                "poses": [[[12, 30, 2], [0, 0, 0]]] * 2,
            }
        )
        for box in boxes[: number % 3]:
            left, top, width, height = box
            outline = [left, top, left + width, top, left, top + height]
            one = {"image_id": number, "category_id": 3, "bbox": box, "iscrowd": 0, "segmentation": [outline]}
            annotations.append(one)
        for name in (
            f"road/{number}.jpg",
            f"street/images/{number}.jpg",
            f"coco/val2017/{number:012d}.jpg",
            f"folder/{number}.jpg",
            f"yolo/images/{number}.jpg",
            f"voc/JPEGImages/{number}.jpg",
        ):
            shutil.copy(photo, folder / name)
        for name in (f"road/{number}.png", f"street/masks/{number}.png"):
            (folder / name).write_bytes(mask.getvalue())
        label_boxes(folder, number)
        parts = {"jpg": photo.read_bytes(), "mask.png": mask.getvalue(), "depth.png": depth.getvalue()}
        members[f"{number % 2:04d}"] += [(f"{number:06d}.{suffix}", data) for suffix, data in parts.items()]
    for part, files in members.items():
        with tarfile.open(folder / f"scenes/scenes-{part}.tar", "w") as tar:
            for name, data in files:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    (folder / "road/frames.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kinds = ("car", 1), ("bus", 40)
    sides = (f"{row['path']},{kind},{left},0,{left + 20},30" for row in rows for kind, left in kinds)
    (folder / "road/boxes.csv").write_text("\n".join(["filename,class,xmin,ymin,xmax,ymax", *sides, ""]))
    metadata = [
        {"file_name": f"{number}.jpg", "objects": {"bbox": row["boxes"], "categories": row["kinds"]}}
        for number, row in enumerate(rows)
    ]
    (folder / "folder/metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metadata))
    images = [{"id": number, "file_name": f"{number:012d}.jpg"} for number in range(len(photos))]
    content = {"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "car"}]}
    (folder / "coco/annotations/instances_val2017.json").write_text(json.dumps(content))


def test_the_commands_for_caches_run_as_they_stand(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").symlink_to(sources / "photos")
    (tmp_path / "my").mkdir()
    (tmp_path / "my/augment.py").write_text(AUGMENT)
    lines = commands("cache.md")
    assert {line.split()[1] for line in lines} == {"shard", "info", "cache"}
    for line in lines:
        if "my.augment" in line:  # is looked for in the folder where the process began
            assert run(line, tmp_path).strip()
        else:
            run_here([line], tmp_path)
    final = tpufeed.open_dataset(tmp_path / "out/final").manifest.cache
    assert final is not None
    assert [op["op"] for op in final.live] == ["RandomCrop", "HorizontalFlip"]
    heavy = tpufeed.open_dataset(tmp_path / "out/heavy").manifest.cache
    assert heavy is not None
    assert heavy.ops[1] == {"op": "Custom", "version": "2", "target": "my.augment:heavy"}
    assert not (tmp_path / "out/never").exists()


MORE_ON_GCS = (
    "tpufeed shard gs://my-bucket/flowers.csv gs://my-bucket/table --label species",
    "tpufeed shard 'gs://my-bucket/tars/flowers-{0000..0001}.tar' gs://my-bucket/from-tars",
    "tpufeed info gs://my-bucket/flowers",
    "tpufeed show gs://my-bucket/flowers --out sheet.png",
)


@pytest.fixture
def gcs(sources: Path, tmp_path: Path) -> Iterator[GcsServer]:
    """A server with the sources in its bucket."""
    (tmp_path / "photos").symlink_to(sources / "photos")
    for name in ("photos", "tars", "foreign"):
        made_by_adopt = shutil.ignore_patterns("*.json", "*.npy")
        shutil.copytree(sources / name, tmp_path / "buckets/my-bucket" / name, ignore=made_by_adopt)
    shutil.copy(sources / "flowers.csv", tmp_path / "buckets/my-bucket")
    command = [sys.executable, "-m", "tests.gcs_server", "--folder", "buckets", "--latency-ms", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("export STORAGE_EMULATOR_HOST=")
        yield GcsServer.attach(url)
        process.terminate()


def test_the_commands_for_gcs_run_as_they_stand(
    gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gcs.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TPUFEED_PROCESSES", "0")
    monkeypatch.chdir(tmp_path)
    lines = commands("gcs.md")
    (billed,) = (line for line in lines if line.startswith("TPUFEED_GCS_USER_PROJECT="))
    (last,) = (line for line in lines if line.startswith("rm "))
    own = [line for line in lines if line not in (billed, last)]
    assert {line.split()[1] for line in own} == {"shard", "cache", "adopt", "verify"}
    run_here([*own, *MORE_ON_GCS], tmp_path)
    names = gcs.names("my-bucket")
    for folder in ("flowers", "table", "from-tars", "flowers-64", "foreign", "uploaded"):
        assert f"{folder}/manifest.json" in names
    assert tpufeed.open_dataset(tmp_path / "flowers-here").manifest.cache is not None

    gcs.create_bucket("their-bucket", requester_pays=True)
    for name in names:
        if name.startswith("flowers/"):
            gcs.put("their-bucket", name, gcs.get("my-bucket", name))
    assert run(billed, tmp_path).strip()  # in a process of its own, as clients are kept

    gcs.clear_log()
    for program in blocks("gcs.md"):
        exec(program, {})
        ran(program)
    variants = ["flowers-64/train-v0-", "flowers-64/train-v1-"]
    assert all(gcs.requests(operation="read", name=f"{variant}*") for variant in variants)
    assert run(last, tmp_path).strip()
    assert not list((tmp_path / "copies").iterdir())
