"""What a TPU says of itself, through libtpu."""

import math


def mxu_percent() -> float | None:
    """How busy the matrix units are, in percent, as a mean over the TPU's cores; None where that cannot be known.

    It can be known on a TPU with a libtpu that has its monitoring SDK, in the process that holds the TPU. This is
    `tensorcore_util`, not the duty cycle: a TPU can be on duty 100 % of the time at 13 % of its matrix units.
    """
    try:
        from libtpu.sdk import tpumonitoring

        data = tpumonitoring.get_metric("tensorcore_util").data()
        values = [float(str(value).rstrip(" %")) for value in data]
    except Exception:  # noqa: BLE001  # releases of libtpu fail in their own ways, and no counter is worth a training run
        return None
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None
