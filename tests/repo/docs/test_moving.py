"""docs/moving.md: commands and programs run; the export from MDS runs with a stand-in for its library."""

import ast
import inspect
import io
import re
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import typer
from PIL import Image

import tpufeed
from tests.repo.docs.pages import commands, ran, run_here, text_of
from tests.tfrecords import encode_features, encode_record
from tpufeed.cli.app import app
from tpufeed.tfrecord.example import Feature

RUNS = {"moving.md": ""}

PAGE = text_of("moving.md")
PEERS = {"streaming"}
CLASSES = ("daisy", "rose", "tulip")
PHOTOS = 54


def sections() -> dict[str, str]:
    titles = list(re.finditer(r"^## (.*)$", PAGE, re.MULTILINE))
    ends = [*(title.start() for title in titles[1:]), len(PAGE)]
    return {title[1]: PAGE[title.end() : end] for title, end in zip(titles, ends, strict=True)}


def programs_of(title: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", sections()[title], re.DOTALL)


def imported(program: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(program)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def write_records(path: Path, photos: list[Path], labelled: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    records = []
    for photo in photos:
        features = {"id": Feature("bytes", [photo.stem.encode()]), "image": Feature("bytes", [photo.read_bytes()])}
        if labelled:
            features["class"] = Feature("int64", [CLASSES.index(photo.parent.name)])
        records.append(encode_record(encode_features(features)))
    path.write_bytes(b"".join(records))


@pytest.fixture(scope="module")
def place(tmp_path_factory, photo_files):
    """The folder of the page, after its commands."""
    folder = tmp_path_factory.mktemp("moving")
    photos = []
    for number in range(PHOTOS):
        path = folder / "photos" / CLASSES[number % 3] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(photo_files[number % len(photo_files)]) as image:
            image.convert("RGB").resize((96 + number % 5, 72)).save(path, quality=90)
        photos.append(path)
    for part, split in enumerate(("train", "train", "val", "test")):
        mine = photos[part::4]
        write_records(folder / f"tfrecords/{split}/{part:02d}-96x72-{len(mine)}.tfrec", mine, split != "test")
    (folder / "tars").mkdir()
    for part in range(2):
        with tarfile.open(folder / f"tars/flowers-{part:04d}.tar", "w") as tar:
            for photo in photos[part::2]:
                label = str(CLASSES.index(photo.parent.name)).encode()
                for suffix, data in (("jpg", photo.read_bytes()), ("cls", label)):
                    info = tarfile.TarInfo(f"{photo.stem}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    run_here(commands("moving.md"), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def programs(title: str) -> list[str]:
    """Those of a section that need nothing but what tpufeed's tests have."""
    return [program for program in programs_of(title) if not imported(program) & PEERS]


def steps_of(title: str, place: Path) -> list[list[tuple]]:
    """What each program of a section handed to the training step."""
    found: list[list[tuple]] = []
    namespace = {
        "__name__": "program",
        "step": lambda images, labels: found[-1].append((images, labels)),
        "predict": lambda images: images.mean(axis=(1, 2, 3)).astype(int),
    }
    for program in programs(title):
        found.append([])
        exec(compile(program, title, "exec"), namespace)
        ran(program)
    return found


def test_the_commands_made_what_the_page_says(place):
    flowers = tpufeed.open_dataset(place / "flowers")
    assert flowers.manifest.class_names == CLASSES
    assert set(flowers.manifest.splits) == {"train", "val"}
    adopted = tpufeed.open_dataset(place / "adopted")
    assert {name: split.records for name, split in adopted.manifest.splits.items()} == {"train": 28, "val": 13}
    assert not tpufeed.open_dataset(place / "adopted-test").manifest.labelled
    tars = tpufeed.open_dataset(place / "from-tars")
    assert tars.manifest.class_names == ("0", "1", "2")
    assert tars.split("train").records == PHOTOS
    raw = tpufeed.open_dataset(place / "flowers-raw").manifest.cache
    assert raw is not None
    assert raw.shape == (224, 224, 3)


def test_the_loops_of_imagefolder(place):
    (after,) = steps_of("torchvision: ImageFolder and DataLoader", place)
    records = tpufeed.open_dataset(place / "flowers").split("train").records
    assert len(after) == 2 * (records // 16)
    assert (after[0][0].shape, str(after[0][0].dtype)) == ((16, 3, 224, 224), "torch.float32")


def test_the_loops_of_tf_data(place):
    after, _ = steps_of("tf.data over TFRecords", place)
    assert len(after) == 28 // 16
    images, labels = after[0]
    assert (tuple(images.shape), images.dtype.name, len(labels)) == ((16, 64, 64, 3), "float32", 16)
    assert 0.5 < np.max(images) <= 1.0
    assert sum(tpufeed.open_dataset(place / "adopted").split("val").class_counts) == 13
    header, *lines = (place / "submission.csv").read_text().splitlines()
    assert header == "id,label"
    assert sorted(line.split(",")[0] for line in lines) == [f"{number:03d}" for number in range(3, PHOTOS, 4)]


def test_the_loop_of_ffcv(place):
    records = tpufeed.open_dataset(place / "flowers").split("train").records
    (ffcv,) = steps_of("FFCV", place)
    assert len(ffcv) == 2 * (records // 16)
    assert (ffcv[0][0].shape, str(ffcv[0][0].dtype)) == ((16, 3, 224, 224), "torch.float16")


class Mds:
    """A stand-in for MosaicML's StreamingDataset over the photos: it opens images as that does, and decodes none."""

    def __init__(self, local: str, batch_size: int) -> None:
        self.photos = sorted(Path("photos").glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, number: int) -> dict:
        photo = self.photos[number]
        image = Image.open(io.BytesIO(photo.read_bytes()))
        return {"image": image, "label": CLASSES.index(photo.parent.name)}


def test_an_export_from_mds_keeps_bytes_and_labels(place, monkeypatch):
    streaming = ModuleType("streaming")
    streaming.StreamingDataset = Mds
    monkeypatch.setitem(sys.modules, "streaming", streaming)
    title = "MosaicML streaming (MDS)"
    (program,) = programs_of(title)
    exec(compile(program, title, "exec"), {"__name__": "program"})
    ran(program)
    (command,) = re.findall(r"^Then run `(tpufeed shard .*?)`", sections()[title], re.MULTILINE)
    run_here([command], place)
    examples = tpufeed.open_dataset(command.split()[-1]).iter_examples("train")
    found = [(bytes(one["image/encoded"].values[0]), one["image/class/label"].values[0]) for one in examples]
    photos = place.glob("photos/*/*.jpg")
    assert sorted(found) == sorted((path.read_bytes(), CLASSES.index(path.parent.name)) for path in photos)


def test_the_names_on_the_right_of_the_tables_exist():
    known = {
        *inspect.signature(tpufeed.Loader).parameters,
        *inspect.signature(tpufeed.Loader.to_tf).parameters,
        *tpufeed.__all__,
        *tpufeed.images.__all__,
    }
    # Of loaders, datasets, Keras, the environment, tars.
    known |= {"set_epoch", "split", "select", "steps_per_epoch", "TF_CONFIG", "json"}
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and line.count(" | ") == 1]
    assert len(rows) > 15
    for _, right in rows:
        for name in re.findall(r"`([A-Za-z_]+)(?:=[^`]*|\([^`]*\))?`", right):
            assert name in known, right


def test_the_flags_exist():
    groups = typer.main.get_command(app).commands
    named = [groups["shard"], groups["adopt"], groups["info"], groups["cache"].commands["warmup"]]
    flags = {flag for command in named for parameter in command.params for flag in parameter.opts}
    named = set(re.findall(r"--[a-z][a-z-]*", PAGE))
    assert len(named) > 10
    assert named <= flags
