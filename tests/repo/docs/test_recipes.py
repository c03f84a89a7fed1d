"""Every command of recipes.md, on stand-ins of the layouts; the boxes of all are those of one list of scenes."""

import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.repo.docs import layouts
from tests.repo.docs.layouts import CLASSES, SCENES, SYNSETS, photo
from tests.repo.docs.pages import lines_of, ran, run, run_here, text_of
from tests.repo.docs.stand_ins import install
from tpufeed.dataset.reader import Dataset
from tpufeed.images import RandomResizedCrop

RUNS = {"recipes.md": ""}

IDS = ("/m/01bjv", "/m/0k4j")
SPLITS = {split: (split,) for split in ("train", "val", "test")}
TWO = {split: (split,) for split in ("train", "val")}
DEALT = {"train": None, "val": None}  # any images


class Layout(NamedTuple):
    """What the commands of a section are to make of a stand-in: for each dataset, the scenes of its splits."""

    write: Callable[[Path], None]
    folder: str
    made: Mapping[str, Mapping[str, Any]]
    names: tuple[str, ...] = CLASSES
    boxless: bool = True  # images without boxes are there as well


LAYOUTS = {
    "COCO": Layout(layouts.write_coco, "coco", {"coco": TWO, "coco-val": {"train": ("val",)}, "coco-keypoints": TWO}),
    "COCO in Ultralytics' folders": Layout(layouts.write_ultralytics_coco, "coco", {"coco": TWO}),
    "COCO from Roboflow": Layout(
        layouts.write_roboflow_coco, "roboflow-coco", {"roboflow-coco": SPLITS}, ("vehicles", *CLASSES)
    ),
    "COCO from CVAT": Layout(layouts.write_cvat_coco, "cvat-coco", {"cvat-coco": DEALT}),
    "COCO from Label Studio": Layout(layouts.write_label_studio, "label-studio", {"label-studio": DEALT}),
    "COCO's outlines as masks": Layout(layouts.write_coco, "coco", {"coco-semantic": TWO, "coco-instances": TWO}),
    "YOLO": Layout(layouts.write_yolo, "yolo", {"yolo": TWO}),
    "YOLO from Roboflow": Layout(layouts.write_roboflow_yolo, "roboflow-yolo", {"roboflow-yolo": SPLITS}),
    "YOLO from CVAT": Layout(layouts.write_cvat_yolo, "cvat-yolo", {"cvat-yolo": DEALT}),
    "YOLO's segments as masks": Layout(layouts.write_yolo_polygons, "yolo-seg", {"yolo-seg": TWO}),
    "Pascal VOC": Layout(layouts.write_voc, "VOCdevkit", {"voc": TWO}),
    "VOC from Roboflow": Layout(layouts.write_roboflow_voc, "roboflow-voc", {"roboflow-voc": SPLITS}),
    "VOC from Kaggle": Layout(layouts.write_kaggle_voc, "road-signs", {"road-signs": DEALT}),
    "Open Images": Layout(
        layouts.write_open_images,
        "",
        {"open-images-train": {"train": ("train",)}, "open-images": {"train": ("train",), "validation": ("val",)}},
        ("Bus", "Car"),
        boxless=False,
    ),
    "Global Wheat Detection": Layout(layouts.write_wheat, "global-wheat", {"wheat": DEALT}, (), boxless=False),
    "Tables of TensorFlow's tutorial": Layout(
        layouts.write_roboflow_csv,
        "",
        {"tutorial": {"train": ("train",), "valid": ("val",), "test": ("test",)}},
        boxless=False,
    ),
    "Image folders with metadata": Layout(
        layouts.write_imagefolder, "imagefolder", {"imagefolder": {"train": ("train",), "validation": ("val",)}}
    ),
}
OTHERS = {"Kaggle's tables", "Photos of phones", "Views"}  # and ImageNet


def pixels_of(data: bytes) -> bytes:
    return Image.open(io.BytesIO(data)).convert("RGB").tobytes()


NAMES = {pixels_of(photo(scene.name, suffix)): scene.name for scene in SCENES for suffix in ("jpg", "png")}


