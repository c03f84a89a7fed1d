"""From a record to a row of a batch. Holds the GIL for some 20 us a JPEG, 10 us a raw image; any thread may run it."""

import threading
from collections.abc import Sequence

import numpy as np

from tpufeed.dataset.reader import Dataset, Reader
from tpufeed.errors import ImageError, OptionError, RecordError
from tpufeed.images.decoding import Pixels
from tpufeed.images.ops import Draws, Op, from_dict
from tpufeed.images.pipeline import Pipeline

_NO_SIZE = (
    "its images differ in size and none of the ops fixes one; pass for training "
    "ops=[RandomResizedCrop(size=224), HorizontalFlip()], for evaluation ops=[Resize(256), CenterCrop(224)] "
    "(from tpufeed.images)"
)


class Decoder:
    """Decodes images of one dataset and applies the ops. Thread-safe."""

    def __init__(self, dataset: Dataset, ops: Sequence[Op] | None, seed: int) -> None:
        cache = dataset.manifest.cache
        if ops is None:
            ops = [] if cache is None else [from_dict(op) for op in cache.final]
        self.pipeline = Pipeline(ops, seed)
        self._tensor_shape = dataset.manifest.tensor_shape
        stored_size = None if cache is None else cache.shape[:2]
        self.output_size = self.pipeline.output_size(stored_size)
        self._url = dataset.url
        self._local = threading.local()

    @property
    def batch_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image. Raises OptionError where they differ."""
        if self.output_size is None:
            raise OptionError(f"{self._url}: {_NO_SIZE}")
        return (*self.output_size, 3)

    def decode(self, image: memoryview, draws: Sequence[Draws], out: Pixels | None = None) -> Pixels:
        """The pixels of a record's image after the ops, in `out` where it is given.

        Raises:
            ImageError: the image does not decode.
        """
        if self._tensor_shape is None:
            return self.pipeline.run_encoded(image, draws, out, self._memory)
        pixels = np.frombuffer(image, np.uint8).reshape(self._tensor_shape)
        if out is None or self.pipeline.ops:
            return self.pipeline.run(pixels, draws, out)
        np.copyto(out, pixels)
        return out

    def _memory(self, size: int) -> Pixels:
        scratch: Pixels | None = getattr(self._local, "scratch", None)
        if scratch is None or size > len(scratch):
            scratch = self._local.scratch = np.empty(size, np.uint8)
        return scratch[:size]


def decode_record(
    decoder: Decoder, reader: Reader, place: tuple[int, int], draws: Sequence[Draws], out: Pixels | None = None
) -> tuple[Pixels, tuple[int, ...], memoryview]:
    """Pixels, fixed integers and payload of the record at `place`, which is (shard, record).

    Raises:
        RecordError: it is damaged, or its image does not decode; names shard, record and byte.
        ShardError: the shard is not the manifest's.
    """
    payload = reader.read(*place)
    try:
        image, ints = reader.layout.decode(payload)
        return decoder.decode(image, draws, out), ints, payload
    except (ImageError, RecordError, ValueError) as error:
        raise RecordError(f"{reader.place(*place)}: {error}") from error
