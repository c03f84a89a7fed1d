"""tf.data: the loader's batches handed to TensorFlow, or a graph in which TensorFlow does everything."""

import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from tpufeed.errors import MissingExtraError, OptionError, UnavailableError
from tpufeed.processes.limits import available_cores
from tpufeed.stream.columns import LABEL
from tpufeed.stream.host import HostStream
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.world import find_tf_world

if TYPE_CHECKING:
    import tensorflow as tf

    from tpufeed.adapters.tf.stream import HandedEpoch

_logger = logging.getLogger(__name__)

Sharding = Literal["dynamic", "off", "file"]

_UNCOUNTED = (
    "with to_tf(direct=True) TensorFlow reads and decodes by itself, in an order that no state can describe, and "
    "counts nothing for stats(); save its iterator with tf.train.Checkpoint, and use its profiler"
)
_PREFETCH = 2
_RAM_BUDGET_BYTES = 4 << 30
_CONNECT_SECONDS = 10.0

# Read by TensorFlow when it is imported, and never again. It keeps its own retries: 10, after 1 to 32 s each.
_GCS_SETTINGS = {
    # Each lane has an open file with a buffer of this size: the default of 64 MiB is 1 GiB for 16 lanes, and a part
    # that ends within a shard reads up to a buffer too much. Each buffer is a new connection: smaller ones cost more.
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "8",
    # A request that gets no byte for this long is retried. By default after 60 s.
    "GCS_REQUEST_IDLE_TIMEOUT_SECS": "20",
    "GCS_REQUEST_CONNECTION_TIMEOUT_SECS": "20",  # by default 120
    # For a whole request. With the default of 3600 a trickling one holds up its lane for an hour.
    "GCS_READ_REQUEST_TIMEOUT_SECS": "300",
    "GCS_METADATA_REQUEST_TIMEOUT_SECS": "60",
}


def tf_feed(
    stream: HostStream,
    direct: bool = False,
    deterministic: bool = False,
    service: str | None = None,
    sharding: Sharding | None = None,
    finish: bool = True,
) -> "tf.data.Dataset":
    """Return the dataset of `Loader.to_tf`."""
    options = stream.options
    direct, sharding = _check_options(stream, direct, deterministic, service, sharding)
    if not finish and (direct or stream.device_ops is None):
        raise OptionError(
            "finish=False leaves device_ops to the step: "
            + ("with direct=True TensorFlow runs all ops" if direct else "the loader has none for its images")
            + ", so leave finish out"
        )
    if direct and "tensorflow" not in sys.modules:
        for name, value in _GCS_SETTINGS.items():
            os.environ.setdefault(name, value)
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingExtraError("TensorFlow", "tf") from error
    from tpufeed.adapters.tf.stream import HandedEpoch, stream_dataset

    if tf.inside_function():
        raise OptionError(
            "to_tf was called within a tf.function, or a function of another tf.data.Dataset; call it before, and keep "
            "what it returns in a variable"
        )
    stream.check_world(find_tf_world, "TF_CONFIG or another framework")
    length, _ = len(stream), stream.lanes  # raises here what would otherwise come out of TensorFlow
    settings = _settings(tf, options, direct, deterministic)
    handed = HandedEpoch() if options.repeat and service is None else None  # a service has its own tables
    if direct:
        dataset = _direct(tf, stream, service, sharding, settings, handed)
        if options.repeat or service is None:  # each worker of a service has its own last batch
            length = tf.data.INFINITE_CARDINALITY if options.repeat else length
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
        stream.moved_by, stream.uncounted = None, _UNCOUNTED
    else:
        dataset = stream_dataset(stream, handed, finish)
        if LABEL in stream.form.names and stream.column(LABEL).dtype == "float32":  # one number per class
            stream.keep_classes("the tf.data.Dataset of to_tf()")
    if not deterministic:
        dataset = dataset.prefetch(options.prefetch or _PREFETCH if direct else _PREFETCH)
    if handed is not None:
        dataset = dataset.map(handed.note)
    dataset = dataset.with_options(settings)
    dataset.class_names = stream.class_names  # as Keras' own datasets of images have it. `map` and others lose it
    return dataset


