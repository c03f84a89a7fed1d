"""What all benchmarks share: what machine this is, turns and spread, the result file and the table."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.entry import RESULTS
from tpufeed.measure.machine import describe, machine
from tpufeed.measure.results import Spread, spread

__all__ = [
    "Spread",
    "describe",
    "figure",
    "flatten",
    "interleave",
    "machine",
    "medians_of",
    "nest",
    "print_table",
    "read_result",
    "rows_of",
    "spread",
    "write_result",
]

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


def write_result(
    name: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], folder: Path = RESULTS
) -> Path:
    """Write NAME.json: the machine, this process's command, settings and totals, and a row for each thing measured."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    result = {"machine": machine(), "command": command, "about": about, "rows": rows}
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def read_result(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Return the object of NAME.json."""
    return dict(json.loads((folder / f"{name}.json").read_text()))


def flatten(found: Mapping[Any, Any], *columns: str, value: str | None = None) -> list[dict[str, Any]]:
    """Return a row for each leaf of nested mappings.

    Args:
        found: mappings as deep as there are columns.
        columns: the name of each level's keys.
        value: the name of the leaves, if they are no mappings themselves.
    """
    first, *others = columns
    rows = []
    for key, inner in found.items():
        leaf = [dict(inner) if value is None else {value: inner}] if not others else []
        rows += [{first: key, **row} for row in leaf or flatten(inner, *others, value=value)]
    return rows


def nest(rows: Sequence[Mapping[str, Any]], *columns: str, value: str | None = None, **wanted: Any) -> dict[Any, Any]:
    """Undo `flatten`, for the rows that have all of `wanted`. A row without `value` gives None."""
    found: dict[Any, Any] = {}
    for row in rows:
        if all(row.get(column) == each for column, each in wanted.items()):
            place = found
            for column in columns[:-1]:
                place = place.setdefault(row[column], {})
            rest = {column: each for column, each in row.items() if column not in {*columns, *wanted}}
            place[row[columns[-1]]] = rest if value is None else row.get(value)
    return found


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
