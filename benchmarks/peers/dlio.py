"""What `dlio.py` plugs into DLIO, MLPerf Storage's engine: tpufeed as a data loader, a TF reader that decodes.

DLIO finds the classes by `data_loader_classname` and `reader_classname`. Its data folder holds train/*.tfrecord, as
DLIO wants it, and the manifest of a dataset of tpufeed over these files.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.reader.tf_reader import TFReader

import tpufeed
from tpufeed.images import Resize

__all__ = ["DecodingTFReader", "TpufeedLoader", "TpufeedRecords", "decode"]

SIDE = 224


class TpufeedLoader(BaseDataLoader):
    """JPEGs decoded and resized by `Loader` with its own defaults; an epoch is one `for` over it."""

    options: ClassVar[dict[str, Any]] = {"ops": [Resize((SIDE, SIDE))], "columns": ("image", "label")}
    row = ((SIDE, SIDE, 3), "uint8")  # of a batch's first array

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.TENSORFLOW)
        self._batches: Any = None

    def read(self) -> None:
        """Open the dataset, as DLIO does once before its epochs."""
        if self.dataset_type is not DatasetType.TRAIN:
            raise NotImplementedError("only the training data is read; leave workflow.evaluation False")
        self._batches = tpufeed.Loader(
            Path(self._args.data_folder),
            batch_size=self.batch_size,
            shuffle=self._args.sample_shuffle is not Shuffle.OFF,
            world=(self._args.my_rank, self._args.comm_size),
            **self.options,
        )

    def next(self) -> Iterator[Any]:
        """Yield the batches of an epoch."""
        shape, dtype = self.row
        for batch in self._batches:
            first = batch[0] if isinstance(batch, tuple) else batch
            if first.shape != (self.batch_size, *shape) or first.dtype != dtype:
                raise ValueError(f"not {self.batch_size} rows of {dtype} {shape}: {first.dtype} {first.shape}")
            yield batch

    def finalize(self) -> None:
        """Leave the workers: DLIO calls this after each epoch."""


class TpufeedRecords(TpufeedLoader):
    """DLIO's own random bytes: each record read, its CRCs verified and its Example parsed, as by DLIO's TF loader.

    Nothing is decoded, and only `size` is handed over; DLIO's loader hands over one image that it made before.
    """

    options: ClassVar[dict[str, Any]] = {"columns": ("size",)}
    row = ((), "int64")


class DecodingTFReader(TFReader):
    """DLIO's TF reader with each JPEG decoded and resized, which its own does not.

    Changed against TFReader.next of 2.0.0: its `batch` and then `map(py_function(_parse_image))`, which hands over one
    image for each batch, are a `map` that parses, decodes and resizes each record as a graph, and then `batch`. A
    py_function over batches would decode on one thread. The files, the reads, the parallelism of the map, the repeats
    and the prefetch are its own. There is one rank, so that nothing is sharded.
    """

    def next(self) -> Any:
        """Return the batches of all epochs as one tf.data.Dataset."""
        args = self._args
        if args.comm_size != 1 or args.sample_shuffle is not Shuffle.OFF:
            raise NotImplementedError("DecodingTFReader is for one rank, without a shuffle")
        records = tf.data.TFRecordDataset(
            filenames=tf.data.Dataset.list_files(self._file_list, shuffle=False),
            buffer_size=args.transfer_size,
            num_parallel_reads=args.read_threads,
        )
        samples = records.map(decode, num_parallel_calls=args.computation_threads)
        batches = samples.batch(self.batch_size, drop_remainder=True).repeat()
        total = math.floor(len(self._file_list) / self.batch_size * args.num_samples_per_file)
        return batches.take(total * args.epochs).prefetch(buffer_size=args.prefetch_size)


_FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


def decode(record: Any) -> Any:
    parsed = tf.io.parse_single_example(record, _FEATURES)
    image = tf.image.resize(tf.io.decode_jpeg(parsed["image/encoded"], channels=3), (SIDE, SIDE))
    return tf.cast(image, tf.uint8), parsed["image/class/label"]
