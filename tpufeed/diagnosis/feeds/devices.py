"""Feed a device once: emulated, real, or none at all, which drains the loader."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tpufeed.diagnosis.feeds.loaders import Opened
from tpufeed.diagnosis.feeds.options import DeviceChoice
from tpufeed.diagnosis.results import Run, Timeline
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import OptionError
from tpufeed.profiling.accelerator import EmulatedAccelerator, Ledger, Limits, RepeatedEpochs, few_steps
from tpufeed.profiling.clock import StepClock
from tpufeed.profiling.tpu import TpuCounters, mfu_percent, read_counters

Step = Callable[[Any], None]

FEWEST_BATCHES = 3
_REASON_CHARACTERS = 150


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a measurement, in words for people."""

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
    figures = (_feed_loop if choice.profile is None else _feed_emulated)(choice, batch_size, opened, limits)
    expected = opened.expected
    if expected is not None and expected.batches < FEWEST_BATCHES:
        small = (
            f"an epoch has {number_of(expected.batches, 'batch', 'batches')} of {batch_size}: too few to measure "
            "anything but the start of epochs; take a larger dataset or a smaller --batch"
        )
        figures["problems"] = (small, *figures["problems"])
    if figures["problems"]:
        figures["verdict"] = ""
    return Run(**asdict(subject), device=choice.label, batch_size=batch_size, **figures)


def _feed_emulated(choice: DeviceChoice, batch_size: int, opened: Opened, limits: Limits) -> dict[str, Any]:
    """Return the figures of a run."""
    profile = choice.profile
    assert profile is not None
    device = EmulatedAccelerator(profile, batch_size)
    report = device.run(opened.loader, limits.steps, limits.seconds, opened.expected, limits.patience_seconds)
    return _figures_of_both(report) | {
        "images": report.images,
        "au_percent": report.au_percent,
        "mfu_percent": mfu_percent(report.images_per_second, profile.flops_per_sample, profile.tpu),
        "oversleep_percent": report.oversleep_percent,
        "first_batch_seconds": report.first_batch_seconds,
        "repeated": report.repeated,
        "missing": report.missing,
        "problems": report.problems,
        "verdict": report.verdict,
        "timeline": Timeline(
            wait_seconds=report.waits,
            compute_seconds=(device.step_seconds,) * report.steps,
            ready=report.ready,
        ),
    }


def _feed_loop(choice: DeviceChoice, batch_size: int, opened: Opened, limits: Limits) -> dict[str, Any]:
    """Return the figures of a run. Without a device batches are looked at; on one they cannot be."""
    clock, ledger, counters = StepClock(), Ledger(), TpuCounters()
    step = None if choice.kind == "none" else open_step(choice)
    epochs = RepeatedEpochs(clock(opened.loader), True)
    first = 0.0
    with closing(epochs.batches()) as batches:
        for given, batch in enumerate(batches, 1):
            if step is None:
                ledger.enter(epochs.number, batch)
            else:
                step(batch)
            del batch
            now = time.perf_counter()
            first = now if given == 1 else first  # after what the first step compiled
            if limits.reached(given, now - first):
                break
        if step is not None:
            counters = read_counters()  # they are of the last second
    report, times = clock.report(batch_size), clock.timeline()
    repeated, missing, dishonest = ledger.judge(opened.expected, epochs.ended)
    problems = (*few_steps(max(0, report.steps - 1)), *epochs.problems(), *dishonest)
    figures = {
        "images": report.steps * batch_size,
        "first_batch_seconds": report.first_wait_seconds,
        "repeated": repeated,
        "missing": missing,
        "problems": problems,
    }
    timeline = Timeline(wait_seconds=times.wait_seconds, sync_seconds=times.sync_seconds)
    if step is None:  # it does nothing but wait: neither a step nor idle time is anything of a device's
        return _figures_of_both(report) | figures | {"step_ms": None, "idle_percent": None, "timeline": timeline}
    return (
        _figures_of_both(report)
        | figures
        | {
            "mxu_percent": counters.mxu_percent,
            "duty_cycle_percent": counters.duty_cycle_percent,
            "compile_seconds": report.compile_seconds,
            "recompilations": report.recompilations,
            "bytes_per_second": report.bytes_per_second,
            "verdict": report.verdict,
            "timeline": replace(timeline, compute_seconds=times.compute_seconds),
        }
    )


def _figures_of_both(report: Any) -> dict[str, Any]:
    """Return what the reports of accelerator and clock both have."""
    names = ("steps", "images_per_second", "step_ms", "wait_ms_p50", "wait_ms_p95", "wait_ms_p99", "idle_percent")
    return {name: getattr(report, name) for name in (*names, "wall_seconds")}


def open_step(choice: DeviceChoice) -> Step:
    """Return the training step of a real device. It is done when it returns: waits that follow are the loader's.

    Its computing is small: what is measured is how it is fed. Imports the framework, torch_xla before a loader imports
    TensorFlow.

    Raises:
        OptionError: there is no such device.
    """
    try:
        return _make_xla_step() if choice.kind == "xla" else _make_jax_step(choice.platform)
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1][:_REASON_CHARACTERS]
        raise OptionError(
            f"no {choice.platform.upper()} here that {choice.name} could use ({reason}). Without one: --device "
            f"emulated:tpu-v3-8 for a TPU's rate, or {choice.kind}-cpu for a real step on the CPU"
        ) from error


def _make_xla_step() -> Step:
    import torch
    import torch_xla
    from torch import nn

    device = torch_xla.device()
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1000)),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def on_device(array: Any) -> Any:
        return (array if isinstance(array, torch.Tensor) else torch.from_numpy(np.asarray(array))).to(device)

    def step(batch: Any) -> None:
        image, label = (on_device(array) for array in batch[:2])
        image = image.permute(0, 3, 1, 2).float() / 255
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), label.long()).backward()
        optimizer.step()
        torch_xla.sync(wait=True)

    return step


def _make_jax_step(platform: str) -> Step:
    """Make a step of the same network for JAX. Raises RuntimeError where JAX has no device of that platform."""
    import jax
    import jax.numpy as jnp

    from tpufeed.loaders.devicefloat import to_device_float

    jax.devices(platform)
    shapes = (7, 7, 3, 16), (3, 3, 16, 32)
    params = [*(0.1 * jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(shapes))]
    params.append(jnp.zeros((32, 1000)))

    def loss_of(params: Any, image: Any, label: Any) -> Any:
        values = to_device_float(image, dtype=jnp.float32)
        names = ("NHWC", "HWIO", "NHWC")
        for kernel, stride in zip(params, (4, 2), strict=False):
            values = jax.lax.conv_general_dilated(values, kernel, (stride, stride), "VALID", dimension_numbers=names)
            values = jax.nn.relu(values)
        scores = jax.nn.log_softmax(values.mean((1, 2)) @ params[-1])
        return -jnp.take_along_axis(scores, label[:, None], 1).mean()

    @jax.jit
    def update(params: Any, image: Any, label: Any) -> Any:
        gradients = jax.grad(loss_of)(params, image, label)
        return [param - 0.01 * gradient for param, gradient in zip(params, gradients, strict=True)]

    def step(batch: Any) -> None:
        nonlocal params
        params = update(params, *map(jnp.asarray, batch[:2]))
        jax.block_until_ready(params)  # type: ignore[no-untyped-call]  # JAX leaves it untyped

    return step
