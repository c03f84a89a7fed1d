"""Feed a device once from a loader: an emulated device, a real one, or none, which only drains the loader."""

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from tpufeed.errors import OptionError
from tpufeed.measure.accelerator import EmulatedAccelerator, Limits, problems_of, repeat_epochs
from tpufeed.measure.clock import StepClock
from tpufeed.measure.results import BenchRun
from tpufeed.measure.tpu import AcceleratorProfile, TpuCounters, read_counters
from tpufeed.text import format_count

_FEWEST_BATCHES = 3
_REASON_CHARACTERS = 150


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The device to feed: an emulated one has a profile, a real one has the platform "cpu" or "tpu"."""

    name: str
    kind: Literal["emulated", "xla", "jax", "none"]
    profile: AcceleratorProfile | None = None
    platform: str = ""

    @property
    def label(self) -> str:
        """The name in tables, which says EMULATED if it is."""
        return self.name if self.profile is None else f"EMULATED {self.profile.name}"


def feed(
    choice: DeviceChoice, loader: Iterable[Any], batch_size: int, limits: Limits, batches: int | None = None
) -> BenchRun:
    """Feed the device from a loader with batches of `batch_size` until a limit is reached.

    `batches` is the length of an epoch, if known.

    Raises:
        OptionError: this host does not have the device.
        Exception: an error of the loader.
    """
    if choice.profile is None:
        run = _feed_loop(choice, loader, batch_size, limits)
    else:
        run = EmulatedAccelerator(choice.profile, batch_size).run(loader, *limits)
    if batches is not None and batches < _FEWEST_BATCHES:
        small = (
            f"an epoch has {format_count(batches, 'batch', 'batches')} of {batch_size}, which only measures how epochs "
            "start: give a larger dataset or a smaller --batch"
        )
        run = replace(run, problems=(small, *run.problems))
    return run


def _feed_loop(choice: DeviceChoice, loader: Iterable[Any], batch_size: int, limits: Limits) -> BenchRun:
    """Feed a real device, or only drain the loader, which gives no step times."""
    clock, counters = StepClock(), TpuCounters()
    step = None if choice.kind == "none" else open_step(choice)
    short, given, first = list[str](), 0, 0.0
    with closing(repeat_epochs(clock(loader), True, short)) as batches:
        for _, batch in batches:
            given += 1  # `enumerate` would hold the batch, one more of the loader's buffers
            if step is not None:
                step(batch)
            del batch
            now = time.perf_counter()
            first = now if given == 1 else first  # after the first step has compiled
            if limits.reached(given, now - first):
                break
        if step is not None:
            counters = read_counters()  # they cover the last second
    report, times = clock.report(), clock.timeline()
    if report.images is None:  # the batches are not arrays
        report = clock.report(batch_size)
    unknown = {"images"}
    if step is None:
        unknown |= {"step_ms", "idle_percent", "bytes_per_second", "compile_seconds", "recompilations"}
        times = replace(times, compute_seconds=())
    names = {field.name for field in fields(BenchRun)} & {field.name for field in fields(report)} - unknown
    return BenchRun(
        label=choice.label,
        device=choice.label,
        batch_size=batch_size,
        images=report.images or 0,
        first_batch_seconds=report.first_wait_seconds,
        problems=tuple(problems_of(max(0, report.steps - 1), short)),
        timeline=times,
        verdict="" if step is None else report.verdict,
        **{name: getattr(report, name) for name in names},
        **counters._asdict(),
    )


def open_step(choice: DeviceChoice) -> Callable[[Any], None]:
    """Return a training step for a real device.

    The step returns when the device is done, so that later waits are the loader's. It is small, because the feeding is
    measured. The framework is imported here: torch_xla has to be imported before a loader imports TensorFlow.

    Raises:
        OptionError: this host does not have the device.
    """
    try:
        return _make_xla_step() if choice.kind == "xla" else _make_jax_step(choice.platform)
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1][:_REASON_CHARACTERS]
        raise OptionError(
            f"this host has no {choice.platform.upper()} for {choice.name} ({reason}). Instead, give --device "
            f"emulated:tpu-v3-8 for the rate of a TPU, or {choice.kind}-cpu for a real step on the CPU"
        ) from error


def _make_xla_step() -> Callable[[Any], None]:
    import torch
    import torch_xla
    from torch import nn
    from torch_xla.core import xla_model

    device = torch_xla.device()
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1000)),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def on_device(array: Any) -> Any:
        return (array if isinstance(array, torch.Tensor) else torch.from_numpy(np.asarray(array))).to(device)

    def step(batch: Any) -> None:
        image, label = map(on_device, _labelled(batch))
        image = image.permute(0, 3, 1, 2).float() / 255
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), label.long().clip(0, 999)).backward()
        optimizer.step()
        torch_xla.sync()  # with wait=True it returns too early, unless the step changes tensors in place
        xla_model.wait_device_ops()

    return step


def _make_jax_step(platform: str) -> Callable[[Any], None]:
    """Return a step of the same network in JAX. Raises RuntimeError if JAX has no device of that platform."""
    import jax
    import jax.numpy as jnp

    from tpufeed.adapters.pixels import to_device_float

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
        return -jnp.take_along_axis(scores, label.clip(0, 999)[:, None], 1).mean()

    @jax.jit
    def update(params: Any, image: Any, label: Any) -> Any:
        gradients = jax.grad(loss_of)(params, image, label)
        return [param - 0.01 * gradient for param, gradient in zip(params, gradients, strict=True)]

    def step(batch: Any) -> None:
        nonlocal params
        params = update(params, *map(jnp.asarray, _labelled(batch)))
        jax.block_until_ready(params)  # type: ignore[no-untyped-call]  # JAX leaves it untyped

    return step


def _labelled(batch: Any) -> tuple[Any, Any]:
    """Return the images of a batch, and a class for each: those of the labels, or 0."""
    images, *others = batch if isinstance(batch, tuple) else (batch,)
    has_class = bool(others) and np.shape(others[0]) == (len(images),)
    return images, others[0] if has_class else np.zeros(len(images), np.int64)
