"""tf.data service: other machines run the graph."""

import socket
from typing import Any

from tpufeed.dataset.partition import World
from tpufeed.errors import MissingExtraError, OptionError, UnavailableError
from tpufeed.loaders.tf.options import Sharding, service_address

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error

_CONNECT_SECONDS = 10.0


def distribute(dataset: Any, service: str, sharding: Sharding, world: World) -> Any:
    """`dataset` as the workers of a service make it.

    Args:
        dataset: a graph without Python.
        service: see `TfOptions`.
        sharding: see `TfOptions`.
        world: of the processes that share one job's elements.

    Raises:
        UnavailableError: nobody answers there. TensorFlow itself would wait for ever.
        OptionError: several processes, and no name for their job.
    """
    host, port, job = service_address(service)
    if world.size > 1 and not job:
        raise OptionError(
            f"{world.size} processes share what the service reads, so their job needs a name that no other run has: "
            f"give service='{service}/my-run-1' to all of them"
        )
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise UnavailableError(
            f"no tf.data service answers at {service}: {error}. Is its dispatcher running, and its port open to this "
            "machine? docs/tfdata.md says how to start one"
        ) from error
    policy = getattr(tf.data.experimental.service.ShardingPolicy, sharding.upper())
    return dataset.apply(tf.data.experimental.service.distribute(policy, f"grpc://{host}:{port}", job_name=job or None))
