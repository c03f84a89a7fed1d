"""Draws what each stage of feeding gives by itself beside what a TPU takes, of what `bench_stages.py` saved.

    .venv/bin/python benchmarks/plot_stages.py [--results FOLDER] [--out FOLDER]

Reads stages.json and writes stages.svg.
"""

import sys
from collections.abc import Mapping
from typing import Any

from plot import OURS, THEIRS, draw_one, say_machine, to_svg
from plot_idle import WAITING


def main(argv: list[str] | None = None) -> int:
    return draw_one(str(__doc__), ("stages", "stages"), draw_stages, argv)


def draw_stages(result: Mapping[str, Any]) -> str:
    """The SVG: a panel for each dataset, its stages in the order in which an image goes through them."""
    datasets = result["datasets"]
    most = max(stage["median"] for one in datasets.values() for stage in one["stages"].values())
    heights = [len(one["stages"]) for one in datasets.values()]

    def paint(figure: Any) -> None:
        panels = figure.subplots(len(datasets), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for panel, (name, one) in zip(panels, datasets.items(), strict=True):
            _paint_panel(panel, name, one)
        panels[-1].set_xlim(100, 4 * most)
        panels[-1].set_xlabel(
            f"images a second of a stage by itself, medians, logarithmic; the band is what a {result['tpu']} takes\n"
            f"{say_machine(result['machine'])}",
            fontsize=7,
        )

    return to_svg("stages", 1.0 + 0.45 * len(datasets) + 0.24 * sum(heights), paint)


def _paint_panel(axes: Any, name: str, one: Mapping[str, Any]) -> None:
    stages = list(one["stages"].items())[::-1]
    axes.axvspan(*one["needed"], color=WAITING, alpha=0.35, linewidth=0)
    for place, (stage, rates) in enumerate(stages):
        axes.barh(place, rates["median"], color=OURS if stage == one["binding"] else THEIRS, height=0.7)
        values = rates["images_per_second"]
        axes.plot([min(values), max(values)], [place, place], color="#333333", linewidth=1)
        axes.annotate(f" {rates['median']:,.0f}", (max(values), place), va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(stages)), [stage for stage, _ in stages])
    low, high = sorted(one["idle_percent"])
    idle = f"{high:.0f} %" if round(low) == round(high) else f"{low:.0f} to {high:.0f} %"
    binds = "only the accelerator" if one["binding"] == "accelerator" else one["binding"]
    axes.set_title(f"{name}: {binds} binds, {idle} idle predicted", loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
