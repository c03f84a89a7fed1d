"""tf.data: the host stream handed to TensorFlow, or a graph in which TensorFlow does it all."""

import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from tpufeed.dataset.partition import Remainder, World
from tpufeed.errors import MissingExtraError, OptionError, UnavailableError
from tpufeed.images.protocols import Op
from tpufeed.loaders.loader import DatasetLike, NumpyLoader, open_feed
from tpufeed.loaders.metrics import LoaderStats
from tpufeed.loaders.options import LabelFormat, LoaderOptions, Numa, take_options
from tpufeed.loaders.world import WorldLike, find_tf_world
from tpufeed.options import checked
from tpufeed.processes.limits import available_cores

if TYPE_CHECKING:
    import tensorflow as tf

    from tpufeed.loaders.keras.dataset import SampleWeights
    from tpufeed.loaders.tf.stream import HandedEpoch

_logger = logging.getLogger(__name__)

Sharding = Literal["dynamic", "off", "file"]

_PREFETCH = 2
_RAM_BUDGET_BYTES = 4 << 30
_CONNECT_SECONDS = 10.0

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


@checked()
def tf_dataset(  # noqa: PLR0912, PLR0913  # each option is a parameter that editors show
    url: DatasetLike,
    split: str = "train",
    *,
    direct: bool = False,
    deterministic: bool = False,
    state: Mapping[str, Any] | None = None,
    service: str | None = None,
    sharding: Sharding | None = None,
    batch_size: int = 128,
    ops: Sequence[Op] | None = None,
    columns: Sequence[str] | None = "default",
    shuffle: bool = True,
    seed: int = 0,
    remainder: Remainder = "drop",
    world: WorldLike | None = None,
    lanes: int | None = None,
    processes: int | None = None,
    threads: int | None = None,
    prefetch: int | None = None,
    repeat: bool = False,
    max_bad_records: int = 0,
    timeout_seconds: float = 600.0,
    numa: Numa = "auto",
    stage_dir: str | Path | None = None,
    stage_bytes: str | int | None = None,
    pad: Mapping[str, int] | None = None,
    truncate: bool | Sequence[str] = False,
    fill: Mapping[str, float | str] | None = None,
    label_format: LabelFormat = "ids",
    min_visibility: float = 0.0,
    views: Sequence[Any] | None = None,
) -> "tf.data.Dataset":
    """Batches of a dataset or cache as a `tf.data.Dataset` of static shapes.

    Elements are `(image, label)`: uint8 (batch, height, width, 3) and int64 (batch,); `columns` gives others. Every new
    iteration is the next epoch, so Keras' `fit` sees other crops, and in a cache the next variant, each epoch; with
    `repeat` one iteration never ends.

    By default tpufeed's own workers read and decode, and their batches are handed over without copying: the order is
    that of `numpy_loader`, remote shards are read once and checked, and an iterator's place can be saved and restored
    by `tf.train.Checkpoint`. The dataset, but no transformation of it, has `class_names`, and `state_dict(batches)`:
    where a loop is after so many batches of the newest iteration, for any loader to go on there. With `deterministic`
    nothing is taken ahead of the loop, and `state_dict()` knows how many there were. `stats()` is a `LoaderStats`,
    whose consumer is TensorFlow; with `direct`, where nothing is counted, it raises OptionError. For Keras' `fit` see
    `keras_state`.

    With `direct` TensorFlow reads the shards, gs:// by its own client, and decodes and augments them in a graph without
    Python: fit for a tf.data service, and for hosts without room for a stage. It has the ops that TensorFlow has; each
    sample has draws of the same distributions, which repeat by seed, epoch and sample. Shares of ranks are of equal
    size, and the order is another in each run. Of a shard that is missing, or has another size than the manifest says,
    TensorFlow's error gives the name; damage, and images that cannot be decoded, name shard and record. TensorFlow
    takes settings for gs:// when it is imported: let tpufeed do that, or heed the warning that it logs.

    Args:
        url: a dataset, at a path or a URL.
        split: which part of it.
        direct: True has TensorFlow read, decode and augment, in a graph without Python.
        deterministic: True gives the order, pixels and state of `numpy_loader`, and takes no batch ahead of the
            training loop: `dataset.state_dict()` says where it is.
        state: where to begin, as `state_dict()` of any loader says.
        service: address of a tf.data service's dispatcher, "grpc://host:port". Implies `direct`. Processes that train
            together name a job, "grpc://host:port/run-1", and each sample comes to one of them.
        sharding: what each worker of the service reads: "dynamic", the default, deals parts of shards to the workers
            that have time (a sample comes once an epoch, or never where a worker dies), "file" gives each worker a
            fixed share of the parts (the dispatcher has to know the workers' addresses), and with "off" each reads
            everything. `numpy_loader` explains all other options; `world` may be a `tf.distribute.InputContext`.

    Raises:
        MissingExtraError: TensorFlow is not installed.
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it.
        UnavailableError: there is no service at that address.
    """
    given = locals()
    context: Any = world
    if hasattr(context, "num_input_pipelines"):
        given = given | {"world": World(context.input_pipeline_id, context.num_input_pipelines)}
    options = take_options(given)
    direct, sharding = _check_options(options, direct, deterministic, state, service, sharding)
    if direct and "tensorflow" not in sys.modules:
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
    if direct:
        options = replace(options, processes=processes or 0)  # never started: here the loader only knows the options
    loader = NumpyLoader(open_feed(url), split, options, find_tf_world)
    if state is not None:
        loader.load_state_dict(state)
    length, _ = len(loader), loader.lanes  # raises here what would else come out of TensorFlow
    settings = _settings(tf, options, direct, deterministic)
    handed = HandedEpoch() if repeat and service is None else None  # a service has tables of its own
    if direct:
        dataset, stream = _direct(tf, loader, service, sharding, settings, handed), None
        if repeat or service is None:  # each worker of a service has a last batch of its own
            length = tf.data.INFINITE_CARDINALITY if repeat else length
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    else:
        dataset, stream = stream_dataset(loader, handed)
    if not deterministic:
        dataset = dataset.prefetch(prefetch or _PREFETCH if direct else _PREFETCH)
    if handed is not None:
        dataset = dataset.map(handed.note)
    result = dataset.with_options(settings)
    result.class_names = loader.class_names
    result.stats = _no_stats if stream is None else stream.stats
    if stream is not None:
        result.stream, result.state_dict = stream, stream.state_dict
    return result


