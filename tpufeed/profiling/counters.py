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
        hbm_used_bytes: of all chips together.
        hbm_total_bytes: likewise.
    """

    mxu_percent: float | None = None
    duty_cycle_percent: float | None = None
    hbm_used_bytes: float | None = None
    hbm_total_bytes: float | None = None

    @property
    def hbm_percent(self) -> float | None:
        """Share of the TPU's memory that is in use."""
        if self.hbm_used_bytes is None or not self.hbm_total_bytes:
            return None
        return 100 * self.hbm_used_bytes / self.hbm_total_bytes


def read_counters() -> TpuCounters:
    """Read all counters. They cover the last second or so: read them while the training loop runs.

    They can be had on a TPU with a libtpu that has its monitoring SDK, in the process that holds the TPU.
    """
    monitoring = _monitoring()
    return TpuCounters(
        mxu_percent=_mean(_values(monitoring, "tensorcore_util")),
        duty_cycle_percent=_mean(_values(monitoring, "duty_cycle_pct")),
        hbm_used_bytes=_sum(_values(monitoring, "hbm_capacity_usage")),
        hbm_total_bytes=_sum(_values(monitoring, "hbm_capacity_total")),
    )


def _monitoring() -> Any:
    """Libtpu's module; None where there is none."""
    try:
        from libtpu import sdk
    except Exception:  # noqa: BLE001  # see `_values`
        return None
    return getattr(sdk, "tpumonitoring", None) or getattr(sdk, "monitoring", None)  # its older name


def _values(monitoring: Any, name: str) -> list[float]:
    """One for each core or chip; without those that say nothing."""
    if monitoring is None:
        return []
    try:
        values = [float(str(value).rstrip(" %")) for value in monitoring.get_metric(name).data()]
    except Exception:  # noqa: BLE001  # releases of libtpu fail in their own ways, and no counter is worth a training run
        return []
    return [value for value in values if math.isfinite(value)]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None
