"""Count what torch_xla and JAX compile, and tell waiting from syncing in the `next()` of torch_xla's loaders.

Neither framework is imported here: one that the process has not imported has nothing to count.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpufeed.adapters.device import DeviceFeed

# Two graphs after the first step are usual: optimizers create their state in it, so that the next steps differ.
_USUAL_COMPILATIONS = 2

# Events of jax.monitoring. Tracing is not counted: the time of nested functions would count twice.
_JAX_COMPILE = "/jax/core/compile/backend_compile_duration"
_JAX_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"


def xla_counts() -> Counter[str] | None:
    """Return torch_xla's counts since the process began, for all devices and threads together.

    Subtract two results to count what happened in between. None if the process has not imported torch_xla.

    Keys:
        compilations, compile_ns: number of graphs that were in no cache, and the time to compile them.
        executions: number of graphs that ran.
        device_wait_ns: time that the host waited for the device to begin all earlier work. The device is busy then; the
            host is not slow.
        host_syncs: number of times the host waited for a value: `.item()`, `print(loss)`, `.cpu()`, ops on the host.
        item_calls: the part of `host_syncs` that `.item()`, `float(...)` and `if tensor:` caused.
        aten::NAME: number of times the host ran an op that XLA cannot run.
    """
    if "torch_xla" not in sys.modules:
        return None
    from torch_xla.debug import metrics

    def metric(name: str) -> tuple[int, int]:
        data: Any = metrics.metric_data(name)
        return (0, 0) if data is None else (int(data[0]), int(data[1]))

    names: Any = metrics.counter_names()
    counts = Counter({name: int(metrics.counter_value(name)) for name in names if name.startswith("aten::")})
    counts["item_calls"] = counts.pop("aten::_local_scalar_dense", 0)
    counts["compilations"], counts["compile_ns"] = metric("CompileTime")
    counts["executions"] = metric("ExecuteTime")[0] + metric("ExecuteReplicatedTime")[0]
    counts["device_wait_ns"] = metric("DeviceLockWait")[1]
    counts["host_syncs"] = metric("TransferFromDeviceTime")[0]
    return counts


def wait_for_xla() -> None:
    """Wait until torch_xla's devices have done all that was launched, if its runtime has started."""
    library = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    if library is not None and library._xla_runtime_is_initialized():
        from torch_xla.core import xla_model

        xla_model.wait_device_ops()


def compile_advice(counts: Counter[str], steps: int) -> tuple[str, ...]:
    """Return advice, as sentences, on the `counts` of the `steps` steps after the first."""
    advice = []
    if counts["compilations"] > _USUAL_COMPILATIONS:
        advice.append(
            f"recompiled {counts['compilations']} times after step 1, {counts['compile_ns'] / 1e9:.1f} s in all: "
            "shapes, dtypes, shardings, static arguments or Python numbers in the graph change. Pad batches, or drop "
            "the remainder"
        )
    if steps and counts["host_syncs"] >= steps:
        advice.append(
            f"the host waited for a value from the device {counts['host_syncs']} times in {steps} steps "
            f"({counts['item_calls']} by .item() or float()); print the loss less often"
        )
    ops = ", ".join(f"{name} {count} times" for name, count in sorted(counts.items()) if name.startswith("aten::"))
    if ops:
        advice.append(f"the host ran ops that XLA cannot run: {ops}")
    return tuple(advice)


