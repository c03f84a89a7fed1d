"""Raw images that are no dataset yet: how fast one trains from them with plain Python, the "before" of every story."""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from tpufeed.errors import DatasetNotFoundError, ImageError, NoInputsError, OptionError, SourceError
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Op
from tpufeed.measure.alternatives import FedImages, try_alternatives
from tpufeed.measure.naive import measure_pillow
from tpufeed.measure.prediction import (
    ASSEMBLY,
    DECODING,
    OPS,
    READING,
    TRANSFER,
    Alternative,
    Measurements,
    Storage,
    compose,
)
from tpufeed.measure.results import Stage
from tpufeed.measure.stages import measure_transfer
from tpufeed.measure.wording import number_of
from tpufeed.processes.limits import available_cores
from tpufeed.sharding.inputs import Files, iter_read
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.sources.kinds import find_source
from tpufeed.sharding.sources.source import Found
from tpufeed.storage.local import temporary_folder

_MOST_LISTED = 20_000
_SAMPLES = 256


def measure_files(
    url: str, ops: Sequence[Op], batch_size: int, seconds: float, tell: Callable[[str], None]
) -> Measurements:
    """Measure a folder, a table or tars of images as a Dataset of one's own would read and decode them, on all cores.

    No more of a long listing is read than its beginning. What shards and caches of the images would give is tried.

    Args:
        url: of the images.
        ops: of the loader; images come out of them in one size.
        batch_size: of the loader.
        seconds: of each measurement.
        tell: is told what is being measured.

    Raises:
        DatasetNotFoundError: there are no images.
        OptionError: ops that leave images of several sizes.
    """
    tell("the files")
    size = Pipeline(ops, 0).output_size(None)
    if size is None:
        raise OptionError("the ops leave images of several sizes; end with one that fixes it, like CenterCrop(224)")
    try:
        source = find_source(url, ShardOptions())
        rows = list(itertools.islice(source.iter_items(Found()), _MOST_LISTED + 1))
    except (SourceError, NoInputsError) as error:
        raise DatasetNotFoundError(
            f"{url} holds neither a dataset (no manifest.json) nor images: {error}. Give the URL of a dataset, or of "
            "images as `tpufeed shard` takes them"
        ) from error
    drawn = random.Random(0).sample(rows, min(_SAMPLES, len(rows)))
    images, unreadable = list[bytes](), list[str]()
    start = time.perf_counter()
    with closing(iter_read(Files(source.base), drawn)) as read:
        for item, data in read:
            if isinstance(data, ImageError):
                unreadable.append(f"{item.path}: {data}")
            else:
                images.append(data[0])
            if images and time.perf_counter() - start > seconds:
                break
    reading = len(images) / (time.perf_counter() - start)
    count, cores = min(len(rows), _MOST_LISTED), available_cores()
    notes = [f"there is no dataset here yet, but images: {count:,}{' and more' if len(rows) > count else ''}"]
    if unreadable:
        notes.append(f"{len(unreadable):,} of those looked at cannot be read, the first: {unreadable[0]}")
    if source.kind == "table":  # the printed commands cannot know which of its columns is meant
        notes.append("add --label COLUMN and --split-by COLUMN to the commands as this table needs them")
    mean = float(np.mean([row.bytes for row in rows])) if rows else 0.0
    stages = [Stage(name=ASSEMBLY, why_not="none of the files can be read")]
    alternatives: tuple[Alternative, ...] = ()
    if images:
        decoding = measure_pillow(images, None, cores, seconds)
        whole = measure_pillow(images, size[0], cores, seconds)
        crop = 1 / (1 / whole - 1 / decoding) if 0 < whole < decoding else None
        tell(TRANSFER)
        stages = [
            Stage(name=READING, images_per_second=reading, detail="file by file, in one thread"),
            Stage(name=DECODING, images_per_second=decoding or None, detail="Pillow"),
            Stage(
                name=OPS,
                images_per_second=crop,
                detail="a crop, resized by Pillow" if crop else "",
                why_not="cannot be told from decoding",
            ),
            Stage(
                name=ASSEMBLY,
                images_per_second=compose(whole, reading * cores) if whole else None,
                detail=f"Pillow in {number_of(cores, 'thread')}, as a Dataset of one's own does it; no tpufeed in it",
                why_not="Pillow decodes none of the images that were looked at",
            ),
            measure_transfer((*size, 3), batch_size, seconds),
        ]
        tell("what shards and caches of them would give")
        sample = FedImages(url=url, images=images, records=count, are_files=True, ops=ops, batch_size=batch_size)
        with temporary_folder() as folder:
            alternatives, untried = try_alternatives(sample, folder, seconds)
        notes += untried
    return Measurements(
        split="all",
        record_bytes=mean,
        total_bytes=mean * count,
        storage=Storage(why_not="files are read one by one; see reading"),
        stages={stage.name: stage for stage in stages},
        alternatives=alternatives,
        notes=tuple(notes),
    )
