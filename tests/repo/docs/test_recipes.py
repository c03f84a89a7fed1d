"""Every command of recipes.md, on stand-ins of the layouts; the boxes of all are those of one list of scenes."""

import io
import re
from collections.abc import Callable, Iterator, Mapping
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

RUNS = {"recipes.md": ""}

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
    "COCO": Layout(layouts.write_coco, "coco", {"coco": TWO, "coco-keypoints": TWO}),
    "COCO in Ultralytics' folders": Layout(layouts.write_ultralytics_coco, "coco", {"coco": TWO}),
    "COCO from Roboflow": Layout(
        layouts.write_roboflow_coco, "roboflow-coco", {"roboflow-coco": SPLITS}, ("vehicles", *CLASSES)
    ),
    "COCO from CVAT": Layout(layouts.write_cvat_coco, "cvat-coco", {"cvat-coco": DEALT}),
    "COCO from Label Studio": Layout(layouts.write_label_studio, "label-studio", {"label-studio": DEALT}),
    "COCO's outlines as masks": Layout(layouts.write_coco, "coco", {"coco-semantic": TWO}),
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
        {"open-images": {"train": ("train",), "validation": ("val",)}},
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
OTHERS = {"Kaggle's tables", "CLIP's folders", "Photos of phones"}  # and ImageNet
GROUPED = {"Chest X-rays", "HAM10000"}
LABELLED = {"Plant Pathology", "PlantVillage", "Labelled and unlabelled images"}


def pixels_of(data: bytes) -> bytes:
    return Image.open(io.BytesIO(data)).convert("RGB").tobytes()


NAMES = {pixels_of(photo(scene.name, suffix)): scene.name for scene in SCENES for suffix in ("jpg", "png")}


