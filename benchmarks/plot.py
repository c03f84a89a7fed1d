"""The parts that all pictures of benchmarks/results/*.json share. Text stays text, so that SVGs can be searched."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
OURS, THEIRS = "#1a73b8", "#9aa7b1"


def draw_one(about: str, names: tuple[str, str], painted: Callable[[Any], str], argv: list[str] | None) -> int:
    """Run a script of one picture: `names` are those of the result and the picture, `painted` draws it."""
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
