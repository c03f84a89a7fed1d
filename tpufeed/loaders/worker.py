"""A worker process of a loader: it fills batches in the loader's memory, with threads of its own."""

import os
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TypeAlias

import msgspec

from tpufeed.dataset.manifest import Manifest, pack_manifest
from tpufeed.loaders.batch import BatchDecoder
from tpufeed.loaders.buffers import MappedBuffers
from tpufeed.loaders.executor import Cancel, Fetch, Fill, Reply, ThreadExecutor, ThreadFuture, WorkerConfig
from tpufeed.processes.child import Failure

_BUG = "a worker process failed: "
_LEAVE_ANYWAY_SECONDS = 10.0

_Begun: TypeAlias = queue.SimpleQueue[tuple[int, ThreadFuture | Exception] | None]


_MANIFEST = msgspec.msgpack.Decoder(Manifest)
_manifests: list[Manifest] = []  # of the sources: `prepare` leaves them to the forks


def prepare(manifests: Sequence[bytes]) -> None:
    """Decode the manifests of all sources in the fork server, once for all workers."""
    _manifests[:] = [pack_manifest(_MANIFEST.decode(data)) for data in manifests]


def serve(config: WorkerConfig, connection: Connection) -> None:
    """Obey the loader's orders until its end of the socket closes."""
    assert config.file is not None, "the loader shares its batches' memory"
    if config.cores:
        with suppress(OSError):  # cores may have been taken from this host, or its container, since they were counted
            os.sched_setaffinity(0, config.cores)  # the threads that start below keep to them, too
    try:
        sources = [address.open(manifest) for address, manifest in zip(config.sources, _manifests, strict=True)]
        decoder = BatchDecoder(sources, config.options, config.threads)
        executor = ThreadExecutor(sources, config, decoder)
        buffers = MappedBuffers(config.file, decoder.pooled)
        begun: _Begun = queue.SimpleQueue()
        pending = dict[int, ThreadFuture]()
        threading.Thread(target=_reply, args=(connection, begun, pending, decoder), daemon=True).start()
    except Exception as error:  # noqa: BLE001  # the loader raises it
        connection.send(Failure.of(error, _BUG))
        return
    try:
        while True:
            order: Fill | Cancel | Fetch = connection.recv()
            if isinstance(order, Fetch):
                executor.fetch(order.due)
            elif isinstance(order, Cancel):
                future = pending.get(order.number)
                if future is not None:
                    future.cancel()
            else:
                try:
                    pending[order.number] = executor.submit(order.request, *buffers.take(order.buffer))
                    begun.put((order.number, pending[order.number]))
                except Exception as error:  # noqa: BLE001  # the loader raises it
                    begun.put((order.number, error))
    except (EOFError, ConnectionError):
        return
    finally:
        # Leave also when an op of the user's, or a drive, does not return.
        timer = threading.Timer(_LEAVE_ANYWAY_SECONDS, os._exit, (1,))
        timer.daemon = True
        with suppress(RuntimeError):  # no thread is to be had
            timer.start()
        begun.put(None)
        executor.close()


def _reply(connection: Connection, begun: _Begun, pending: dict[int, ThreadFuture], decoder: BatchDecoder) -> None:
    """Send batches as they are done, in the order in which they were asked for; the loader has the pixels."""
    pooled = {spec.name for spec in decoder.pooled}
    try:
        for number, future in iter(begun.get, None):
            try:
                if isinstance(future, Exception):
                    raise future
                batch = future.result(threading.TIMEOUT_MAX)
                arrays = {name: array for name, array in batch.arrays.items() if name not in pooled}
                reply = Reply(number, replace(batch, arrays=arrays))
            except BaseException as error:  # noqa: BLE001  # the loader raises it, also what sys.exit in an op raises
                reply = Reply(number, Failure.of(error, _BUG))
            finally:
                pending.pop(number, None)
            connection.send(reply)
    except OSError:  # the loader has gone
        return
