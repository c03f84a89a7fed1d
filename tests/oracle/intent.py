"""Layouts as people have them, with what a person means by them: a build does that, or says what it did instead.

A layout is drawn with its meaning: the labels, split, boxes and levels of each image. The command gets the layout as
a person would give it, often without options. If the dataset does not hold what was meant, some line on stderr has to
name an option that changes it. The oracle then gives that option, as the person would, and builds again. So nothing may
be silent, and no advice may be wrong. The block that says what was understood is compared with the meaning as well.

For as long as is asked for, with a fresh seed: python -m tests.oracle.intent [--seconds 1200] [--seed N].
"""

import csv
import io
import itertools
import json
import os
import random
import re
import shlex
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.oracle.seeds import make_parser, try_seeds
from tests.oracle.sources import SIDE, number_of, picture
from tpufeed.cli.app import app
from tpufeed.images.decoding import decode

CLASSES = ("ant", "bee", "cow")
# The options that may put right what a dataset holds otherwise than was meant.
CHANGES = {
    "samples": {"--image", "--group-by"},
    "splits": {"--split-by"},
    "labels": {"--label", "--label-separator", "--label-type", "--class-level", "--group-by"},
    "boxes": {"--boxes", "--box-format", "--group-by", "--label"},
    "levels": {"--policy"},
    "texts": {"--label"},
}
FLAG = re.compile(r"(--[a-z-]+)[ ]('[^']*'|[^\s;()]+)")
ROUNDS = 5
COUNTS: Counter[str] = Counter()


@dataclass
class Meant:
    """What a person means by one image."""

    split: str = "train"
    labels: tuple[str, ...] = ()
    boxes: tuple[tuple[float, ...], ...] = ()
    value: float | None = None  # a measured value instead of a class
    text: str | None = None  # its caption


@dataclass
class Layout:
    """Files of a person, the command that she gives, and what she means."""

    draw: random.Random
    folder: Path
    url: str = ""
    options: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # what was drawn
    images: dict[int, Meant] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # what stands for COLUMN in a message, by the flag
    refused: set[int] = field(default_factory=set)  # images whose files and annotations contradict each other
    strays: int = 0  # files that are no images
    bits: int = 8

    def pick(self, name, *choices):
        found = self.draw.choice(choices)
        self.said.append(f"{name} {found}")
        return found

    def write(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())

    def image(self, name, number):
        """Write the image of a number; of 16 bits a channel, with as many in use as the layout has."""
        pixels, buffer = picture(number), io.BytesIO()
        if self.bits > 8:
            top = (1 << self.bits) - 1
            Image.fromarray((pixels[..., 0].astype(np.float64) * top / 255).round().astype(np.uint16)).save(
                buffer, "PNG"
            )
        else:
            Image.fromarray(pixels).save(buffer, "PNG")
        self.write(name, buffer.getvalue())


def draw_layout(number, folder):
    """One of the layouts below `folder`, by a seed."""
    layout = Layout(random.Random(number), folder)
    layout.bits = layout.pick("bits", 8, 8, 8, 16, 12, 10)
    {"folder": draw_folder, "table": draw_table, "imagefolder": draw_imagefolder}[
        layout.pick("kind", "folder", "folder", "table", "table", "table", "imagefolder", "imagefolder")
    ](layout)
    return layout


