"""Feeding a device once: emulated, real, or none at all, which drains the loader."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tpufeed.diagnosis.feeds.loaders import Opened, small_dataset
from tpufeed.diagnosis.feeds.options import DeviceChoice
from tpufeed.diagnosis.results import Run, Timeline
from tpufeed.errors import OptionError
from tpufeed.profiling.accelerator import AcceleratorReport, EmulatedAccelerator, Limits, RepeatedEpochs, few_steps
from tpufeed.profiling.clock import StepClock
from tpufeed.profiling.counters import TpuCounters, read_counters
from tpufeed.profiling.fingerprints import Findings, Ledger
from tpufeed.profiling.flops import mfu_percent
from tpufeed.profiling.steps import StepReport

Step = Callable[[Any], None]

_REASON_CHARACTERS = 150


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, for people."""

    label: str
    url: str
    loader: str
    source: str


def feed(choice: DeviceChoice, batch_size: int, opened: Opened, limits: Limits, subject: Subject) -> Run:
    """Feed the device from the loader, for so many steps or seconds.

    Raises:
        OptionError: a device that is not there.
        Exception: whatever the loader raises.
    """
    if choice.profile is not None:
        return _feed_emulated(choice, batch_size, opened, limits, subject)
    return _feed_loop(choice, batch_size, opened, limits, subject)


def open_step(choice: DeviceChoice) -> Step:
    """The training step on a real device. It imports the framework, torch_xla before a loader imports TensorFlow.

    Raises:
        OptionError: there is no such device.
    """
    try:
        if choice.kind == "xla":
            from tpufeed.diagnosis.feeds.xlastep import make_step

            return make_step()
        from tpufeed.diagnosis.feeds.jaxstep import find_devices
        from tpufeed.diagnosis.feeds.jaxstep import make_step as make_jax_step

        find_devices(choice.platform)
        return make_jax_step()
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1][:_REASON_CHARACTERS]
        raise OptionError(
            f"no {choice.platform.upper()} here that {choice.name} could use ({reason}). Without one: --device "
            f"emulated:tpu-v3-8 for a TPU's rate, or {choice.kind}-cpu for a real step on the CPU"
        ) from error


def _feed_emulated(choice: DeviceChoice, batch_size: int, opened: Opened, limits: Limits, subject: Subject) -> Run:
    assert choice.profile is not None
    device = EmulatedAccelerator(choice.profile, batch_size)
    report = device.run(opened.loader, limits.steps, limits.seconds, opened.expected, limits.patience_seconds)
    problems = (*small_dataset(opened.expected), *report.problems)
    return _run(
        (choice, batch_size, subject),
        report,
        report.findings,
        images=report.images,
        au_percent=report.au_percent,
        mfu_percent=mfu_percent(report.images_per_second, choice.profile.flops_per_sample, choice.profile.tpu),
        oversleep_percent=report.oversleep_percent,
        first_batch_seconds=report.first_batch_seconds,
        problems=problems,
        verdict="" if problems else report.verdict,
        timeline=Timeline(
            wait_seconds=report.waits,
            compute_seconds=(device.step_seconds,) * report.steps,
            ready=report.ready,
        ),
    )


def _feed_loop(choice: DeviceChoice, batch_size: int, opened: Opened, limits: Limits, subject: Subject) -> Run:
    loop = _Loop(opened, StepClock())
    drains = choice.kind == "none"
    loop.run(None if drains else open_step(choice), limits)
    report = loop.clock.report(batch_size)
    findings = loop.ledger.findings(opened.expected, loop.epochs.ended)
    few = few_steps(max(0, report.steps - 1))
    problems = (*small_dataset(opened.expected), *few, *loop.epochs.problems(), *findings.problems())
    if drains:  # it does nothing but wait: neither a step nor idle time is anything of a device's
        report = replace(report, step_ms=None, idle_percent=None, compile_seconds=None, bytes_per_second=None)
    return _run(
        (choice, batch_size, subject),
        report,
        findings,
        images=report.steps * batch_size,
        mxu_percent=loop.counters.mxu_percent,
        duty_cycle_percent=loop.counters.duty_cycle_percent,
        first_batch_seconds=report.first_wait_seconds,
        compile_seconds=report.compile_seconds,
        recompilations=None if drains else report.recompilations,
        bytes_per_second=report.bytes_per_second,
        problems=problems,
        verdict="" if problems or drains else report.verdict,
        timeline=_timeline(loop.clock, drains),
    )


def _run(
    fed: tuple[DeviceChoice, int, Subject], report: AcceleratorReport | StepReport, findings: Findings, **figures: Any
) -> Run:
    """What both reports have, and the `figures` that only one of them has."""
    choice, batch_size, subject = fed
    return Run(
        **asdict(subject),
        device=choice.label,
        batch_size=batch_size,
        steps=report.steps,
        images_per_second=report.images_per_second,
        step_ms=report.step_ms,
        wait_ms_p50=report.wait_ms_p50,
        wait_ms_p95=report.wait_ms_p95,
        wait_ms_p99=report.wait_ms_p99,
        idle_percent=report.idle_percent,
        wall_seconds=report.wall_seconds,
        repeated=findings.repeated,
        missing=findings.missing,
        **figures,
    )


@dataclass
class _Loop:
    """A training loop over a loader, with a clock around it."""

    opened: Opened
    clock: StepClock
    ledger: Ledger = field(default_factory=Ledger)
    counters: TpuCounters = field(default_factory=TpuCounters)

    def __post_init__(self) -> None:
        self.epochs = RepeatedEpochs(self.clock(self.opened.loader), True)

    def run(self, step: Step | None, limits: Limits) -> None:
        """Without a `step` batches are looked at and dropped. On a device they cannot be looked at."""
        first = 0.0
        with closing(self.epochs.batches()) as batches:
            for given, batch in enumerate(batches, 1):
                if step is None:
                    self.ledger.enter(self.epochs.number, batch)
                else:
                    step(batch)
                del batch
                now = time.perf_counter()
                first = now if given == 1 else first  # after what the first step compiled
                if limits.reached(given, now - first):
                    break
            if step is not None:
                self.counters = read_counters()  # they are of the last second


def _timeline(clock: StepClock, drains: bool) -> Timeline:
    times = clock.timeline()
    return Timeline(
        wait_seconds=times.wait_seconds,
        sync_seconds=times.sync_seconds,
        compute_seconds=() if drains else times.compute_seconds,
    )
