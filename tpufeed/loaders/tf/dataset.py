"""tf.data: the host stream handed to TensorFlow, or a graph in which TensorFlow does it all."""

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tpufeed.dataset.partition import World
from tpufeed.dataset.reader import open_dataset
from tpufeed.engines.engine import available_cores
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.loaders.loader import NumpyLoader
from tpufeed.loaders.metrics import LoaderStats
from tpufeed.loaders.tf.options import TfKeywords, TfOptions, check_direct, make_tf_options
from tpufeed.loaders.world import find_tf_world

if TYPE_CHECKING:
    import tensorflow as tf

    from tpufeed.loaders.tf.kerasstate import KerasState
    from tpufeed.loaders.tf.stream import HandedEpoch

_logger = logging.getLogger(__name__)

_PREFETCH = 2
_RAM_BUDGET_BYTES = 4 << 30

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


def tf_dataset(url: str | Path, split: str = "train", **options: Unpack[TfKeywords]) -> "tf.data.Dataset":
    """Batches of a dataset or cache as a `tf.data.Dataset` of static shapes.

    Elements are `(image, label)`: uint8 (batch, height, width, 3) and int64 (batch,); see `LoaderOptions.columns` for
    others. Every new iteration is the next epoch, so Keras' `fit` sees other crops, and in a cache the next variant,
    each epoch; with `repeat` one iteration never ends.

    By default tpufeed's own workers read and decode, and their batches are handed over without copying: the order is
    that of `numpy_loader`, remote shards are read once and checked, and an iterator's place can be saved and restored
    by `tf.train.Checkpoint`. The dataset, but no transformation of it, has `state_dict(batches)`: where a loop is after
    so many batches of the newest iteration, for any loader to go on there. With `deterministic` nothing is taken ahead
    of the loop, and `state_dict()` knows how many there were. `stats()` are `LoaderStats`, of TensorFlow as consumer;
    with `direct`, where nobody counts, it raises OptionError. For Keras' `fit` see `keras_state`.

    With `direct` TensorFlow reads the shards, gs:// by its own client, and decodes and augments them in a graph without
    Python: fit for a tf.data service, and for hosts without room for a stage. It has the ops that TensorFlow has; each
    sample has draws of the same distributions, which repeat by seed, epoch and sample. Shares of ranks are of equal
    size, and the order is another in each run. Of a shard that
    is missing, or has another size than the manifest says, TensorFlow's error gives the name; damage, and images that
    cannot be decoded, name shard and record. TensorFlow takes settings for gs:// when it is imported: let tpufeed do
    that, or heed the warning that it logs.

    Args:
        url: a dataset, at a path or a URL.
        split: which part of it.
        **options: see `LoaderOptions` and `TfOptions`. `world` may be a `tf.distribute.InputContext`.

    Raises:
        MissingExtraError: TensorFlow is not installed.
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it.
        UnavailableError: there is no service at that address.
    """
    given, for_tf = make_tf_options(options)
    if for_tf.direct and "tensorflow" not in sys.modules:
        for name, value in _GCS_SETTINGS.items():
            os.environ.setdefault(name, value)
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingExtraError("TensorFlow", "tf") from error
    from tpufeed.loaders.tf.stream import HandedEpoch, stream_dataset

    if tf.inside_function():
        raise OptionError(
            "tf_dataset was called within a tf.function, or a function of another tf.data.Dataset; call it before, and "
            "keep what it returns in a variable"
        )
    if for_tf.direct:
        given = replace(given, processes=given.processes or 0)  # never started: here the loader only knows the options
    loader = NumpyLoader(open_dataset(url), split, given, find_tf_world)
    if for_tf.state is not None:
        loader.load_state_dict(for_tf.state)
    length, _ = len(loader), loader.lanes  # raises here what would else come out of TensorFlow
    settings = _settings(tf, loader, for_tf)
    # A service has tables of its own.
    handed = HandedEpoch() if given.repeat and for_tf.service is None else None
    if for_tf.direct:
        dataset, stream = _direct(loader, for_tf, settings, handed), None
        if given.repeat or for_tf.service is None:  # each worker of a service has a last batch of its own
            length = tf.data.INFINITE_CARDINALITY if given.repeat else length
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    else:
        dataset, stream = stream_dataset(loader, handed)
    if not for_tf.deterministic:
        dataset = dataset.prefetch(given.prefetch or _PREFETCH if for_tf.direct else _PREFETCH)
    if handed is not None:
        dataset = dataset.map(handed.note)
    result = dataset.with_options(settings)
    result.stats = _no_stats if stream is None else stream.stats
    if stream is not None:
        result.stream, result.state_dict = stream, stream.state_dict
    return result


