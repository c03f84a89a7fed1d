"""Sources of every kind that change under the hands of their owner, and what a dataset of each has to hold.

Knows nothing of tpufeed but which formats of images can be read, and what docs/shard.md and docs/samples.md say of
sources. A row is rewritten on the disk only where its bytes differ, so that all else keeps its times.
"""

import functools
import io
import itertools
import json
import math
import random
import re
import tarfile
from dataclasses import dataclass, field, replace

import numpy as np
import tifffile
from PIL import Image

from tpufeed.images.modern import readable_formats

KINDS = ("folder", "csv", "jsonl", "tars", "parquet", "arrow", "coco", "yolo", "voc", "grouped", "imagefolder", "texts")
BRINGS_CLASSES = ("parquet", "arrow", "coco", "yolo")  # by themselves
SPLITS_ITSELF = ("coco", "yolo", "voc", "imagefolder")
DECLARES = ("coco", "yolo", "voc", "grouped", "imagefolder")  # which columns have boxes
KEEPS_UNLABELLED = ("folder", "csv", "tars", "parquet", "arrow", "texts")
TAKES_NUMBERS = ("csv", "tars", "texts")  # as labels
WITHOUT_TEXT = ("folder", "coco", "yolo", "voc")
POINTS = "left_x,left_y,right_x,right_y"  # columns of keypoints: two corners of the first box
MODERN = readable_formats()  # AVIF, HEIC and JPEG XL, as far as their packages are installed
OUTSIDE_PX = 2  # a box is clipped in silence that reaches so far beyond its image
SIDE, CELL, BASE, DIGITS = 24, 8, 8, 5
# Pixel formats of images that are kept as they are: type, channels, and suffixes of files.
FORMATS = (
    ("uint8", 1, ("npy",)),
    ("uint8", 4, ("png", "tif", "npy")),
    ("uint8", 13, ("tif", "npy")),
    ("uint16", 1, ("png", "tif", "npy")),
    ("uint16", 13, ("tif", "npy")),
    ("float32", 4, ("tif", "npy")),
)
KEEPS_AXES = {2: {}, 3: {"planarconfig": "contig"}}  # of an array in a TIFF
SCALES = {"uint8": 1, "uint16": 16, "float32": 1 / 16}  # of the levels of a picture
MAKES_CLIPS = ("folder", "csv", "jsonl", "tars", "parquet", "arrow", "texts")
STEPS = 16  # of the numbers of two clips: each frame has a number of its own
READ_NPY = ("folder", "csv", "jsonl", "parquet", "arrow", "coco", "grouped")
NUMBERED = re.compile(r"(.*\.(?:parquet|arrow))/0*(\d+)/(.*)")


