"""Draws idle as the doctor predicts it and as an emulated accelerator measures it, of what `bench_doctor.py` saved.

    .venv/bin/python benchmarks/plot_doctor.py [--results FOLDER] [--out FOLDER]

Reads doctor.json and writes doctor.svg.
"""

import sys
from collections.abc import Mapping
from typing import Any

from plot import OURS, THEIRS, draw_one, say_machine, to_svg


def main(argv: list[str] | None = None) -> int:
    return draw_one(str(__doc__), ("doctor", "doctor"), draw_doctor, argv)


def draw_doctor(result: Mapping[str, Any]) -> str:
    """The SVG: two bars for each set-up, with the stage that the doctor says binds."""
    set_ups = list(result["set_ups"].items())[::-1]

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        for shift, kind, label, colour in (
            (0.2, "predicted", "predicted by the doctor", OURS),
            (-0.2, "measured", "EMULATED", THEIRS),
        ):
            values = [one[f"{kind}_idle_percent"] for _, one in set_ups]
            places = [place + shift for place in range(len(set_ups))]
            bars = axes.barh(places, values, 0.38, color=colour, label=label)
            axes.bar_label(bars, [f"{value:.1f} %" for value in values], padding=3, fontsize=8)
        axes.set_yticks(range(len(set_ups)), [f"{name}\nbinds: {one['binding']}" for name, one in set_ups])
        axes.set_xlim(0, 100)
        axes.set_xlabel(
            f"idle % of an accelerator that outruns its loader\n{say_machine(result['machine'])}", fontsize=7
        )
        axes.legend(frameon=False, loc="lower right", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)

    return to_svg("doctor", 0.9 + 0.5 * len(set_ups), paint)


if __name__ == "__main__":
    sys.exit(main())
