"""Write small datasets as tools export them: the files, names and keys are theirs, the photographs are ours.

All have the objects of `SCENES`, so what a command makes of any of them is compared with these.
"""

import csv
import hashlib
import importlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

WIDTH, HEIGHT = 128, 96
CLASSES = ("bus", "car")
SYNSETS = ("n01440764", "n01443537", "n01484850")


class Scene(NamedTuple):
    """A photograph with its objects, which do not overlap: a class, and left, top, right and bottom in pixels."""

    split: str
    name: str
    objects: tuple[tuple[str, tuple[int, int, int, int]], ...]


CAR, BUS, SMALL = ("car", (16, 24, 48, 72)), ("bus", (64, 12, 120, 90)), ("car", (2, 3, 10, 11))
SCENES = (
    Scene("train", "a0", (CAR, BUS)),
    Scene("train", "a1", (BUS,)),
    Scene("train", "a2", (SMALL, CAR, BUS)),
    Scene("train", "a3", ()),
    Scene("val", "b0", (CAR,)),
    Scene("val", "b1", (BUS, SMALL)),
    Scene("test", "c0", (SMALL,)),
)
TWO_SPLITS = tuple(scene for scene in SCENES if scene.split != "test")


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def photo(name: str, suffix: str = "jpg") -> bytes:
    """Return a photograph of WIDTH x HEIGHT; each name has its own."""
    noise = np.random.default_rng(list(name.encode())).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(noise).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    if suffix == "heic":
        pillow_heif = importlib.import_module("pillow_heif")
        pillow_heif.from_pillow(image).save(file)
    else:
        image.save(file, {"jpg": "JPEG"}.get(suffix, suffix.upper()))
    return file.getvalue()


def roboflow_name(scene: Scene) -> str:
    return f"{scene.name}_jpg.rf.{hashlib.md5(scene.name.encode()).hexdigest()}"


def size_of(box: Sequence[int]) -> list[int]:
    left, top, right, bottom = box
    return [left, top, right - left, bottom - top]


def corners_of(box: Sequence[int]) -> list[int]:
    left, top, right, bottom = box
    return [left, top, right, top, right, bottom, left, bottom]


# COCO.


def coco_rows(names: Sequence[str], scenes: Sequence[Scene], first: int = 1) -> tuple[list[Any], list[Any]]:
    """Return the images and annotations of a COCO file, without the keys that only some tools write."""
    images = [
        {"id": number, "width": WIDTH, "height": HEIGHT, "file_name": name} for number, name in enumerate(names, first)
    ]
    pairs = [(number, *each) for number, scene in enumerate(scenes, first) for each in scene.objects]
    annotations = [
        {
            "id": place,
            "image_id": number,
            "category_id": CLASSES.index(kind) + first,
            "segmentation": [corners_of(box)],
            "area": float(size_of(box)[2] * size_of(box)[3]),
            "bbox": [float(side) for side in size_of(box)],
            "iscrowd": 0,
        }
        for place, (number, kind, box) in enumerate(pairs, first)
    ]
    return images, annotations