def sections() -> dict[str, str]:
    """Return the text of each section of the page."""
    parts = re.split(r"^## (.*)\n", text_of("recipes.md"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def run_section(name: str, folder: Path) -> None:
    for block in re.findall(r"```bash\n(.*?)```", sections()[name], re.DOTALL):
        for line in lines_of(block):
            if line.startswith("tpufeed "):
                run_here([line], folder)
            elif not line.startswith("pip "):
                run(line, folder, PATH=install(folder / "tools", "hf"), HUB=str(folder / "hub"))


def found_in(dataset: Dataset, split: str) -> dict[str, list[tuple[str, list[float]]]]:
    """Return the objects of each image of a split, by the name of its scene, which its pixels tell."""
    found, names = {}, dataset.manifest.class_names
    (boxes,) = (spec.key for spec in dataset.manifest.features if spec.kind == "boxes")
    for features in dataset.iter_examples(split):
        sides = np.reshape(features[boxes].values, (-1, 4)).round(2).tolist()
        labels = features["image/class/label"].values if names else [0] * len(sides)
        kinds = [names[label] if names else "" for label in labels]
        found[NAMES[pixels_of(features["image/encoded"].values[0])]] = list(zip(kinds, sides, strict=True))
        for spec in dataset.manifest.features:
            if spec.kind == "mask":
                mask = np.asarray(Image.open(io.BytesIO(features[spec.key].values[0])))
                for place, (label, (left, top, right, bottom)) in enumerate(zip(labels, sides, strict=True)):
                    drawn = mask[int(top + bottom) // 2, int(left + right) // 2]
                    assert drawn == 1 + (label if dataset.manifest.options["outlines"] == "semantic" else place)
    return found


def expected_of(layout: Layout, names: tuple[str, ...], splits: tuple[str, ...]) -> dict[str, Any]:
    say = dict(zip(CLASSES, names[-2:] if names else ("", ""), strict=True))
    return {
        scene.name: [(say[kind], [float(side) for side in box]) for kind, box in scene.objects]
        for scene in SCENES
        if scene.split in splits and (layout.boxless or scene.objects)
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_commands_for_boxes_run_as_they_stand(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    layout.write(tmp_path / layout.folder)
    if name.startswith("Image folders"):
        layouts.write_captions(tmp_path / "captions")
    run_section(name, tmp_path)
    for place, splits in layout.made.items():
        dataset = tpufeed.open_dataset(tmp_path / "out" / place)
        assert dataset.manifest.splits.keys() == splits.keys()
        names = IDS if place == "open-images-train" else layout.names
        assert tuple(dataset.manifest.class_names or ()) == names
        found = {split: found_in(dataset, split) for split in splits}
        if splits is DEALT:
            wanted = ("train", "val") if name.startswith("Global") else tuple(SPLITS)
            assert found["train"].keys().isdisjoint(found["val"])
            assert found["train"] | found["val"] == expected_of(layout, names, wanted)
        else:
            assert found == {split: expected_of(layout, names, wanted) for split, wanted in splits.items()}
        assert not dataset.manifest.rejects
    if name == "COCO":
        (points,) = (spec for spec in dataset.manifest.features if spec.kind == "keypoints")
        assert (points.item_shape, points.flip_pairs) == ((4, 3), ((0, 1), (2, 3)))
    if name.startswith("Image folders"):
        captions = tpufeed.open_dataset(tmp_path / "out/captions")
        samples = [features for split in captions.manifest.splits for features in captions.iter_examples(split)]
        texts = {bytes(features["text"].values[0]).decode() for features in samples}
        assert texts == {f'A "{scene.name}", seen from above' for scene in SCENES}
        assert captions.manifest.class_names == CLASSES


def test_the_command_for_a_table_of_names_runs_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "leaves/train_images").mkdir(parents=True)
    rows = ["image_id,label"]
    for number in range(8):
        (tmp_path / f"leaves/train_images/{number}.jpg").write_bytes(photo(str(number)))
        rows.append(f"{number}.jpg,{number % 2}")
    (tmp_path / "leaves/train.csv").write_text("\n".join(rows))
    run_section("Kaggle's tables", tmp_path)
    dataset = tpufeed.open_dataset(tmp_path / "out/leaves")
    assert sum(split.records for split in dataset.manifest.splits.values()) == 8
    assert dataset.manifest.class_names == ("0", "1")


def test_the_commands_for_photos_and_views_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pillow_heif")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layouts.write_phone(tmp_path / "phone")
    run_section("Photos of phones", tmp_path)
    photos = tpufeed.open_dataset("out/phone")
    assert photos.manifest.images == {"jpeg": 8, "jpeg, encoded anew": 16}
    (code,) = re.findall(r"```python\n(.*?)```", sections()["Views"], re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    ran(code)
    records = photos.split("train").records
    assert made["two"].split("train").records == records
    assert made["fold"].split("train").records + made["rest"].split("train").records == records
    assert made["clean"].split("train").records == records - 1
    with tpufeed.Loader(made["balanced"], "train", batch_size=4, ops=[RandomResizedCrop(32)]) as loader:
        assert loader.class_names == CLASSES


def test_the_commands_for_imagenet_run_as_they_stand(tmp_path: Path) -> None:
    layouts.write_imagenet(tmp_path)
    layouts.write_hub(
        tmp_path / "hub/ILSVRC/imagenet-1k", [(SYNSETS[number % 3], photo(str(number))) for number in range(20)]
    )
    ours = [name for name in sections() if name.startswith("ImageNet")]
    assert {*sections()} == {*ours, *LAYOUTS, *OTHERS}  # each section has a test
    for name in ours:
        run_section(name, tmp_path)
    assert not list((tmp_path / "train").glob("*.tar"))
    for name in ("kaggle", "imagenet"):
        dataset = tpufeed.open_dataset(tmp_path / "out" / name)
        assert dataset.manifest.class_names == SYNSETS
        assert {name: split.records for name, split in dataset.manifest.splits.items()} == {"train": 15, "val": 5}
        found = {
            bytes(features["image/filename"].values[0])[-18:]: features["image/class/label"].values[0]
            for features in dataset.iter_examples("val")
        }  # the labels of val are those of its files
        assert found == {f"_val_{number:08d}.JPEG".encode(): number % 3 for number in range(15, 20)}
    assert set(tpufeed.open_dataset(tmp_path / "out/imagenet-1k").manifest.splits) == {"train", "validation"}
