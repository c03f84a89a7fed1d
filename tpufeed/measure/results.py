"""Results of measurements, which the commands print, write as JSON and draw. None means unknown."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tpufeed.measure.clock import StepTimes
from tpufeed.text import format_range, format_rate

Span = tuple[float, float]  # lowest and highest rate of the parts of a measurement


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of a figure that was measured several times."""

    median: float
    lowest: float
    highest: float
    values: tuple[float, ...]


def spread(values: Sequence[float]) -> Spread | None:
    """Return the spread of figures, or None if there are none."""
    return Spread(statistics.median(values), min(values), max(values), tuple(values)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One loader that feeds one device: the median of several repeats.

    All figures except `steps`, `images`, `first_batch_seconds` and `compile_seconds` cover the steady state, without
    the first step.

    Attributes:
        label: text for people: "gs://bucket/flowers-224, numpy".
        device: "EMULATED tpu-v3-8-high", "xla-cpu", "none", ...
        url: the dataset, or the folder of raw files.
        source: "raw files", "shards", "cache" or "mixture".
        rates: images per second of all repeats.
        first_batch_seconds: time from asking for the first batch until it arrived.
        compile_seconds: compile time of the first step.
        idle_percent: waits / wall.
        au_percent: MLPerf Storage's accelerator utilisation: nominal time of the images / wall. A step with fewer
            images than a batch takes as long as any.
        oversleep_percent: time by which an emulator woke late while its queue was full / wall. It may have delayed the
            loader by that time. Above 2 % only a run that idles under 5 % has a verdict.
        wall_seconds: waits + steps.
        problems: reasons not to trust the figures, as sentences.
        verdict: a sentence, empty if there are problems.
    """

    label: str
    device: str
    batch_size: int
    steps: int
    images: int
    url: str = ""
    loader: str = ""
    source: str = ""
    rates: Spread | None = None
    images_per_second: float | None = None
    step_ms: float | None = None
    wait_ms_p50: float | None = None
    wait_ms_p95: float | None = None
    wait_ms_p99: float | None = None
    idle_percent: float | None = None
    au_percent: float | None = None
    mxu_percent: float | None = None
    duty_cycle_percent: float | None = None
    mfu_percent: float | None = None
    oversleep_percent: float | None = None
    first_batch_seconds: float | None = None
    compile_seconds: float | None = None
    recompilations: int | None = None
    bytes_per_second: float | None = None
    wall_seconds: float | None = None
    problems: tuple[str, ...] = ()
    verdict: str = ""
    timeline: StepTimes = field(default_factory=StepTimes)

    def __post_init__(self) -> None:
        if self.problems:
            object.__setattr__(self, "verdict", "")

    @property
    def emulated(self) -> bool:
        """True if no accelerator took the batches."""
        return "emulated" in self.device.lower()


@dataclass(frozen=True, slots=True)
class Stage:
    """The rate of one stage: images per second that it could do alone, with all the cores and bandwidth of this host.

    Attributes:
        name: "storage", "reading", "decoding", "ops", "assembly", "transfer".
        images_per_second: None if it could not be measured, or if this dataset does not need the stage.
        detail: how it was measured: "1.9 GB/s from the page cache, 2 threads".
        why_not: why `images_per_second` is None.
        span: its lowest and highest value in parts of the measurement, if they differ by more than a tenth.
    """

    name: str
    images_per_second: float | None = None
    detail: str = ""
    why_not: str = ""
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Advice: what to do next, and its predicted effect.

    Attributes:
        do: a sentence in the imperative, with the command or the option.
        factor: predicted rate / present rate, if known.
        images_per_second: the predicted rate.
        idle_percent: predicted idle time, (at the TPU's low rate, at its high rate).
        cost: the cost: "9.2 GB, about 12 minutes".
        span: as in `Stage`.
    """

    do: str
    factor: float | None = None
    images_per_second: float | None = None
    idle_percent: tuple[float, float] | None = None
    cost: str = ""
    span: Span | None = None

    @property
    def effect(self) -> str:
        """The prediction in words, empty if nothing is known."""
        parts = [] if self.factor is None else [f"{self.factor:,.{0 if self.factor >= 10 else 1}f}x"]
        if self.images_per_second is not None:
            parts.append(f"{format_rate(self.images_per_second, self.span)} images a second")
        if self.idle_percent is not None:
            parts.append(f"idle {format_range(*self.idle_percent)} %" if self.idle_percent[1] else "no idle")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The doctor's findings.

    Attributes:
        url: the dataset or the raw images.
        split: the split that was measured.
        machine: see `machine.machine`.
        stages: all stages, in the order in which an image passes them.
        fed: images per second that arrive at the device: the lowest rate of assembly, storage and transfer.
        tpu: the TPU to feed: "v5e-8".
        model: the model that it trains.
        needed: images per second that it takes, (low, high).
        idle_percent: predicted idle time, (at the low rate, at the high rate).
        binding: name of the stage that binds, or "accelerator" if no stage does.
        fed_span: `fed` in parts of the measurement, as in `Stage`.
        verdict: a sentence.
        actions: advice, the best first.
        notes: remarks, as sentences.
    """

    url: str
    split: str
    machine: dict[str, Any]
    stages: tuple[Stage, ...]
    fed: float | None
    tpu: str
    model: str
    needed: tuple[float, float]
    idle_percent: tuple[float, float] | None
    binding: str
    verdict: str
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
    fed_span: Span | None = None

    @property
    def need(self) -> str:
        """The rates that the TPU takes, in words."""
        return " to ".join(dict.fromkeys(map(format_rate, self.needed)))

    @property
    def cores_needed(self) -> tuple[int, int] | None:
        """Number of cores like this host's that would feed the device, (low, high), if the loader scales with cores."""
        (rate,) = (stage.images_per_second for stage in self.stages if stage.name == "assembly")
        if not rate:
            return None
        low, high = (math.ceil(self.machine["cores"] * needed / rate) for needed in self.needed)
        return low, high
