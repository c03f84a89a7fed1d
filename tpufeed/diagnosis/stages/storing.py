"""How fast the bytes of a split come from where they lie: memory, a disk of this host, or a bucket."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tpufeed.dataset.manifest import Shard
from tpufeed.dataset.reader import Dataset
from tpufeed.diagnosis.machine import memory_bytes
from tpufeed.diagnosis.stages.rates import Storage
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import StoreError
from tpufeed.loaders.options import LoaderOptions
from tpufeed.storage.staging.folder import RemoteShard, copy_key, find_folder, free_bytes, is_in_memory

CONNECTIONS = 16  # as loaders stage

Piece = TypeVar("Piece")
_FilePiece = tuple[Path, int]  # (file, offset)

_DISK_READERS = 4
_PIECES_A_CONNECTION = 4
_FIRST_BYTES, _LEAST_BYTES, _MOST_BYTES = 1 << 20, 256 << 10, 8 << 20
_AS_FAST = 0.5  # of reading the same bytes again
_LOOKED_AT = 64


def measure_storage(dataset: Dataset, split: str, options: LoaderOptions, seconds: float) -> Storage:
    """Where all variants of a split lie, and how fast they come from there.

    Raises:
        StoreError: they cannot be read.
    """
    shards = [shard for variant in dataset.split(split).variants for shard in variant.shards]
    if dataset.is_remote:
        return _measure_remote(dataset, shards, options, seconds)
    paths = [path for shard in shards if (path := dataset.shards.local_path(shard.name)) is not None]
    return _measure_local(paths, seconds)


def stage_room(options: LoaderOptions) -> tuple[Path, int]:
    """Where remote shards are staged, and what they may take there, as `storage.staging` decides it.

    Raises:
        OptionError: nowhere.
    """
    folder = find_folder(None if options.stage_dir is None else Path(options.stage_dir))
    if options.stage_bytes is not None:
        return folder, int(options.stage_bytes)
    used = sum(path.stat().st_size for path in folder.iterdir())
    return folder, (used + free_bytes(folder)) // 2


def read_rate(pieces: Iterable[Piece], read: Callable[[Piece], int], readers: int, seconds: float) -> float:
    """Bytes a second of so many threads that read each piece once, until the time is over or there are no more."""
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


def _measure_local(paths: Sequence[Path], seconds: float) -> Storage:
    looked_at = paths[:: max(1, len(paths) // _LOOKED_AT)]
    if is_in_memory(looked_at[0].parent):
        return _read_files(looked_at, seconds, "files in memory")
    pieces = list[_FilePiece]()
    found = _read_files(looked_at, seconds / 2, "page cache", pieces)
    # The second time these bytes come from the page cache. Only where the first was much slower a disk had part in it.
    again = _read_pieces(pieces, seconds / 2, [])
    if found.bytes_per_second is not None and found.bytes_per_second >= _AS_FAST * again:
        return found
    room = memory_bytes()  # a container's page cache counts as its memory
    every_epoch = sum(path.stat().st_size for path in paths) > room
    detail = f"disk, {_say_rate(found.bytes_per_second or 0)}; from the page cache {_say_rate(again)}"
    return replace(found, kind="disk", every_epoch=every_epoch, room=room, detail=detail)


def _say_rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:,.2g} GB/s"


def _read_files(paths: Sequence[Path], seconds: float, what: str, seen: "list[_FilePiece] | None" = None) -> Storage:
    pieces = ((path, at) for path in paths for at in range(0, path.stat().st_size, _MOST_BYTES))
    rate = _read_pieces(pieces, seconds, [] if seen is None else seen)
    return Storage(kind="memory", bytes_per_second=rate or None, detail=f"{what}, {_say_rate(rate)}")


def _read_pieces(pieces: Iterable[_FilePiece], seconds: float, seen: list[_FilePiece]) -> float:
    """Read (path, offset) after (path, offset), and put those that were read into `seen`; return bytes a second."""

    def read(piece: _FilePiece) -> int:
        seen.append(piece)
        descriptor = os.open(piece[0], os.O_RDONLY | os.O_CLOEXEC)
        try:
            return len(os.pread(descriptor, _MOST_BYTES, piece[1]))
        except OSError as error:
            raise StoreError(f"{piece[0].parent}: {error.strerror or error}") from error
        finally:
            os.close(descriptor)

    return read_rate(pieces, read, _DISK_READERS, seconds)


def _measure_remote(dataset: Dataset, shards: Sequence[Shard], options: LoaderOptions, seconds: float) -> Storage:
    store, total = dataset.shards, sum(shard.bytes for shard in shards)
    budget, said = 0, "by ranges, nothing is staged"
    if options.stage_bytes != 0:
        folder, budget = stage_room(options)
        copies = [RemoteShard(shard.name, shard.bytes, shard.crc32c) for shard in shards]
        paths = [folder / f"{copy_key(store.url, copy)}.shard" for copy in copies]
        staged = [path for path in paths if path.exists()]
        if len(staged) == len(copies):
            return _read_files(staged, seconds, f"{_say_staged(len(staged), len(copies))} in {folder}")
        said = f"{_say_staged(len(staged), len(copies))} in {folder}"
    first = min(shards, key=lambda shard: (shard.bytes < _FIRST_BYTES, shard.name))
    begun = time.perf_counter()
    size = len(store.read_range(first.name, 0, min(first.bytes, _FIRST_BYTES)))
    once = size / (time.perf_counter() - begun)
    piece = int(min(_MOST_BYTES, max(_LEAST_BYTES, once * seconds / _PIECES_A_CONNECTION)))
    longest = max(shard.bytes for shard in shards)
    pieces = ((shard.name, at) for at in range(0, longest, piece) for shard in shards if at < shard.bytes)

    def read(place: tuple[str, int]) -> int:
        name, at = place
        return len(store.read_range(name, at, at + piece))

    rate = read_rate(pieces, read, CONNECTIONS, seconds)
    detail = f"{rate / 1e6:,.0f} MB/s over {CONNECTIONS} connections; {said}"
    if total <= budget:
        detail += ": from there from the second epoch on"
    return Storage(kind="remote", bytes_per_second=rate, every_epoch=total > budget, room=budget, detail=detail)


def _say_staged(staged: int, shards: int) -> str:
    if not staged:
        return "no shard is staged"
    if staged == shards:
        return "the shard is staged" if shards == 1 else f"all {shards:,} shards are staged"
    return f"{staged:,} of {number_of(shards, 'shard')} {'is' if staged == 1 else 'are'} staged"
