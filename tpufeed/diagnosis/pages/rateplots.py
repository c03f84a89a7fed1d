"""The plot of rates: what each stage gives on this host against what each TPU needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from tpufeed.diagnosis.pages.canvas import (
    BAND,
    CHOSEN,
    COMPUTE,
    FAINT,
    GRID,
    INK,
    PAPER,
    PREDICTED,
    RUN,
    WAIT,
    WIDTH_PX,
    fit,
    make_figure,
    place_axes,
    say_short,
    to_svg,
    width_of,
)
from tpufeed.diagnosis.pages.summary import (
    EMULATED_PLOT,
    HATCHED,
    MOST_RUNS,
    UNKNOWN,
    WHOLE,
    Plot,
    is_emulated,
    known,
    say,
    say_range,
)
from tpufeed.diagnosis.results import Diagnosis, Run
from tpufeed.profiling.flops import TPUS

_MOST_ACTIONS = 3
_LEFT_PX, _RIGHT_PX, _ROW_PX, _HEADING_PX, _BAR_PX = 88, 12, 20, 26, 11


@dataclass(frozen=True, slots=True)
class _Rate:
    label: str
    rate: float | None
    colour: str


def plot_rates(diagnosis: Diagnosis | None, runs: Sequence[Run]) -> Plot | None:
    """Bars of stages, expected effects and runs above bands of TPUs; None where no rate is known."""
    rows, needs = _rates(diagnosis, runs), _needs(diagnosis)
    rates = [row.rate for row in rows if row.rate is not None]
    if not rates:
        return None
    chosen = "" if diagnosis is None else diagnosis.tpu.removeprefix("tpu-")
    height = _ROW_PX * (len(rows) + len(needs)) + 2 * _HEADING_PX
    figure = make_figure(height + 48)
    axes = place_axes(figure, _LEFT_PX, 2, _RIGHT_PX, 46)
    low = 10 ** math.floor(math.log10(0.6 * min(*rates, *(need[0] for need in needs.values()))))
    high = max(*rates, *(need[1] for need in needs.values()))
    high *= (high / low) ** 0.2  # room for the figure behind the longest bar
    axes.set(xscale="log", xlim=(low, high), ylim=(height, 0), xlabel="images a second, log scale", yticks=[])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: say_short(rate)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    if chosen in needs:
        axes.fill_betweenx([0, height], *needs[chosen], color=BAND, linewidth=0, zorder=0.4)
    _draw_rates(axes, rows, low)
    _draw_needs(axes, needs, chosen, _HEADING_PX + _ROW_PX * len(rows))
    title, sentence = "Rates against what TPUs need", _say(rows, diagnosis, runs)
    return Plot(WHOLE, title, sentence, to_svg(figure, "rates", title, sentence))


def _rates(diagnosis: Diagnosis | None, runs: Sequence[Run]) -> list[_Rate]:
    rows = []
    if diagnosis is not None:
        for stage in diagnosis.stages:
            colour = WAIT if stage.name == diagnosis.binding else COMPUTE
            rows.append(_Rate(stage.name, stage.images_per_second, colour))
        rows.append(_Rate("all together", diagnosis.fed, INK))
        for number, action in enumerate(diagnosis.actions[:_MOST_ACTIONS], 1):
            if action.images_per_second is not None:
                rows.append(_Rate(f"action {number}", action.images_per_second, PREDICTED))
    numbered = list(enumerate(runs, 1))
    if len(numbered) > MOST_RUNS:
        numbered = [*numbered[: MOST_RUNS // 2], *numbered[-MOST_RUNS // 2 :]]
    rows += [_Rate(f"{number}: {run.loader}", run.images_per_second, RUN) for number, run in numbered]
    return [_Rate(row.label, known(row.rate) if (row.rate or 0) > 0 else None, row.colour) for row in rows]


def _needs(diagnosis: Diagnosis | None) -> dict[str, tuple[float, float]]:
    """What each TPU needs, (low, high), of the diagnosis' model: others than its own TPU in proportion to theirs."""
    needs = {name: (tpu.low, tpu.high) for name, tpu in TPUS.items()}
    if diagnosis is None:
        return needs
    chosen = diagnosis.tpu.removeprefix("tpu-")
    if chosen not in needs:
        return {**needs, chosen: diagnosis.needed}
    low, high = (now / then for now, then in zip(diagnosis.needed, needs[chosen], strict=True))
    return {name: (need[0] * low, need[1] * high) for name, need in needs.items()}


