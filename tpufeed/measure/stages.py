"""Measure single stages: storage, the loader and the work of its threads, and the transfer to a TPU."""

import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpufeed.adapters.loader import Loader
from tpufeed.dataset.clips import pipeline_of
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import ImageError, OpError, TpufeedError
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.images.protocols import Op
from tpufeed.measure.machine import memory_bytes
from tpufeed.measure.prediction import ASSEMBLY, DECODING, OPS, READING, TRANSFER, Storage
from tpufeed.measure.results import Span, Stage
from tpufeed.storage.copies_folder import find_folder, free_bytes
from tpufeed.stream.host import LoaderStats
from tpufeed.stream.mixture import Mixture
from tpufeed.text import format_count

_CONNECTIONS = {True: 16, False: 4}  # to a remote store, as many as loaders use. Threads if files are local
_PIECES_A_CONNECTION = 4
_FIRST_BYTES, _LEAST_BYTES, _MOST_BYTES = 1 << 20, 256 << 10, 8 << 20

_BATCHES_TIMED = 16  # with fewer, a single batch has too much weight
_LONGEST = 3  # at most this many times the requested seconds
_PARTS = 3  # of a measurement. Their rates show how much it varies
_STEADY = 0.1  # rates of parts on a quiet host differ by less
_TICK = 1e-9  # resolution of the clock, in seconds

_DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")


def measure_storage(dataset: Dataset, split: str, seconds: float) -> Storage:
    """Measure how fast all variants of a split are read from their store, and how much can be kept for later epochs.

    Raises:
        StoreError: they cannot be read.
        OptionError: there is no place for local copies of remote shards.
    """
    store, shards = dataset.shards, [shard for variant in dataset.split(split).variants for shard in variant.shards]
    # The first range shows how large pieces may be so that each connection reads several.
    first = min(shards, key=lambda shard: (shard.bytes < _FIRST_BYTES, shard.name))
    begun = time.perf_counter()
    size = len(store.read_range(first.name, 0, min(first.bytes, _FIRST_BYTES)))
    once = size / (time.perf_counter() - begun)
    piece = int(min(_MOST_BYTES, max(_LEAST_BYTES, once * seconds / _PIECES_A_CONNECTION)))
    longest, connections = max(shard.bytes for shard in shards), _CONNECTIONS[dataset.is_remote]

    def read(number: int) -> Iterator[int]:
        """Read every `connections`-th piece."""
        pieces = ((shard, at) for at in range(0, longest, piece) for shard in shards if at < shard.bytes)
        for shard, at in itertools.islice(pieces, number, None, connections):
            yield len(store.read_range(shard.name, at, min(at + piece, shard.bytes)))

    rate = measure_threads(read, connections, seconds)
    if dataset.is_remote:
        folder = find_folder(None)
        # Loaders use half of the free space and of the copies that are there.
        room: float = (sum(path.stat().st_size for path in folder.iterdir()) + free_bytes(folder)) / 2
        detail, nearer = f"{rate / 1e6:,.0f} MB/s over {connections} connections", f"local copies in {folder}"
    else:
        room = memory_bytes()  # a container's page cache counts as its memory
        detail, nearer = f"{rate / 1e9:,.2g} GB/s", "the page cache"
    fits = dataset.split(split).total_bytes <= room
    detail += f"; later epochs read {nearer if fits else f'from there again, because {nearer} cannot hold all of it'}"
    return Storage(bytes_per_second=rate, room=room, detail=detail)


def measure_threads(work: Callable[[int], Iterator[int]], threads: int, seconds: float) -> float:
    """Return how much all threads do per second. Each runs `work(its number)`, which yields what it has done."""

    def run(number: int) -> float:
        done, start = 0, time.perf_counter()
        now = start
        for part in work(number):
            done, now = done + part, time.perf_counter()
            if now - start >= seconds:
                break
        return done / (now - start) if done else 0.0

    with ThreadPoolExecutor(threads, "tpufeed-doctor") as executor:
        return sum(executor.map(run, range(threads)))


@dataclass(frozen=True, slots=True)
class LoaderRates:
    """Rates of a loader in its steady state, in images per second.

    Attributes:
        whole: rate of the whole loader.
        reading: rate of all threads if they only read records and verified CRCs.
        decoding: rate of all threads if they only decoded and applied ops.
        batch_size: images per measured batch: fewer than requested if the loader is very slow.
        workers: the processes and threads, in words.
        parts: these rates, (whole, reading, decoding), in each part of the measurement.
    """

    whole: float
    reading: float
    decoding: float
    batch_size: int
    workers: str
    parts: tuple[tuple[float, float, float], ...] = ()

    @property
    def spans(self) -> list[Span | None]:
        """The lowest and the highest rate of the parts, for whole, reading and decoding. None if it is steady."""
        found = [(min(rates), max(rates)) for rates in zip(*self.parts, strict=True)] or [(0.0, 0.0)] * 3
        return [span if span[1] - span[0] > _STEADY * span[1] else None for span in found]