def write_coco(folder: Path, images_in: str = "{}2017") -> None:
    """COCO as it is downloaded. `images/{}2017` is the folder that Ultralytics makes of it."""
    info = {"description": "COCO 2017 Dataset", "url": "http://cocodataset.org", "version": "1.0", "year": 2017}
    info |= {"contributor": "COCO Consortium", "date_created": "2017/09/01"}
    licenses = [{"url": "http://creativecommons.org/licenses/by/2.0/", "id": 4, "name": "Attribution License"}]
    kinds = [{"supercategory": "vehicle", "id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    points = [f"{side}_{name}" for name in ("eye", "ear") for side in ("left", "right")]
    for split in ("train", "val"):
        scenes = [scene for scene in SCENES if scene.split == split]
        names = [f"{int(scene.name, 16):012d}.jpg" for scene in scenes]
        images, annotations = coco_rows(names, scenes)
        for name, scene in zip(names, scenes, strict=True):
            write(folder / images_in.format(split) / name, photo(scene.name))
        url = {"license": 4, "coco_url": "http://images.cocodataset.org/train2017/000000391895.jpg"}
        url |= {"date_captured": "2013-11-14 11:18:45", "flickr_url": "http://farm9.staticflickr.com/1_z.jpg"}
        content = {"info": info, "licenses": licenses, "images": [{**url, **image} for image in images]}
        posed = [
            {**one, "num_keypoints": 1, "keypoints": [*(int(x) + 1 for x in one["bbox"][:2]), 2, *[0] * 9]}
            for one in annotations
        ]
        skeletons = [{**kind, "keypoints": points, "skeleton": [[1, 2]]} for kind in kinds]
        captions = [{"image_id": image["id"], "id": image["id"], "caption": "A bus."} for image in images]
        for kind, rows in (
            ("instances", {"annotations": annotations, "categories": kinds}),
            ("person_keypoints", {"annotations": posed, "categories": skeletons}),
            ("captions", {"annotations": captions}),
        ):
            write(folder / f"annotations/{kind}_{split}2017.json", json.dumps({**content, **rows}))


def write_ultralytics_coco(folder: Path) -> None:
    write_coco(folder, "images/{}2017")
    write_labels(folder, lambda scene: f"{scene.split}2017/{int(scene.name, 16):012d}.txt")


def write_roboflow_coco(folder: Path) -> None:
    """Its categories begin with a root, which has no boxes; val is called valid."""
    info = {"year": "2024", "version": "1", "description": "Exported from roboflow.com", "contributor": ""}
    info |= {
        "url": "https://public.roboflow.com/object-detection/undefined",
        "date_created": "2024-05-01T08:00:00+00:00",
    }
    licenses = [{"id": 1, "url": "https://creativecommons.org/licenses/by/4.0/", "name": "CC BY 4.0"}]
    root = [{"id": 0, "name": "vehicles", "supercategory": "none"}]
    kinds = [{"id": number, "name": name, "supercategory": "vehicles"} for number, name in enumerate(CLASSES, 1)]
    for split, scenes in roboflow_splits():
        names = [f"{roboflow_name(scene)}.jpg" for scene in scenes]
        images, annotations = coco_rows(names, scenes, 0)
        for image, scene in zip(images, scenes, strict=True):
            image |= {
                "license": 1,
                "date_captured": "2024-05-01T08:00:00+00:00",
                "extra": {"name": f"{scene.name}.jpg"},
            }
            write(folder / split / image["file_name"], photo(scene.name))
        for one in annotations:
            one |= {"category_id": one["category_id"] + 1, "segmentation": []}
        content = {"info": info, "licenses": licenses, "categories": root + kinds, "images": images}
        write(folder / split / "_annotations.coco.json", json.dumps({**content, "annotations": annotations}))
    write_roboflow_notes(folder)


def roboflow_splits() -> Iterator[tuple[str, list[Scene]]]:
    for split, folder in (("train", "train"), ("val", "valid"), ("test", "test")):
        yield folder, [scene for scene in SCENES if scene.split == split]


def write_roboflow_notes(folder: Path) -> None:
    for name in ("README.dataset.txt", "README.roboflow.txt"):
        write(folder / name, "vehicles - v1 2024-05-01\n==============================\n")


def write_cvat_coco(folder: Path) -> None:
    """A task without subsets, so that all is called default."""
    names = [f"{scene.name}.jpg" for scene in SCENES]
    images, annotations = coco_rows(names, SCENES)
    for name, scene in zip(names, SCENES, strict=True):
        write(folder / "images/default" / name, photo(scene.name))
    content = {
        "licenses": [{"name": "", "id": 0, "url": ""}],
        "info": {"contributor": "", "date_created": "", "description": "", "url": "", "version": "", "year": ""},
        "categories": [{"id": number, "name": name, "supercategory": ""} for number, name in enumerate(CLASSES, 1)],
        "images": [{**one, "license": 0, "flickr_url": "", "coco_url": "", "date_captured": 0} for one in images],
        "annotations": [
            {**one, "segmentation": [], "attributes": {"occluded": False, "rotation": 0.0}} for one in annotations
        ],
    }
    write(folder / "annotations/instances_default.json", json.dumps(content))


def write_label_studio(folder: Path) -> None:
    """An export on Windows: its paths have backslashes, and the names begin with a part of the upload's id."""
    names = [f"{hashlib.md5(scene.name.encode()).hexdigest()[:8]}-{scene.name}.jpg" for scene in SCENES]
    images, annotations = coco_rows([f"images\\{name}" for name in names], SCENES, 0)
    for name, scene in zip(names, SCENES, strict=True):
        write(folder / "images" / name, photo(scene.name))
    content = {
        "images": images,
        "categories": [{"id": number, "name": name} for number, name in enumerate(CLASSES)],
        "annotations": [{**one, "segmentation": [], "ignore": 0} for one in annotations],
        "info": {
            "year": 2024,
            "version": "1.0",
            "description": "",
            "contributor": "Label Studio",
            "url": "",
            "date_created": "2024-05-01 08:00:00.000000",
        },
    }
    write(folder / "result.json", json.dumps(content, indent=2))


# YOLO.


def write_labels(folder: Path, place: Any, polygons: bool = False, scenes: Sequence[Scene] = TWO_SPLITS) -> None:
    """Write the label files; `place` returns their names. An image without objects has an empty one."""
    for scene in scenes:
        lines = []
        for kind, box in scene.objects:
            left, top, right, bottom = box
            middle = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
            numbers = corners_of(box) if polygons else middle
            shares = [number / (HEIGHT if at % 2 else WIDTH) for at, number in enumerate(numbers)]
            lines.append(" ".join([str(CLASSES.index(kind)), *(f"{share:.6f}" for share in shares)]) + "\n")
        write(folder / "labels" / place(scene), "".join(lines))


def write_yolo(folder: Path, polygons: bool = False) -> None:
    """Ultralytics' own, like coco8: `test` is empty, and `path` is the folder seen from another one."""
    for scene in TWO_SPLITS:
        write(folder / f"images/{scene.split}/{scene.name}.jpg", photo(scene.name))
    write_labels(folder, lambda scene: f"{scene.split}/{scene.name}.txt", polygons)
    (folder / "labels/train.cache").write_bytes(b"\x93NUMPY\x01\x00")  # of a training
    text = f"# vehicles\npath: {folder.name} # dataset root dir\ntrain: images/train # 4 images\nval: images/val\n"
    write(folder / "data.yaml", f"{text}test: # test images (optional)\n\n# Classes\nnames:\n  0: bus\n  1: car\n")


def write_yolo_polygons(folder: Path) -> None:
    write_yolo(folder, polygons=True)


def write_roboflow_yolo(folder: Path) -> None:
    for split, scenes in roboflow_splits():
        for scene in scenes:
            write(folder / split / "images" / f"{roboflow_name(scene)}.jpg", photo(scene.name))
        write_labels(folder / split, lambda scene: f"{roboflow_name(scene)}.txt", scenes=scenes)
    project = "  workspace: someone\n  project: vehicles\n  version: 1\n  license: CC BY 4.0\n"
    url = "  url: https://universe.roboflow.com/someone/vehicles/dataset/1"
    splits = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
    write(folder / "data.yaml", f"{splits}\nnc: 2\nnames: ['bus', 'car']\n\nroboflow:\n{project}{url}")
    write_roboflow_notes(folder)


def write_cvat_yolo(folder: Path) -> None:
    """CVAT's "Ultralytics YOLO": lists of images."""
    for scene in SCENES:
        write(folder / f"images/train/{scene.name}.jpg", photo(scene.name))
    write_labels(folder, lambda scene: f"train/{scene.name}.txt", scenes=SCENES)
    write(folder / "train.txt", "".join(f"images/train/{scene.name}.jpg\n" for scene in SCENES))
    write(folder / "data.yaml", "names:\n  0: bus\n  1: car\npath: .\ntrain: train.txt\n")


# Pascal VOC.


def voc_xml(scene: Scene, folder: str, file: str, indent: str = "\t", beside: str = "") -> str:
    """Return a file of VOC, whose pixels are counted from 1. `beside` are further elements of an object."""
    source = f"{indent}<source>\n{indent * 2}<database>The VOC2007 Database</database>\n{indent}</source>\n"
    size = f"<width>{WIDTH}</width>\n{indent * 2}<height>{HEIGHT}</height>\n{indent * 2}<depth>3</depth>"
    lines = [
        f"<annotation>\n{indent}<folder>{folder}</folder>\n{indent}<filename>{file}</filename>\n",
        f"{indent}<path>C:\\data\\{file}</path>\n{source}",
        f"{indent}<size>\n{indent * 2}{size}\n{indent}</size>\n{indent}<segmented>0</segmented>\n",
    ]
    for kind, (left, top, right, bottom) in scene.objects:
        corners = f"<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>"
        flags = f"<pose>Unspecified</pose><truncated>1</truncated>{beside}<difficult>0</difficult>"
        lines.append(f"{indent}<object><name>{kind}</name>{flags}<bndbox>{corners}</bndbox></object>\n")
    return "".join([*lines, "</annotation>\n"])


def write_voc(folder: Path) -> None:
    """VOCdevkit, in which only some images are in the lists of Main, and masks are beside."""
    root = folder / "VOC2012"
    for number, scene in enumerate(TWO_SPLITS):
        stem = f"2008_{number:06d}"
        write(root / f"JPEGImages/{stem}.jpg", photo(scene.name))
        write(root / f"Annotations/{stem}.xml", voc_xml(scene, "VOC2012", f"{stem}.jpg"))
        write(root / f"SegmentationClass/{stem}.png", photo(scene.name, "png"))
        write(root / f"SegmentationObject/{stem}.png", photo(scene.name, "png"))
    stems = [(f"2008_{number:06d}", scene) for number, scene in enumerate(TWO_SPLITS)]
    for split in ("train", "val", "trainval"):
        listed = [(stem, scene) for stem, scene in stems if scene.split in split]
        write(root / f"ImageSets/Main/{split}.txt", "".join(f"{stem}\n" for stem, _ in listed))
        has = [(stem, 1 if any(kind == "car" for kind, _ in scene.objects) else -1) for stem, scene in listed]
        write(root / f"ImageSets/Main/car_{split}.txt", "".join(f"{stem} {sign:2d}\n" for stem, sign in has))


def write_roboflow_voc(folder: Path) -> None:
    for split, scenes in roboflow_splits():
        for scene in scenes:
            name = roboflow_name(scene)
            write(folder / split / f"{name}.jpg", photo(scene.name))
            text = voc_xml(scene, "", f"{name}.jpg", beside="<occluded>0</occluded>")
            write(folder / split / f"{name}.xml", text.replace("The VOC2007 Database", "roboflow.com"))
    write_roboflow_notes(folder)


def write_kaggle_voc(folder: Path) -> None:
    """Kaggle's datasets of road signs and masks: PNG images."""
    for number, scene in enumerate(SCENES):
        write(folder / f"images/road{number}.png", photo(scene.name, "png"))
        text = voc_xml(scene, "images", f"road{number}.png", "    ", "<occluded>0</occluded>")
        write(folder / f"annotations/road{number}.xml", text)


# Tables.


def write_csv(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    write(path, file.getvalue())


def write_open_images(folder: Path) -> None:
    """Open Images V6: 21 columns for train, 13 for the others; classes are called by ids like /m/01bjv."""
    ids = dict(zip(CLASSES, ("/m/01bjv", "/m/0k4j"), strict=True))
    columns = (
        "ImageID Source LabelName Confidence XMin XMax YMin YMax IsOccluded IsTruncated IsGroupOf IsDepiction IsInside"
    )
    clicks = [f"XClick{number}{axis}" for axis in "XY" for number in range(1, 5)]
    for split, file, extra in (("train", "oidv6-train", clicks), ("val", "validation", [])):
        rows: list[Sequence[Any]] = [[*columns.split(), *extra]]
        for scene in (scene for scene in SCENES if scene.split == split):
            name = hashlib.md5(scene.name.encode()).hexdigest()[:16]
            write(folder / {"val": "validation"}.get(split, split) / f"{name}.jpg", photo(scene.name))
            for kind, (left, top, right, bottom) in scene.objects:
                shares = [left / WIDTH, right / WIDTH, top / HEIGHT, bottom / HEIGHT]
                rows.append([name, "xclick", ids[kind], 1, *shares, 0, 0, 0, 0, 0, *(shares * 2 if extra else ())])
        write_csv(folder / f"{file}-annotations-bbox.csv", rows)
    write_csv(folder / "class-descriptions-boxable.csv", [("/m/01bjv", "Bus"), ("/m/0k4j", "Car")])


def write_wheat(folder: Path) -> None:
    """Global Wheat Detection: boxes as text; images without heads have no row."""
    rows: list[Sequence[Any]] = [["image_id", "width", "height", "bbox", "source"]]
    for scene in SCENES:
        name = hashlib.md5(scene.name.encode()).hexdigest()[:9]
        write(folder / ("test" if scene.split == "test" else "train") / f"{name}.jpg", photo(scene.name))
        boxes = [str([float(side) for side in size_of(box)]) for _, box in scene.objects]
        rows += [[name, WIDTH, HEIGHT, box, "usask_1"] for box in boxes if scene.split != "test"]
    write_csv(folder / "train.csv", rows)


def write_roboflow_csv(folder: Path) -> None:
    """Roboflow's "TensorFlow Object Detection": the table of TensorFlow's tutorial in each folder."""
    for split, scenes in roboflow_splits():
        rows: list[Sequence[Any]] = [["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"]]
        for scene in scenes:
            name = f"{roboflow_name(scene)}.jpg"
            write(folder / split / name, photo(scene.name))
            rows += [[name, WIDTH, HEIGHT, kind, *box] for kind, box in scene.objects]
        write_csv(folder / split / "_annotations.csv", rows)
        (folder / split / "_annotations.csv").write_bytes((folder / split / "_annotations.csv").read_bytes().rstrip())
    write_roboflow_notes(folder)


# Folders.


def write_imagefolder(folder: Path) -> None:
    """An image folder of Hugging Face's `datasets`, with objects, and a metadata file for each split."""
    for split, name in (("train", "train"), ("val", "validation")):
        lines = []
        for scene in (scene for scene in SCENES if scene.split == split):
            write(folder / name / f"{scene.name}.jpg", photo(scene.name))
            boxes, kinds = [size_of(box) for _, box in scene.objects], [kind for kind, _ in scene.objects]
            areas = [width * height for _, _, width, height in boxes]
            objects = {"id": list(range(len(boxes))), "area": areas, "bbox": boxes, "categories": kinds}
            lines.append(json.dumps({"file_name": f"{scene.name}.jpg", "place": "Rome", "objects": objects}) + "\n")
        write(folder / name / "metadata.jsonl", "".join(lines))


def write_captions(folder: Path) -> None:
    """An image folder with a metadata.csv of texts and labels."""
    rows: list[Sequence[Any]] = [["file_name", "text", "label"]]
    for number, scene in enumerate(SCENES):
        write(folder / f"{number:04d}.jpg", photo(scene.name))
        rows.append([f"{number:04d}.jpg", f'A "{scene.name}", seen from above', CLASSES[number % 2]])
    write_csv(folder / "metadata.csv", rows)


def write_phone(folder: Path) -> None:
    """Photos of phones: HEIC of an iPhone, AVIF and JPEG of others, and the edits of an iPhone beside them."""
    for number in range(24):
        suffix, name = (("heic", "IMG_{}.HEIC"), ("avif", "{}.avif"), ("jpg", "IMG_{}.JPG"))[number % 3]
        kind = CLASSES[number % 2]
        write(folder / kind / name.format(f"{number:04d}"), photo(f"phone{number}", suffix))
        write(folder / kind / f"IMG_{number:04d}.AAE", "<?xml version='1.0' encoding='UTF-8'?><plist/>")


# ImageNet.


def write_imagenet(folder: Path) -> None:
    """ImageNet as Kaggle has it and as image-net.org has it, with 15 images of train and 5 of val."""
    data = folder / "ILSVRC/Data/CLS-LOC"
    solution, labels, inner = ["ImageId,PredictionString"], list[str](), {name: io.BytesIO() for name in SYNSETS}
    with ExitStack() as stack:
        tars = {name: stack.enter_context(tarfile.open(fileobj=file, mode="w")) for name, file in inner.items()}
        val = stack.enter_context(tarfile.open(folder / "ILSVRC2012_img_val.tar", "w"))
        for number in range(20):
            synset, image = SYNSETS[number % 3], photo(f"imagenet{number}")
            if number < 15:
                name = f"{synset}_{number}.JPEG"
                write(data / "train" / synset / name, image)
                add(tars[synset], name, image)
            else:
                name = f"ILSVRC2012_val_{number:08d}"
                write(data / f"val/{name}.JPEG", image)
                add(val, f"{name}.JPEG", image)
                solution.append(f"{name},{synset} 10 20 30 40 {synset} 50 60 70 80 ")
                labels.append(synset)
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as train:
        for name, file in inner.items():
            add(train, f"{name}.tar", file.getvalue())
    write(folder / "LOC_val_solution.csv", "\n".join(solution) + "\n")
    write(folder / "imagenet_2012_validation_synset_labels.txt", "\n".join(labels) + "\n")


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def write_hub(folder: Path, photos: Sequence[tuple[str, bytes]]) -> None:
    """A repository of the Hugging Face hub with images of some classes; the labels of its test split are -1."""
    (folder / "data").mkdir(parents=True)
    names = sorted({name for name, _ in photos})
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for split, chosen in (("train", photos[12:]), ("validation", photos[6:12]), ("test", photos[:6])):
        labels = [-1 if split == "test" else names.index(name) for name, _ in chosen]
        images = [{"bytes": data, "path": f"{number}.jpg"} for number, (_, data) in enumerate(chosen)]
        table = pa.table({"image": pa.array(images, image), "label": labels})
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        parquet.write_table(table, folder / f"data/{split}-00000-of-00001.parquet", row_group_size=10)


# A competition.


def write_competition(folder: Path, photos: Path) -> dict[str, str]:
    """A table of 80 photos with labels, and a sample submission; returns the label of each of its 20 ids."""
    answers = dict[str, str]()
    rows = {"train": ["image_id,label"], "sample_submission": ["image_id,label"]}
    files = sorted(photos.glob("*/*.jpg"))
    classes = sorted({file.parent.name for file in files})
    for number, file in enumerate(files):
        image_id, label = str(1000 + number * 37 % 1009), str(classes.index(file.parent.name))
        is_test = number % 5 == 4
        write(folder / f"{'test' if is_test else 'train'}_images/{image_id}.jpg", file.read_bytes())
        rows["sample_submission" if is_test else "train"].append(f"{image_id},{0 if is_test else label}")
        if is_test:
            answers[image_id] = label
    for name, lines in rows.items():
        write(folder / f"{name}.csv", "\n".join(lines) + "\n")
    return answers
