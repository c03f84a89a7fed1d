"""Decode a record into a row of a batch. Holds the GIL for some 20 us a JPEG, 10 us a raw image; runs in any thread."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.errors import ImageError, OpError, OptionError, RecordError
from tpufeed.images.decoding import Pixels
from tpufeed.images.ops import Custom, Draws, Op, from_dict
from tpufeed.images.parameters import shown
from tpufeed.images.pipeline import Pipeline
from tpufeed.tfrecord.layout import FixedLayout

_NO_SIZE = (
    "its images may differ in size and none of the ops fixes one; pass for training "
    "ops=[RandomResizedCrop(size=224), HorizontalFlip()], for evaluation ops=[Resize(256), CenterCrop(224)] "
    "(from tpufeed.images)"
)


class Decoder:
    """Decodes images of one dataset and applies the ops. Thread-safe.

    Args:
        dataset: whose images.
        ops: those of the manifest by default.
        seed: the user's.
        wanted: whether anybody asks for images; else none is decoded, and one undefined pixel stands for each.

    Raises:
        OptionError: `ops` are none, or there are none and those of the manifest cannot be taken.
    """

    def __init__(self, dataset: Dataset, ops: Sequence[Op] | None, seed: int, wanted: bool = True) -> None:
        cache = dataset.manifest.cache
        if ops is None:
            ops = [] if cache is None else _final_ops(dataset.url, cache.final)
        self.pipeline = Pipeline(ops, dataset.manifest.draws_seed(seed), fast=True, upright=dataset.manifest.upright)
        self._tensor_shape = dataset.manifest.tensor_shape
        stored_size = None if cache is None else cache.shape[:2]
        self.output_size = self.pipeline.output_size(stored_size)
        self._url = dataset.url
        self._wanted = wanted
        self._local = threading.local()

    @property
    def batch_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image. Raises OptionError where they differ."""
        if not self._wanted:
            return 1, 1, 3
        if self.output_size is None:
            raise OptionError(f"{self._url}: {_NO_SIZE}")
        return (*self.output_size, 3)

    def decode(self, image: memoryview, draws: Sequence[Draws], out: Pixels | None = None) -> Pixels:
        """The pixels of a record's image after the ops, in `out` where it is given.

        Raises:
            ImageError: the image does not decode.
        """
        if not self._wanted:
            return np.empty(self.batch_shape, np.uint8) if out is None else out
        if self._tensor_shape is None:
            return self.pipeline.run_encoded(image, draws, out, self._memory)
        return self.pipeline.run(np.frombuffer(image, np.uint8).reshape(self._tensor_shape), draws, out)

    def check_size(self, image: memoryview) -> None:
        """Raises RecordError where the bytes are not those of a tensor of the dataset's shape."""
        if self._tensor_shape is not None and len(image) != math.prod(self._tensor_shape):
            raise RecordError(
                f"the image has {len(image)} bytes; {self._tensor_shape} take {math.prod(self._tensor_shape)}"
            )

    def copier(self, layout: FixedLayout, outs: Sequence[Pixels]) -> Callable[[int, memoryview], None] | None:
        """Copies pixels from the fixed place in a payload to `outs`, where decoding is no more than that; else None."""
        shape, start = self._tensor_shape, layout.image_offset
        if shape is None or self.pipeline.ops or not self._wanted:
            return None
        size = math.prod(shape)

        def copy(number: int, payload: memoryview) -> None:
            if len(payload) >= start + size:
                np.copyto(outs[number], np.frombuffer(payload, np.uint8, size, start).reshape(shape))

        return copy

    def _memory(self, size: int) -> Pixels:
        scratch: Pixels | None = getattr(self._local, "scratch", None)
        if scratch is None or size > len(scratch):
            scratch = self._local.scratch = np.empty(size, np.uint8)
        return scratch[:size]


def _final_ops(url: str, descriptions: Iterable[Mapping[str, Any]]) -> list[Op]:
    """The ops that a manifest names. Whoever wrote it must not choose what is imported here."""
    ops = [from_dict(description) for description in descriptions]
    for op in ops:
        if isinstance(op, Custom):
            raise OptionError(
                f"{url}: its manifest names {shown(op.target)} among the final ops, and no loader imports what a "
                f"manifest names. If you want it to run, pass all of them: ops=[..., Custom({shown(op.target)})]"
            )
    return ops


@dataclass(frozen=True, slots=True)
class Decoded:
    """Samples of a batch in their order: pixels, fixed integers, the payloads of their records, the time of reading."""

    pixels: list[Pixels]
    ints: list[tuple[int, ...]]
    payloads: list[memoryview]
    read_seconds: float


def decode_samples(
    decoder: Decoder,
    reader: Reader,
    places: Sequence[tuple[int, int]],
    draws: Sequence[Sequence[Draws]],
    outs: Sequence[Pixels] | None = None,
) -> Decoded:
    """The samples at `places`, each (shard, record).

    Args:
        decoder: of their dataset.
        reader: of the variant.
        places: where they lie.
        draws: for each op those of each sample.
        outs: memory for each image.

    Raises:
        RecordError: one is damaged, or its image does not decode; names shard and record, and where the framing is
            damaged the byte.
        OpError: one of the ops failed; names shard and record.
        ShardError: a shard is not the manifest's.
    """
    begun = perf_counter()
    copy = None if outs is None else decoder.copier(reader.layout, outs)
    payloads = reader.read_many(places, copy)
    read_seconds = perf_counter() - begun
    pixels, ints = list[Pixels](), list[tuple[int, ...]]()
    for row, payload in enumerate(payloads):
        try:
            image, values = reader.layout.decode(payload)
            decoder.check_size(image)
            ints.append(values)
            if outs is None:  # copied, as it may be a view of the shard, or of scratch that the next one overwrites
                pixels.append(decoder.decode(image, [op[row] for op in draws]).copy())
            elif copy is None or not reader.layout.is_fixed(payload):
                decoder.decode(image, [op[row] for op in draws], outs[row])
        except OpError as error:
            raise OpError(f"{reader.place(*places[row])}: {error}") from error
        except (ImageError, RecordError) as error:  # no other ValueError: that would be a bug, not the record's fault
            raise RecordError(f"{reader.place(*places[row])}: {error}") from error
    return Decoded(pixels if outs is None else list(outs), ints, payloads, read_seconds)
