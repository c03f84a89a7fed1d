"""The bench harness: datasets times loaders, measured in turns, each measurement in a process of its own."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tpufeed.dataset.reader import open_dataset
from tpufeed.diagnosis.feeds.loaders import check_split
from tpufeed.diagnosis.feeds.measure import Measurement, measure_apart
from tpufeed.diagnosis.feeds.options import BenchOptions, check_loaders
from tpufeed.diagnosis.machine import machine, place_of
from tpufeed.diagnosis.results import Run, spread
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import OptionError

_WARM_UP_SECONDS = 2.0

Name = TypeVar("Name")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The result of a benchmark.

    Attributes:
        machine: see `diagnosis.machine.machine`.
        places: of the datasets, see `diagnosis.machine.place_of`.
        options: as they were given.
        runs: of each dataset and each loader the one in the middle, in the order given.
    """

    machine: dict[str, Any]
    places: tuple[dict[str, Any], ...]
    options: BenchOptions
    runs: tuple[Run, ...]


def bench(
    urls: Sequence[str],
    loaders: Sequence[str] = ("numpy",),
    options: BenchOptions | None = None,
    measure: Callable[[Measurement], Run] = measure_apart,
    listen: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Feed a device from each of the datasets by each of the loaders.

    Args:
        urls: of datasets or caches.
        loaders: numpy, torch, tf, tf-direct, xla, jax, and naive, which is what people write themselves.
        options: device, batches, how long.
        measure: makes one measurement.
        listen: is told what is measured, before it is.

    Raises:
        UsageError: a dataset, loader, device or package that is not there, before anything is measured.
        Exception: whatever a loader raises.
    """
    options = options or BenchOptions()
    check_loaders(loaders, options)
    datasets = []
    for url in urls:
        datasets.append(open_dataset(url))
        check_split(datasets[-1], options.split, options.images_a_step)
    if not datasets:
        raise OptionError("no dataset is given")
    about = machine()
    measurements = [Measurement(url=url, loader=loader, options=options) for url in urls for loader in loaders]
    label = options.choice.label

    def measured(measurement: Measurement) -> Run:
        listen(f"{label} from {measurement.url} by {measurement.loader}")
        return measure(measurement)

    seconds = min(_WARM_UP_SECONDS, options.limits.seconds or _WARM_UP_SECONDS)
    short = dataclasses.replace(options, seconds=seconds, patience_seconds=0.0)
    for one in measurements * options.warm_up:
        listen(f"{label} from {one.url} by {one.loader} (warm-up)")
        measure(dataclasses.replace(one, options=short))
    rounds = interleave({one: partial(measured, one) for one in measurements}, options.repeats, warm_up=0)
    return BenchResult(
        machine=about,
        places=tuple(map(place_of, datasets)),
        options=options,
        runs=tuple(map(middle_run, rounds.values())),
    )


def middle_run(runs: Sequence[Run]) -> Run:
    """Return the repeat with the median rate, with the spread of all and what is wrong with any."""
    rated = sorted(runs, key=lambda run: run.images_per_second or 0.0)
    middle = rated[(len(rated) - 1) // 2]
    problems = list(middle.problems)
    doubtful = [run for run in runs if run.problems]
    if doubtful and not problems:
        problems.append(f"in {len(doubtful)} of {number_of(len(runs), 'repeat')}: {doubtful[0].problems[0]}")
    return dataclasses.replace(
        middle,
        rates=spread([run.images_per_second for run in runs if run.images_per_second is not None]),
        problems=tuple(problems),
        verdict="" if problems else middle.verdict,
    )


def interleave(
    measurements: Mapping[Name, Callable[[], Outcome]], repeats: int, warm_up: int = 1
) -> dict[Name, list[Outcome]]:
    """Make each measurement in `repeats` rounds, after `warm_up` rounds whose outcomes are thrown away.

    In turns, A B A B: a machine that grows slower for a while does so for all alike.
    """
    found: dict[Name, list[Outcome]] = {name: [] for name in measurements}
    for number in range(-warm_up, repeats):
        for name, measure in measurements.items():
            outcome = measure()
            if number >= 0:
                found[name].append(outcome)
    return found
