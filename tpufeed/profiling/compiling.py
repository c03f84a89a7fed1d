"""Tell compiling, tracing and syncing from waiting for a batch: what torch_xla and JAX count, and the figures of it.

Neither framework is imported here: one that the process has not imported has nothing to tell.
"""

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

# After the first step: optimizers make their state in it, so that the next ones are other graphs.
USUAL_COMPILATIONS = 2

_ITEM = "aten::_local_scalar_dense"

# Of jax.monitoring. Tracing is left out: a function that calls others would be counted with each of them again.
_JAX_COMPILE = "/jax/core/compile/backend_compile_duration"
_JAX_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaCounts:
    """Counts of this process since it began, or the difference of two; all devices and threads together.

    Attributes:
        compilations: of graphs that were in no cache.
        compile_seconds: of those.
        executions: of graphs.
        device_wait_seconds: of the host, until the device had begun with all that was sent before. It is the device
            that is busy then, not the host that is slow.
        host_syncs: times that the host waited for a value: `.item()`, `print(loss)`, `.cpu()`, ops that run on the
            host.
        item_calls: of `host_syncs` those by `.item()`, `float(...)` or `if tensor:`.
        fallbacks: ops that XLA cannot run, so that the host did, and how often.
        sent_bytes: sent to the device.
    """

    compilations: int = 0
    compile_seconds: float = 0.0
    executions: int = 0
    device_wait_seconds: float = 0.0
    host_syncs: int = 0
    item_calls: int = 0
    fallbacks: tuple[tuple[str, int], ...] = ()
    sent_bytes: int = 0

    def __add__(self, other: "XlaCounts") -> "XlaCounts":
        """Return the sum."""
        return self._combined(other, 1)

    def __sub__(self, before: "XlaCounts") -> "XlaCounts":
        """Return what was counted in between. Where somebody cleared torch_xla's counts meanwhile, nothing."""
        return self._combined(before, -1)

    def _combined(self, other: "XlaCounts", sign: int) -> "XlaCounts":
        ops, others = dict(self.fallbacks), dict(other.fallbacks)
        both = {name: ops.get(name, 0) + sign * others.get(name, 0) for name in sorted({*ops, *others})}
        sums = {
            field.name: max(0, getattr(self, field.name) + sign * getattr(other, field.name))
            for field in fields(self)
            if field.name != "fallbacks"
        }
        return XlaCounts(fallbacks=tuple((name, count) for name, count in both.items() if count > 0), **sums)

    def advice(self, steps: int) -> tuple[str, ...]:
        """Return what is wrong with `steps` steps after the first, in which this was counted, as sentences."""
        said = []
        if self.compilations > USUAL_COMPILATIONS:
            said.append(
                f"recompiled {self.compilations} times after step 1, {self.compile_seconds:.1f} s in all: shapes or "
                "Python numbers in the graph change; pad batches, or drop the remainder"
            )
        if steps and self.host_syncs >= steps:
            said.append(
                f"the host waited for a value of the device {self.host_syncs} times in {steps} steps "
                f"({self.item_calls} by .item() or float()); print the loss every so many steps only"
            )
        if self.fallbacks:
            ops = ", ".join(f"{name} {count} times" for name, count in self.fallbacks)
            said.append(f"ops that XLA cannot run went to the host and back: {ops}")
        return tuple(said)


def xla_counts() -> XlaCounts | None:
    """Return the counts of now; None in a process that has not imported torch_xla, which this does not."""
    if "torch_xla" not in sys.modules:
        return None
    from torch_xla.debug import metrics

    def of(name: str) -> tuple[int, float]:
        data: Any = metrics.metric_data(name)
        return (0, 0.0) if data is None else (int(data[0]), float(data[1]))

    names: Any = metrics.counter_names()
    ops = {name: int(metrics.counter_value(name)) for name in names if name.startswith("aten::")}
    compilations, compiling = of("CompileTime")
    return XlaCounts(
        compilations=compilations,
        compile_seconds=compiling / 1e9,
        executions=of("ExecuteTime")[0] + of("ExecuteReplicatedTime")[0],
        device_wait_seconds=of("DeviceLockWait")[1] / 1e9,
        host_syncs=of("TransferFromDeviceTime")[0],
        item_calls=ops.pop(_ITEM, 0),
        fallbacks=tuple(sorted(ops.items())),
        sent_bytes=int(of("OutboundData")[1]),
    )