def weigh_samples(feed: Any, weights: "SampleWeights") -> Any:
    """Return the feed of `tf_dataset` with the weights of samples in the place of their mask."""
    if not weights.masked and weights.table is None:
        return feed
    import tensorflow as tf

    def add(*batch: Any) -> Any:
        *columns, mask = batch if weights.masked else (*batch, True)
        if len(columns) == 1:
            return columns[0]
        found = tf.cast(mask, tf.float32)
        if weights.table is not None:
            labels, other = columns[1], len(weights.table) - 1
            found *= tf.gather(
                weights.table, tf.where(labels < 0, tf.cast(other, labels.dtype), tf.minimum(labels, other))
            )
        return (*columns, found)

    weighed = feed.map(add)
    for name in ("stream", "stats", "state_dict", "class_names"):
        setattr(weighed, name, getattr(feed, name))
    return weighed


def _no_stats() -> LoaderStats:
    raise OptionError(
        "with direct=True TensorFlow reads and decodes by itself, and counts nothing that stats() could tell; its "
        "profiler shows where the time goes"
    )


def _check_options(
    options: LoaderOptions,
    direct: bool,
    deterministic: bool,
    state: Mapping[str, Any] | None,
    service: str | None,
    sharding: Sharding | None,
) -> tuple[bool, Sharding | None]:
    """Return `direct` and `sharding` as the service implies them. Raises OptionError for what does not fit together."""
    if service is None and sharding is not None:
        raise OptionError("sharding is how a tf.data service shares its work: give service='grpc://host:port' too")
    if service is not None:
        direct, sharding = True, sharding or "dynamic"
        _split_service(service)
    if direct and deterministic:
        raise OptionError(
            "deterministic=True is the order of numpy_loader, and with direct=True, which service implies, TensorFlow "
            "reads in an order of its own: leave one of them out"
        )
    if direct and state is not None:
        raise OptionError(
            "direct=True has an order that no state can name; save its iterator by tf.train.Checkpoint, or give "
            "another seed when you go on"
        )
    if service is not None and not options.repeat and options.shuffle:
        raise OptionError(
            "each iteration would read the same epoch from a service: give repeat=True, and steps_per_epoch to fit, or "
            "shuffle=False for an evaluation"
        )
    return direct, sharding


