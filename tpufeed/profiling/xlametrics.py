"""What torch_xla counts: compilations, executions, waits for the host and the device, and what crosses between them."""

import sys
from dataclasses import dataclass, fields
from typing import Any

# After the first step: optimizers make their state in it, so that the next ones are other graphs.
USUAL_COMPILATIONS = 2

_ITEM = "aten::_local_scalar_dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaCounts:
    """Counts of this process since it began, or the difference of two; all devices and threads together.

    Attributes:
        compilations: of graphs that were in no cache.
        compile_seconds: of those.
        cached: graphs that had been compiled before.
        executions: of graphs.
        device_wait_seconds: of the host, until the device had begun with all that was sent before. It is the device
            that is busy then, not the host that is slow.
        host_syncs: times that the host waited for a value: `.item()`, `print(loss)`, `.cpu()`, ops that run on the
            host.
        host_sync_seconds: of those.
        item_calls: of `host_syncs` those by `.item()`, `float(...)` or `if tensor:`.
        fallbacks: ops that XLA cannot run, so that the host did, and how often.
        sent: transfers to the device.
        sent_seconds: of host time they took.
        sent_bytes: of them.
        received_bytes: from the device.
    """

    compilations: int = 0
    compile_seconds: float = 0.0
    cached: int = 0
    executions: int = 0
    device_wait_seconds: float = 0.0
    host_syncs: int = 0
    host_sync_seconds: float = 0.0
    item_calls: int = 0
    fallbacks: tuple[tuple[str, int], ...] = ()
    sent: int = 0
    sent_seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0

    def __add__(self, other: "XlaCounts") -> "XlaCounts":
        """Of both."""
        return self._combined(other, 1)

    def __sub__(self, before: "XlaCounts") -> "XlaCounts":
        """What was counted in between. Where somebody cleared torch_xla's counts meanwhile, nothing."""
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
        """What is wrong with `steps` steps after the first, in which this was counted, as sentences."""
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
    """The counts of now; None in a process that has not imported torch_xla, which this does not."""
    if "torch_xla" not in sys.modules:
        return None
    from torch_xla.debug import metrics

    def of(name: str) -> tuple[int, float]:
        data: Any = metrics.metric_data(name)
        return (0, 0.0) if data is None else (int(data[0]), float(data[1]))

    names: Any = metrics.counter_names()
    ops = {name: int(metrics.counter_value(name)) for name in names if name.startswith("aten::")}
    compilations, compiling = of("CompileTime")
    syncs, syncing = of("TransferFromDeviceTime")
    sent, sending = of("TransferToDeviceTime")
    return XlaCounts(
        compilations=compilations,
        compile_seconds=compiling / 1e9,
        cached=int(metrics.counter_value("CachedCompile") or 0),
        executions=of("ExecuteTime")[0] + of("ExecuteReplicatedTime")[0],
        device_wait_seconds=of("DeviceLockWait")[1] / 1e9,
        host_syncs=syncs,
        host_sync_seconds=syncing / 1e9,
        item_calls=ops.pop(_ITEM, 0),
        fallbacks=tuple(sorted(ops.items())),
        sent=sent,
        sent_seconds=sending / 1e9,
        sent_bytes=int(of("OutboundData")[1]),
        received_bytes=int(of("InboundData")[1]),
    )