def sections() -> dict[str, str]:
    """Return the text of each section of the page."""
    parts = re.split(r"^## (.*)\n", text_of("recipes.md"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows() -> list[tuple[str, str]]:
    """Return the name and the command of each row of the page's table."""
    return re.findall(r"^\| (.+?) \| .* \| `(tpufeed [^`]*)` \|$", text_of("recipes.md"), re.MULTILINE)


def run_commands(name: str, folder: Path) -> None:
    """Run the commands of the rows, or of the section, of this name."""
    lines = [command for row, command in rows() if row == name]
    lines += [
        line
        for block in re.findall(r"```bash\n(.*?)```", sections().get(name, ""), re.DOTALL)
        for line in lines_of(block)
    ]
    assert lines, name
    for line in lines:
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


def expected_of(layout: Layout, splits: tuple[str, ...]) -> dict[str, Any]:
    say = dict(zip(CLASSES, layout.names[-2:] or ("", ""), strict=True))
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
    run_commands(name, tmp_path)
    for place, splits in layout.made.items():
        dataset = tpufeed.open_dataset(tmp_path / "out" / place)
        assert dataset.manifest.splits.keys() == splits.keys()
        assert tuple(dataset.manifest.class_names or ()) == layout.names
        found = {split: found_in(dataset, split) for split in splits}
        if splits is DEALT:
            wanted = ("train", "val") if name.startswith("Global") else tuple(SPLITS)
            assert found["train"].keys().isdisjoint(found["val"])
            assert found["train"] | found["val"] == expected_of(layout, wanted)
        else:
            assert found == {split: expected_of(layout, wanted) for split, wanted in splits.items()}
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
    run_commands("Kaggle's tables", tmp_path)
    dataset = tpufeed.open_dataset(tmp_path / "out/leaves")
    assert sum(split.records for split in dataset.manifest.splits.values()) == 8
    assert dataset.manifest.class_names == ("0", "1")


def examples_of(place: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the split, the name of the file and the features of each sample."""
    dataset = tpufeed.open_dataset(place)
    for split in dataset.manifest.splits:
        for features in dataset.iter_examples(split):
            yield split, Path(bytes(features["image/filename"].values[0]).decode()).stem, dict(features)


def labels_in(place: Path) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes of each image, by the name of its file."""
    return {
        name: tuple(filter(None, (bytes(text).decode() for text in features["image/class/text"].values)))
        for _, name, features in examples_of(place)
    }


NIH = ["Image Index,Finding Labels,Patient ID"]
NIH += [f"{n:08}_0.png,{'Mass|Nodule' if n % 3 else 'Mass'},{n // 4}" for n in range(40)]
HAM = ["image_id,dx,lesion_id", *(f"ISIC_{n},{('nv', 'mel')[n % 2]},HAM_{n // 4}" for n in range(40))]


@pytest.mark.parametrize(
    ("name", "table", "image", "rows", "group"),
    [
        ("Chest X-rays", "nih/Data_Entry_2017.csv", "nih/images_00{}/images/{}", NIH, "Patient ID"),
        ("HAM10000", "ham/HAM10000_metadata.csv", "ham/HAM10000_images_part_{}/{}.jpg", HAM, "lesion_id"),
    ],
)
def test_the_commands_for_groups_run_as_they_stand(
    name: str, table: str, image: str, rows: list[str], group: str, tmp_path: Path
) -> None:
    layouts.write(tmp_path / table, "\n".join(rows))
    for number, row in enumerate(rows[1:]):
        path = tmp_path / image.format(1 + number % 2, row.split(",")[0])
        layouts.write(path, photo(str(number), path.suffix[1:]))
    run_commands(name, tmp_path)
    place = (tmp_path / "out" / table).parent
    splits: dict[Any, set[str]] = {}
    for split, _, features in examples_of(place):
        (value,) = features[group].values
        splits.setdefault(value if isinstance(value, int) else bytes(value), set()).add(split)
    assert {len(each) for each in splits.values()} == {1}
    wanted = {row.split(",")[0].partition(".")[0]: tuple(row.split(",")[1].split("|")) for row in rows[1:]}
    assert labels_in(place) == wanted


def test_the_commands_for_labels_as_they_come_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = {"2020": ["image_id,healthy,multiple_diseases,rust,scab"], "2021": ["image,labels"]}
    for number in range(8):
        rows["2020"].append(f"Train_{number},{','.join('01'[number % 4 == place] for place in range(4))}")
        rows["2021"].append(f"{number}.jpg,{'scab rust' if number % 2 else 'scab'}")
        places = [f"plants-2020/images/Train_{number}", f"plants-2021/train_images/{number}"]
        places += [f"plantvillage/{part}/Apple___{'ab'[number % 2]}/{number}" for part in ("color", "segmented")]
        for place in (*places, f"few/{('cat/', 'dog/', '', '')[number % 4]}{number}"):
            layouts.write(tmp_path / f"{place}.jpg", photo(place))
    for year, lines in rows.items():
        layouts.write(tmp_path / f"plants-{year}/train.csv", "\n".join(lines))
    for name in LABELLED:
        run_commands(name, tmp_path)
    kinds = ("healthy", "multiple_diseases", "rust", "scab")
    assert labels_in(Path("out/plants-2020")) == {f"Train_{number}": (kinds[number % 4],) for number in range(8)}
    assert set(labels_in(Path("out/plants-2021")).values()) == {("scab",), ("scab", "rust")}
    for place in ("plantvillage", "plantvillage-all"):
        assert tpufeed.open_dataset(f"out/{place}").manifest.class_names == ("Apple___a", "Apple___b")
    (code,) = re.findall(r"```python\n(.*?)```", sections()["Labelled and unlabelled images"], re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    ran(code)
    assert [made[name].split("train").records for name in ("labelled", "unlabelled")] == [4, 4]


def test_the_command_for_captions_runs_as_it_stands(tmp_path: Path) -> None:
    (said,) = re.findall(r"```json\n(.*?)```", sections()["CLIP's folders"], re.DOTALL)
    for number in range(4):
        place = f"{tmp_path}/clip/0000{number // 2}/{number:09d}"
        for ending, data in (("jpg", photo(place)), ("txt", f"photo {number}"), ("json", said)):
            layouts.write(Path(f"{place}.{ending}"), data)
    run_commands("CLIP's folders", tmp_path)
    dataset = tpufeed.open_dataset(tmp_path / "out/clip")
    samples = [(bytes(each["txt"].values[0]), len(each["captions"].values)) for each in dataset.iter_examples("train")]
    assert sorted(samples) == [(b"photo %d" % number, 2) for number in range(4)]


def test_the_command_for_photos_runs_as_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("pillow_heif")
    layouts.write_phone(tmp_path / "phone")
    run_commands("Photos of phones", tmp_path)
    photos = tpufeed.open_dataset(tmp_path / "out/phone")
    assert photos.manifest.images == {"jpeg": 8, "jpeg, encoded anew": 16}


def test_the_commands_for_imagenet_run_as_they_stand(tmp_path: Path) -> None:
    layouts.write_imagenet(tmp_path)
    layouts.write_hub(
        tmp_path / "hub/ILSVRC/imagenet-1k", [(SYNSETS[number % 3], photo(str(number))) for number in range(20)]
    )
    ours = [name for name in sections() if name.startswith("ImageNet")]
    there = {*sections()} | {name for name, _ in rows()}
    assert there == {*ours, *LAYOUTS, *OTHERS, *GROUPED, *LABELLED}  # each section and row has a test
    for name in ours:
        run_commands(name, tmp_path)
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
