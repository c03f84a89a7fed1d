"""Raw images that are no dataset yet: a sample of the files, and how fast plain Python with Pillow trains from them."""

import io
import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from PIL import Image

from tpufeed.dataset.plan import Input
from tpufeed.diagnosis.stages.samples import Sample
from tpufeed.errors import ImageError
from tpufeed.sharding.inputs import Files, iter_read
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.rows import Found, Row
from tpufeed.sharding.sources import find_source

_MOST_LISTED = 20_000
_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class RawFiles:
    """What a source of raw images holds.

    Attributes:
        count: of images; the first ones where the listing was not `complete`.
        bytes: of a file, on average.
        read_per_second: images, files after one another as `tpufeed shard` reads them.
        sample: some of them.
        unreadable: files of the sample that could not be read, as messages.
        labelled: whether any has a label.
        columns: of a table, those that are neither images nor labels; None of anything else.
    """

    count: int
    complete: bool
    bytes: float
    read_per_second: float
    sample: Sample
    unreadable: tuple[str, ...]
    labelled: bool = True
    columns: tuple[str, ...] | None = None


def read_files(url: str, seconds: float) -> RawFiles:
    """Look at a folder, a table or tars of images; no more of a long listing than its beginning.

    Raises:
        SourceError, NoInputsError, OptionError: the source cannot be understood.
    """
    source = find_source(url, ShardOptions())
    rows = list(itertools.islice(source.iter_rows(Found()), _MOST_LISTED + 1))
    complete = len(rows) <= _MOST_LISTED
    drawn = random.Random(0).sample(rows, min(_SAMPLES, len(rows)))
    images, unreadable = list[bytes](), list[str]()
    start = time.perf_counter()
    with closing(iter_read(Files(source.base), [_to_input(row) for row in drawn])) as read:
        for item, data in read:
            if isinstance(data, ImageError):
                unreadable.append(f"{item.path}: {data}")
            else:
                images.append(data)
            if images and time.perf_counter() - start > seconds:
                break
    rate = len(images) / (time.perf_counter() - start)
    mean = float(np.mean([row.bytes for row in rows])) if rows else 0.0
    sample = Sample(images, [0] * len(images))
    return RawFiles(
        count=min(len(rows), _MOST_LISTED),
        complete=complete,
        bytes=mean,
        read_per_second=rate,
        sample=sample,
        unreadable=tuple(unreadable),
        labelled=any(row.label is not None for row in rows),
        columns=tuple(rows[0].columns or ()) if source.kind == "table" else None,
    )


def decode_plainly(image: bytes, side_px: int | None, draw: random.Random) -> None:
    """As a Dataset of people's own does it: Pillow decodes all of the image, crops and resizes."""
    with Image.open(io.BytesIO(image)) as opened:
        picture = opened.convert("RGB")
    if side_px is not None:
        side = max(1, int(min(picture.size) * draw.uniform(0.5, 1.0)))
        left, top = draw.randint(0, picture.width - side), draw.randint(0, picture.height - side)
        box = (left, top, left + side, top + side)
        np.asarray(picture.resize((side_px, side_px), Image.Resampling.BILINEAR, box=box))


def measure_plainly(sample: Sample, side_px: int | None, threads: int, seconds: float) -> float:
    """Images a second of so many threads of this process. An image that Pillow refuses is passed over."""

    def run(number: int) -> float:
        draw, done = random.Random(number), 0
        start = now = time.perf_counter()
        for tried, image in enumerate(itertools.cycle(sample.images[number:] + sample.images[:number]), 1):
            try:
                decode_plainly(image, side_px, draw)
                done += 1
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
                pass
            now = time.perf_counter()
            if now - start >= seconds and (done or tried >= len(sample.images)):
                break
        return done / (now - start)

    with ThreadPoolExecutor(threads, "tpufeed-doctor") as executor:
        return sum(executor.map(run, range(threads)))


def _to_input(row: Row) -> Input:
    return Input(row.path, row.bytes, row.version, -1, row.file, row.offset, (), row.problem)