def _split_service(service: str) -> tuple[str, int, str]:
    """Return host and port of a service's URL, and the name of a job, which may be empty. Raises OptionError."""
    try:
        parts = urlsplit(service)
        host, port = parts.hostname, parts.port
    except (ValueError, AttributeError):
        host, port = None, None
    if not host or not port or parts.scheme != "grpc":
        raise OptionError(
            "service is a dispatcher's address, and maybe a job's name, like 'grpc://10.0.0.2:5000' or "
            f"'grpc://10.0.0.2:5000/run-1', not {service!r}"
        )
    return host, port, parts.path.strip("/")


def _direct(
    tf: Any,
    loader: NumpyLoader,
    service: str | None,
    sharding: Sharding | None,
    settings: Any,
    handed: "HandedEpoch | None",
) -> Any:
    """Return the dataset that TensorFlow makes by itself, or has the workers of a service make."""
    from tpufeed.loaders.tf.graph import DirectGraph

    if loader.dataset.manifest.upright:
        raise OptionError(
            f"{loader.dataset.url} was adopted with --exif apply, and with direct=True TensorFlow decodes, which turns "
            "no image: leave direct=True out, or warm a cache of the dataset: its images are upright"
        )
    unset = [f"{name}={value}" for name, value in _GCS_SETTINGS.items() if name not in os.environ]
    if unset and loader.dataset.shards.url.startswith(("gs://", "gcs://")):
        _logger.warning(
            "TensorFlow was imported before tf_dataset(direct=True) could tell its gs:// client otherwise: it holds 64 "
            "MiB a lane, and a read that stalls may take an hour to fail. Set in the environment: %s",
            " ".join(unset),
        )
    # Nothing of it is Python that has to be made a graph of; parsing the source here disturbs parsers in other threads.
    dataset = tf.autograph.experimental.do_not_convert(DirectGraph(loader, sharding, handed).build)()
    dataset = dataset.with_options(settings)
    if service is None or sharding is None:
        return dataset
    host, port, job = _split_service(service)
    if loader.world.size > 1 and sharding != "off" and not job:
        raise OptionError(
            f"{loader.world.size} processes share what the service reads, so their job needs a name that no other run "
            f"has: give service='{service}/my-run-1' to all of them"
        )
    try:  # TensorFlow itself would wait for ever
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise UnavailableError(
            f"no tf.data service answers at {service}: {error}. Is its dispatcher running, and its port open to this "
            "machine? docs/tfdata.md says how to start one"
        ) from error
    services = tf.data.experimental.service
    policy = getattr(services.ShardingPolicy, sharding.upper())
    return dataset.apply(services.distribute(policy, f"grpc://{host}:{port}", job_name=job or None))


def _settings(tf: Any, options: LoaderOptions, direct: bool, deterministic: bool) -> Any:
    """Return the settings that keep tf.data from its surprises; docs/tfdata.md explains each."""
    settings = tf.data.Options()
    settings.deterministic = deterministic or not options.shuffle
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    settings.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    settings.autotune.ram_budget = _RAM_BUDGET_BYTES
    if direct:
        settings.threading.private_threadpool_size = options.threads or available_cores()
    else:
        settings.autotune.enabled = False
    if deterministic or options.repeat:  # nothing is to be taken ahead of the loop, behind what counts
        settings.experimental_optimization.inject_prefetch = False
    return settings
