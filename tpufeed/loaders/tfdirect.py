"""The loader behind `tf_dataset(direct=True)`: TensorFlow reads the shards itself, and nothing is staged."""

import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tpufeed.dataset.order import Places
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError
from tpufeed.loaders.buffers import BufferPool
from tpufeed.loaders.crew import CLOSED, Due, Mask
from tpufeed.loaders.epoch import EpochIterator
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.stream import NumpyLoader
from tpufeed.loaders.tfmixer import Mixer
from tpufeed.loaders.tfrecords import HandedReader, RecordFeed, plan_epoch, reading_graph
from tpufeed.loaders.threads import ThreadCrew
from tpufeed.storage.registry import url_scheme

_logger = logging.getLogger(__name__)

# Read by TensorFlow when it is imported, and never again. Its retries stay its own: 10, after 1 to 32 s each.
_GCS_SETTINGS = {
    # A file is open for each lane, with a buffer of this size: the default of 64 MiB is 1 GiB for 16 lanes, and a part
    # that ends within a shard reads up to that much too much. Each buffer is a new connection: fewer MiB cost more.
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "8",
    # Without a byte for so long a request is given up and tried again; by default after 60 s.
    "GCS_REQUEST_IDLE_TIMEOUT_SECS": "20",
    "GCS_REQUEST_CONNECTION_TIMEOUT_SECS": "20",  # by default 120
    # For a whole request; with 3600 one that trickles holds up its lane for an hour.
    "GCS_READ_REQUEST_TIMEOUT_SECS": "300",
    "GCS_METADATA_REQUEST_TIMEOUT_SECS": "60",
}

_MIXED_BYTES, _MIXED_MOST = 64 << 20, 8192
_SETTLE_SECONDS = 5.0


def set_gcs_defaults() -> None:
    """Settings for TensorFlow's gs:// client that the user has not made; in vain once TensorFlow is imported."""
    if "tensorflow" not in sys.modules:
        for name, value in _GCS_SETTINGS.items():
            os.environ.setdefault(name, value)


class DirectLoader(NumpyLoader):
    """A `NumpyLoader` whose records come from a TensorFlow graph; where it shuffles, in an order that no run repeats.

    Raises:
        OptionError: TensorFlow cannot open the dataset's URL, or staging is asked for.
    """

    def __init__(self, dataset: Dataset, split: str, options: LoaderOptions, tf: Any) -> None:
        if options.stage_dir is not None or options.stage_bytes not in (None, 0):
            raise OptionError("direct=True stages nothing: leave out stage_dir and stage_bytes, or else direct")
        if options.max_bad_records or options.processes:
            raise OptionError(
                "direct=True has neither worker processes nor max_bad_records: leave them out, or else direct"
            )
        super().__init__(dataset, split, replace(options, processes=0))
        self._tf = tf
        self._folder = _tensorflow_url(tf, dataset.shards.url)
        self._feeds: list[RecordFeed] = []
        self._source = _HandedSource(len(self._entry.variants))

    def next_epoch(self) -> EpochIterator:
        """The next epoch."""
        position = self._find_position()
        epoch = position.epochs.open(position.epoch)
        plan = plan_epoch(epoch.order, epoch.share)
        variant = self._source.variant(epoch.number)
        reader = HandedReader(self.dataset, self.split, variant, plan, self._folder)
        self.dataset.check_current()
        feed = RecordFeed(reading_graph(self._tf, reader, self.batch_size, not self.options.shuffle))
        self._feeds = [*(earlier for earlier in self._feeds if earlier.is_alive()), feed]
        mixer = Mixer(self._tf, feed, reader, self._mixed, f"{self.options.seed}/{epoch.number}")
        self._source.readers[epoch.number] = reader
        if self._crew is None or self._crew.closed:
            pool = BufferPool((self.batch_size, *self.image_shape))
            self._crew = ThreadCrew(self._rows, self._source, self._workers.threads, pool)
        self._current = _Iterator(mixer, reader, epoch, self._crew, self._flow)
        self._current.position = position
        return self._current

    def close(self) -> None:
        """Stop the threads. A feed that waits for the network is waited for some seconds, then left behind."""
        for feed in self._feeds:
            feed.close()
        super().close()
        deadline = time.monotonic() + _SETTLE_SECONDS
        for feed in self._feeds:
            feed.join(max(0.0, deadline - time.monotonic()))

    @property
    def _mixed(self) -> int:
        """How many records are held to draw from, as those of a part come in the order of their file."""
        if not self.options.shuffle:
            return 0
        fit = _MIXED_BYTES * self._entry.records // sum(shard.bytes for shard in self._entry.variants[0].shards)
        return max(2 * self.batch_size, min(_MIXED_MOST, fit))


class _HandedSource:
    """The readers of epochs, each with the records that it was handed. See `Source`."""

    def __init__(self, variants: int) -> None:
        self.readers: dict[int, HandedReader] = {}
        self._variants = variants

    def variant(self, epoch: int) -> int:
        return epoch % self._variants

    def reader(self, epoch: int) -> HandedReader:
        return self.readers[epoch]

    def settle(self, epoch: int) -> None:
        for earlier in [number for number in self.readers if number < epoch]:
            del self.readers[earlier]

    def fetch(self, due: Due) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        self.readers.clear()


class _Iterator(EpochIterator):
    """An epoch whose batches are made of the records that a mixer gives."""

    def __init__(self, mixer: Mixer, reader: HandedReader, *given: Any) -> None:
        self._mixer = mixer
        self._records = reader
        sizes = [shard.records for shard in reader.shards]
        self._first_samples = np.cumsum([0, *sizes])[[part.shard for part in reader.plan.parts]]
        super().__init__(*given)

    def close(self, why: str = CLOSED) -> None:
        """Give up what is being prepared."""
        super().close(why)
        self._mixer.close()

    def prepare(self, batches: int) -> None:
        """Of this epoch only: the next one's records are another graph's."""
        super().prepare(min(batches, len(self)))

    def _plan(self, number: int) -> Iterator[tuple[Places, Mask]]:
        """The next batch only: what comes later is not known yet."""
        share = self._epoch.share
        rows = self._mixer.take(share.batch_size)
        if number == len(share) - 1:
            self._mixer.finish()
        self._records.hand(rows)
        parts, records = np.array([row[:2] for row in rows], np.int64).T
        mask = (parts < self._records.plan.real) | (share.remainder != "pad")
        yield Places(parts, records, self._first_samples[parts] + records), mask


def _tensorflow_url(tf: Any, url: str) -> str:
    """The URL by which TensorFlow opens this folder."""
    scheme = url_scheme(url)
    if scheme == "gcs":
        scheme, url = "gs", f"gs{url[len('gcs') :]}"
    known = [name for name in tf.io.gfile.get_registered_schemes() if name]
    if scheme not in known:
        raise OptionError(
            f"{url}: TensorFlow itself opens {', '.join(f'{name}://' for name in sorted(known))} and local paths only; "
            "leave direct=True out, and tpufeed reads it"
        )
    unset = [f"{name}={value}" for name, value in _GCS_SETTINGS.items() if name not in os.environ]
    if scheme == "gs" and unset:
        _logger.warning(
            "TensorFlow was imported before tf_dataset(direct=True) could tell its gs:// client otherwise: it holds 64 "
            "MiB a lane, and a read that stalls may take an hour to fail. Set in the environment: %s",
            " ".join(unset),
        )
    return url