@dataclass(frozen=True, slots=True)
class Compiling:
    """Between two times, in this process.

    Attributes:
        compilations: of all frameworks that tell.
        compile_seconds: of those.
        xla: all that torch_xla counted; None where it is not loaded.
    """

    compilations: int = 0
    compile_seconds: float = 0.0
    xla: XlaCounts | None = None

    def __add__(self, other: "Compiling") -> "Compiling":
        """Return the sum."""
        known = [part.xla for part in (self, other) if part.xla is not None]
        xla = known[0] if len(known) == 1 else known[0] + known[1] if known else None
        return Compiling(self.compilations + other.compilations, self.compile_seconds + other.compile_seconds, xla)

    def advice(self, steps: int) -> tuple[str, ...]:
        """Return what is wrong with `steps` steps after the first, in which this was counted, as sentences."""
        torch = XlaCounts() if self.xla is None else self.xla
        compilations, seconds = self.compilations - torch.compilations, self.compile_seconds - torch.compile_seconds
        if compilations <= USUAL_COMPILATIONS:
            return torch.advice(steps)
        said = (
            f"recompiled {compilations} times after step 1, {seconds:.1f} s in all: shapes, dtypes, shardings or "
            "static arguments change; pad batches, or drop the remainder"
        )
        return (said, *torch.advice(steps))


class CompileWatch:
    """Tells the first step's compiling from that of the later ones, and leaves out what is between two epochs."""

    def __init__(self) -> None:
        self._jax: _JaxTally | None = None
        self._xla = XlaCounts()
        self._running = False
        self._first: Compiling | None = None
        self._later: Compiling | None = None

    def begin(self) -> None:
        """Begin an epoch."""
        self._running = True
        self._take()

    def settle(self) -> None:
        """End the first step: what follows belongs to the later ones."""
        self._first = self._take()

    def end(self) -> None:
        """End the epoch."""
        self._later_now()
        self._running = False

    def told(self) -> tuple[Compiling | None, Compiling | None]:
        """Return what the first step compiled, and what those after it did.

        None where no framework that tells has compiled or run anything: another one may be in use.
        """
        parts = self._first, self._later_now()
        known = [part for part in parts if part is not None]
        if not any(part.compilations or (part.xla is not None and part.xla.executions) for part in known):
            return None, None
        return parts

    def _later_now(self) -> Compiling | None:
        more = self._take() if self._running else None
        if more is not None:
            self._later = more + (self._later or Compiling())
        return self._later

    def _take(self) -> Compiling | None:
        """Return what was counted since the last time.

        A framework that was imported meanwhile has compiled in this time only, if at all.
        """
        if self._jax is None:
            self._jax = _listen_to_jax()
        jax, xla = self._jax, xla_counts()
        if jax is None and xla is None:
            return None
        compilations, seconds = (0, 0.0) if jax is None else jax.take()
        if xla is None:
            return Compiling(compilations, seconds)
        counted, self._xla = xla - self._xla, xla
        return Compiling(compilations + counted.compilations, seconds + counted.compile_seconds, counted)


class _JaxTally:
    """What JAX compiled since the last time, in this process."""

    def __init__(self) -> None:
        self.compilations = 0
        self.seconds = 0.0

    def add(self, event: str, seconds: float) -> None:
        """Take one event of jax.monitoring."""
        if event in (_JAX_COMPILE, _JAX_LOWER):
            self.compilations += event == _JAX_COMPILE
            self.seconds += seconds

    def take(self) -> tuple[int, float]:
        """Return compilations and seconds since the last time."""
        taken = self.compilations, self.seconds
        self.compilations, self.seconds = 0, 0.0
        return taken


def _listen_to_jax() -> _JaxTally | None:
    """Register a listener; None where JAX is not loaded.

    Releases before 0.5 have no way to end it: what stays of it then does nothing.
    """
    monitoring: Any = getattr(sys.modules.get("jax"), "monitoring", None)
    register = getattr(monitoring, "register_event_duration_secs_listener", None)
    if register is None:
        return None
    tally = _JaxTally()
    weak = weakref.ref(tally)

    def listener(event: str, seconds: float, **_: Any) -> None:
        alive = weak()
        if alive is not None:
            alive.add(event, seconds)

    register(listener)
    unregister = getattr(monitoring, "unregister_event_duration_listener", None)
    if unregister is not None:
        weakref.finalize(tally, _forget, unregister, listener).atexit = False
    return tally


def _forget(unregister: Any, listener: Any) -> None:
    with suppress(AssertionError, ValueError):  # somebody has cleared all listeners
        unregister(listener)


