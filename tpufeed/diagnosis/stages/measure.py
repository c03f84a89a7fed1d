"""Measurements of single stages: storage, what cores do, the loader from end to end, and the transfer to a TPU."""

import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tpufeed.dataset.reader import Dataset
from tpufeed.diagnosis.machine import memory_bytes
from tpufeed.diagnosis.prediction import TRANSFER, Storage, attribute
from tpufeed.diagnosis.results import Stage
from tpufeed.diagnosis.stages.probing import Part, Probes, Subject
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import StoreError, TpufeedError
from tpufeed.loaders.executor import Workers
from tpufeed.loaders.loader import NumpyLoader
from tpufeed.loaders.options import LoaderOptions
from tpufeed.storage.staging.folder import RemoteShard, copy_key, find_folder, free_bytes, is_in_memory

CONNECTIONS = 16  # as loaders stage

Piece = TypeVar("Piece")

_DISK_READERS = 4
_PIECES_A_CONNECTION = 4
_FIRST_BYTES, _LEAST_BYTES, _MOST_BYTES = 1 << 20, 256 << 10, 8 << 20
_AS_FAST = 0.5  # of reading the same bytes again
_FILES_LOOKED_AT = 64

_BATCHES_TIMED = 16  # about, or a single one weighs too much
_LONGEST = 3  # times the seconds that were asked for

_DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")


def measure_storage(dataset: Dataset, split: str, options: LoaderOptions, seconds: float) -> Storage:
    """Return where all variants of a split lie, and how fast they come from there.

    Raises:
        StoreError: they cannot be read.
    """
    shards = [shard for variant in dataset.split(split).variants for shard in variant.shards]
    if not dataset.is_remote:
        paths = [path for shard in shards if (path := dataset.shards.local_path(shard.name)) is not None]
        return _measure_local(paths, seconds)
    store, total = dataset.shards, sum(shard.bytes for shard in shards)
    folder, room = stage_room(options)
    copies = [RemoteShard(shard.name, shard.bytes, shard.crc32c) for shard in shards]
    paths = [folder / f"{copy_key(store.url, copy)}.shard" for copy in copies]
    staged = [path for path in paths if path.exists()]
    said = f"{len(staged):,} of {number_of(len(copies), 'shard')} staged in {folder}"
    if len(staged) == len(copies):
        rate = read_rate(_pieces(staged), _read_piece, _DISK_READERS, seconds)
        return Storage(kind="memory", bytes_per_second=rate, detail=f"{said}, {rate / 1e9:,.2g} GB/s")
    # The first range says how large pieces have to be for each connection to read several.
    first = min(shards, key=lambda shard: (shard.bytes < _FIRST_BYTES, shard.name))
    begun = time.perf_counter()
    size = len(store.read_range(first.name, 0, min(first.bytes, _FIRST_BYTES)))
    once = size / (time.perf_counter() - begun)
    piece = int(min(_MOST_BYTES, max(_LEAST_BYTES, once * seconds / _PIECES_A_CONNECTION)))
    longest = max(shard.bytes for shard in shards)
    ranges = ((shard.name, at) for at in range(0, longest, piece) for shard in shards if at < shard.bytes)
    rate = read_rate(ranges, lambda at: len(store.read_range(at[0], at[1], at[1] + piece)), CONNECTIONS, seconds)
    detail = f"{rate / 1e6:,.0f} MB/s over {CONNECTIONS} connections; {said}"
    if total <= room:
        detail += ": from there from the second epoch on"
    return Storage(kind="remote", bytes_per_second=rate, every_epoch=total > room, room=room, detail=detail)


