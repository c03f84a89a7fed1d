"""Tell compiling, tracing and syncing from waiting for a batch, by what torch_xla and JAX count.

Neither framework is imported here: one that the process has not imported has nothing to tell.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

# After the first step: optimizers make their state in it, so that the next ones are other graphs.
USUAL_COMPILATIONS = 2

_ITEM = "aten::_local_scalar_dense"

# Of jax.monitoring. Tracing is left out: a function that calls others would be counted with each of them again.
_JAX_COMPILE = "/jax/core/compile/backend_compile_duration"
_JAX_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCounts:
    """Counts of this process since it began, or the difference of two; all devices and threads together.

    JAX tells the first two only.

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
    fallbacks: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0

    def __add__(self, other: "CompileCounts") -> "CompileCounts":
        """Return the sum."""
        return CompileCounts(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    def __sub__(self, before: "CompileCounts") -> "CompileCounts":
        """Return what was counted in between. Where somebody cleared torch_xla's counts meanwhile, nothing."""
        found: dict[str, Any] = {}
        for each in fields(self):
            more = getattr(self, each.name) - getattr(before, each.name)
            found[each.name] = (
                more if isinstance(more, Counter) else max(0, more)
            )  # a Counter leaves out what is below 1
        return CompileCounts(**found)

    def advice(self, steps: int) -> tuple[str, ...]:
        """Return what is wrong with `steps` steps after the first, in which this was counted, as sentences."""
        said = []
        if self.compilations > USUAL_COMPILATIONS:
            said.append(
                f"recompiled {self.compilations} times after step 1, {self.compile_seconds:.1f} s in all: shapes, "
                "dtypes, shardings, static arguments or Python numbers in the graph change; pad batches, or drop the "
                "remainder"
            )
        if steps and self.host_syncs >= steps:
            said.append(
                f"the host waited for a value of the device {self.host_syncs} times in {steps} steps "
                f"({self.item_calls} by .item() or float()); print the loss every so many steps only"
            )
        if self.fallbacks:
            ops = ", ".join(f"{name} {count} times" for name, count in sorted(self.fallbacks.items()))
            said.append(f"ops that XLA cannot run went to the host and back: {ops}")
        return tuple(said)


def xla_counts() -> CompileCounts | None:
    """Return torch_xla's counts of now; None in a process that has not imported torch_xla, which this does not."""
    if "torch_xla" not in sys.modules:
        return None
    from torch_xla.debug import metrics

    def of(name: str) -> tuple[int, float]:
        data: Any = metrics.metric_data(name)
        return (0, 0.0) if data is None else (int(data[0]), float(data[1]))

    names: Any = metrics.counter_names()
    ops = Counter({name: int(metrics.counter_value(name)) for name in names if name.startswith("aten::")})
    compilations, compiling = of("CompileTime")
    return CompileCounts(
        compilations=compilations,
        compile_seconds=compiling / 1e9,
        executions=of("ExecuteTime")[0] + of("ExecuteReplicatedTime")[0],
        device_wait_seconds=of("DeviceLockWait")[1] / 1e9,
        host_syncs=of("TransferFromDeviceTime")[0],
        item_calls=ops.pop(_ITEM, 0),
        fallbacks=ops,
        sent_bytes=int(of("OutboundData")[1]),
    )


class CompileWatch:
    """Tell the first step's compiling from that of the later ones, and leave out what is between two epochs."""

    def __init__(self) -> None:
        self._jax: _JaxListener | None = None
        self._before = CompileCounts()
        self._running = False
        self._settled = False
        self._first, self._later = CompileCounts(), CompileCounts()

    def begin(self) -> None:
        """Begin an epoch."""
        self._running = True
        self._take()

    def settle(self) -> None:
        """End the first step: what follows belongs to the later ones."""
        self._add()
        self._settled = True

    def end(self) -> None:
        """End the epoch."""
        self._add()
        self._running = False

    def told(self) -> tuple[CompileCounts, CompileCounts] | None:
        """Return what the first step compiled, and what those after it did.

        None where no framework that tells has compiled or run anything: another one may be in use.
        """
        self._add()
        whole = self._first + self._later
        return (self._first, self._later) if whole.compilations or whole.executions else None

    def _add(self) -> None:
        if not self._running:
            return
        if self._settled:
            self._later += self._take()
        else:
            self._first += self._take()

    def _take(self) -> CompileCounts:
        """Return what was counted since the last time. JAX tells from the moment on at which it is first asked."""
        total = xla_counts() or CompileCounts()
        if self._jax is None:
            self._jax = _listen_to_jax()
        if self._jax is not None:
            total += self._jax.counts
        counted, self._before = total - self._before, total
        return counted


class _JaxListener:
    """Counts of what JAX has compiled since the listener was registered."""

    def __init__(self) -> None:
        self.counts = CompileCounts()

    def hear(self, event: str, seconds: float) -> None:
        if event in (_JAX_COMPILE, _JAX_LOWER):
            self.counts += CompileCounts(compilations=int(event == _JAX_COMPILE), compile_seconds=seconds)


def _listen_to_jax() -> _JaxListener | None:
    """Register a listener; None where JAX is not loaded."""
    monitoring: Any = getattr(sys.modules.get("jax"), "monitoring", None)
    register = getattr(monitoring, "register_event_duration_secs_listener", None)
    if register is None:
        return None
    listener = _JaxListener()
    # JAX keeps what is registered for good, and older releases cannot forget it: a clock that is gone stays gone.
    weak = weakref.WeakMethod(listener.hear)

    def hear(event: str, seconds: float, **_: Any) -> None:
        alive = weak()
        if alive is not None:
            alive(event, seconds)

    register(hear)
    return listener


class WaitSplitter:
    """Tell the wait for a batch from what else `next()` of a loader of torch_xla's does.

    Args:
        waited: seconds that the loader's consumer has waited so far.
        before: of them those that are none of this iteration's.
        close: ends the iteration.
    """

    def __init__(self, waited: Callable[[], float], before: float, close: Callable[[], object]) -> None:
        self._waited, self._before, self.close = waited, before, close

    def wait_of(self, elapsed: float) -> float:
        """Return the wait within the `elapsed` seconds from the end of a step to its next batch; called once a step."""
        before, self._before = self._before, self._waited()
        return min(self._before - before, elapsed)


def split_waits(loader: Any, iterator: Any, opening: float, now: Callable[[], float]) -> WaitSplitter | None:
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
        queues = iterator._loader  # torch_xla ends with 2.9, so this name will not change
        look, waited = queues.next_item, opening

        def next_item(device: Any) -> Any:
            nonlocal waited
            begin = now()
            item = look(device)
            waited += now() - begin
            return item

        queues.next_item = next_item
        return WaitSplitter(lambda: waited, 0.0, lambda: queues.__dict__.pop("next_item", None))
    crossing: Any = getattr(loader, "crossing", None)
    if isinstance(loader, module.MpDeviceLoader) and hasattr(crossing, "wait_seconds"):
        # An `XlaLoader` counts its waits itself. Its first `next()` also opens the source: all of that is wait.
        return WaitSplitter(lambda: crossing.wait_seconds, float("-inf"), lambda: None)
    return None