def _draw_rates(axes: Axes, rows: Sequence[_Rate], low: float) -> None:
    _head(axes, "this host gives", 0)
    for number, row in enumerate(rows):
        middle = _HEADING_PX + _ROW_PX * (number + 0.5)
        _name(axes, row.label, middle)
        if row.rate is not None and row.colour == PREDICTED:
            bar: dict[str, Any] = {"color": PAPER, "edgecolor": PREDICTED, "hatch": "////", "linewidth": 0.8}
            axes.barh(middle, row.rate - low, _BAR_PX, low, **bar)
        elif row.rate is not None:
            axes.barh(middle, row.rate - low, _BAR_PX, low, color=row.colour)
        said = UNKNOWN if row.rate is None else say_short(row.rate)
        axes.annotate(said, (row.rate or low, middle), (5, 0), textcoords="offset points", va="center")


def _draw_needs(axes: Axes, needs: dict[str, tuple[float, float]], chosen: str, top: float) -> None:
    axes_px = WIDTH_PX - _LEFT_PX - _RIGHT_PX
    _head(axes, "TPUs need, low to high", top)
    for number, (name, (least, most)) in enumerate(needs.items()):
        middle, weight = top + _HEADING_PX + _ROW_PX * (number + 0.5), "bold" if name == chosen else "normal"
        _name(axes, name, middle, weight)
        axes.barh(middle, most - least, _BAR_PX, least, color=CHOSEN if name == chosen else FAINT)
        said = f"{say_short(least)} to {say_short(most)}"
        start, end = axes.get_xlim()
        room = axes_px * math.log(least / start) / math.log(end / start)
        before = room > width_of(said) + 20  # else it would touch the name
        at: dict[str, Any] = {"textcoords": "offset points", "ha": "right" if before else "left", "weight": weight}
        axes.annotate(said, (least if before else most, middle), (-5 if before else 5, 0), va="center", **at)


def _head(axes: Axes, text: str, top: float) -> None:
    _beside(axes, text, top + 0.6 * _HEADING_PX, 8 - _LEFT_PX, weight="bold")


def _name(axes: Axes, text: str, middle: float, weight: str = "normal") -> None:
    _beside(axes, fit(text, _LEFT_PX - 14), middle, -6, ha="right", weight=weight)


def _beside(axes: Axes, text: str, middle: float, offset_px: float, **how: str) -> None:
    """Text so far from the left side of the axes."""
    at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", **how}
    axes.annotate(text, (0, middle), (offset_px, 0), va="center", **at)


def _say(rows: Sequence[_Rate], diagnosis: Diagnosis | None, runs: Sequence[Run]) -> str:
    parts = []
    if diagnosis is None:
        fastest = max((row for row in rows if row.rate is not None), key=lambda row: row.rate or 0)
        parts.append(f"The fastest run is {fastest.label}, with {say(fastest.rate)} images a second.")
        parts.append("The bands are what ResNet-50 needs.")
    else:
        need = say_range(diagnosis.needed)
        fed = say(diagnosis.fed)
        parts.append(f"This host gives {fed} images a second; {diagnosis.tpu} needs {need} for {diagnosis.model}.")
        if any(stage.name == diagnosis.binding for stage in diagnosis.stages):
            parts.append(f"What binds is {diagnosis.binding}.")
        if any(row.colour == PREDICTED for row in rows):
            parts.append(f"{HATCHED} Actions have the numbers of the list above.")
    if any(row.rate is None for row in rows):
        parts.append("n/a is what could not be measured.")
    if any(map(is_emulated, runs)):
        parts.append(f"Runs are held to the rate of their device. {EMULATED_PLOT}")
    return " ".join(parts)