@dataclass(frozen=True, slots=True)
class Steady:
    """Seconds of all steps but the first, and of the ends of epochs."""

    waits: Any
    syncs: Any
    computes: Any
    end_wait: float
    end_sync: float

    @property
    def wall(self) -> float:
        return self.wait + self.sync + float(self.computes.sum())

    @property
    def wait(self) -> float:
        return float(self.waits.sum()) + self.end_wait

    @property
    def sync(self) -> float:
        return float(self.syncs.sum()) + self.end_sync

    def figures(self, compiled: Compiling | None, splits: bool) -> dict[str, Any]:
        """Return the fields of a report."""
        wall, tracing = self.wall, None
        if compiled is not None or splits:
            compiling = compiled or Compiling()
            of_device = 0.0 if compiling.xla is None else compiling.xla.device_wait_seconds
            # Compiling can be of several threads, and syncs in the loop's body wait for the device as well.
            tracing = min(wall, max(self.sync - of_device, compiling.compile_seconds, 0.0))
        p50, p95, p99 = (float(value) for value in np.percentile(self.waits, (50, 95, 99)) * 1e3)
        return {
            "step_ms": float(np.median(self.waits + self.syncs + self.computes)) * 1e3,
            "wait_ms_p50": p50,
            "wait_ms_p95": p95,
            "wait_ms_p99": p99,
            "idle_percent": 100 * self.wait / wall,
            "sync_ms_p50": float(np.median(self.syncs)) * 1e3 if splits else None,
            "sync_percent": 100 * self.sync / wall if splits else None,
            "tracing_percent": None if tracing is None else 100 * tracing / wall,
            "wall_seconds": wall,
        }


class Splitter(Protocol):
    """Knows what a loader's consumer waited for a batch, and leaves out what `next()` does besides."""

    def wait_of(self, elapsed: float) -> float:
        """Return the wait within the `elapsed` seconds from the end of a step to its next batch; called once a step."""

    def close(self) -> None:
        """End the iteration."""


def split_waits(loader: Any, iterator: Any, opening: float, now: Callable[[], float]) -> Splitter | None:
    """Return what splits the waits of a loader of torch_xla's; None for all others, and where torch_xla is not loaded.

    Before it looks into its queue, `PerDeviceLoader.next` calls `torch_xla.sync()`, which traces and compiles the step
    before. To sync first and to time that apart would make the loader's own sync a second one, which costs 0.18 ms
    where 600 tensors are alive (a training ResNet-50 has as many), and would have to know `batches_per_execution` and
    `StepTrace`. So the look into the queue is timed, inside.

    Args:
        loader: that the loop was given.
        iterator: of it.
        opening: seconds that `iter(loader)` took; a part of the wait for the first batch.
        now: the clock.
    """
    module: Any = sys.modules.get("torch_xla.distributed.parallel_loader")
    if module is None:
        return None
    if isinstance(iterator, module.PerDeviceLoader):
        return _QueueSplitter(iterator._loader, opening, now)  # torch_xla ends with 2.9, so this name will not change
    crossing = getattr(loader, "crossing", None)
    if isinstance(loader, module.MpDeviceLoader) and hasattr(crossing, "wait_seconds"):
        return _CountSplitter(crossing)
    return None


class _QueueSplitter:
    """Time `next_item` of a ParallelLoader."""

    def __init__(self, parallel_loader: Any, opening: float, now: Callable[[], float]) -> None:
        self._wait = opening
        self._parallel_loader = parallel_loader
        look = parallel_loader.next_item

        def next_item(device: Any) -> Any:
            begin = now()
            item = look(device)
            self._wait += now() - begin
            return item

        parallel_loader.next_item = next_item

    def wait_of(self, elapsed: float) -> float:
        wait, self._wait = self._wait, 0.0
        return min(wait, elapsed)

    def close(self) -> None:
        self._parallel_loader.__dict__.pop("next_item", None)


class _CountSplitter:
    """Take what an `XlaLoader` counts. Its first `next()` also opens the source: all of it is wait."""

    def __init__(self, crossing: Any) -> None:
        self._crossing = crossing
        self._first = True
        self._before = 0.0

    def wait_of(self, elapsed: float) -> float:
        before, self._before = self._before, self._crossing.wait_seconds
        if self._first:
            self._first = False
            return elapsed
        return min(self._before - before, elapsed)

    def close(self) -> None:
        pass