def keras_state(feed: "tf.data.Dataset", path: str | Path) -> "KerasState":
    """A callback of Keras 3 for `fit`: a training that was stopped goes on with the very batch that was next.

    Where the feed has to be follows from the optimizer's count of steps, which is saved with the weights. So weights of
    any step will do: of `BackupAndRestore` with any `save_freq`, or of another way that restores the optimizer, too.
    The callback finds that place when `fit` begins, sets `initial_epoch`, and has each epoch begin where it must,
    whatever else Keras has taken from the feed, on any backend. The first epoch is then the rest of one, and its logs
    are of that.

    It writes one small file when a training begins, and when it goes on with another batch size, number of ranks or
    number of steps an epoch. These may change; dataset, split, seed and order may not.

    A second `fit` with the same file, in this process or another, goes on where the first one stopped, as it does after
    Ctrl-C: `epochs` counts from the beginning of the training. To begin another training, give another path.

    Put it behind the callback that restores weights. Of several processes each has its own.

    Args:
        feed: what `tf_dataset` returned, without `state` and `direct`. `fit` is given that, or a `map` of it.
        path: of the file, also in a bucket.

    Raises:
        MissingExtraError: Keras is not installed.
        OptionError: it is no such feed. `fit` raises it where the file is of another dataset, split, seed or order, or
            where the optimizer's count does not fit the epochs.
        DamageError: `fit` raises it where the file is not what was written.
    """
    from tpufeed.loaders.tf.kerasstate import KerasState  # imports Keras, and that TensorFlow

    return KerasState(feed, path)


def _no_stats() -> LoaderStats:
    raise OptionError(
        "with direct=True TensorFlow reads and decodes by itself, and counts nothing that stats() could tell; its "
        "profiler shows where the time goes"
    )


def _direct(loader: NumpyLoader, for_tf: TfOptions, settings: Any, handed: "HandedEpoch | None") -> Any:
    from tpufeed.loaders.tf.graph import DirectGraph, distribute

    check_direct(loader.dataset)
    unset = [f"{name}={value}" for name, value in _GCS_SETTINGS.items() if name not in os.environ]
    if unset and loader.dataset.shards.url.startswith(("gs://", "gcs://")):
        _logger.warning(
            "TensorFlow was imported before tf_dataset(direct=True) could tell its gs:// client otherwise: it holds 64 "
            "MiB a lane, and a read that stalls may take an hour to fail. Set in the environment: %s",
            " ".join(unset),
        )
    dataset = DirectGraph(loader, for_tf.sharding, handed).build().with_options(settings)
    if for_tf.service is None or for_tf.sharding is None:
        return dataset
    sharers = World() if for_tf.sharding == "off" else loader.world
    return distribute(dataset, for_tf.service, for_tf.sharding, sharers)


def _settings(tf: Any, loader: NumpyLoader, for_tf: TfOptions) -> Any:
    """Return the settings that keep tf.data from its surprises; docs/tfdata.md explains each."""
    settings, given = tf.data.Options(), loader.options
    settings.deterministic = for_tf.deterministic or not given.shuffle
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    settings.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    settings.autotune.ram_budget = _RAM_BUDGET_BYTES
    if for_tf.direct:
        settings.threading.private_threadpool_size = given.threads or available_cores()
    else:
        settings.autotune.enabled = False
    if for_tf.deterministic or given.repeat:  # nothing is to be taken ahead of the loop, behind what counts
        settings.experimental_optimization.inject_prefetch = False
    return settings
