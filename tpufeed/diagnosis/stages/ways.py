"""Other ways for the same samples: each is tried on some of them, with the real loader."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.diagnosis.stages.draining import drain, fitting_batch
from tpufeed.diagnosis.stages.findings import Kind, Way
from tpufeed.diagnosis.stages.origin import Origin
from tpufeed.diagnosis.stages.rates import ASSEMBLY
from tpufeed.diagnosis.stages.samples import SPLIT, Sample, restore, warm, write_sample
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import TpufeedError
from tpufeed.images.flips import HorizontalFlip
from tpufeed.images.ops import Op
from tpufeed.images.policy import ImagePolicy
from tpufeed.images.windows import RandomResizedCrop
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.workers import Workers, plan_workers
from tpufeed.storage.staging.folder import MEMORY, free_bytes

VARIANTS = 4
_MARGIN = 8 / 7  # of 224 that is 256, what people presize to
_FEWER_PROCESSES = 4
_SMALLER = 0.8  # of the bytes: less of a gain is not worth a build
_FEATURES_BYTES = 400  # of a record, besides the image


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What ways are tried with.

    Attributes:
        url: of what is to be changed, as the user wrote it.
        origin: what `url` was made of, or is.
        records: of the split.
        sample: of it.
        shape: of the sample's images, where they are raw.
        cached: (height, width, channels) of what an encoded cache holds; None of anything else.
        options: of the loader.
        ops: that it applies.
        size: (height, width) of what comes out.
        folder: for small datasets.
        seconds: of each measurement.
        expected: images a second, about: it decides how large a batch can be.
    """

    url: str
    origin: Origin
    records: int
    sample: Sample
    shape: tuple[int, int, int] | None
    cached: tuple[int, int, int] | None
    options: LoaderOptions
    ops: tuple[Op, ...]
    size: tuple[int, int]
    folder: Path
    seconds: float
    expected: float | None

    def measure(self, name: str, sample: Sample, shape: tuple[int, int, int] | None, ops: Sequence[Op] | None) -> float:
        """Images a second of the loader over a dataset of `sample`. Raises TpufeedError."""
        dataset = open_dataset(write_sample(self.folder / name, sample, shape))
        batch = fitting_batch(self.options.batch_size, self.expected, self.seconds)
        options = replace(self.options, ops=ops, batch_size=batch, stage_bytes=None)
        return drain(dataset, SPLIT, options, self.seconds).images_per_second