def _check_options(
    stream: HostStream, direct: bool, deterministic: bool, service: str | None, sharding: Sharding | None
) -> tuple[bool, Sharding | None]:
    """Return `direct` and `sharding` as the service implies them. Raises OptionError if options do not fit together."""
    if service is None and sharding is not None:
        raise OptionError("sharding is how a tf.data service shares its work: give service='grpc://host:port' too")
    if service is not None:
        direct, sharding = True, sharding or "dynamic"
        _split_service(service)
    if direct and deterministic:
        raise OptionError(
            "deterministic=True gives the loader's order, but with direct=True, which service implies, TensorFlow "
            "reads in its own order: leave one of them out"
        )
    if direct and stream.device_ops is not None and stream.device_ops.mixing is not None:
        raise OptionError("direct=True does not mix images: leave it out, or leave MixUp and CutMix out of device_ops")
    if direct and stream.is_placed:
        raise OptionError(
            "direct=True has an order that no state can describe, and the loader was given a state or an epoch; save "
            "the iterator with tf.train.Checkpoint, or give another seed when you continue"
        )
    options = stream.options
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
            "service is a dispatcher's address, perhaps with a job's name, like 'grpc://10.0.0.2:5000' or "
            f"'grpc://10.0.0.2:5000/run-1', not {service!r}"
        )
    return host, port, parts.path.strip("/")


def _direct(
    tf: Any,
    stream: HostStream,
    service: str | None,
    sharding: Sharding | None,
    settings: Any,
    handed: "HandedEpoch | None",
) -> Any:
    """Return the dataset that TensorFlow makes by itself, or that the workers of a service make."""
    from tpufeed.adapters.tf.graph import DirectGraph

    if stream.dataset.manifest.upright:
        raise OptionError(
            f"{stream.dataset.url} was adopted with --exif apply, and TensorFlow, which decodes with direct=True, does "
            "not turn images: leave out direct=True, or build a cache of the dataset, whose images are upright"
        )
    unset = [f"{name}={value}" for name, value in _GCS_SETTINGS.items() if name not in os.environ]
    if unset and stream.dataset.shards.url.startswith(("gs://", "gcs://")):
        _logger.warning(
            "TensorFlow was imported before to_tf(direct=True) could configure its gs:// client: it holds 64 MiB per "
            "lane, and a stalled read may take an hour to fail. Set in the environment: %s",
            " ".join(unset),
        )
    # It has no Python to convert, and if AutoGraph parses the source here it disturbs parsers in other threads.
    dataset = tf.autograph.experimental.do_not_convert(DirectGraph(stream, sharding, handed).build)()
    dataset = dataset.with_options(settings)
    if service is None or sharding is None:
        return dataset
    host, port, job = _split_service(service)
    if stream.world.size > 1 and sharding != "off" and not job:
        raise OptionError(
            f"{stream.world.size} processes share what the service reads, so their job needs a name that no other run "
            f"uses: give service='{service}/my-run-1' to all of them"
        )
    try:  # TensorFlow itself would wait forever
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
    """Return settings that avoid surprises of tf.data. docs/tfdata.md explains each."""
    settings = tf.data.Options()
    settings.deterministic = deterministic or not options.shuffle
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    settings.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    settings.autotune.ram_budget = _RAM_BUDGET_BYTES
    if direct:
        settings.threading.private_threadpool_size = options.threads or available_cores()
    else:
        settings.autotune.enabled = False
    if deterministic or options.repeat:  # no batch may be taken ahead after the step that counts
        settings.experimental_optimization.inject_prefetch = False
    return settings
