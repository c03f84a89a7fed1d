"""The figures of a training loop that runs: of all steps but the first."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tpufeed.profiling.compiling import Compiling


@dataclass(frozen=True, slots=True)
class Steady:
    """All steps but the first, and the ends of epochs."""

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
        """Fields of a report."""
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
