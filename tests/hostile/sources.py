"""Annotations that a stranger has prepared: YOLO, VOC, COCO, tables with a row per box, and imagefolders.

A step writes a small sound source, forges one of its files of annotations, and shards it. It ends well, and `verify`
says so, or with an error of tpufeed, within bounds of time and memory.
"""

import copy
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tpufeed
from tests.grouped import in_groups
from tests.hostile.machine import SERIAL, bounded_memory, bounded_time, dump, forge_value, picture, put
from tpufeed.errors import TpufeedError

WIDTH, HEIGHT, IMAGES = 24, 20, 6
SOURCES = ("yolo", "voc", "coco", "grouped", "imagefolder")
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "yolo": ({"outlines": "semantic"}, {"outlines": "instance"}, {"label": "none"}, {"splits": "train=0.5,val=0.5"}),
    "voc": ({"label": "none"}, {"splits": "train=0.5,val=0.5"}),
    "coco": ({"outlines": "semantic"}, {"outlines": "instance"}, {"label": "none"}, {"encode": "png"}),
    "grouped": ({"label": "none"}, {"box_columns": ["note"]}),
    "imagefolder": ({"label": "none"}, {"box_format": "xyxy", "boxes": "objects.bbox"}),
}
# Text in the place of a number or a name.
WORDS = (
    *(
        "",
        " ",
        "nan",
        "NaN",
        "-inf",
        "Infinity",
        "1e400",
        "-1e308",
        "1e-320",
        "0x10",
        "1_0",
        "-0",
        "2.5",
        "٣",
        "\uff11",
    ),
    *("9" * 30, "9" * 5000, "1e30", "18446744073709551616", "null", "true", "~", "yes", "é", "\ufeff", "\x85", "\x1c"),
    *("\0", "\x1b[2J", "../../x", "/etc/passwd", "a" * 300, "x" * 70_000, "%s{}%", "[]", "{}", "0.5 " * 9, '"', "'"),
    *("\n", "\r\n", "\u2028", ",", ";", "\t", "<", "&", "]]>", "-", "#", ":", "*a", "&a", "!!python/name:os.system"),
)
COUNTS = (
    *("", "0", "0" * 9, "o" * 7, "P" * 100, "`2", "`2`2", "\x00", "é", "~~~", "1" * 70_000, "__OoN", "mPP1", "h>"),
    *([], [480], [-1, 481], [2**31, -(2**31) + 480], [0] * 100_000, [479, 2], [2**63], [1.5, 478.5], ["480"], [None]),
    *([10**40], [[480]], {"counts": [480]}, [480, 0, 0, 0], [0, 480], [1] * 480),
)
SIZES = ([20, 24], [24, 20], [0, 0], [-1, -480], [2**31, 2**31], [1, 480], [20], [20, 24, 3], "20", [20.0, 24], None)
MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20))
YAML = (
    LAUGHS + "names: *a19\ntrain: *a19\n",
    MERGES + "names: {<<: *a11}\ntrain: images/train\n",
    "train: images/train\nval: images/val\nnames: &a [*a]\n",
    "train: images/train\nnames: &a {0: *a}\n",
    "train: images/train\nnames: {? {a: b} : c}\n",
    "train: images/train\nnames: {? [0] : c}\n",
    *(f"train: images/train\nnames: [cat, dog]\nnc: {each}\n" for each in ('!!int ""', "!!bool x", "!!timestamp x")),
    *(f"train: images/train\nnames: [{each}]\n" for each in ('!!float ""', "2001-99-99", "!!binary x", "!!set {a}")),
    "train: images/train\nnames: [cat, " + ":".join(["1"] * 400) + ".5]\n",
    "train: !!python/object/apply:os.system [touch /tmp/hacked]\nnames: [cat]\n",
    "train: images/train\nnames: [cat, cat]\n",
    "train: images/train\nnames: [cat, null]\n",
    "train: images/train\nnames: {0: cat, 0: dog}\n",
    "train: images/train\nnames: {-1: cat, 99999999999999999999999999999: dog, 1.5: ant}\n",
    "train: images/train\nnames: {true: cat, no: dog}\n",
    "train: ../..\nnames: [cat]\n",
    'train: "a\\0b"\nnames: [cat]\n',
    "train: [images/train, images/train]\nval: images/train\nnames: [cat, dog]\n",
    "train: images/train.txt\nval: images\nnames: [cat, dog]\npath: /nowhere\n",
    "train: nowhere://x\nval: zip::x.zip\nnames: [cat, dog]\n",
    "train: images/train\nnames: [cat, dog]\nkpt_shape: [99999999999999999999, 3]\n",
    "train: images/train\nnames: [cat, dog]\nkpt_shape: [2, 3]\nflip_idx: [1, 99999999999999999999999]\n",
    "train: images/train\nnames: " + "[" * 20_000 + "\n",
    "train: images/train\nnames: " + "{a: " * 5000 + "\n",
    "train: images/train\nnames: [" + "cat,\n" * 40_000 + "]\n",
    "train: images/train\nnames:\n" + "".join(f"  {n}: c{n}\n" for n in range(20_000)),
    "---\n...\n---\n",
    "%YAML 9.9\n---\n{}",
)
XML = (
    '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + "".join(f'<!ENTITY a{n} "{"&a;" * 9}">' for n in range(9)) + "]>",
    '<!DOCTYPE a SYSTEM "file:///etc/passwd">',
    '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
    "<?xml version='1.0' encoding='utf-7'?>",
    "<?xml version='1.0' encoding='unicode_escape'?>",
    "<?xml version='1.0' encoding='undefined'?>",
    "<?xml version='1.0' encoding='utf-16'?>",
    "<?xml version='1.0' encoding='zlib'?>",
    "<?xml version='9.9'?>",
    "<" + "x" * 100_000 + ">",
    "<a>" * 200_000,
    "<annotation>" + "<object>" * 100_000,
    "<annotation>" + "<object/>" * 100_000 + "</annotation>",
    "<annotation>" + "&amp;" * 300_000 + "</annotation>",
    "<annotation " + " ".join(f'a{n}="x"' for n in range(20_000)) + "/>",
    '<annotation xmlns:a="x"><a:object/></annotation>',
)


