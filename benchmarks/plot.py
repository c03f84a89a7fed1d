"""Bar charts of benchmarks/results/*.json as SVG files: medians, with lines from the lowest to the highest.

    .venv/bin/python benchmarks/plot.py [NAME ...] [--results FOLDER] [--out FOLDER]

NAME is a result's without .json; by default all that hold images a second of loaders or runs. A file of several kinds
of work, like feed.json, gives a chart of each. Text stays text, so that the files are small and can be searched.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
OURS, THEIRS, ALONE = "#1a73b8", "#9aa7b1", "#d8dde1"


@dataclass(frozen=True)
class Bar:
    """One loader: the rates of its repeats."""

    name: str
    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def colour(self) -> str:
        if self.name.startswith("decoding"):
            return ALONE
        return OURS if "tpufeed" in self.name else THEIRS


@dataclass(frozen=True)
class Chart:
    """One picture; `machine` says where its figures are from."""

    name: str
    title: str
    machine: str
    bars: tuple[Bar, ...]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--out", type=Path, default=FOLDER / "plots")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    drawn = 0
    for name in args.names or sorted(path.stem for path in args.results.glob("*.json")):
        path = args.results / f"{name}.json"
        if not path.is_file():
            known = ", ".join(sorted(found.stem for found in args.results.glob("*.json")))
            parser.error(f"there is no {path}; there are {known}")
        charts = list(iter_charts(name, json.loads(path.read_text())))
        if args.names and not charts:
            parser.error(f"{path} holds no images a second of loaders")
        for chart in charts:
            target = args.out / f"{chart.name}.svg"
            target.write_text(draw(chart))
            print(target)
            drawn += 1
    return 0 if drawn else 1


def iter_charts(name: str, result: Mapping[str, Any]) -> Iterator[Chart]:
    """Of a result file: one for each of its kinds of work that has loaders, or one of its rows or runs."""
    machine = say_machine(result.get("machine", {}))
    for kind, work in result.items():
        if isinstance(work, Mapping) and isinstance(work.get("loaders"), Mapping):
            bars = [Bar(loader, _rates(figures)) for loader, figures in work["loaders"].items()]
            yield from _chart(f"{name}-{kind}", str(work.get("work", kind)), machine, bars)
    for rows in (result.get("rows"), result.get("runs")):
        if isinstance(rows, Sequence) and all(isinstance(row, Mapping) and "label" in row for row in rows):
            devices = sorted({str(row.get("device", "")) for row in rows})
            for device in devices:
                bars = [Bar(row["label"], _rates(row)) for row in rows if str(row.get("device", "")) == device]
                place = name if len(devices) == 1 else f"{name}-{device.split()[-1]}"
                yield from _chart(place, f"{name}, {device}", machine, bars)


def draw(chart: Chart) -> str:
    """The SVG, the same for the same chart."""

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        bars = sorted(chart.bars, key=lambda bar: bar.median)
        axes.barh([bar.name for bar in bars], [bar.median for bar in bars], color=[bar.colour for bar in bars])
        for place, bar in enumerate(bars):
            axes.plot([min(bar.rates), max(bar.rates)], [place, place], color="#333333", linewidth=1)
            axes.annotate(f" {bar.median:,.0f}", (max(bar.rates), place), va="center", fontsize=8)
        axes.set_title(chart.title, loc="left", fontsize=10)
        axes.set_xlabel(f"images a second, medians; {chart.machine}", fontsize=7)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)

    return to_svg(chart.name, 0.9 + 0.27 * len(chart.bars), paint)


def draw_one(about: str, names: tuple[str, str], painted: Callable[[Any], str], argv: list[str] | None) -> int:
    """What a script of one picture does: from a result's name to a picture's."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--out", type=Path, default=FOLDER / "plots")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    result, picture = names
    target = args.out / f"{picture}.svg"
    target.write_text(painted(json.loads((args.results / f"{result}.json").read_text())))
    print(target)
    return 0


def to_svg(name: str, height: float, paint: Callable[[Any], None]) -> str:
    """What `paint` does to a figure of 7 by `height` inches, as SVG. It is white, to be read on dark pages as well."""
    import io

    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9}):
        figure = Figure(figsize=(7, height), layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def say_machine(machine: Mapping[str, Any]) -> str:
    """Where figures are from, in a line."""
    parts = (machine.get("cpu"), f"{machine.get('cores')} cores", machine.get("date"))
    return ", ".join(str(part) for part in parts if part) if machine.get("cpu") else "machine unknown"


def _chart(name: str, title: str, machine: str, bars: Sequence[Bar]) -> Iterator[Chart]:
    known = tuple(bar for bar in bars if bar.rates)
    if known:
        yield Chart(name, title, machine, known)


def _rates(figures: Mapping[str, Any]) -> tuple[float, ...]:
    """Of all repeats, however the file has them; none where nothing was measured."""
    spread = figures.get("rates")
    found = spread["values"] if isinstance(spread, Mapping) else figures.get("images_per_second")
    values = found if isinstance(found, Sequence) else [found]
    return tuple(float(value) for value in values if value is not None)


if __name__ == "__main__":
    sys.exit(main())
