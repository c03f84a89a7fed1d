"""What all benchmarks share: what machine this is, turns and spread, the result file and the table."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tpufeed.measure.machine import describe, machine
from tpufeed.measure.results import Spread, spread

__all__ = [
    "RESULTS",
    "Spread",
    "describe",
    "figure",
    "interleave",
    "machine",
    "medians_of",
    "print_table",
    "rows_of",
    "spread",
    "write_result",
]

RESULTS = Path(__file__).parent / "results"

_TABLE_COLUMNS = 130  # of a pipe, where rich would wrap at 80

Name = TypeVar("Name")
Outcome = TypeVar("Outcome")


def interleave(
    measurements: Mapping[Name, Callable[[], Outcome]], repeats: int, warm_up: int = 1
) -> dict[Name, list[Outcome]]:
    """Make each measurement in `repeats` rounds, after `warm_up` rounds whose outcomes are thrown away.

    They take turns, A B A B: a machine that grows slower for a while does so for all alike.
    """
    found: dict[Name, list[Outcome]] = {name: [] for name in measurements}
    for number in range(-warm_up, repeats):
        for name, measure in measurements.items():
            outcome = measure()
            if number >= 0:
                found[name].append(outcome)
    return found


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


def medians_of(found: Mapping[str, Sequence[float | None]]) -> dict[str, float | None]:
    """Of each way's figures, one a round; None where none could be measured."""
    spreads = {way: spread([value for value in values if value is not None]) for way, values in found.items()}
    return {way: None if each is None else each.median for way, each in spreads.items()}


def rows_of(found: Mapping[str, Sequence[float | None]], digits: int = 0) -> list[list[str]]:
    """A row a way: its name, median, lowest, highest, and its median to that of the first way that was measured."""
    medians = medians_of(found)
    first = next((median for median in medians.values() if median is not None), None)
    rows = []
    for way, values in found.items():
        known = [value for value in values if value is not None]
        median = medians[way]
        ratio = None if median is None or first is None else median / first
        edges = [figure(edge(known) if known else None, digits) for edge in (min, max)]
        rows.append([way, figure(median, digits), *edges, figure(ratio, 2)])
    return rows


def figure(value: float | None, digits: int = 1) -> str:
    """A figure for a table; what is not known is n/a, never 0."""
    return "n/a" if value is None else f"{value:,.{digits}f}"