def draw_folder(layout):
    """Class folders alone, below splits, below domains, around other folders; or images with or without captions."""
    depth = layout.pick(
        "depth", "class", "split/class", "domain/class", "domain/class", "class/images", "flat", "captions"
    )
    splits = layout.pick(
        "splits", ("train", "val"), ("Training", "Testing"), ("train2017", "val2017"), ("train", "dev")
    )
    classes = layout.pick("classes", CLASSES, ("0", "1", "10"), ("cow", "cow hand", "hand"))
    for number in range(layout.draw.randrange(7, 14)):
        kind, meant = classes[number % 3], Meant()
        if depth not in ("flat", "captions"):
            meant.labels = (kind,)
        split = splits[number // 3 % 2]
        if depth == "split/class":
            meant.split = split
        name = {
            "class": kind,
            "split/class": f"{split}/{kind}",
            "domain/class": f"{('color', 'grey')[number // 3 % 2]}/{kind}",
            "class/images": f"{kind}/images",
        }.get(depth, "")
        layout.image(f"src/{name}/{number:03}.png", number)
        if depth == "captions":
            meant.text = f"a photo, number {number}"
            layout.write(f"src/{number:03}.txt", meant.text)
        layout.images[number] = meant
    if layout.pick("strays", False, True):
        layout.write("src/README.md", "mine")
        os.mkfifo(layout.folder / "src/pipe")
        layout.strays += 2
    layout.url = str(layout.folder / "src")
    if depth == "domain/class" and layout.pick("told", False, False, True):
        layout.options += ["--class-level", "-1"]


def draw_labels(layout, form):
    """The label of an image as a table has it, and what it means."""
    several = tuple(sorted(layout.draw.sample(CLASSES, layout.draw.randrange(1, 4))))
    if len(layout.images) < len(CLASSES):  # each class once alone
        several = (CLASSES[len(layout.images)],)
    if form == "names":
        return several[0], {"labels": several[:1]}
    if form == "ids":
        number = CLASSES.index(several[0])
        return number, {"labels": (str(number),)}
    if form == "fractions":
        value = round(layout.draw.uniform(1, 90), 2) + 0.001
        return value, {"value": value}
    if form == "lists":
        return list(several), {"labels": several}
    if form == "none":
        return None, {}
    return form.join(several), {"labels": several}


def draw_table(layout):  # noqa: PLR0912, PLR0915  # one column after the other
    """A CSV, TSV, JSON lines or Parquet file with a row for each image, or for each box."""
    forms = ("csv", "tsv", "jsonl") + ("parquet",) * bool(_has("pyarrow"))
    form = layout.pick("form", *forms)
    image = layout.pick("image column", "path", "image", "file_name", "filename", "picture")
    column = layout.pick("label column", "label", "class", "category", "species")
    nested = form in ("jsonl", "parquet")
    labels = layout.pick("labels", "names", "ids", "fractions", "|", ",", " ", "none", *(["lists"] * nested))
    split = layout.pick("split column", None, None, "split", "subset", "Usage", "data_set")
    words = layout.pick(
        "words", ("train", "val", "test"), ("Training", "PublicTest", "PrivateTest"), ("train", "valid")
    )
    boxes = layout.pick("boxes", None, None, None, "objects", "list", "flat", "rows")
    boxes = None if boxes not in (None, "rows") and not nested else boxes
    if boxes == "rows":
        labels, split = "names", None
    elif boxes is not None:
        labels = "none"
    sizes = boxes is not None and layout.pick("sizes said", False, True)
    sides = layout.pick("sides", ("xmin", "ymin", "xmax", "ymax"), ("x", "y", "w", "h"))
    rows = []
    for number in range(layout.draw.randrange(9, 15)):
        label, meaning = draw_labels(layout, labels)
        meant = layout.images[number] = Meant(**meaning)
        row = {image: f"im/{number:03}.png", "age": number * 3}
        if labels != "none":
            row[column] = label
        if split is not None:
            word = words[(0, 0, 1, 2)[number % 4] % len(words)]
            row[split] = meant.split = word
        layout.image(row[image], number)
        if boxes is None:
            rows.append(row)
            continue
        if sizes:  # some boxes are of photographs that were shrunk since
            layout.refused |= {number} if number % 5 == 4 else set()
            row |= dict.fromkeys(("width", "height"), SIDE * 2 if number in layout.refused else SIDE)
        corners = [draw_box(layout.draw) for _ in range(1 if boxes == "flat" else 1 + number % 2)]
        meant.boxes = tuple(corners)
        if boxes == "rows":
            kinds = [layout.draw.choice(CLASSES) for _ in corners]
            meant.labels = tuple(kinds)
            for corner, kind in zip(corners, kinds, strict=True):
                numbers = corner if sides[0] == "xmin" else as_xywh(corner)
                rows.append({**row, column: kind, **dict(zip(sides, numbers, strict=True))})
        else:
            found = list(map(as_xywh, corners))
            rows.append(row | ({"objects": {"bbox": found}} if boxes == "objects" else {"bbox": found}))
            if boxes == "flat":  # one box for each image
                (rows[-1]["bbox"],) = found
    layout.url = str(layout.folder / f"table.{form}")
    write_table(layout, f"table.{form}", rows)
    layout.places = {"--image": image, "--label": column if labels not in ("none", "fractions") else "none"}
    layout.places |= {"--split-by": str(split), **({"--group-by": image} if boxes in ("rows", "flat") else {})}
    if split is not None and layout.pick("splits told", False, False, True):
        layout.options += ["--split-by", split]
    if labels in ("|", ",", " ") and layout.pick("separator told", False, False, True):
        layout.options += ["--label-separator", labels]
    if boxes == "rows" and layout.pick("boxes told", False, True):
        form = [] if sides[0] == "xmin" else ["--box-format", "xywh"]
        layout.options += ["--group-by", image, "--boxes", ",".join(sides), *form]
    if layout.pick("columns told", False, True):
        layout.options += ["--image", image] * ("--group-by" not in layout.options)
        layout.options += ["--label", column] * (labels not in ("none", "fractions"))


def draw_imagefolder(layout):
    """A folder with metadata, or with metadata in its folders of splits; boxes as Hugging Face has them."""
    form = layout.pick("form", "csv", "jsonl", "jsonl")
    has_splits, boxes = layout.pick("splits", False, True), form == "jsonl" and layout.pick("boxes", False, True, True)
    labels = "none" if boxes else layout.pick("labels", "names", "ids", "fractions", "|")
    disagree = boxes and has_splits and layout.pick("files disagree", False, True)
    for split in ("train", "test") if has_splits else ("",):
        rows = []
        for _ in range(layout.draw.randrange(5, 9)):
            number = len(layout.images)
            label, meaning = draw_labels(layout, labels)
            meant = layout.images[number] = Meant(split=split or "train", **meaning)
            layout.image(f"src/{split}/{number:03}.png", number)
            rows.append({"file_name": f"{number:03}.png", **({} if label is None else {"label": label})})
            if boxes and not (disagree and split == "test"):
                meant.boxes = tuple(draw_box(layout.draw) for _ in range(number % 3))
                meant.labels = tuple(layout.draw.choice(CLASSES) for _ in meant.boxes)
                rows[-1]["objects"] = {"bbox": list(map(as_xywh, meant.boxes)), "category": list(meant.labels)}
        write_table(layout, f"src/{split}/metadata.{form}", rows)
    layout.url = str(layout.folder / "src")


def draw_box(draw):
    left, top = draw.randrange(0, 12), draw.randrange(0, 12)
    return (left, top, left + draw.randrange(2, 10), top + draw.randrange(2, 10))


def as_xywh(box):
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def write_table(layout, name, rows):
    form = name.rpartition(".")[2]
    if form == "jsonl":
        layout.write(name, "\n".join(map(json.dumps, rows)))
    elif form == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), layout.folder / name)
    else:
        text = io.StringIO()
        header = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
        writer = csv.DictWriter(text, header, delimiter="\t" if form == "tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
        layout.write(name, text.getvalue())


def _has(package):
    import importlib.util

    return importlib.util.find_spec(package) is not None


# What came of it.


def read(url):
    """What a dataset holds of each image, and what its manifest says of the source."""
    dataset, found, twice = tpufeed.open_dataset(url), {}, []
    kinds = {spec.name: spec.kind for spec in dataset.manifest.features}
    for split in dataset.manifest.splits:
        for example in dataset.iter_examples(split):
            values = {name: list(feature.values) for name, feature in example.items()}
            stem = bytes(values["image/filename"][0]).decode().rpartition("/")[2].partition(".")[0]
            meant = Meant(split=split)
            if "image/class/text" in values:
                meant.labels = tuple(bytes(text).decode() for text in values["image/class/text"])
            for name in ("label", "class", "category", "species"):
                if name in values and values[name] and not isinstance(values[name][0], bytes | memoryview):
                    meant.value = float(values[name][0])
            boxed = next((name for name, kind in kinds.items() if kind == "boxes"), None)
            if boxed is not None:
                meant.boxes = tuple(map(tuple, np.array(values[boxed]).reshape(-1, 4).tolist()))
            if "txt" in values:
                meant.text = bytes(values["txt"][0]).decode()
            try:
                is_whole = number_of(decode(bytes(values["image/encoded"][0]))) == int(stem)
            except AssertionError:
                is_whole = False
            twice += [stem] if int(stem) in found else []
            found[int(stem)] = meant, is_whole
    return found, twice, dataset.manifest.listed


def differing(layout, url):
    """The aspects in which a dataset is not what was meant."""
    found, twice, listed = read(url)
    wrong = set()
    taken = {number: meant for number, meant in layout.images.items() if number not in layout.refused}
    if twice or found.keys() != taken.keys():
        wrong.add("samples")
    for number, (is_there, is_whole) in found.items():
        meant = layout.images[number]  # a refused one, as long as nobody has said that there are boxes
        wrong |= {"levels"} if not is_whole else set()
        wrong |= {"splits"} if is_there.split != meant.split else set()
        labels = is_there.labels if meant.boxes else tuple(sorted(is_there.labels))
        wrong |= {"labels"} if labels != meant.labels else set()
        if meant.value is not None and (is_there.value is None or abs(is_there.value - meant.value) > 1e-3):
            wrong.add("labels")
        wrong |= {"boxes"} if not np.array_equal(is_there.boxes, meant.boxes) else set()
        wrong |= {"texts"} if meant.text is not None and is_there.text != meant.text else set()
    if not wrong:
        reasons = [json.loads(line) for line in (url / "rejects.jsonl").read_text().splitlines()]
        reasons = [each for each in reasons if Path(each["path"]).stem.isdecimal()]  # a tar may have other files
        assert {int(Path(each["path"]).stem) for each in reasons} == layout.refused, reasons
        assert all(f"{SIDE}x{SIDE}" in each["message"] for each in reasons), reasons
        counts = Counter(label for meant in layout.images.values() for label in meant.labels)
        assert listed.class_count == len(counts), (listed, counts)
        assert listed.classes == dict(counts), (listed, counts)
        assert bool(listed.boxes) == any(meant.boxes for meant in layout.images.values()), listed
        if "tar" not in url.name:
            assert sum(listed.ignored_files.values()) == layout.strays, (listed, layout.strays)
    return wrong


def invoke(*words):
    env = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
    done = CliRunner().invoke(app, list(map(str, words)), prog_name="tpufeed", env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    return done


def advice(layout, said, wrong):
    """The options that messages name for what is wrong: those of one message, with the person's own names filled in."""
    for line in said.splitlines():
        if "--group-by" not in layout.places:  # no image has several rows
            line = line.partition("With a row for each box")[0]  # noqa: PLW2901
        flags = dict(reversed(FLAG.findall(line)))  # of each name the first
        for aspect in sorted(wrong):
            fit = [flag for flag in flags if flag in CHANGES[aspect] and flag not in layout.options]
            fit += ["--policy"] * ("--policy" in flags and aspect == "levels" and "--policy" not in fit)
            if fit and line.startswith(("warning: ", "error: ")):
                return {flag: shlex.split(flags[flag].rstrip(",.:"))[0] for flag in fit}
    return {}


def settle(number, folder):
    """Build a layout, and follow what is said, until the dataset is what was meant."""
    layout = draw_layout(number, folder)
    said = []
    for turn in range(ROUNDS):
        url = folder / f"out{turn}"
        done = invoke("shard", layout.url, url, "--workers", 1, "--max-rejects", "100%", *layout.options)
        said.append(f"shard {layout.url} {shlex.join(layout.options)}\n{done.stdout}\n{done.stderr}")
        where = f"{layout.said}\n{''.join(said)}"
        wrong = set(CHANGES) if done.exit_code else differing(layout, url)
        if not wrong:
            COUNTS[f"right after {turn + 1}"] += 1
            if number % 4 == 0:  # the forecast understands the same
                block = [line for line in done.stdout.splitlines() if line.startswith(("taken as", "labels", "splits"))]
                foretold = invoke("shard", layout.url, folder / "never", "--dry-run", *layout.options).stdout
                assert len(block) == 3, block
                assert all(line in foretold for line in block), (block, foretold)
            return
        if "--texts --label none" in done.stderr:  # captions
            layout.options += ["--texts", "--label", "none"]
            continue
        options = advice(layout, done.stderr, wrong)
        assert options, f"nothing names an option for {sorted(wrong)}:\n{where}"
        for flag, value in options.items():
            filled = layout.places.get(flag, value) if value in ("COLUMN", "KEY") else value
            layout.options += [flag, filled]
        COUNTS["advice followed"] += 1
    raise AssertionError(f"not what was meant after {ROUNDS} builds:\n{where}")


def settle_one(number):
    with tempfile.TemporaryDirectory(prefix="tpufeed-intent-") as folder:
        settle(number, Path(folder))
    COUNTS["layouts"] += 1


def settle_often(first, count):
    for number in range(first, first + count):
        try:
            settle_one(number)
        except BaseException:
            print(f"intent: failed with --seed {number}", flush=True)
            raise


def main() -> None:
    try_seeds("intent", make_parser(__doc__, 1200.0).parse_args(), COUNTS, settle_one)


if __name__ == "__main__":
    main()
