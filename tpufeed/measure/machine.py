"""Describe the machine, the packages and the place of a dataset for the figures measured with them."""

import datetime
import os
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from tpufeed.dataset.reader import Dataset
from tpufeed.processes.limits import available_cores, memory_limit
from tpufeed.processes.numa import describe_nodes, find_nodes
from tpufeed.storage.local import find_mount
from tpufeed.text import format_count

_PACKAGES = (
    *("tpufeed", "numpy", "pillow", "simplejpeg", "opencv-python-headless"),
    *("tensorflow-cpu", "tensorflow", "tensorflow-tpu", "torch", "torch_xla", "torch_tpu", "jax", "libtpu"),
)
_BUSY = 0.5


def machine() -> dict[str, Any]:
    """Return a description of this machine. `load` is its load average: a busy machine has few free cores."""
    versions = {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    lines = list[str]()
    with suppress(OSError):  # only Linux has it
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(models, platform.processor() or platform.machine()),
        "architecture": platform.machine(),
        "cores": available_cores(),
        "numa": describe_nodes(find_nodes()),
        "ram_gib": round(memory_bytes() / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def memory_bytes() -> int:
    """Return the memory of the host in bytes, or that of this process' container if it has less."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit()
    return installed if limit is None else min(installed, limit)


def describe(machine: Mapping[str, Any]) -> str:
    """Return the machine in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {format_count(machine['cores'], 'core')}, {machine['numa']}, {machine['ram_gib']} GiB, "
        f"load {machine['load']}, Python {machine['python']}, {versions}, {machine['date']}"
    )


def busy_notes(machine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence if the machine was busy with other work."""
    load, cores = machine["load"], machine["cores"]
    if load <= _BUSY * cores:
        return ()
    return (
        f"the load was {load:.1f} on {format_count(cores, 'core')} before the measurements, so the figures are low and "
        "noisy; run it again on a quiet host",
    )


def place_of(dataset: Dataset) -> dict[str, Any]:
    """Return the place of a dataset: `url`, `bytes`, and `file_system` and `free_gb` (None if it is remote)."""
    size = sum(split.total_bytes for split in dataset.manifest.splits.values())
    found: dict[str, Any] = {"url": dataset.url, "bytes": size}
    path = dataset.shards.local_path("x")
    if path is None:
        return found | {"file_system": None, "free_gb": None}
    folder = path.parent.resolve()
    free = round(shutil.disk_usage(folder).free / 1e9, 1)
    return found | {"file_system": find_mount(folder)[1], "free_gb": free}


def describe_place(place: Mapping[str, Any]) -> str:
    """Return the place of a dataset in one line."""
    said = f"{place['url']}: {place['bytes'] / 1e6:,.0f} MB"
    if place["file_system"] is None:
        return f"{said}, remote"
    return f"{said} on {place['file_system']}, {place['free_gb']:,.0f} GB free"