def picture(number):
    """An image of 24 x 24 pixels: nine grey squares are the digits of a number, two check sums, and a dark and a bright
    corner that tell left from right.
    """
    digits = [number // BASE**place % BASE for place in range(DIGITS)]
    sums = [sum(digits) % BASE, sum(place * digit for place, digit in enumerate(digits)) % BASE]
    cells = 16 + 32 * np.array([*digits, sums[0], 0, sums[1], BASE - 1]).reshape(3, 3)
    return np.kron(cells, np.ones((CELL, CELL))).astype(np.uint8)[..., None].repeat(3, -1)


def kept_picture(number, dtype, channels):
    """The same image in a pixel format; each channel is a level brighter than the one before."""
    levels = picture(number)[..., :1] + np.arange(channels, dtype=float)
    return (levels * SCALES[dtype]).astype(dtype)


def number_of(pixels):
    """The number of an image, which may have been stored with a loss, mirrored, or at half its size.

    Of a clip it is a tuple, as of `shown_of`. All its frames are mirrored, or none.
    """
    if pixels.ndim == 4:
        numbers, means = [number_of(frame) for frame in pixels], pixels.astype(float).mean(-1)
        assert len({frame[-1, 0] < frame[-1, -1] for frame in means}) == 1, "some frames are mirrored"
        assert len({number // STEPS for number in numbers}) == 1, "frames of other clips"
        return numbers[0] // STEPS, *(number % STEPS for number in numbers)
    if (pixels.dtype.name, pixels.shape[2]) != ("uint8", 3):
        pixels = pixels / SCALES[pixels.dtype.name] - np.arange(pixels.shape[2])
        assert np.ptp(pixels, -1).max() < 12, "the channels differ"
    if len(pixels) == SIDE // 2:
        pixels = pixels.repeat(2, 0).repeat(2, 1)
    means = pixels.mean(-1).reshape(3, CELL, 3, CELL).mean((1, 3))
    means = means if means[2, 0] < means[2, 2] else means[:, ::-1]
    digits = np.rint((means.ravel() - 16) / 32).astype(int).tolist()
    number = sum(digit * BASE**place for place, digit in enumerate(digits[:DIGITS]))
    off = np.abs(picture(number)[::CELL, ::CELL, 0] - means).max()
    assert off < 12, f"no picture of a number: {means.tolist()}"
    return number


def count_of(number):
    """How many frames the clip of a number has in its source: some have too few."""
    return 1 if number % 11 == 0 else 5 + number % 3


def shown_of(number, frames, stride):
    """A clip as a dataset has it: its number, and which frames of the source these are. None if it has too few."""
    count = count_of(number)
    if stride:
        chosen = [stride * each for each in range(frames)]
    else:
        chosen = [math.floor(each * (count - 1) / (frames - 1)) for each in range(frames)]
    return None if len({*chosen}) < frames or chosen[-1] >= count else (number, *chosen)


@functools.cache
def clip_file(number, is_broken=False, kept=None):
    """The bytes of a clip in one file, an animation or a TIFF of pages."""
    data, suffix = io.BytesIO(), suffix_of(number, kept, "file")
    numbers = [number * STEPS + each for each in range(count_of(number))]
    if kept:
        with tifffile.TiffWriter(data) as file:
            for each in numbers:
                pixels = kept_picture(each, *kept[:2])
                pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels
                file.write(pixels, photometric="minisblack", **KEEPS_AXES[pixels.ndim])
    else:
        first, *rest = (Image.fromarray(picture(each)) for each in numbers)
        form, more = {"gif": ("GIF", {}), "webp": ("WEBP", {"lossless": True}), "png": ("PNG", {})}.get(
            suffix, ("TIFF", {})
        )
        first.save(data, form, save_all=True, append_images=rest, **more)
    return data.getvalue()[: len(data.getvalue()) // 3] if is_broken else data.getvalue()


@functools.cache
def image_file(number, is_broken=False, kept=None, suffix=""):
    """The bytes of an image of the format that `suffix_of` says. `kept` is one of `FORMATS`."""
    data, suffix = io.BytesIO(), suffix or suffix_of(number, kept)
    pixels = kept_picture(number, *kept[:2]) if kept else picture(number)
    pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    image = None if suffix in ("npy", "tif") else Image.fromarray(pixels)
    if suffix == "npy":
        np.save(data, pixels)
    elif suffix == "tif":
        more = [{}, {"compression": "zlib"}, {"compression": "zstd", "tile": (16, 16)}][number % 3]
        tifffile.imwrite(data, pixels, photometric="minisblack", **more, **KEEPS_AXES[pixels.ndim])
    elif suffix == "heic":
        import pillow_heif

        pillow_heif.from_pillow(image).save(data, quality=95)
    else:
        if suffix == "jxl":
            import pillow_jxl  # noqa: F401  # it makes Pillow write them
        forms = {"jpg": "JPEG", "png": "PNG", "avif": "AVIF", "jxl": "JXL"}
        image.save(data, forms[suffix], **({"quality": 95, "subsampling": 0} if suffix == "jpg" else {}))
    return data.getvalue()[:-30] if is_broken else data.getvalue()  # of each other bytes


def suffix_of(number, kept=None, clip=""):
    """Every third image is a JPEG, and some are of the formats that are stored as JPEG, if they are not kept.

    A `clip` is one "file", or "frames" or a "list" of images.
    """
    if clip == "file":
        number = number if count_of(number) > 1 else 0  # others would be plain images
        return "tif" if kept else ["gif", "webp", "png", "tif"][number % 4]
    if clip and not kept:
        return ["jpg", "png"][number % 2]
    if kept:
        return kept[2][number % len(kept[2])]
    return "jpg" if number % 3 == 0 else ["png", *sorted(MODERN)][number % 7 if number % 7 <= len(MODERN) else 0]


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
        marks: 0 or 1 for each box.
        bad: what is wrong with it: "image", "box", "mask", or nothing.
        kept: one of `FORMATS`.
        clip: "file" if it is a clip in one file, "frames" if in a folder of images, "list" if a row names these.
    """

    name: str
    pixels: int
    kinds: tuple[str, ...]
    text: str
    count: int | None
    tags: tuple[str, ...]
    nums: tuple[int, ...]
    boxes: tuple[tuple[int, ...], ...]
    marks: tuple[int, ...]
    mask: int
    bad: str = ""
    kept: tuple | None = None
    clip: str = ""

    @property
    def file(self):
        return f"{self.name}.{suffix_of(self.pixels, self.kept, self.clip)}"

    @property
    def frames(self):
        """The names of its files, if each is a frame."""
        suffix, first = suffix_of(self.pixels, self.kept, self.clip), self.pixels % 2 * 9
        return [f"{self.name}/{first + each}.{suffix}" for each in range(count_of(self.pixels))]

    @property
    def files(self):
        """All its files, and their bytes. A broken clip lacks a frame, or its first one is broken."""
        if self.clip in ("", "file"):
            return {self.file: self.data}
        names, first = self.frames, self.pixels * STEPS
        suffix, breaks = names[0].rpartition(".")[2], self.bad == "image" and self.pixels % 2
        found = {
            name: image_file(first + at, self.bad == "image" and not at and not breaks, self.kept, suffix)
            for at, name in enumerate(names)
        }
        if breaks and len(names) > 1:
            del found[names[self.clip == "frames"]]
        return found

    @property
    def place(self):
        """What the dataset calls it, below the folder of images."""
        return {"frames": self.name, "list": self.frames[0]}.get(self.clip, self.file)

    @property
    def id(self):
        return int(self.name[1:])

    @property
    def data(self):
        return (clip_file if self.clip else image_file)(self.pixels, self.bad == "image", self.kept)

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
        outside: what is done with boxes that reach beyond their images: reject, clip or drop.
        outlines: how they are drawn as masks: semantic, instance or not.
        ids: names of the classes in the order of the dataset's ids.
        is_halved: images are stored at half their size.
        has_varied: marks differed within an image when the dataset was made.
        kept: the pixel format of its images, one of `FORMATS`; None for 8-bit RGB.
        clips: frames and stride of clips; None for images.
        way: how a folder has its clips: "file" or "frames".
    """

    kind: str
    folder: object
    traits: frozenset[str]
    draw: random.Random
    pixels: object  # gives numbers that no other image has
    classes: list[str] = field(default_factory=lambda: ["cow", "ant", "bee"])
    rows: list[Row] = field(default_factory=list)
    named: int = 0
    outside: str = "reject"
    outlines: str = ""
    ids: tuple[str, ...] = ()
    is_halved: bool = False
    has_varied: bool = False
    kept: tuple | None = None
    clips: tuple | None = None
    way: str = "file"

    @property
    def splits_itself(self):
        return "own splits" in self.traits and self.kind in SPLITS_ITSELF

    @property
    def has_boxes(self):
        return self.kind not in ("folder", "csv") and not self.clips

    @property
    def has_masks(self):
        if self.clips:
            return False
        return self.kind == "jsonl" or (self.kind in ("folder", "tars", "parquet", "arrow") and "masks" in self.traits)

    @property
    def labels_boxes(self):
        return self.kind in ("jsonl", *DECLARES) and not self.clips

    @property
    def url(self):
        names = {"folder": "photos", "csv": "table.csv", "jsonl": "table.jsonl", "tars": "tars", "parquet": "hub"}
        names |= {"arrow": "saved", "coco": "coco" if self.splits_itself else "annotations/instances.json"}
        names |= {"yolo": "yolo", "voc": "voc", "grouped": "boxes.csv", "imagefolder": "images", "texts": "texts"}
        return self.folder / names[self.kind]

    @property
    def options(self):
        """How `shard` has to read it."""
        lists = {"boxes": "boxes"} | ({"box_columns": ["hidden"]} if "box columns" in self.traits else {})
        mask = {"image_columns": {"mask": {"tars": "mask.png:mask"}.get(self.kind, "mask:mask")}}
        rows = {"image": "image"} if self.kind in ("parquet", "arrow") else {}
        has_place = self.kind == "coco" and "own place" in self.traits and not self.splits_itself
        place = {"image": str(self.folder / "images")} if has_place else {}
        found = rows | place | (lists if self.has_boxes and self.kind not in DECLARES else {})
        if self.kind == "grouped":
            found |= {"group_by": "filename", "boxes": "xmin,ymin,xmax,ymax"}
            found |= {"box_columns": ["hidden"]} if "box columns" in self.traits and not self.finds_columns else {}
        # Without it VOC's boxes that begin left of the image, at 0, seem to count from 0.
        found |= {"box_format": "voc"} if self.kind == "voc" else {}
        found |= {"boxes_outside": self.outside} if self.has_boxes else {}
        found |= {"outlines": self.outlines} if self.draws else {}
        if self.has_masks:
            found |= {"masks": str(self.folder / "masks")} if self.kind == "folder" else mask
        found |= {"texts": True} if self.kind == "texts" else {}
        found |= {"unlabelled": "keep"} if self.leaves_some else {}
        found |= {"label_type": "number"} if self.has_numbers else {}
        found |= {"rename": {"text": "said"}} if self.renames else {}
        return found | ({"keypoints": POINTS} if self.has_points else {})

    @property
    def leaves_some(self):
        """Whether some rows have no label."""
        return "unlabelled" in self.traits and self.kind in KEEPS_UNLABELLED

    @property
    def has_numbers(self):
        """Whether labels are numbers instead of classes."""
        return "numbers" in self.traits and self.kind in TAKES_NUMBERS

    @property
    def renames(self):
        return "other names" in self.traits and self.kind not in WITHOUT_TEXT

    @property
    def has_points(self):
        return "points" in self.traits and self.kind == "csv" and not self.clips

    def label(self, row):
        """The label of an image; None if it has none."""
        if self.leaves_some and row.id % 4 == 3:
            return None
        return row.pixels / 8 if self.has_numbers else row.kinds[0]

    @property
    def finds_columns(self):
        """Whether the build has to find which columns have a value for each box."""
        return self.kind == "grouped" and {"box columns", "holes"} <= self.traits

    @property
    def varies(self):
        """Whether marks differ within an image."""
        return any(len({*row.marks}) > 1 for row in self.rows)

    @property
    def lacks_objects(self):
        """Whether its lists of objects are all empty, so that nothing tells their columns."""
        is_listed = self.kind == "imagefolder" and "own place" in self.traits
        return is_listed and not any(row.boxes for row in self.rows)

    @property
    def draws(self):
        """Whether masks are drawn from outlines."""
        return bool(self.outlines) and self.kind in ("coco", "yolo")

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
            marks=tuple(self.draw.randrange(2) for _ in boxes),
            mask=self.draw.randrange(250),
            kept=self.kept,
            clip=self.draw_way() if self.clips else "",
        )

    def draw_way(self):
        if self.kind != "jsonl":
            return self.way if self.kind == "folder" else "file"
        return "list" if self.kept and "tif" not in self.kept[2] else self.draw.choice(["list", "file"])

    def corners(self):
        if self.clips:
            return []
        count = 1 if "lists of one" in self.traits else self.draw.randrange(4)
        may_leave = "boxes outside" in self.traits
        least, most = zip(
            *(((-8, 30) if may_leave and self.draw.random() < 0.15 else (0, 16)) for _ in range(2)), strict=True
        )
        return [(self.draw.randrange(least[0], most[0]), self.draw.randrange(least[1], most[1])) for _ in range(count)]

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
            if new not in self.classes:
                self.classes.insert(self.draw.randrange(len(self.classes) + 1), new)
        return str(self.classes)

    def change(self):
        at = self.pick()
        return self.put(at, pixels=self.same_form(self.rows[at]))

    def mend(self):
        self.rows = [replace(each, bad="") for each in self.rows]
        return "all"

    def spoil(self):
        if not self.has_plenty:
            return ""
        at, ways = self.pick(), ["image"]
        if "wrong boxes" in self.traits:
            has_boxes = self.has_boxes and bool(self.rows[at].boxes)
            has_masks = self.has_masks or (self.kind == "coco" and self.draws and has_boxes)
            ways += [*["mask"] * has_masks, *["box"] * has_boxes]
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
        new = replace(self.make_row(), pixels=self.rows[at].pixels, clip=self.rows[at].clip)
        self.rows.insert(self.draw.randrange(len(self.rows) + 1), new)
        return self.rows[at].name

    def same_form(self, row):
        """Pixels with which a row keeps its path."""
        return next(number for number in self.pixels if replace(row, pixels=number).place == row.place)

    # On the disk.

    def write(self):
        getattr(self, f"write_{self.kind}")()

    def write_folder(self):
        places = {row.file: self.path(row, 0) for row in self.rows}
        folders = [(row, self.path(row, 0).removesuffix(row.place)) for row in self.rows]
        sync(self.url, {folder + name: data for row, folder in folders for name, data in row.files.items()})
        if self.has_masks:
            masks = {places[row.file].replace(row.file, f"{row.name}.png"): row.mask_data for row in self.rows}
            sync(self.folder / "masks", masks)

    def write_csv(self):
        lines = ["path,label,text,count" + f",{POINTS}" * self.has_points]
        for row in self.rows:
            label = "" if self.label(row) is None else self.label(row)
            points = "".join(f",{each}" for each in row.boxes[0]) if row.boxes else ",,,,"
            count = "" if row.count is None else row.count
            lines.append(f'im/{row.file},{label},"{row.text}",{count}{points * self.has_points}')
        images = {f"im/{row.file}": row.data for row in self.rows}
        sync(self.folder, {self.url.name: "\n".join(lines).encode(), **images})

    def write_jsonl(self):
        lines = []
        for row in self.rows:
            said = {
                "path": [f"im/{name}" for name in row.frames] if row.clip == "list" else f"im/{row.file}",
                "label": row.kinds[0] if self.clips else list(row.kinds) if row.boxes else [],
            }
            said |= {"mask": f"m/{row.name}.png"} if self.has_masks else {}
            lines.append(json.dumps(said | self.values(row)))
        images = {f"im/{name}": data for row in self.rows for name, data in row.files.items()}
        masks = {f"m/{row.name}.png": row.mask_data for row in self.rows}
        sync(self.folder, {self.url.name: "\n".join(lines).encode(), **images, **masks})

    def values(self, row):
        """The columns as JSON has them."""
        found = {"text": row.text, "count": row.count, "nums": list(row.nums)}
        found |= {"boxes": row.said_boxes} if self.has_boxes else {}
        found |= {"tags": list(row.tags)} if "text lists" in self.traits else {}
        return found | ({"hidden": list(row.marks)} if "box columns" in self.traits and self.has_boxes else {})

    def write_tars(self):
        tars = {}
        for number in range(2):
            data = io.BytesIO()
            with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for row in self.rows:
                    if row.id % 2 == number:
                        for suffix, content in self.parts(row).items():
                            member = tarfile.TarInfo(f"{row.name}.{suffix}")
                            member.size = len(content)
                            tar.addfile(member, io.BytesIO(content))
            tars[f"{number}.tar"] = data.getvalue()
        sync(self.url, tars)

    def parts(self, row):
        """The files of a sample by their suffixes."""
        found = {} if self.label(row) is None else {"cls": str(self.label(row)).encode()}
        found |= {row.file.split(".")[1]: row.data, "json": json.dumps(self.values(row)).encode()}
        return found | ({"mask.png": row.mask_data} if self.has_masks else {})

    def write_texts(self):
        files = {}
        for row in self.rows:
            parts = self.parts(row) | {"txt": row.text.encode()}
            files |= {f"{row.id % 2}/{row.name}.{suffix}": data for suffix, data in parts.items()}
        sync(self.url, files)

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
        labels = [self.label(row) for row in self.rows]
        ids = [-1 if label is None else self.classes.index(label) for label in labels]
        columns["label"] = pa.array(ids, pa.int64())
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
        """One file, or one for each split as Roboflow has it, with a root category that no box has."""
        ids = {name: 3 * place + 1 for place, name in enumerate(self.classes)}
        categories = [{"id": number, "name": name} for name, number in ids.items()]
        if not self.splits_itself:
            sync(self.folder / "images", {row.file: row.data for row in self.rows})
            sync(self.url.parent, {self.url.name: self.coco(self.rows, ids, categories)})
            return
        categories.insert(0, {"id": 0, "name": self.classes[0], "supercategory": "none"})
        files = {f"{own_split(row.file)}/{row.file}": row.data for row in self.rows}
        for split in {own_split(row.file) for row in self.rows}:
            rows = [row for row in self.rows if own_split(row.file) == split]
            files[f"{split}/_annotations.coco.json"] = self.coco(rows, ids, categories)
        sync(self.url, files)

    def coco(self, rows, ids, categories):
        images, annotations, is_loose = [], [], "loose ids" in self.traits
        for row in rows:
            images.append({"id": self.image_id(row), "file_name": row.file, "width": SIDE, "height": SIDE})
            for at, (kind, said) in enumerate(zip(row.kinds, row.said_boxes, strict=False)):
                left, top, right, bottom = said
                box = {"image_id": self.image_id(row, at), "bbox": [left, top, right - left, bottom - top]}
                box |= {"category_id": str(ids[kind]) if is_loose and at else ids[kind], "id": len(annotations)}
                box |= {"iscrowd": bool(row.marks[at]) if is_loose else row.marks[at]}
                box |= {"area": float("nan") if is_loose else 1, "segmentation": self.segmentation(row, at)}
                annotations.append(box)
        if is_loose and annotations:
            annotations.append({"image_id": self.image_id(rows[0]), "category_id": 1, "segmentation": []})  # no bbox
        content = {"images": images, "annotations": annotations, "categories": categories}
        if is_loose and not annotations:
            del content["annotations"]
        return json.dumps(content).encode()

    def image_id(self, row, way=0):
        """The same id in one of the ways in which tools write it."""
        if "text ids" in self.traits:
            return f"of {row.name}"
        ways = (row.id, float(row.id), str(row.id), f"{row.id:07d}")
        return ways[(row.id + way) % 4] if "loose ids" in self.traits else row.id

    def segmentation(self, row, at):
        """A box as a polygon, as run lengths by columns, or as these packed; or none."""
        if row.bad == "mask" and at == 0:
            return [[0, 0, 5, 5]]
        way, box = (row.boxes[at][0] + at) % 4, row.boxes[at]
        if way == 3:
            return []
        pixels = rectangle(box)
        if way == 0 or not pixels.any():
            left, top, right, bottom = box
            return [[left, top, right, top, right, bottom, left, bottom]]
        if way == 1:
            from pycocotools import mask

            packed = mask.encode(np.asfortranarray(pixels))
            return {"size": [SIDE, SIDE], "counts": packed["counts"].decode()}
        column = pixels.ravel("F")
        ends = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), column.size]
        counts = [end - begin for begin, end in itertools.pairwise(ends)]
        return {"size": [SIDE, SIDE], "counts": [0, *counts] if column[0] else counts}

    def is_outlined(self, row, at):
        if self.kind == "yolo":
            return self.is_polygon(row, at)
        return bool((row.boxes[at][0] + at) % 4 != 3)

    def is_polygon(self, row, at):
        return bool(row.boxes[at][1] % 2) and row.bad != "box"

    def write_yolo(self):
        files, names = {}, {}
        for row in self.rows:
            folder = f"/{own_split(row.file)}" if self.splits_itself else ""
            files[f"images{folder}/{row.file}"] = row.data
            names.setdefault(folder, []).append(row.file)
            lines = []
            for at, (kind, box) in enumerate(zip(row.kinds, row.said_boxes, strict=False)):
                left, top, right, bottom = (each / SIDE for each in box)
                shares = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
                if self.is_polygon(row, at):
                    shares = left, top, right, top, right, bottom, left, bottom
                lines.append(f"{self.classes.index(kind)} {' '.join(map(repr, shares))}")
            if lines or row.id % 2 or not any(each.boxes for each in self.rows):
                files[f"labels{folder}/{row.name}.txt"] = "\n".join(lines).encode()
        config = [f"names: {json.dumps(self.classes)}", f"nc: {len(self.classes)}"]
        for folder, inside in sorted(names.items()):
            split = folder[1:] or "train"
            config.append(f"{split}: {f'{split}.txt' if 'own place' in self.traits else f'images{folder}'}")
            if "own place" in self.traits:
                files[f"{split}.txt"] = "\n".join(f"./images{folder}/{name}" for name in inside).encode()
        sync(self.url, files | {"data.yaml": "\n".join(config).encode()})

    def write_voc(self):
        files, lists = {}, {}
        for row in self.rows:
            objects = "".join(
                f"<object><name>{kind}</name><difficult>{mark}</difficult><bndbox><xmin>{left + 1}</xmin>"
                f"<ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
                for kind, mark, (left, top, right, bottom) in zip(row.kinds, row.marks, row.said_boxes, strict=False)
            )
            size = f"<size><width>{SIDE}</width><height>{SIDE}</height></size>" if row.id % 2 else ""
            files[f"JPEGImages/{row.file}"] = row.data
            files[f"Annotations/{row.name}.xml"] = f"<annotation>{size}{objects}</annotation>".encode()
            lists.setdefault(f"ImageSets/Main/{own_split(row.file)}.txt", []).append(row.name)
        said = {name: "\n".join(lines).encode() for name, lines in lists.items()} if self.splits_itself else {}
        sync(self.url, files | said)

    def write_grouped(self):
        """A row for each box; the rows of an image may be apart."""
        rows = []
        for row in self.rows:
            rest = f'"{row.text}",{"" if row.count is None else row.count}'
            boxes = list(zip(row.kinds, row.marks, row.said_boxes, strict=False)) or [("", "", [""] * 4)]
            for at, (kind, mark, box) in enumerate(boxes):
                line = ",".join([f"im/{row.file}", kind, *map(str, box), rest])
                rows.append((at if "own place" in self.traits else 0, f"{line},{mark}"))
        has_marks = "box columns" in self.traits
        lines = ["filename,class,xmin,ymin,xmax,ymax,text,count" + ",hidden" * has_marks]
        lines += [line if has_marks else line.rpartition(",")[0] for _, line in sorted(rows, key=lambda each: each[0])]
        images = {f"im/{row.file}": row.data for row in self.rows}
        sync(self.folder, {self.url.name: "\n".join(lines).encode(), **images})

    def write_imagefolder(self):
        files, tables = {}, {}
        for row in self.rows:
            folder = f"{own_split(row.file)}/" if self.splits_itself else ""
            boxes = [[left, top, right - left, bottom - top] for left, top, right, bottom in row.said_boxes]
            objects = {"bbox": boxes, "categories": list(row.kinds[: len(boxes)]), "hidden": list(row.marks)}
            if "own place" in self.traits:  # a list of objects
                each = zip(*objects.values(), strict=True)
                objects = [dict(zip(objects, values, strict=True)) for values in each]
            said = {"file_name": row.file, "text": row.text, "count": row.count, "objects": objects}
            tables.setdefault(f"{folder}metadata.jsonl", []).append(json.dumps(said))
            files[f"{folder}{row.file}"] = row.data
        files |= {"train/notes.md": b"so that it is there"} if self.splits_itself else {}
        sync(self.url, files | {name: "\n".join(lines).encode() for name, lines in tables.items()})

    # In the dataset.

    def path(self, row, at):
        split = f"{own_split(row.file)}/" if self.splits_itself else ""
        plain = {"folder": f"{row.kinds[0]}/{row.place}" if self.label(row) is not None else row.place}
        plain |= {"tars": f"{row.id % 2}.tar/{row.file}", "texts": f"{row.id % 2}/{row.file}"}
        plain |= {"parquet": f"data/train-00000-of-00001.parquet/{at}/{row.file}"}
        plain |= {"arrow": f"data-00000-of-00001.arrow/{at}/{row.file}", "coco": split + row.file}
        plain |= {"yolo": f"images/{split}{row.file}", "voc": f"JPEGImages/{row.file}", "imagefolder": split + row.file}
        return plain.get(self.kind, f"im/{row.place}")

    def keep(self, row):
        """The places of the boxes that are kept, these boxes within the image, and what is wrong with the row."""
        kept, boxes, wrong = [], [], "" if not self.clips or shown_of(row.pixels, *self.clips) else "image"
        for at, box in enumerate(row.boxes if self.has_boxes else ()):
            inside = tuple(min(max(each, 0), SIDE) for each in box)
            is_gone = inside[0] >= inside[2] or inside[1] >= inside[3]
            is_far = min(box) < -OUTSIDE_PX or max(box) > SIDE + OUTSIDE_PX
            if self.kind == "yolo":  # its numbers are in 0 to 1
                left, top, right, bottom = box
                said = box if self.is_polygon(row, at) else ((left + right) / 2, (top + bottom) / 2)
                wrong = "box" if min(said) < 0 or max(said) > SIDE else wrong
            if is_gone or is_far:
                wrong = wrong or ("box" if self.outside == "reject" else "")
            if not is_gone and not (is_far and self.outside == "drop"):
                kept.append(at)
                boxes.append(inside)
        if self.finds_columns and not self.has_varied and len({*row.marks}) > 1 and row.bad != "image":
            return kept, boxes, "column"
        return kept, boxes, row.bad or wrong

    def mask_of(self, row, kept):
        """The mask of all outlines: crowds first, then each over those before."""
        found = np.zeros((SIDE, SIDE), int)
        is_crowd = self.kind == "coco"
        drawn = [(at, place) for place, at in enumerate(kept) if self.is_outlined(row, at)]
        for at, place in sorted(drawn, key=lambda each: not (is_crowd and row.marks[each[0]])):
            ids = self.ids or tuple(self.classes)
            value = 1 + (ids.index(row.kinds[at]) if self.outlines == "semantic" else place)
            found[rectangle(row.boxes[at]) > 0] = 255 if is_crowd and row.marks[at] else value
        return shown(found[1::2, 1::2] if self.is_halved else found)

    def points(self, row):
        """Two points: x, y, and 2 within the image, else 0."""
        found = []
        for x, y in (row.boxes[0][:2], row.boxes[0][2:]) if row.boxes else ():
            inside = 0 <= x <= SIDE and 0 <= y <= SIDE
            found += [x / (1 + self.is_halved), y / (1 + self.is_halved), 2 * inside]
        return tuple(found or [0] * 6)

    def samples(self):
        """By path, in the order of rows: the sample, and what is wrong with it."""
        found = {}
        for at, row in enumerate(self.rows):
            path, columns = self.path(row, at), {}
            kept, boxes, bad = self.keep(row)
            marks, whole = tuple(row.marks[place] for place in kept), sum(boxes, ())
            whole = tuple(each / 2 for each in whole) if self.is_halved else whole
            if self.kind in ("csv", "grouped", "imagefolder"):
                columns = {"text": (row.text,), "count": () if row.count is None else (row.count,)}
            if self.kind == "coco":
                text = self.image_id(row) if "text ids" in self.traits else row.id
                columns = {"boxes": whole, "iscrowd": marks, "image_id": (text,)}
            elif self.kind == "yolo":
                columns = {"boxes": whole}
            elif self.kind == "voc":
                columns = {"boxes": whole, "difficult": marks, "truncated": (0,) * len(marks)}
            elif self.kind == "grouped":
                marks = marks if self.has_varied or not self.finds_columns else row.marks[:1]  # of the whole image
                columns |= {"boxes": whole} | ({"hidden": marks} if "box columns" in self.traits else {})
            elif self.kind == "imagefolder":
                columns |= {"objects.bbox": whole, "objects.hidden": marks}
            elif self.kind not in ("folder", "csv"):
                columns = {name: flat(value) for name, value in self.values(row).items()}
                columns |= {"boxes": whole} if self.has_boxes else {}
                columns |= {"hidden": marks} if "box columns" in self.traits and self.has_boxes else {}
            if self.has_masks:
                columns["mask"] = (row.mask,)
            elif self.draws:
                columns["mask"] = self.mask_of(row, kept)
            columns |= {"txt": (row.text,)} if self.kind == "texts" else {}
            columns |= {"keypoints": self.points(row)} if self.has_points else {}
            if self.renames:
                columns["said"] = columns.pop("text")
            label = self.label(row)
            labels = tuple(row.kinds[place] for place in kept) if self.labels_boxes else (label,)
            if self.has_numbers:
                columns["label"], labels = ("nan" if label is None else label,), ()
            labels = () if label is None else labels
            pixels = shown_of(row.pixels, *self.clips) if self.clips and bad != "image" else row.pixels
            found[path] = Sample(path, pixels, labels, tuple(sorted(columns.items()))), bad
        return found


# What sources may have: images of COCO in a place that the command says, lists of text, empty text in these, columns
# of boxes, boxes or masks that are wrong, other classes or another order of them; splits of their own, boxes that reach
# beyond the image, ids of COCO as text, floats or names. "own place" is also for lists of files for YOLO, for rows of
# an image that are apart in a table, and for lists of objects in the metadata of a folder. Rows without a label,
# numbers as labels, a column that the dataset calls otherwise, and keypoints in columns of a table.
TRAITS = ("masks", "own place", "lists of one", "text lists", "holes", "box columns", "wrong boxes", "other classes")
TRAITS += ("own splits", "boxes outside", "loose ids", "text ids", "unlabelled", "numbers", "other names", "points")
EDITS = ("add", "change", "spoil", "spoil", "mend", "mend", "remove", "rename", "say", "double", "shuffle", "reclass")


def own_split(path):
    """The split that a source says by itself; it follows from a row's number."""
    return "train" if int(re.search(r"(\d{3})\.\w+$", path)[1]) % 3 else "val"


def rectangle(box):
    """The pixels of a box: 1, and 0 elsewhere."""
    found = np.zeros((SIDE, SIDE), np.uint8)
    left, top, right, bottom = (max(0, each) for each in box)
    found[top:bottom, left:right] = 1
    return found


def shown(mask):
    """A mask as a column: one value where all are the same."""
    values = tuple(np.unique(mask).tolist())
    return values if len(values) == 1 else tuple(np.asarray(mask).ravel().tolist())


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
