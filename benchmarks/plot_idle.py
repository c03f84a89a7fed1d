"""Draws how much of its time an accelerator waits for images, by what feeds it, of what `scripts/demo` saved.

    .venv/bin/python benchmarks/plot_idle.py [--results FOLDER] [--out FOLDER]

Reads demo.json and writes idle.svg, the picture of README.md and of the site's first page.
"""

import sys
from collections.abc import Mapping
from typing import Any

from plot import OURS, THEIRS, draw_one, say_machine, to_svg

WAITING = "#e8a33d"


def main(argv: list[str] | None = None) -> int:
    return draw_one(str(__doc__), ("demo", "idle"), draw_idle, argv)


def draw_idle(result: Mapping[str, Any]) -> str:
    """The SVG of the demo's result: its emulated rows from top to bottom, each the whole of a run's time."""
    rows = [row for row in result["rows"] if str(row["device"]).startswith("EMULATED")][::-1]
    profile = str(rows[0]["device"])
    places = range(len(rows))

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        idle = [row["idle_percent"] for row in rows]
        colours = [OURS if "tpufeed" in row["label"] else THEIRS for row in rows]
        axes.barh(places, [100 - percent for percent in idle], color=colours)
        axes.barh(places, idle, left=[100 - percent for percent in idle], color=WAITING, alpha=0.35)
        for place, row in zip(places, rows, strict=True):
            in_the_pale = row["idle_percent"] > 50
            side, colour = ("right", "#333333") if in_the_pale else ("left", "white")
            text, x = f"{row['idle_percent']:.1f} % idle", 99 if in_the_pale else 1
            axes.annotate(text, (x, place), va="center", ha=side, color=colour, fontsize=8)
        axes.set_yticks(places, [row["label"] for row in rows])
        axes.set_xlim(0, 100)
        rates = axes.secondary_yaxis("right")
        rates.set_yticks(places, [f"{row['images_per_second']:,.0f} img/s" for row in rows], fontsize=8)
        rates.tick_params(length=0)
        rates.spines["right"].set_visible(False)
        meaning = "% of the time: full, it computes; pale, it waits for images"
        axes.set_xlabel(f"{meaning}\n{say_machine(result['machine'])}", fontsize=7)
        axes.set_title(f"{profile}, batches of {rows[0]['batch_size']}, by what feeds it", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)

    return to_svg("idle", 0.9 + 0.3 * len(rows), paint)


if __name__ == "__main__":
    sys.exit(main())
