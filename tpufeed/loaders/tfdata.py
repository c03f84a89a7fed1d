"""tf.data: the host stream handed to TensorFlow batch by batch, without copying pixels."""

import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import LoaderError, MissingExtraError
from tpufeed.loaders.columns import IMAGE
from tpufeed.loaders.crew import Array
from tpufeed.loaders.epoch import Endless, EpochIterator
from tpufeed.loaders.options import LoaderKeywords, make_options
from tpufeed.loaders.stream import NumpyLoader
from tpufeed.loaders.tfdirect import DirectLoader, set_gcs_defaults

if TYPE_CHECKING:
    import tensorflow as tf

_PREFETCH = 2
_ENDLESS = 1 << 62
_QUIET_SECONDS, _SETTLE_SECONDS = 0.05, 5.0


def tf_dataset(
    url: str | Path, split: str = "train", *, direct: bool = False, **options: Unpack[LoaderKeywords]
) -> "tf.data.Dataset":
    """Batches of a dataset or cache as a `tf.data.Dataset` of static shapes.

    Elements are `(image, label)`: uint8 (batch, height, width, 3) and int64 (batch,); see `LoaderOptions.columns` for
    others. Every new iteration is the next epoch, so Keras' `fit` sees other crops, and in a cache the next variant,
    each epoch. Images share the memory of the host loader's batches.

    A new iteration ends an earlier one that is still open.

    With `direct` TensorFlow reads the shards, gs:// by its own client, all lanes at once, and nothing is staged; that
    takes some 64 MB of records to draw from, or two batches, and 8 MiB a lane. Prefer it where the host has no room
    for a stage, or each epoch reads other bytes anyway. The default reads remote shards once, pins them to their
    generation, checks them against the manifest, and has an order that can be repeated. Pixels, labels, epochs,
    variants and shares are the same. The order is another in each run; without `shuffle`, and unless `lanes` are given,
    it is that of the default. TensorFlow's CRC checks are on, and records are counted: a shard that was cut between two
    records, or goes on after those of the manifest, is an error when its end is read, at the latest with the epoch's
    last batch. An object that is replaced by one of as many records is not noticed. `remainder` fills up with samples
    from the rank's own first parts. TensorFlow takes settings for gs:// when it is imported: let tpufeed do that, or
    heed the warning that it logs.

    Args:
        url: a dataset, at a path or a URL.
        split: which part of it.
        direct: let TensorFlow read.
        **options: see `LoaderOptions`.

    Raises:
        MissingExtraError: TensorFlow is not installed.
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it.
    """
    if direct:
        set_gcs_defaults()
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingExtraError("TensorFlow", "tf") from error
    dataset, given = open_dataset(url), make_options(options)
    return _to_tensors(DirectLoader(dataset, split, given, tf) if direct else NumpyLoader(dataset, split, given), tf)


def _to_tensors(loader: NumpyLoader, tf: Any) -> "tf.data.Dataset":
    """The epochs of a loader, one an iteration."""
    source = _Source(loader, tf)
    # One outer element an iteration: it opens the epoch when the iteration starts, not when the graph is built.
    dataset = tf.data.Dataset.range(1).map(lambda _: tf.py_function(source.open, [], tf.int64))
    dataset = dataset.flat_map(
        lambda opened: tf.data.Dataset.range(source.batches).map(
            lambda _: source.shaped(tf.py_function(source.next_batch, [opened], source.dtypes))
        )
    )
    batches = tf.data.INFINITE_CARDINALITY if loader.options.repeat else source.batches
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches)).prefetch(_PREFETCH)
    weakref.finalize(dataset, source.close)  # also when the interpreter exits
    return dataset


class _Source:
    """Hands the epochs of a loader to a graph. TensorFlow calls it from its own threads, one at a time an iteration."""

    def __init__(self, loader: NumpyLoader, tf: Any) -> None:
        self._loader = loader
        self._tf = tf
        self._iterator: EpochIterator | Endless | None = None
        self._opened = 0
        self._closed = False
        self._calls: deque[int] = deque()  # that are in progress; appending and popping are atomic
        self._last_call = 0.0
        self.batches = _ENDLESS if loader.options.repeat else len(loader)
        self.dtypes = [self._dtype(name) for name in loader.form.names]

    def open(self) -> Any:
        """Begin the next iteration and give its number; an earlier one that is still open is given up."""
        with self._call():
            if self._iterator is not None:
                self._iterator.close()
            self._iterator = iter(self._loader)
            self._opened += 1
            return self._tf.constant(self._opened, self._tf.int64)

    def next_batch(self, opened: Any) -> list[Any]:
        """The next batch of that iteration, a tensor a column."""
        with self._call():
            iterator = self._iterator
            if iterator is None or self._opened != int(opened):
                raise LoaderError("a newer iteration of this tf.data.Dataset has begun; this one cannot go on")
            arrays = iterator.next_arrays()
            return [self._tensor(name, arrays[name]) for name in self._loader.form.names]

    def close(self) -> None:
        """Stop the threads, and wait until TensorFlow's have left Python.

        One that is in Python when the interpreter ends never returns from it, and the destructor of its iterator waits
        for that for ever. After this every call fails at once, so queues downstream fill with errors and calls cease.
        """
        self._closed = True
        self._loader.close()
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline and (self._calls or time.monotonic() - self._last_call < _QUIET_SECONDS):
            time.sleep(_QUIET_SECONDS / 10)

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._calls.append(1)
        try:
            if self._closed:
                raise LoaderError("the dataset was dropped, or the interpreter is about to exit")
            yield
        finally:
            self._last_call = time.monotonic()
            self._calls.pop()

    def shaped(self, tensors: list[Any]) -> Any:
        """The element of the dataset: the columns with their static shapes."""
        rows = self._loader.batch_size
        for name, tensor in zip(self._loader.form.names, tensors, strict=True):
            tensor.set_shape((rows, *self._loader.image_shape) if name == IMAGE else (rows,))
        return self._loader.form.package(dict(zip(self._loader.form.names, tensors, strict=True)))

    def _dtype(self, name: str) -> Any:
        dtype = self._loader.column_dtype(name)
        return self._tf.string if dtype == np.object_ else self._tf.dtypes.as_dtype(dtype)

    def _tensor(self, name: str, array: Array) -> Any:
        if name == IMAGE:  # page-aligned, as dlpack demands; TensorFlow keeps the memory alive as long as it needs it
            return self._tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        return self._tf.constant(array.tolist() if array.dtype == np.object_ else array)
