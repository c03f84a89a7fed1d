"""Results of a step clock as data: figures, a verdict, lines for people, and a file that other programs read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from tpufeed.errors import OptionError

# Of the time, in percent; the bands of xprof, TensorBoard's profiler, for input-bound programs.
MODERATE_PERCENT = 5.0
HIGH_PERCENT = 20.0

Blame = Literal["data", "tracing", "accelerator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of each step, from the first one on.

    Attributes:
        wait_seconds: for the step's batch.
        sync_seconds: of tracing, compiling and launching the step, which torch_xla's loaders do in the `next()` after
            it; that before an epoch's first step counts for it as well. Empty with any other loader.
        compute_seconds: of the step.
    """

    wait_seconds: tuple[float, ...] = ()
    sync_seconds: tuple[float, ...] = ()
    compute_seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Figures of a `StepClock`. None stands for unknown: with fewer than two steps there is no steady state.

    The steady state is every step but the first, which waits for the pipeline to fill and computes while it compiles.
    All figures are of the steady state, but `steps`, `images`, those that begin with `first_`, and `compile_seconds`.

    Attributes:
        steps: all of them.
        images: likewise; None where batches have no shape and no batch size was given.
        images_per_second: a second of `wall_seconds`.
        bytes_per_second: of the batches' arrays: what crosses to the device, or would have to.
        step_ms: the median of wait + sync + compute.
        wait_ms_p50: the median of the waits for a batch.
        wait_ms_p95: likewise the 95th percentile.
        wait_ms_p99: likewise the 99th.
        idle_percent: waits / wall.
        sync_ms_p50: of the syncs that torch_xla's loaders do before they hand the next batch out: tracing and compiling
            the step, launching it, and waiting for the device to take it. None with any other loader.
        sync_percent: syncs / wall.
        tracing_percent: the part of the time in which the host traced and compiled: syncs without their waits for the
            device, or what was compiled, whichever is more. None where no framework tells.
        wall_seconds: the time inside the loop, so that evaluation between two epochs is no part of it.
        first_wait_seconds: from asking for the first batch until it was there; it includes `iter(loader)`.
        first_compute_seconds: of the first step, with the syncs around it.
        compile_seconds: of `first_compute_seconds`, as far as the framework tells (torch_xla, JAX).
        recompilations: after the first step.
        recompile_seconds: of those.
        host_syncs: times that the host waited for a value of the device, as torch_xla counts them.
        short_epochs: (epoch from 1, batches it gave, batches that `len()` says) of each that ended early by itself.
        notes: what else there is to say, as sentences.
    """

    steps: int
    images: int | None = None
    images_per_second: float | None = None
    bytes_per_second: float | None = None
    step_ms: float | None = None
    wait_ms_p50: float | None = None
    wait_ms_p95: float | None = None
    wait_ms_p99: float | None = None
    idle_percent: float | None = None
    sync_ms_p50: float | None = None
    sync_percent: float | None = None
    tracing_percent: float | None = None
    wall_seconds: float | None = None
    first_wait_seconds: float | None = None
    first_compute_seconds: float | None = None
    compile_seconds: float | None = None
    recompilations: int | None = None
    recompile_seconds: float | None = None
    host_syncs: int | None = None
    short_epochs: tuple[tuple[int, int, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def blame(self) -> Blame | None:
        """The cause of most waiting; the accelerator, where neither data nor tracing takes 5 % of the time."""
        if self.idle_percent is None:
            return None
        tracing = self.tracing_percent or 0.0
        if max(self.idle_percent, tracing) < MODERATE_PERCENT:
            return "accelerator"
        return "data" if self.idle_percent >= tracing else "tracing"

    @property
    def verdict(self) -> str:
        """`blame` as a sentence."""
        if self.idle_percent is None:
            return "no verdict: there is no steady state to judge"
        idle, tracing = f"{self.idle_percent:.1f} %", _figure(self.tracing_percent, " %")
        if self.blame == "accelerator":
            return f"fed: {idle} of the time is waiting for data; what is left is the step itself"
        if self.blame == "tracing":
            return f"your step waits on tracing and compiling ({tracing} of the time), not on data ({idle})"
        return f"{idle_band(self.idle_percent)}: {idle} of the time the step waits for its batch"

    def summary(self) -> str:
        """Return lines for people; n/a stands for unknown."""
        megabytes = None if self.bytes_per_second is None else self.bytes_per_second / 1e6
        lines = [
            f"{self.steps} steps: idle {_figure(self.idle_percent, ' %')} of {_figure(self.wall_seconds, ' s', 2)}, "
            f"{_figure(self.images_per_second, '', 0)} images a second, {_figure(megabytes, ' MB')} a second to the "
            "device",
            f"a step takes {_figure(self.step_ms, ' ms')}; waits for a batch: p50 {_figure(self.wait_ms_p50, ' ms')}, "
            f"p95 {_figure(self.wait_ms_p95, ' ms')}, p99 {_figure(self.wait_ms_p99, ' ms')}",
            f"first step, left out of these: {_figure(self.first_wait_seconds, ' s', 2)} for its batch, "
            f"{_figure(self.first_compute_seconds, ' s', 2)} in the step, of which compiling "
            f"{_figure(self.compile_seconds, ' s', 2)}",
        ]
        if self.sync_percent is not None or self.tracing_percent is not None:
            lines.append(
                f"sync {_figure(self.sync_percent, ' %')} of the time (p50 {_figure(self.sync_ms_p50, ' ms')}), "
                f"tracing and compiling {_figure(self.tracing_percent, ' %')}; recompilations after step 1: "
                f"{_figure(self.recompilations, '', 0)}"
            )
        return "\n".join([*lines, self.verdict, *self.notes])


def idle_band(idle_percent: float) -> str:
    """Return xprof's words for so much idle time."""
    if idle_percent >= HIGH_PERCENT:
        return "highly input-bound"
    return "moderately input-bound" if idle_percent >= MODERATE_PERCENT else "not input-bound"


class _Saved(msgspec.Struct):
    format: Literal["tpufeed-steps"]
    version: Literal[1]
    report: StepReport
    times: StepTimes


def save_steps(path: str | Path, report: StepReport, times: StepTimes) -> None:
    """Write both as JSON, for `load_steps` and `tpufeed doctor --clock`."""
    Path(path).write_bytes(msgspec.json.encode(_Saved("tpufeed-steps", 1, report, times)) + b"\n")


def load_steps(path: str | Path) -> StepReport:
    """Read what `StepClock.save` wrote; fields that a later release has added are left out.

    Raises:
        OptionError: anything else.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_Saved).report
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}; clock.save(path) writes such a file") from error
    except msgspec.DecodeError as error:
        raise OptionError(
            f"{path} is no file of steps for this tpufeed ({error}); clock.save(path) writes what is wanted here"
        ) from error


def _figure(value: float | None, unit: str, digits: int = 1) -> str:
    return "n/a" if value is None else f"{value:,.{digits}f}{unit}"
