"""How fast batches get from this host to its TPU, where there is one."""

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpufeed.diagnosis.stages.rates import TRANSFER, Figure
from tpufeed.errors import TpufeedError

_DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
_CAPTURE = "run the doctor on the TPU VM, while nothing else holds the TPU"


def measure_transfer(shape: tuple[int, int, int], batch_size: int, seconds: float) -> Figure:
    """Images a second of uint8 batches to all devices of this host; one that cannot be measured says why."""
    if not any(list(Path("/").glob(pattern[1:])) for pattern in _DEVICES):
        return _unknown(f"there is no TPU on this host (no /dev/accel*, no /dev/vfio); {_CAPTURE}")
    try:
        batch = np.zeros((batch_size, *shape), np.uint8)
        if importlib.util.find_spec("torch_xla") is not None:
            return _figure(measure_torch_xla(batch, seconds), "torch_xla")
        if importlib.util.find_spec("jax") is not None:
            import jax

            return _figure(measure_jax(batch, jax.devices("tpu"), seconds), "JAX")
    except Exception as error:  # noqa: BLE001  # runtimes fail in their own ways, and the other stages are worth having
        reason = str(error) if isinstance(error, TpufeedError) else f"{type(error).__name__}: {error}"
        return _unknown(f"the TPU does not answer ({reason.partition(chr(10))[0]}); {_CAPTURE}")
    return _unknown("there is a TPU, but neither torch_xla nor jax can be imported to reach it")


def measure_jax(batch: "np.ndarray[Any, np.dtype[np.uint8]]", devices: Sequence[Any], seconds: float) -> float:
    """Images a second of `batch`, a part of it to each device, until all of it is there."""
    import jax

    parts = np.array_split(batch, len(devices))

    def put() -> None:
        placed = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
        for part in placed:
            part.block_until_ready()

    return len(batch) * repeat(put, seconds)


def measure_torch_xla(batch: "np.ndarray[Any, np.dtype[np.uint8]]", seconds: float) -> float:
    """As `measure_jax`, to the one device that a process of torch_xla has by default."""
    import torch
    import torch_xla

    device, host = torch_xla.device(), torch.from_numpy(batch)

    def put() -> None:
        host.to(device)
        torch_xla.sync(wait=True)

    return len(batch) * repeat(put, seconds)


def repeat(call: Callable[[], None], seconds: float, now: Callable[[], float] = time.perf_counter) -> float:
    """Calls a second, the first one left out."""
    call()
    start, calls = now(), 0
    while True:
        call()
        calls += 1
        elapsed = now() - start
        if elapsed >= seconds:
            return calls / elapsed


def _figure(rate: float, framework: str) -> Figure:
    return Figure(name=TRANSFER, images_per_second=rate, detail=f"uint8, through {framework}")


def _unknown(why: str) -> Figure:
    return Figure(name=TRANSFER, why_not=why)
