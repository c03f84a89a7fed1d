"""Draws what decoding only a window gains, by its share of the image and by the scale of a crop, of `bench_window.py`.

    .venv/bin/python benchmarks/plot_window.py [--results FOLDER] [--out FOLDER]

Reads window.json and writes window.svg.
"""

import statistics
import sys
from collections.abc import Mapping
from typing import Any

from plot import OURS, THEIRS, draw_one, say_machine, to_svg


def main(argv: list[str] | None = None) -> int:
    return draw_one(str(__doc__), ("window", "window"), draw_window, argv)


def draw_window(result: Mapping[str, Any]) -> str:
    """The SVG: decoding by share of the window on the left, loaders by scale of the crop on the right."""

    def paint(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for (kind, found), style in zip(result["windows"].items(), ("-", "--"), strict=True):
            medians = {way: statistics.median(values) for way, values in found["microseconds"].items()}
            shares = [way for way in medians if way[0].isdigit()]
            times = [medians[share] / medians["whole"] for share in shares]
            left.plot([100 * float(share) for share in shares], times, style, color=OURS, label=kind)
        left.axhline(1, color=THEIRS, linewidth=1)
        left.set_ylim(0)
        left.set_xlabel("window, % of the area")
        left.set_title("time to cut and decode, to decoding the whole", loc="left", fontsize=9)
        left.legend(frameon=False, fontsize=8)
        for place, found in enumerate(result["crops"].values()):
            for offset, (name, color) in enumerate((("byte for byte", THEIRS), ("with markers", OURS))):
                rate = statistics.median(found[name])
                right.bar(place + 0.4 * offset, rate, 0.36, color=color, label=None if place else name)
        right.set_xticks([place + 0.2 for place in range(len(result["crops"]))], list(result["crops"]))
        right.set_xlabel("scale of RandomResizedCrop")
        right.set_title("Loader, 500x375, images a second", loc="left", fontsize=9)
        right.legend(frameon=False, fontsize=8)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        figure.supxlabel(say_machine(result["machine"]), fontsize=7)

    return to_svg("window", 3.0, paint)


if __name__ == "__main__":
    sys.exit(main())
