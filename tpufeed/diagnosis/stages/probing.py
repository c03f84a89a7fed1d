"""Measure the stages of an image that take cores, each by itself, in as many processes and threads as the loader has.

What runs here is what the loader's own threads run, a part of it at a time, over some samples again and again.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal, Self

import numpy as np

from tpufeed.dataset.reader import open_dataset
from tpufeed.diagnosis.sampling import Place, draw_evenly
from tpufeed.engines.child import Child, ChildDiedError, Failure, stop_all
from tpufeed.errors import ImageError, LoaderError, TpufeedError
from tpufeed.images.decoding import Pixels, decode
from tpufeed.images.mending import mend
from tpufeed.loaders.batch import Decoder, decode_samples
from tpufeed.loaders.executor import Workers
from tpufeed.loaders.options import LoaderOptions

Part = Literal["reading", "decoding", "all"]

_ENTRY = "tpufeed.diagnosis.stages.probing:serve"
_PLACES = 512
_BLOCK = 16
_LEAVE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a measurement: samples of a split, which become batches by `options`."""

    url: str
    split: str
    options: LoaderOptions


@dataclass(frozen=True, slots=True)
class Order:
    """Measure a part, with so many threads of each process, for so long."""

    part: Part
    threads: int
    seconds: float


class Prober:
    """Runs parts of the work over samples spread over a split, in threads of this process.

    Raises:
        OptionError: options that do not fit the dataset.
    """

    def __init__(self, subject: Subject) -> None:
        dataset = open_dataset(subject.url)
        self._decoder = Decoder(dataset, subject.options.ops, subject.options.seed)
        self._shape = self._decoder.batch_shape
        self._places = draw_evenly(dataset, subject.split, _PLACES, seed=1)
        self._reader = dataset.reader(subject.split)
        self._draws = self._decoder.pipeline.draw(0, np.arange(len(self._places)))
        self._warm = False

    def measure(self, order: Order) -> float:
        """Images a second of all threads together.

        Raises:
            TpufeedError: a record is damaged, or an op fails.
        """
        work = {"reading": self._read, "decoding": self._decode, "all": self._all}[order.part]
        starts = range(0, len(self._places), _BLOCK)
        if not self._warm:  # maps shards, and imports what ops need
            work(0, np.empty((_BLOCK, *self._shape), np.uint8), Scratch())
            self._warm = True
        if not order.seconds:
            return 0.0

        def run(number: int) -> float:
            memory = np.empty((_BLOCK, *self._shape), np.uint8)
            buffer = Scratch()
            at = number * len(starts) // order.threads
            start, images, elapsed = time.perf_counter(), 0, 0.0
            while elapsed < order.seconds:
                images += work(starts[at % len(starts)], memory, buffer)
                at, elapsed = at + 1, time.perf_counter() - start
            return images / elapsed

        if order.threads == 1:
            return run(0)
        with ThreadPoolExecutor(order.threads, "tpufeed-doctor") as executor:
            return sum(executor.map(run, range(order.threads)))

    def _read(self, start: int, memory: Pixels, buffer: "Scratch") -> int:
        places = self._places[start : start + _BLOCK]
        copy = self._decoder.copier(self._reader.layout, list(memory))
        payloads = self._reader.read_many(places, copy)
        for payload in payloads:
            self._reader.layout.decode(payload)
        return len(places)

    def _decode(self, start: int, memory: Pixels, buffer: "Scratch") -> int:
        images = buffer.images(start, lambda: self._payloads(self._places[start : start + _BLOCK]))
        for image in images:
            try:
                decode(image, 1, buffer, fast=True)
            except ImageError as error:
                decode(mend(image, error), 1, buffer, fast=True)  # as loaders do
        return len(images)

    def _all(self, start: int, memory: Pixels, buffer: "Scratch") -> int:
        places = self._places[start : start + _BLOCK]
        draws = [op[start : start + _BLOCK] for op in self._draws]
        decode_samples(self._decoder, self._reader, places, draws, list(memory[: len(places)]))
        return len(places)

    def _payloads(self, places: Sequence[Place]) -> list[memoryview]:
        return [self._reader.layout.decode(payload)[0] for payload in self._reader.read_many(places)]


class Scratch:
    """Memory of one thread to decode into, and the images that it has read already."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._images: dict[int, list[memoryview]] = {}

    def __call__(self, size: int) -> Pixels:
        if size > len(self._memory):
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size]

    def images(self, key: int, read: Callable[[], list[memoryview]]) -> list[memoryview]:
        """Return what `read` gave for this key."""
        if key not in self._images:
            self._images[key] = read()
        return self._images[key]


class Probes:
    """Probers in worker processes, or in threads of this process where the loader has none; a context manager."""

    def __init__(self, subject: Subject, workers: Workers) -> None:
        self._workers = workers
        self._here = None if workers.processes else Prober(subject)
        self._children: list[Child] = []
        try:
            for _ in range(workers.processes):
                self._children.append(Child(_ENTRY))
                self._children[-1].begin(_ENTRY, subject)
            self._measure(Order("all", 1, 0.0))  # until all have imported what they need
        except BaseException:
            self.close()
            raise

    def measure(self, part: Part, seconds: float) -> float:
        """Images a second, all processes and threads at work. Raises TpufeedError."""
        return self._measure(Order(part, self._workers.threads, seconds))

    def measure_one(self, part: Part, seconds: float) -> float:
        """Images a second of a single thread, nothing beside it. Raises TpufeedError."""
        order = Order(part, 1, seconds)
        return self._here.measure(order) if self._here is not None else _ask(self._children[:1], order)

    def close(self) -> None:
        """End the processes."""
        stop_all(self._children, _LEAVE_SECONDS)
        self._children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _measure(self, order: Order) -> float:
        return _ask(self._children, order) if self._here is None else self._here.measure(order)


def _ask(children: Sequence[Child], order: Order) -> float:
    """Images a second of all these together, at the same time."""
    for child in children:
        child.send(order)
    total = 0.0
    for child in children:
        try:
            total += child.receive()
        except ChildDiedError:
            raise LoaderError(f"a worker process of the doctor died {child.ending()[1]}. Out of memory?") from None
        except TpufeedError as error:
            raise LoaderError(str(error)) from None
    return total


def serve(subject: Subject, connection: Connection) -> None:
    """Obey orders until the other end closes."""
    prober: Prober | None = None
    while True:
        order: Order = connection.recv()
        try:
            prober = prober or Prober(subject)
            connection.send(prober.measure(order))
        except Exception as error:  # noqa: BLE001  # the doctor says so
            connection.send(Failure.of(error))
