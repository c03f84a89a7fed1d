"""Read a TPU's own counters through libtpu."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TpuCounters:
    """Readings of a TPU's counters. None is what they do not tell.

    Attributes:
        mxu_percent: how busy the matrix units are, a mean over the cores.
        duty_cycle_percent: how much of the time the TPU had a program to run, a mean over the chips. It can be 100 at
            13 % of the matrix units.
    """

    mxu_percent: float | None = None
    duty_cycle_percent: float | None = None


def read_counters() -> TpuCounters:
    """Read the counters. They cover the last second or so: read them while the training loop runs.

    They can be had on a TPU with a libtpu that has its monitoring SDK, in the process that holds the TPU.
    """
    try:
        from libtpu import sdk
    except Exception:  # noqa: BLE001  # see `_mean`
        return TpuCounters()
    monitoring = getattr(sdk, "tpumonitoring", None) or getattr(sdk, "monitoring", None)  # its older name
    return TpuCounters(_mean(monitoring, "tensorcore_util"), _mean(monitoring, "duty_cycle_pct"))


def _mean(monitoring: Any, name: str) -> float | None:
    """Return the mean over the cores or chips that say something; None where none does."""
    try:
        values = [float(str(value).rstrip(" %")) for value in monitoring.get_metric(name).data()]
    except Exception:  # noqa: BLE001  # releases of libtpu fail in their own ways, and no counter is worth a training run
        return None
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None
