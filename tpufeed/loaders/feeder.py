"""What a worker process of a loader runs: it fills batches in memory that the loader maps, too."""

import os
import queue
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeAlias

from tpufeed.dataset.reader import reopen_dataset
from tpufeed.engines.engine import failure_message
from tpufeed.errors import LoaderError, TpufeedError
from tpufeed.loaders.buffers import BufferPool, MappedBuffers
from tpufeed.loaders.columns import IMAGE
from tpufeed.loaders.crew import Due, Filled, Request
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.rows import make_rows
from tpufeed.loaders.sources import VariantSource
from tpufeed.loaders.threads import ThreadCrew, ThreadPending

ENTRY = "tpufeed.loaders.feeder:serve"

_LEAVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Feed:
    """What a worker fills batches of; `file` is the descriptor of the loader's buffers, `lanes` see `VariantSource`."""

    url: str
    content_digest: str
    split: str
    options: LoaderOptions
    threads: int
    lanes: int
    file: int


class Fill(NamedTuple):
    """Fill a batch, in buffer number `buffer`."""

    number: int
    buffer: int
    request: Request


class Cancel(NamedTuple):
    """This batch is not wanted any more."""

    number: int


class Fetch(NamedTuple):
    """See `Crew.fetch`."""

    due: Due


Order: TypeAlias = Fill | Cancel | Fetch


class Reply(NamedTuple):
    """What came of a `Fill`; the images are in its buffer."""

    number: int
    result: Filled | BaseException


def serve(feed: Feed, connection: Connection) -> None:
    """Obey the loader's orders until its end of the socket closes."""
    # A machine that shuts down tells all processes. The training loop may still want to save; then it is our turn.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        crew, shape = _open(feed)
    except Exception as error:  # noqa: BLE001  # the loader raises it
        connection.send(Reply(-1, _portable(error)))
        return
    buffers = MappedBuffers(feed.file, shape)
    begun = queue.SimpleQueue[tuple[int, ThreadPending | Exception] | None]()
    pending = dict[int, ThreadPending]()
    replier = threading.Thread(target=_reply, args=(connection, begun, pending), daemon=True)
    replier.start()
    try:
        while True:
            order: Order = connection.recv()
            if isinstance(order, Fetch):
                crew.fetch(order.due)
            elif isinstance(order, Cancel):
                batch = pending.get(order.number)
                if batch is not None:
                    batch.cancel()
            else:
                try:
                    pending[order.number] = crew.submit(order.request, buffers.array(order.buffer))
                    begun.put((order.number, pending[order.number]))
                except Exception as error:  # noqa: BLE001  # the loader raises it
                    begun.put((order.number, error))
    except (EOFError, ConnectionError):
        return
    finally:
        _leave_anyway()
        begun.put(None)
        crew.close()


def _open(feed: Feed) -> tuple[ThreadCrew, tuple[int, ...]]:
    dataset = reopen_dataset(feed.url, feed.content_digest)
    rows = make_rows(dataset, feed.options, feed.threads)
    source = VariantSource(dataset, feed.split, feed.options, feed.lanes)
    shape = feed.options.batch_size, *rows.image_shape
    return ThreadCrew(rows, source, feed.threads, BufferPool(shape)), shape


def _reply(
    connection: Connection,
    begun: "queue.SimpleQueue[tuple[int, ThreadPending | Exception] | None]",
    pending: dict[int, ThreadPending],
) -> None:
    """Send batches as they are done, in the order in which they were asked for."""
    try:
        for number, batch in iter(begun.get, None):
            try:
                if isinstance(batch, Exception):
                    raise batch
                filled = batch.wait(threading.TIMEOUT_MAX)
                arrays = {name: array for name, array in filled.arrays.items() if name != IMAGE}
                reply = Reply(number, replace(filled, arrays=arrays))
            except BaseException as error:  # noqa: BLE001  # the loader raises it, also what sys.exit in an op raises
                reply = Reply(number, _portable(error))
            finally:
                pending.pop(number, None)
            connection.send(reply)
    except OSError:  # the loader has gone
        return


def _leave_anyway() -> None:
    """Also when an op of the user's, or a drive, does not return."""
    timer = threading.Timer(_LEAVE_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _portable(error: BaseException) -> BaseException:
    """The error as it can be sent; of one that was not raised on purpose the whole traceback, as a text."""
    if isinstance(error, TpufeedError):
        with suppress(TypeError):  # its constructor does not take what it keeps, so a pickle could not be read
            return type(error)(*error.args)
    text = failure_message(error) if isinstance(error, Exception) else f"it was told to end, by {error!r}"
    return LoaderError(f"a worker process failed: {text}")
