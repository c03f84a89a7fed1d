"""Sources of every kind that change under the hands of their owner, and what a dataset of each has to hold.

Knows nothing of tpufeed but what docs/shard.md and docs/samples.md say of sources. A row is rewritten on the disk only
where its bytes differ, so that all else keeps its times.
"""

import functools
import io
import json
import random
import re
import tarfile
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image

KINDS = ("folder", "csv", "jsonl", "tars", "parquet", "arrow", "coco")
BRINGS_CLASSES = ("parquet", "arrow", "coco")  # by themselves
SIDE, CELL, BASE, DIGITS = 24, 8, 8, 5
NUMBERED = re.compile(r"(.*\.(?:parquet|arrow))/0*(\d+)/(.*)")


def picture(number):
    """An image of 24 x 24 pixels: nine grey squares are the digits of a number, two check sums, and a dark and a bright
    corner that tell left from right.
    """
    digits = [number // BASE**place % BASE for place in range(DIGITS)]
    sums = [sum(digits) % BASE, sum(place * digit for place, digit in enumerate(digits)) % BASE]
    cells = 16 + 32 * np.array([*digits, sums[0], 0, sums[1], BASE - 1]).reshape(3, 3)
    return np.kron(cells, np.ones((CELL, CELL))).astype(np.uint8)[..., None].repeat(3, -1)


def number_of(pixels):
    """The number of an image, which may have been stored with a loss, or mirrored."""
    means = pixels[..., :3].mean(-1).reshape(3, CELL, 3, CELL).mean((1, 3))
    means = means if means[2, 0] < means[2, 2] else means[:, ::-1]
    digits = np.rint((means.ravel() - 16) / 32).astype(int).tolist()
    number = sum(digit * BASE**place for place, digit in enumerate(digits[:DIGITS]))
    off = np.abs(picture(number)[::CELL, ::CELL, 0] - means).max()
    assert off < 8, f"no picture of a number: {means.tolist()}"
    return number


@functools.cache
def image_file(number, is_broken=False):
    """The bytes of an image; every third one is a JPEG."""
    data = io.BytesIO()
    image = Image.fromarray(picture(number))
    if is_jpeg(number):
        image.save(data, "JPEG", quality=95, subsampling=0)
    else:
        image.save(data, "PNG")
    return data.getvalue()[:-30] if is_broken else data.getvalue()  # of each other bytes


def is_jpeg(number):
    return number % 3 == 0


@functools.cache
def mask_file(level, is_broken=False):
    data = io.BytesIO()
    Image.fromarray(np.full((SIDE + is_broken, SIDE), level, np.uint8)).save(data, "PNG")
    return data.getvalue()


@dataclass(frozen=True)
class Row:
    """An image with all that a source can say of it.

    Attributes:
        pixels: its number.
        kinds: the class of each box; the first one is that of the image where there is one class an image.
        bad: what is wrong with it: "image", "box", "mask", or nothing.
    """

    name: str
    pixels: int
    kinds: tuple[str, ...]
    text: str
    count: int | None
    tags: tuple[str, ...]
    nums: tuple[int, ...]
    boxes: tuple[tuple[int, ...], ...]
    mask: int
    bad: str = ""

    @property
    def file(self):
        return f"{self.name}{'.jpg' if is_jpeg(self.pixels) else '.png'}"

    @property
    def id(self):
        return int(self.name[1:])

    @property
    def data(self):
        return image_file(self.pixels, self.bad == "image")

    @property
    def mask_data(self):
        return mask_file(self.mask, self.bad == "mask")

    @property
    def said_boxes(self):
        """As the source says them: a bad one is upside down."""
        return [list(box[2:] + box[:2]) if self.bad == "box" else list(box) for box in self.boxes]


@dataclass(frozen=True, order=True)
class Sample:
    """What a dataset holds of a row: labels are names, and columns all else by their names."""

    path: str
    pixels: int
    labels: tuple[str, ...]
    columns: tuple[tuple[str, tuple], ...]


def sync(folder, files):
    """Let a folder hold these files and no others; those that are the same are not touched."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and str(path.relative_to(folder)) not in files:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for name, data in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@dataclass
class Source:
    """Rows, and how they lie on the disk.

    Attributes:
        classes: that a source names by itself, in its order.
        traits: of all sources of a run: one or several of `TRAITS`.
    """

    kind: str
    folder: object
    traits: frozenset[str]
    draw: random.Random
    pixels: object  # gives numbers that no other image has
    classes: list[str] = field(default_factory=lambda: ["cow", "ant", "bee"])
    rows: list[Row] = field(default_factory=list)
    named: int = 0

    @property
    def has_boxes(self):
        return self.kind not in ("folder", "csv")

    @property
    def has_masks(self):
        return self.kind == "jsonl" or (self.kind in ("folder", "tars", "parquet", "arrow") and "masks" in self.traits)

    @property
    def labels_boxes(self):
        return self.kind in ("jsonl", "coco")

    @property
    def url(self):
        names = {"folder": "photos", "csv": "table.csv", "jsonl": "table.jsonl", "tars": "tars", "parquet": "hub"}
        return self.folder / (names | {"arrow": "saved", "coco": "annotations/instances.json"})[self.kind]

    @property
    def options(self):
        """How `shard` has to read it."""
        lists = {"boxes": "boxes"} | ({"box_columns": ["hidden"]} if "box columns" in self.traits else {})
        mask = {"image_columns": {"mask": {"tars": "mask.png:mask"}.get(self.kind, "mask:mask")}}
        rows = {"image": "image"} if self.kind in ("parquet", "arrow") else {}
        place = {"image": str(self.folder / "images")} if self.kind == "coco" and "own place" in self.traits else {}
        found = rows | place | (lists if self.has_boxes and self.kind != "coco" else {})
        if self.has_masks:
            found |= {"masks": str(self.folder / "masks")} if self.kind == "folder" else mask
        return found

    @property
    def further(self):
        """What `append` has to be told."""
        return {"masks": str(self.folder / "masks")} if self.kind == "folder" and self.has_masks else {}

    # Edits.

    def make_row(self):
        self.named += 1
        boxes = tuple((x, y, x + self.draw.randrange(2, 8), y + self.draw.randrange(2, 8)) for x, y in self.corners())
        only = "lists of one" in self.traits
        return Row(
            name=f"{self.named:04d}",
            pixels=next(self.pixels),
            kinds=tuple(self.draw.choice(self.classes) for _ in boxes or [0]),
            text=self.draw.choice(["plain", "with, comma", "zwölf"]),
            count=self.draw.choice([None, *range(9)]),
            tags=tuple(
                self.draw.choice(["p", "q", "r", "" if "holes" in self.traits else "s"])
                for _ in range(1 if only else self.draw.randrange(4))
            ),
            nums=tuple(self.draw.randrange(99) for _ in range(1 if only else self.draw.randrange(4))),
            boxes=boxes,
            mask=self.draw.randrange(250),
        )

    def corners(self):
        count = 1 if "lists of one" in self.traits else self.draw.randrange(4)
        return [(self.draw.randrange(16), self.draw.randrange(16)) for _ in range(count)]

    def add(self):
        self.rows.append(self.make_row())
        return self.rows[-1].name

    def edit(self, what):
        """Do one of `EDITS`; returns what was done, or nothing if there was nothing to do."""
        done = getattr(self, what)()
        return f"{what} {done}" if done else ""

    def pick(self):
        """The place of a row with which nothing is wrong."""
        return self.draw.choice([at for at, row in enumerate(self.rows) if not row.bad])

    def put(self, at, **values):
        name = self.rows[at].name
        self.rows[at] = replace(self.rows[at], **values)
        return name

    @property
    def has_plenty(self):
        return sum(not row.bad for row in self.rows) > 5

    def shuffle(self):
        self.draw.shuffle(self.rows)
        return "rows"

    def reclass(self):
        """Another order of the classes, with a new one, or without one that no row has."""
        if "other classes" not in self.traits:
            return ""
        used = {kind for row in self.rows for kind in row.kinds}
        unused = [name for name in self.classes if name not in used]
        if unused and self.draw.random() < 0.3:
            self.classes.remove(unused[0])
        self.draw.shuffle(self.classes)
        if len(self.classes) < 7:
            new = f"{self.draw.choice('abcz')}{len(self.classes)}"
            self.classes.insert(self.draw.randrange(len(self.classes) + 1), new)
        return str(self.classes)

    def change(self):
        at = self.pick()
        return self.put(at, pixels=self.same_form(self.rows[at].pixels))

    def mend(self):
        self.rows = [replace(each, bad="") for each in self.rows]
        return "all"

    def spoil(self):
        if not self.has_plenty:
            return ""
        at, ways = self.pick(), ["image"]
        if "wrong boxes" in self.traits:
            ways += [*["mask"] * self.has_masks, *["box"] * (self.has_boxes and bool(self.rows[at].boxes))]
        return self.put(at, bad=self.draw.choice(ways))

    def remove(self):
        return self.rows.pop(self.pick()).name if self.has_plenty else ""

    def rename(self):
        self.named += 1
        return self.put(self.pick(), name=f"{self.draw.choice('0n')}{self.named:03d}")

    def say(self):
        """Other text to the same picture."""
        new = self.make_row()
        return self.put(self.pick(), text=new.text, count=new.count, tags=new.tags, nums=new.nums, mask=new.mask)

    def double(self):
        at = self.pick()
        new = replace(self.make_row(), pixels=self.rows[at].pixels)
        self.rows.insert(self.draw.randrange(len(self.rows) + 1), new)
        return self.rows[at].name

    def same_form(self, pixels):
        return next(number for number in self.pixels if is_jpeg(number) == is_jpeg(pixels))

    # On the disk.

    def write(self):
        getattr(self, f"write_{self.kind}")()

    def write_folder(self):
        sync(self.url, {f"{row.kinds[0]}/{row.file}": row.data for row in self.rows})
        if self.has_masks:
            sync(self.folder / "masks", {f"{row.kinds[0]}/{row.name}.png": row.mask_data for row in self.rows})

    def write_csv(self):
        lines = ["path,label,text,count"]
        for row in self.rows:
            lines.append(f'im/{row.file},{row.kinds[0]},"{row.text}",{"" if row.count is None else row.count}')
        images = {f"im/{row.file}": row.data for row in self.rows}
        sync(self.folder, {self.url.name: "\n".join(lines).encode(), **images})

    def write_jsonl(self):
        lines = []
        for row in self.rows:
            said = {
                "path": f"im/{row.file}",
                "label": list(row.kinds) if row.boxes else [],
                "mask": f"m/{row.name}.png",
            }
            lines.append(json.dumps(said | self.values(row)))
        images = {f"im/{row.file}": row.data for row in self.rows}
        masks = {f"m/{row.name}.png": row.mask_data for row in self.rows}
        sync(self.folder, {self.url.name: "\n".join(lines).encode(), **images, **masks})

    def values(self, row):
        """The columns as JSON has them."""
        found = {"text": row.text, "count": row.count, "nums": list(row.nums), "boxes": row.said_boxes}
        found |= {"tags": list(row.tags)} if "text lists" in self.traits else {}
        return found | ({"hidden": [box[0] % 2 for box in row.boxes]} if "box columns" in self.traits else {})

    def write_tars(self):
        tars = {}
        for number in range(2):
            data = io.BytesIO()
            with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for row in self.rows:
                    if row.id % 2 == number:
                        parts = {row.file.split(".")[1]: row.data, "json": json.dumps(self.values(row)).encode()}
                        parts |= {"mask.png": row.mask_data} if self.has_masks else {}
                        for suffix, content in ({"cls": row.kinds[0].encode()} | parts).items():
                            member = tarfile.TarInfo(f"{row.name}.{suffix}")
                            member.size = len(content)
                            tar.addfile(member, io.BytesIO(content))
            tars[f"{number}.tar"] = data.getvalue()
        sync(self.url, tars)

    def table(self):
        import pyarrow as pa

        def images(name, data):
            values = [{"bytes": data(row), "path": row.file} for row in self.rows]
            return {name: pa.array(values, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))}

        types = {
            "text": pa.string(),
            "count": pa.int64(),
            "tags": pa.list_(pa.string()),
            "nums": pa.list_(pa.int64()),
            "boxes": pa.list_(pa.list_(pa.float32())),
            "hidden": pa.list_(pa.int64()),
        }
        columns = images("image", lambda row: row.data)
        columns |= images("mask", lambda row: row.mask_data) if self.has_masks else {}
        columns["label"] = pa.array([self.classes.index(row.kinds[0]) for row in self.rows], pa.int64())
        values = [self.values(row) for row in self.rows]
        for name in values[0]:
            columns[name] = pa.array([each[name] for each in values], types[name])
        features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": self.classes}}
        features |= {"mask": {"_type": "Image"}} if self.has_masks else {}
        return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})

    def write_parquet(self):
        from pyarrow import parquet

        data = io.BytesIO()
        parquet.write_table(self.table(), data, row_group_size=7)
        sync(self.url, {"data/train-00000-of-00001.parquet": data.getvalue()})

    def write_arrow(self):
        import pyarrow as pa

        data, table = io.BytesIO(), self.table()
        with pa.ipc.new_stream(data, table.schema) as stream:
            stream.write_table(table, max_chunksize=9)
        name = "data-00000-of-00001.arrow"
        state = json.dumps({"_data_files": [{"filename": name}]}).encode()
        sync(self.url, {name: data.getvalue(), "state.json": state})

    def write_coco(self):
        ids = {name: 3 * place + 1 for place, name in enumerate(self.classes)}
        images, annotations = [], []
        for row in self.rows:
            images.append({"id": row.id, "file_name": row.file, "width": SIDE, "height": SIDE})
            for kind, (left, top, right, bottom) in zip(row.kinds, row.said_boxes, strict=False):
                box = {"image_id": row.id, "category_id": ids[kind], "bbox": [left, top, right - left, bottom - top]}
                annotations.append(box | {"id": len(annotations), "iscrowd": left % 2, "area": 1, "segmentation": []})
        categories = [{"id": number, "name": name} for name, number in ids.items()]
        content = {"images": images, "annotations": annotations, "categories": categories}
        sync(self.folder / "images", {row.file: row.data for row in self.rows})
        sync(self.url.parent, {self.url.name: json.dumps(content).encode()})

    # In the dataset.

    def path(self, row, at):
        if self.kind == "folder":
            return f"{row.kinds[0]}/{row.file}"
        if self.kind == "tars":
            return f"{row.id % 2}.tar/{row.file}"
        if self.kind == "parquet":
            return f"data/train-00000-of-00001.parquet/{at}/{row.file}"
        if self.kind == "arrow":
            return f"data-00000-of-00001.arrow/{at}/{row.file}"
        return row.file if self.kind == "coco" else f"im/{row.file}"

    def samples(self):
        """By path, in the order of rows: the sample, and what is wrong with it."""
        found = {}
        for at, row in enumerate(self.rows):
            path, columns = self.path(row, at), {}
            if self.kind == "csv":
                columns = {"text": (row.text,), "count": () if row.count is None else (row.count,)}
            elif self.kind == "coco":
                crowds = tuple(box[0] % 2 for box in row.boxes)
                columns = {"boxes": sum(row.boxes, ()), "iscrowd": crowds, "image_id": (row.id,)}
            elif self.kind != "folder":
                columns = {name: flat(value) for name, value in self.values(replace(row, bad="")).items()}
            if self.has_masks:
                columns["mask"] = (row.mask,)
            labels = (row.kinds if row.boxes else ()) if self.labels_boxes else row.kinds[:1]
            found[path] = Sample(path, row.pixels, labels, tuple(sorted(columns.items()))), row.bad
        return found


# What sources may have: images of COCO in a place that the command says, lists of text, empty text in these, columns
# of boxes, boxes or masks that are wrong, other classes or another order of them.
TRAITS = ("masks", "own place", "lists of one", "text lists", "holes", "box columns", "wrong boxes", "other classes")
EDITS = ("add", "change", "spoil", "spoil", "mend", "mend", "remove", "rename", "say", "double", "shuffle", "reclass")


def flat(value):
    if value is None:
        return ()
    return tuple(each for one in value for each in flat(one)) if isinstance(value, list) else (value,)


def same_path(path):
    """The path of a row of Parquet or Arrow with its number as such: how many digits it has says nothing."""
    match = NUMBERED.fullmatch(path)
    return f"{match[1]}/{match[2]}/{match[3]}" if match else path


def place_of(path):
    """Where damage is known again: a file's path, or for a row, which may move, the Parquet or Arrow file."""
    match = NUMBERED.fullmatch(path)
    return match[1] if match else path