def try_workers(dataset: Dataset, split: str, trial: Trial, now: Workers) -> list[tuple[Way, str]]:
    """Other processes and threads than the loader has now, each with what is to be said of it.

    Where the user says others than fit the host, those that do. Else as many threads in fewer processes, and in this
    one alone.
    """
    free = replace(trial.options, processes=None, threads=None)
    usual = plan_workers(dataset, free)
    if usual != now:
        do = f"use {_say_workers(usual)}: leave out --processes and --threads"
        return [(_measure_workers(dataset, split, trial, free, do), "")]
    found, now_gives = [], f"; {_say_workers(now)} give {trial.expected:,.0f}" if trial.expected else ""
    for processes in dict.fromkeys((min(_FEWER_PROCESSES, now.processes - 1), 0)):
        other = Workers(processes, now.decoding // max(1, processes))
        if now.decoding < 2 or not 0 <= processes < now.processes:
            continue
        options = replace(trial.options, processes=other.processes, threads=other.threads)
        do = f"use {_say_workers(other)}: --processes {other.processes} --threads {other.threads}"
        way = replace(_measure_workers(dataset, split, trial, options, do), saves=ASSEMBLY)
        said = (
            f"without worker processes, {_say_workers(other)}, which share its GIL, give "
            f"{way.images_per_second:,.0f} images a second{now_gives}"
        )
        found.append((way, "" if processes else said))
    return found


def _measure_workers(dataset: Dataset, split: str, trial: Trial, options: LoaderOptions, do: str) -> Way:
    options = replace(options, batch_size=fitting_batch(options.batch_size, trial.expected, trial.seconds))
    options = replace(options, stage_bytes=None)
    rate = drain(dataset, split, options, trial.seconds).images_per_second
    return Way(kind="workers", do=do, images_per_second=rate, record_bytes=trial.sample.image_bytes + _FEATURES_BYTES)


def _say_workers(workers: Workers) -> str:
    threads = number_of(workers.threads, "thread")
    if not workers.processes:
        return f"{threads} of the training process itself"
    each = " each" if workers.processes > 1 else ""
    return f"{number_of(workers.processes, 'worker process', 'worker processes')} with {threads}{each}"


def try_ways(trial: Trial, raw_files: bool) -> Iterator[Way | str]:
    """Each other way of storing the samples, or why it could not be tried."""
    tries: list[tuple[str, Callable[[], Way | None]]] = []
    if raw_files:
        tries.append(("sharding", lambda: _try_shard(trial)))
    if trial.shape is None and trial.cached is None:
        tries.append(("presizing", lambda: _try_presize(trial)))
    if trial.shape is None:
        tries.append(("a raw cache", lambda: _try_raw(trial)))
    for what, attempt in tries:
        try:
            way = attempt()
        except (TpufeedError, OSError, MemoryError) as error:
            yield f"{what} could not be tried: {error or type(error).__name__}"
            continue
        if way is not None:
            yield way


def _try_shard(trial: Trial) -> Way | None:
    timed = _timed(lambda: restore(trial.sample, ImagePolicy(), trial.seconds))
    made = timed[0]
    if not made.images:
        return None
    rate = trial.measure("shards", made, None, trial.ops)
    do = f"make shards of the files: tpufeed shard {quote(trial.url)} DATASET"
    return _way(trial, "shard", do, rate, timed)


def _try_presize(trial: Trial) -> Way | None:
    side = round(max(trial.size) * _MARGIN)
    timed = _timed(lambda: restore(trial.sample, replace(trial.origin.images, presize_px=side), trial.seconds))
    made = timed[0]
    if not made.images or made.image_bytes > _SMALLER * trial.sample.image_bytes:
        return None
    rate = trial.measure("presized", made, None, trial.ops)
    origin = trial.origin
    do = f"presize to {side}: tpufeed shard {quote(origin.source)} DATASET-{side}{origin.flags} --presize {side}"
    way = _way(trial, "presize", do, rate, timed)
    return replace(way, cost="; ".join((way.cost, *origin.remarks)))


def _try_raw(trial: Trial) -> Way | None:
    """Of an encoded cache only what it holds becomes raw: its live ops stay live."""
    timed = _timed(lambda: warm(trial.sample, trial.ops if trial.cached is None else (), trial.seconds))
    made = timed[0]
    if not made.images:
        return None
    if trial.cached is not None:
        rate = trial.measure("raw", made, trial.cached, trial.ops)
        do = "store raw pixels: give the cache's `tpufeed cache warmup` --encode raw"
        return _way(trial, "raw", do, rate, timed)
    rate = trial.measure("raw", made, (*trial.size, 3), None)
    flags = "".join(f" --op {quote(repr(op))}" for op in trial.ops)
    if trial.ops == (RandomResizedCrop(trial.size[0]), HorizontalFlip()):  # what it does by itself
        flags = f" --size {trial.size[0]}"
    do = f"warm a raw cache: tpufeed cache warmup {quote(trial.url)} CACHE{flags} --variants {VARIANTS}"
    return _way(trial, "raw", do, rate, timed, VARIANTS)


def _way(trial: Trial, kind: Kind, do: str, rate: float, timed: tuple[Sample, float], variants: int = 1) -> Way:
    made, seconds = timed
    record_bytes = made.image_bytes + _FEATURES_BYTES
    size = trial.records * variants * record_bytes
    minutes = trial.records * variants * seconds / len(made.images) / 60
    cost = _say_cost(size, minutes, variants)
    return Way(kind=kind, do=do, images_per_second=rate, record_bytes=record_bytes, total_bytes=size, cost=cost)


def _timed(make: Callable[[], Sample]) -> tuple[Sample, float]:
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


def _say_cost(size: float, minutes: float, variants: int) -> str:
    said = (
        f"{say_bytes(size)}{f' for {variants} variants' if variants > 1 else ''}, {_say_minutes(minutes)} on this host"
    )
    try:
        room = free_bytes(MEMORY)
    except OSError:
        return said
    return f"{said}; it {'fits' if size < room else 'does not fit'} {MEMORY}"


def say_bytes(size: float) -> str:
    """A size for people."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def _say_minutes(minutes: float) -> str:
    if minutes >= 2:
        return f"about {minutes:,.0f} minutes"
    return f"about {number_of(max(1, round(minutes * 60)), 'second')}"