@dataclass(frozen=True)
class SourceStep:
    """A source of a `kind`, forged as `seed` says."""

    kind: str
    seed: int


# Sound sources: text by the name of its file. Images are beside them.


def boxes_of(number: int) -> list[list[int]]:
    """The boxes of an image: left, top, right, bottom."""
    return [[each, each + 1, each + 6 + number, each + 8] for each in range(number % 3)]


def yolo() -> dict[str, str]:
    found = {"data.yaml": "path: .\ntrain: images/train\nval: images/val\nnc: 2\nnames: [cat, dog]\n"}
    for number in range(IMAGES):
        lines = []
        for at, (left, top, right, bottom) in enumerate(boxes_of(number)):
            x0, y0, x1, y1 = left / WIDTH, top / HEIGHT, right / WIDTH, bottom / HEIGHT
            corners = (x0, y0, x1, y0, x1, y1) if at else ((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0)
            lines.append(f"{at} {' '.join(f'{each:.4f}' for each in corners)}")
        found[f"labels/{'train' if number % 2 else 'val'}/{number}.txt"] = "\n".join(lines)
    return found


def voc() -> dict[str, str]:
    found = {"ImageSets/Main/train.txt": "0\n1\n2\n", "ImageSets/Main/val.txt": "3\n4\n5\n"}
    for number in range(IMAGES):
        objects = "".join(
            f"<object><name>cat</name><difficult>0</difficult><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>"
            f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>\n"
            for left, top, right, bottom in boxes_of(number)
        )
        size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
        found[f"Annotations/{number}.xml"] = (
            f"<annotation><filename>{number}.png</filename>{size}{objects}</annotation>"
        )
    return found


def coco_document() -> dict[str, Any]:
    images, annotations = [], list[Any]()
    for number in range(IMAGES):
        images.append({"id": number, "file_name": f"{number}.png", "width": WIDTH, "height": HEIGHT})
        for at, (left, top, right, bottom) in enumerate(boxes_of(number)):
            outline: Any = [[left, top, right, top, right, bottom]]
            outline = {"size": [HEIGHT, WIDTH], "counts": [40, 20, 420]} if at else outline
            one = {"id": len(annotations), "image_id": number, "category_id": 1 + at, "iscrowd": at, "area": 3.5}
            annotations.append(one | {"bbox": [left, top, right - left, bottom - top], "segmentation": outline})
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog", "supercategory": "animal"}]
    return {"images": images, "annotations": annotations, "categories": categories}


def coco() -> dict[str, str]:
    return {"coco.json": json.dumps(coco_document())}


def grouped() -> dict[str, str]:
    lines = ["path,label,xmin,ymin,xmax,ymax,note"]
    lines += [f"images/{n}.png,cat,{','.join(map(str, box))},n{n}" for n in range(IMAGES) for box in boxes_of(n)]
    return {"boxes.csv": "\n".join(lines)}


def imagefolder() -> dict[str, str]:
    lines = []
    for number in range(IMAGES):
        boxes = [[left, top, right - left, bottom - top] for left, top, right, bottom in boxes_of(number)]
        objects = {"bbox": boxes, "categories": ["cat"] * len(boxes), "area": [3] * len(boxes)}
        lines.append(json.dumps({"file_name": f"{number}.png", "text": "x", "objects": objects}))
    return {"metadata.jsonl": "\n".join(lines)}


MAKERS = {"yolo": yolo, "voc": voc, "coco": coco, "grouped": grouped, "imagefolder": imagefolder}
FOLDERS = {"yolo": "images", "voc": "JPEGImages", "coco": "", "grouped": "images", "imagefolder": ""}
NAMES = {"coco": "coco.json", "grouped": "boxes.csv"}  # else the folder


def forge_text(text: str, draw: random.Random) -> bytes:
    """Put other words in the place of some, or forge the text as a whole."""
    way = draw.random()
    data = text.encode()
    if way < 0.7:
        for _ in range(draw.choice([1, 1, 1, 3])):
            at, word = draw.randrange(len(text) + 1), draw.choice(WORDS)
            ends = [place for place in range(at, len(text)) if not text[place].isalnum() and text[place] != "."]
            begin = max(
                (place + 1 for place in range(at) if not text[place].isalnum() and text[place] != "."), default=0
            )
            text = text[:begin] + word + text[(ends or [len(text)])[0] :]
        return text.encode("utf-8", "surrogatepass")
    at = draw.randrange(len(data) + 1)
    wholes = (
        *(
            b"",
            b"\0" * 4096,
            b"\xff\xfe" + text.encode("utf-16-le"),
            b"\xef\xbb\xbf" + data,
            data.replace(b"\n", b"\r\n"),
        ),
        *(
            data[:at],
            data[:at] + b"\xff" + data[at:],
            data[:at] + b"\0" + data[at:],
            data * 500,
            data + b" 1" * (5 << 20),
        ),
        *(
            b"[" * 200_000,
            b'{"a":' * 200_000,
            b"9" * 100_000,
            b"0 " + b"0.5 " * (2 << 20),
            b"0 .5 .5 .1 .1\n" * 60_000,
        ),
        *(data.replace(b" ", b"\n"), data.replace(b"\n", b"\r"), data[::-1], data + b"\n" + data, b"\n" * (1 << 20)),
    )
    return draw.choice(wholes)


def forge_json(document: Any, draw: random.Random) -> bytes:
    """Put other values, run lengths or sizes into a document."""
    for _ in range(draw.choice([1, 1, 2])):
        document = forge_value(document, draw)
    try:
        outlines = [each["segmentation"] for each in document["annotations"] if isinstance(each["segmentation"], dict)]
    except (KeyError, TypeError):
        outlines = []
    if outlines and draw.random() < 0.5:
        key, values = draw.choice([("counts", COUNTS), ("counts", COUNTS), ("size", SIZES)])
        draw.choice(outlines)[key] = copy.deepcopy(draw.choice(values))
    text = dump(document)
    if draw.random() < 0.3:
        at = draw.choice([place for place in range(len(text)) if text[place : place + 1].isdigit()] or [0])
        word = draw.choice(
            [b"NaN", b"1e400", b"-Infinity", b"9" * 5000, b"-0", b"1E5", b"0" * 30, b'"\\ud800"', b"1.0"]
        )
        text = text[:at] + word + text[at + 1 :]
    return text


def forge_source(folder: Path, step: SourceStep, draw: random.Random) -> None:
    """Write a source with a forged file."""
    files = MAKERS[step.kind]()
    for number in range(IMAGES):
        split = ("train" if number % 2 else "val") if step.kind == "yolo" else ""
        put(folder / FOLDERS[step.kind] / split / f"{number}.png", picture(number))
    for name, text in files.items():
        put(folder / name, text)
    name = draw.choice(sorted(files))
    if step.kind == "yolo" and draw.random() < 0.4:
        put(folder / "data.yaml", draw.choice(YAML))
    elif step.kind == "voc" and draw.random() < 0.3:
        said = draw.choice(XML)
        put(folder / "Annotations/1.xml", said + files["Annotations/1.xml"] if draw.random() < 0.6 else said)
    elif step.kind == "coco" and draw.random() < 0.85:
        put(folder / name, forge_json(coco_document(), draw))
    elif step.kind == "imagefolder" and draw.random() < 0.5:
        lines = [json.loads(line) for line in files[name].splitlines()]
        lines[1] = forge_value(lines[1], draw)
        put(folder / name, b"\n".join(map(dump, lines)))
    else:
        put(folder / name, forge_text(files[name], draw))


def take_source_step(step: SourceStep, folder: Path) -> str:
    """Take a step below a folder, and return what came of it: "ok" or the class of the error.

    Raises:
        AssertionError: it has gone beyond a bound, or has made a dataset that is not sound.
        Exception: whatever ended the command otherwise than tpufeed's errors do.
    """
    shutil.rmtree(folder / "work", ignore_errors=True)
    source, dataset, draw = folder / "work/source", folder / "work/dataset", random.Random(step.seed)
    forge_source(source, step, draw)
    options: dict[str, Any] = {"max_rejects": "100%"} | dict(draw.choice(({}, *OPTIONS[step.kind])))
    if step.kind == "grouped":
        options |= {"group_by": "path", "boxes": "xmin,ymin,xmax,ymax"}
    options |= {"boxes_outside": draw.choice(["reject", "clip", "drop"])}
    url = source / NAMES.get(step.kind, draw.choice(["", "data.yaml"]) if step.kind == "yolo" else "")
    result, said = "ok", ""
    with bounded_memory(), bounded_time():
        try:
            tpufeed.shard(url, dataset, **in_groups(options), **SERIAL)
            tpufeed.verify(dataset, decode="all")
        except TpufeedError as error:
            result, said = type(error).__name__, str(error)
    assert "Traceback" not in said, said
    assert len(said) < 300_000, f"a message of {len(said):,} characters: {said[:500]}"
    assert result not in ("DatasetDamagedError",), said
    return f"{step.kind}: {result}"