def measure_loader(data: Dataset | Mixture, split: str, batch_size: int, seconds: float, **options: Any) -> LoaderRates:
    """Take batches of at most `batch_size` from the real loader for some seconds, after a warm-up.

    With `device_ops`, measure only the host's work. Raises the loader's `TpufeedError`s.
    """
    batch = min(batch_size, data.split(split).records) if isinstance(data, Dataset) else batch_size
    begun = time.perf_counter()
    loader = Loader(data, split, batch_size=batch, repeat=True, world=(0, 1), **options)
    with loader, closing(loader.stream.iterate(on_device=True)) as batches:
        next(batches)
        first = loader.stats()
        # If only a few batches would come, make them smaller: those prepared in advance would have too much weight.
        each = (first.read_seconds + first.decode_seconds) / first.threads
        slow = batch > 1 and each > _LONGEST * seconds / _BATCHES_TIMED
        # Drain the batches prefetched before the clock starts. As many are queued when it stops, so the count is fair.
        for _ in range(0 if slow else max(1, first.prefetch)):
            next(batches)
            if time.perf_counter() - begun > _LONGEST * seconds:
                break
        start, elapsed, taken = time.perf_counter(), 0.0, 0
        marks = [(elapsed, taken, loader.stats())]
        while not slow and elapsed < _LONGEST * seconds and (elapsed < seconds or taken < _BATCHES_TIMED):
            next(batches)
            taken += 1
            elapsed = time.perf_counter() - start
            if elapsed >= len(marks) * seconds / _PARTS and taken >= len(marks) * _BATCHES_TIMED // _PARTS:
                marks.append((elapsed, taken, loader.stats()))
        after = loader.stats()
    if slow:
        smaller = max(1, min(batch // 2, int(batch * seconds / _BATCHES_TIMED / each)))
        return measure_loader(data, split, smaller, seconds, **options)

    def rates(begin: tuple[float, int, LoaderStats], end: tuple[float, int, LoaderStats]) -> tuple[float, float, float]:
        # Each thread counts its seconds of reading and of decoding. All threads together do `threads` times as much.
        images = (end[1] - begin[1]) * batch
        reading = end[2].read_seconds - begin[2].read_seconds
        decoding = end[2].decode_seconds - begin[2].decode_seconds
        work = images * after.threads
        return images / (end[0] - begin[0]), work / max(reading, _TICK), work / max(decoding, _TICK)

    workers = format_count(after.threads // max(1, after.processes), "thread")
    if after.processes:
        placed = " and ".join(f"{count} on NUMA node {node}" for node, count in after.nodes)
        workers = f"{format_count(after.processes, 'process', 'processes')} x {workers}{placed and f', {placed}'}"
    parts = tuple(itertools.starmap(rates, itertools.pairwise(marks)))
    return LoaderRates(*rates(marks[0], (elapsed, taken, after)), batch, workers, parts)


def tell_stages_apart(
    rates: LoaderRates,
    images: Sequence[bytes],
    ops: Sequence[Op],
    seconds: float,
    fast: bool = True,
    pixels: PixelFormat = RGB8,
) -> dict[str, Stage]:
    """Return reading, decoding, ops and assembly of a loader.

    `images` are encoded, or empty for raw pixels. `fast` and `pixels` are as for the loader's pipelines.
    """
    whole_span, reading_span, decoding_span = rates.spans

    def part(name: str, share: float, detail: str = "") -> Stage:
        """Return a stage that takes this share of the time of decoding and ops."""
        span = None if decoding_span is None else (decoding_span[0] / share, decoding_span[1] / share)
        return Stage(name, rates.decoding / share, detail, span=span)

    share = time_decoding(images, ops, seconds, fast, pixels) if images else 0.0
    live = part(OPS, 1 - share) if ops and share < 1 else Stage(OPS, why_not="there are none")
    if not images:
        decoding = Stage(DECODING, why_not="raw pixels need no decoding")
    elif ops and share >= 1:
        # With a crop, a JPEG can be decoded at a smaller size, so both together are faster than decoding in full.
        decoding = part(DECODING, 1, "together with the ops, which allow a smaller size")
        live = Stage(OPS, why_not="not measurable apart from decoding, which they make cheaper")
    else:
        decoding = part(DECODING, share, "at full size")
    copied = ", pixels copied" if not images and not ops else ""
    reading = Stage(READING, rates.reading, f"CRCs verified{copied}", span=reading_span)
    whole = Stage(ASSEMBLY, rates.whole, f"the loader from end to end, {rates.workers}", span=whole_span)
    return {stage.name: stage for stage in (reading, decoding, live, whole)}


def time_decoding(
    images: Sequence[bytes], ops: Sequence[Op], seconds: float, fast: bool = True, pixels: PixelFormat = RGB8
) -> float:
    """Return the time to decode images at full size, as a share of the time to decode them with the ops.

    An op that waits, for a service or a disk, takes that time, too. Waiting for a core does not count. The share is 1
    if there are no ops or no image decodes.
    """
    # On a host with four times its load, wall-clock time gave shares from 0.80 to 1.37, and CPU time 0.82 to 0.85. It
    # is the CPU time of all threads of this process, because OpenCV starts some here but none in a loader's workers.
    plain, pipeline = (pipeline_of(pixels)(each, seed=0, fast=fast, pixels=pixels) for each in ((), ops))
    draws = pipeline.draw(0, np.arange(len(images)))
    decoding = whole = 0.0
    stop = time.perf_counter() + seconds
    with _open_queue_clock() as queued:

        def clocks() -> tuple[float, float]:
            """Return CPU time, and time without waiting for a core: it also grows while the thread sleeps."""
            return time.process_time(), time.perf_counter() - queued()

        for number in itertools.cycle(range(len(images))):
            data = memoryview(images[number])
            with suppress(ImageError, OpError):  # the loader reports bad records
                begun = clocks()
                plain.run_stored(data, None, ())
                between = clocks()
                pipeline.run_stored(data, None, [op[number] for op in draws])
                ended = clocks()
                decoding += max(0.0, *(late - early for early, late in zip(begun, between, strict=True)))
                whole += max(_TICK, *(late - early for early, late in zip(between, ended, strict=True)))
            if time.perf_counter() > stop:
                return decoding / whole if ops and whole else 1.0
    raise AssertionError("a cycle does not end")


@contextmanager
def _open_queue_clock() -> Iterator[Callable[[], float]]:
    """Give a clock of the seconds that this thread has waited for a core. It stays 0 if the system has none."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)  # Linux
    except OSError:
        yield lambda: 0.0
        return
    try:
        yield lambda: int(os.pread(file, 64, 0).split()[1]) / 1e9
    finally:
        os.close(file)


def measure_transfer(shape: tuple[int, ...], batch_size: int, seconds: float) -> Stage:
    """Measure the transfer of uint8 batches to the devices of this host. The stage says why if that is impossible."""
    where = "run the doctor on the TPU VM, while nothing else uses the TPU"
    if not any(list(Path("/").glob(pattern[1:])) for pattern in _DEVICES):
        return Stage(TRANSFER, why_not=f"there is no TPU on this host (no /dev/accel*, no /dev/vfio); {where}")
    batch = np.zeros((batch_size, *shape), np.uint8)
    try:
        if importlib.util.find_spec("torch_xla") is not None:
            import torch
            import torch_xla
            from torch_xla.core import xla_model

            device, through = torch_xla.device(), "torch_xla"  # the default device of a process

            def put() -> None:
                torch.from_numpy(batch).to(device)
                torch_xla.sync()
                xla_model.wait_device_ops()

        elif importlib.util.find_spec("jax") is not None:
            import jax

            devices, through = jax.devices("tpu"), "JAX"

            def put() -> None:
                parts = np.array_split(batch, len(devices))
                for sent in [*map(jax.device_put, parts, devices)]:
                    sent.block_until_ready()

        else:
            return Stage(TRANSFER, why_not="there is a TPU, but neither torch_xla nor jax is installed to reach it")
        put()  # the first call compiles and allocates
        start, done, elapsed = time.perf_counter(), 0, 0.0
        while elapsed < seconds:
            put()
            done += 1
            elapsed = time.perf_counter() - start
    except Exception as error:  # noqa: BLE001  # runtimes raise anything, and the other stages are still worth knowing
        reason = str(error) if isinstance(error, TpufeedError) else f"{type(error).__name__}: {error}"
        return Stage(TRANSFER, why_not=f"the TPU does not answer ({reason.partition(chr(10))[0]}); {where}")
    return Stage(TRANSFER, done * batch_size / elapsed, f"uint8, through {through}")