class CompileWatch:
    """Count what the first step and the later steps compile, but not what is compiled between two epochs."""

    def __init__(self) -> None:
        self._counts = Counter[str](), Counter[str]()  # the first step, the later steps
        self._settled = False
        self._epochs = 0  # under way: loops of one clock may be nested
        self._before: Counter[str] | None = None  # None between epochs
        self._jax: Counter[str] | None = None

    def begin(self) -> None:
        """Begin an epoch."""
        self._epochs += 1
        if self._before is None:
            self._before = self._read()

    def settle(self) -> None:
        """End the first step: all that follows belongs to the later steps. Later calls do nothing."""
        if not self._settled:
            self._collect()
            self._settled = True

    def end(self) -> None:
        """End an epoch."""
        self._epochs -= 1
        if not self._epochs:
            self._collect()
            self._before = None

    def result(self) -> tuple[Counter[str], Counter[str]] | None:
        """Return the counts of the first step and of the later steps.

        None if neither framework has compiled or run anything: another framework may train here.
        """
        self._collect()
        found = any(counts["compilations"] or counts["executions"] for counts in self._counts)
        return self._counts if found else None

    def _collect(self) -> None:
        """Add what was counted since the last call, or nothing if torch_xla's counts were cleared in between."""
        if self._before is not None:
            total = self._read()
            # Subtracting Counters drops differences that are not above zero, like those of cleared counts.
            self._counts[self._settled].update(total - self._before)
            self._before = total

    def _read(self) -> Counter[str]:
        # JAX only counts from the moment at which a listener is registered.
        self._jax = _listen_to_jax() if self._jax is None else self._jax
        return (xla_counts() or Counter()) + (self._jax or Counter())


def _listen_to_jax() -> Counter[str] | None:
    """Register a listener with JAX and return its growing counts, or None if JAX is not loaded."""
    monitoring = getattr(sys.modules.get("jax"), "monitoring", None)
    register: Any = getattr(monitoring, "register_event_duration_secs_listener", None)
    if register is None:
        return None
    counts = Counter[str]()
    # JAX keeps listeners forever, and older releases cannot remove one: the listener must not keep the counts alive.
    weak = weakref.ref(counts)

    def listen(event: str, seconds: float, **_: Any) -> None:
        alive = weak()
        if alive is not None and event in (_JAX_COMPILE, _JAX_LOWER):
            alive["compilations"] += event == _JAX_COMPILE
            alive["compile_ns"] += round(seconds * 1e9)

    register(listen)
    return counts


@dataclass
class WaitSplitter:
    """Tell the wait for a batch from the other work in the `next()` of one of torch_xla's loaders.

    Attributes:
        waited: returns the seconds that the loader's consumer has waited so far.
        before: the seconds that it had waited before this `next()`.
        close: ends the iteration.
    """

    waited: Callable[[], float]
    before: float
    close: Callable[[], object]

    def wait_of(self, elapsed: float) -> float:
        """Return the wait within the `elapsed` seconds of a `next()`. Call it once per step."""
        before, self.before = self.before, self.waited()
        return min(self.before - before, elapsed)


def split_waits(loader: Any, iterator: Any, opening: float, now: Callable[[], float]) -> WaitSplitter | None:
    """Return a splitter for the waits of one of torch_xla's loaders, or None for other loaders and without torch_xla.

    `PerDeviceLoader.next` calls `torch_xla.sync()`, which traces and compiles the previous step, and then looks into
    its queue for a batch. Only the look is timed. Syncing before that, outside the loader, would sync twice: that costs
    0.18 ms with 600 live tensors (a ResNet-50 in training), and would have to know `batches_per_execution` and
    `StepTrace`.

    Args:
        loader: the loader that the loop was given.
        iterator: its iterator.
        opening: seconds that `iter(loader)` took. They belong to the wait for the first batch.
        now: the clock.
    """
    module: Any = sys.modules.get("torch_xla.distributed.parallel_loader")
    if module is None:
        return None
    if isinstance(iterator, module.PerDeviceLoader):
        queues = iterator._loader  # 2.9 is the last torch_xla, so this name will not change
        look, waited = queues.next_item, opening

        def next_item(device: Any) -> Any:
            nonlocal waited
            begin = now()
            item = look(device)
            waited += now() - begin
            return item

        queues.next_item = next_item
        return WaitSplitter(lambda: waited, 0.0, lambda: queues.__dict__.pop("next_item", None))
    if isinstance(loader, DeviceFeed) and isinstance(loader, module.MpDeviceLoader):
        # An `XlaFeed` counts its waits itself. Its first `next()` also opens the source: all of that is wait.
        counts = loader.counts
        return WaitSplitter(lambda: counts.wait_seconds, float("-inf"), lambda: None)
    return None