def _measure_local(paths: Sequence[Path], seconds: float) -> Storage:
    pieces = _pieces(paths[:: max(1, len(paths) // _FILES_LOOKED_AT)])
    left, in_memory = iter(pieces), is_in_memory(paths[0].parent)
    rate = read_rate(left, _read_piece, _DISK_READERS, seconds / 2)
    detail = f"{'files in memory' if in_memory else 'page cache'}, {rate / 1e9:,.2g} GB/s"
    found = Storage(kind="memory", bytes_per_second=rate, detail=detail)
    if in_memory:
        return found
    # The second time these bytes come from the page cache. Only where the first was much slower a disk had part in it.
    again = read_rate(pieces[: len(pieces) - len(list(left))], _read_piece, _DISK_READERS, seconds / 2)
    if rate >= _AS_FAST * again:
        return found
    room = memory_bytes()  # a container's page cache counts as its memory
    every_epoch = sum(path.stat().st_size for path in paths) > room
    detail = f"disk, {rate / 1e9:,.2g} GB/s; from the page cache {again / 1e9:,.2g} GB/s"
    return replace(found, kind="disk", every_epoch=every_epoch, room=room, detail=detail)


def _pieces(paths: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return (file, offset) of all parts of these files."""
    return [(path, at) for path in paths for at in range(0, path.stat().st_size, _MOST_BYTES)]


def _read_piece(piece: tuple[Path, int]) -> int:
    path, offset = piece
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return len(os.pread(descriptor, _MOST_BYTES, offset))
    except OSError as error:
        raise StoreError(f"{path.parent}: {error.strerror or error}") from error
    finally:
        os.close(descriptor)


def read_rate(pieces: Iterable[Piece], read: Callable[[Piece], int], readers: int, seconds: float) -> float:
    """Return bytes a second of so many threads that read each piece once, until the time or the pieces are over."""
    lock, left = threading.Lock(), iter(pieces)
    start = time.perf_counter()

    def run(_: int) -> float:
        size, now = 0, start
        while now - start < seconds:
            with lock:
                piece = next(left, None)
            if piece is None:
                break
            size += read(piece)
            now = time.perf_counter()
        return size / (now - start) if size else 0.0

    with ThreadPoolExecutor(readers, "tpufeed-doctor") as executor:
        return sum(executor.map(run, range(readers)))


def stage_room(options: LoaderOptions) -> tuple[Path, int]:
    """Return where remote shards are staged, and what they may take there, as `storage.staging` decides it.

    Raises:
        OptionError: there is nowhere to stage.
    """
    folder = find_folder(None if options.stage_dir is None else Path(options.stage_dir))
    if options.stage_bytes is not None:
        return folder, int(options.stage_bytes)
    used = sum(path.stat().st_size for path in folder.iterdir())
    return folder, (used + free_bytes(folder)) // 2


def measure_ranges(subject: Subject, workers: Workers, record_bytes: float, seconds: float) -> Storage:
    """Measure remote records as the threads that decode read them themselves where nothing is staged.

    Raises:
        TpufeedError: they cannot be read.
    """
    with Probes(subject, workers) as probes:
        rate = probes.measure("reading", seconds) * record_bytes
    detail = f"{rate / 1e6:,.0f} MB/s by ranges in {number_of(workers.decoding, 'thread')}, as nothing is staged"
    return Storage(kind="remote", bytes_per_second=rate, every_epoch=True, in_turn=True, detail=detail)


def measure_cores(subject: Subject, workers: Workers, encoded: bool, has_ops: bool, seconds: float) -> dict[str, Stage]:
    """Measure reading, decoding and ops in as many processes and threads as the loader has, and in a single thread.

    Raises:
        TpufeedError: a record is damaged, an op fails, or a worker process dies.
    """
    parts: tuple[Part, ...] = ("reading", "decoding", "all") if encoded else ("reading", "all")
    with Probes(subject, workers) as probes:
        every = {part: probes.measure(part, seconds / 2) for part in parts}
        one = every if workers.decoding == 1 else {part: probes.measure_one(part, seconds / 2) for part in parts}
    return attribute({part: (one[part], every[part]) for part in parts}, encoded, has_ops)


@dataclass(frozen=True, slots=True)
class Throughput:
    """A loader's rate in its steady state; `first_batch_seconds` includes the start of its workers."""

    images_per_second: float
    batch_size: int
    first_batch_seconds: float


def measure_throughput(
    dataset: Dataset, split: str, options: LoaderOptions, seconds: float, expected: float | None = None
) -> Throughput:
    """Take batches from the real loader as fast as they come, epoch after epoch, once it is under way.

    Args:
        dataset: what is read.
        split: of it.
        options: of the loader.
        seconds: how long to take batches.
        expected: images a second, about: where they are so few that hardly any batch would come, batches are smaller.

    Raises:
        TpufeedError: the loader's errors.
    """
    batch = min(options.batch_size, dataset.split(split).records)
    if expected:
        batch = max(1, min(batch, int(expected * seconds / _BATCHES_TIMED)))
    loader = NumpyLoader(dataset, split, replace(options, batch_size=batch, repeat=True, world=(0, 1)))
    begun = time.perf_counter()
    with loader, closing(iter(loader)) as batches:
        next(batches)
        first = time.perf_counter() - begun
        # What was prepared ahead when the clock starts was not made in its time; as much is left at the end.
        for _ in range(max(1, loader.stats().prefetch)):
            next(batches)
            if time.perf_counter() - begun > _LONGEST * seconds:
                break
        start, taken = time.perf_counter(), 0
        while True:
            next(batches)
            taken += 1
            elapsed = time.perf_counter() - start
            if (elapsed >= seconds and taken >= _BATCHES_TIMED) or elapsed >= _LONGEST * seconds:
                return Throughput(taken * batch / elapsed, batch, first)


def measure_transfer(shape: tuple[int, int, int], batch_size: int, seconds: float) -> Stage:
    """Measure uint8 batches to all devices of this host; a stage that cannot be measured says why."""
    where = "run the doctor on the TPU VM, while nothing else holds the TPU"
    if not any(list(Path("/").glob(pattern[1:])) for pattern in _DEVICES):
        why_not = f"there is no TPU on this host (no /dev/accel*, no /dev/vfio); {where}"
        return Stage(name=TRANSFER, why_not=why_not)
    try:
        batch = np.zeros((batch_size, *shape), np.uint8)
        if importlib.util.find_spec("torch_xla") is not None:
            put, through = _put_by_torch_xla(batch), "torch_xla"
        elif importlib.util.find_spec("jax") is not None:
            import jax

            put, through = put_by_jax(batch, jax.devices("tpu")), "JAX"
        else:
            why_not = "there is a TPU, but neither torch_xla nor jax can be imported to reach it"
            return Stage(name=TRANSFER, why_not=why_not)
        rate = batch_size * repeat(put, seconds)
    except Exception as error:  # noqa: BLE001  # runtimes fail in their own ways, and the other stages are worth having
        reason = str(error) if isinstance(error, TpufeedError) else f"{type(error).__name__}: {error}"
        why_not = f"the TPU does not answer ({reason.partition(chr(10))[0]}); {where}"
        return Stage(name=TRANSFER, why_not=why_not)
    return Stage(name=TRANSFER, images_per_second=rate, detail=f"uint8, through {through}")


def put_by_jax(batch: "np.ndarray[Any, np.dtype[np.uint8]]", devices: Sequence[Any]) -> Callable[[], None]:
    """Return a call that sends a part of `batch` to each device and waits until all of it is there."""
    import jax

    parts = np.array_split(batch, len(devices))

    def put() -> None:
        for placed in [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]:
            placed.block_until_ready()

    return put


def _put_by_torch_xla(batch: "np.ndarray[Any, np.dtype[np.uint8]]") -> Callable[[], None]:
    """Return a call that sends `batch` to the one device that a process of torch_xla has by default."""
    import torch
    import torch_xla

    device, host = torch_xla.device(), torch.from_numpy(batch)

    def put() -> None:
        host.to(device)
        torch_xla.sync(wait=True)

    return put


def repeat(call: Callable[[], None], seconds: float, now: Callable[[], float] = time.perf_counter) -> float:
    """Return calls a second, the first one left out."""
    call()
    start, calls = now(), 0
    while True:
        call()
        calls += 1
        elapsed = now() - start
        if elapsed >= seconds:
            return calls / elapsed
