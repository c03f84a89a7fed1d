"""What all benchmarks share: what machine this is, repeats, the result file and the table."""

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"

_PACKAGES = (
    "tpufeed",
    "numpy",
    "pillow",
    "simplejpeg",
    "opencv-python-headless",
    "tensorflow-cpu",
    "tensorflow",
    "torch",
    "torch_xla",
    "jax",
)
_TABLE_COLUMNS = 130  # of a pipe, where rich would wrap at 80


def machine() -> dict[str, Any]:
    """What the figures were measured on. `load` is the load average: on a shared machine not every core is free."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ram_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": _versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def describe(machine: Mapping[str, Any]) -> str:
    """The machine in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['ram_gib']} GiB, load {machine['load']}, "
        f"Python {machine['python']}, {versions}, {machine['date']}"
    )


def write_result(name: str, result: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Put `result`, with the machine, at NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    return path


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> None:
    """A table; its first columns are text, the others are figures."""
    table = Table(title=title, box=SIMPLE, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < text_columns else "right", no_wrap=number >= text_columns)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _TABLE_COLUMNS
    console.print(table)


def figure(value: float | None, digits: int = 1) -> str:
    """A figure for a table; what is not known is n/a, never 0."""
    return "n/a" if value is None else f"{value:,.{digits}f}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
