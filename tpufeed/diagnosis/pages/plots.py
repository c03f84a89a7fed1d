"""The plot of idle, before and after, measured and predicted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from tpufeed.diagnosis.pages.canvas import (
    BAND,
    INK,
    LABEL_PX,
    PAPER,
    PREDICTED,
    WAIT,
    WIDTH_PX,
    fit,
    make_figure,
    place_axes,
    to_svg,
    width_of,
)
from tpufeed.diagnosis.pages.rateplots import plot_rates
from tpufeed.diagnosis.pages.stepplots import iter_step_plots
from tpufeed.diagnosis.pages.summary import (
    EMULATED_PLOT,
    HATCHED,
    UNKNOWN,
    WHOLE,
    Plot,
    capitalise,
    is_emulated,
    known,
    say_range,
)
from tpufeed.diagnosis.results import Diagnosis, Run

_MOST_RUNS = 12
_MOST_ACTIONS = 3
_MARGIN_PX, _VALUE_PX = 14, 76  # figures stand behind the bars
_ROW_PX = 40


@dataclass(frozen=True, slots=True)
class _Idle:
    """A row: measured, or predicted from a TPU's low rate to its high one; without `percent` it is not known."""

    label: str
    tail: str = ""
    percent: tuple[float, ...] = ()
    predicted: bool = False

    def __str__(self) -> str:
        return f"{self.label}{self.tail}: {self.value}"

    @property
    def value(self) -> str:
        if not self.percent:
            return UNKNOWN
        return say_range((min(self.percent), max(self.percent)), "%", 0 if self.predicted else 1)


def iter_plots(diagnosis: Diagnosis | None, runs: Sequence[Run]) -> Iterator[Plot]:
    """All plots of a report for which there is data; to be made within `canvas.settings`."""
    for plot in (plot_idle(diagnosis, runs), plot_rates(diagnosis, runs)):
        if plot is not None:
            yield plot
    yield from iter_step_plots(runs)


def plot_idle(diagnosis: Diagnosis | None, runs: Sequence[Run]) -> Plot | None:
    """A bar for each run in order, then what is predicted; None where no idle is known."""
    measured, predicted = _measured(runs), [] if diagnosis is None else _predicted(diagnosis)
    drawn = measured if len(measured) <= _MOST_RUNS else [*measured[: _MOST_RUNS // 2], *measured[-_MOST_RUNS // 2 :]]
    rows = [*drawn, *predicted]
    if not any(row.percent for row in rows):
        return None
    figure = make_figure(_ROW_PX * len(rows) + 52)
    axes = place_axes(figure, _MARGIN_PX, 6, _MARGIN_PX + _VALUE_PX, 46)
    axes.set(xlim=(0, 100), ylim=(_ROW_PX * len(rows), 0), xlabel="idle, % of the time", yticks=[])
    axes.set_xticks([0, 5, 20, 40, 60, 80, 100], ["0", "5", "20", "40", "60", "80", "100"])
    axes.spines["left"].set_visible(False)
    for number, row in enumerate(rows):
        _draw(axes, row, number * _ROW_PX)
    told = [*measured[:1], *measured[1:][-1:], *predicted[:1]]
    left_out = len(measured) - len(drawn)
    parts = [f"{capitalise('; '.join(map(str, told)))}."]
    parts += [f"{left_out} runs in between are left out."] * bool(left_out)
    doubted = ", ".join(str(number) for number, run in enumerate(runs, 1) if run.problems)
    parts += [f"Not to be trusted, for problems that are told above: run {doubted}."] * bool(doubted)
    parts.append("Dashed: 5 %, from which input counts as slow, and 20 %, from which it holds training back.")
    parts += [f"{HATCHED} It goes from the TPU's low rate to its high one."] * bool(predicted)
    parts += [EMULATED_PLOT] * any(map(is_emulated, runs))
    title, sentence = "Idle before and after" if len(rows) > 1 else "Idle", " ".join(parts)
    return Plot(WHOLE, title, sentence, to_svg(figure, "idle", title, sentence))


def _measured(runs: Sequence[Run]) -> list[_Idle]:
    rows = []
    for number, run in enumerate(runs):
        when = {0: "before: ", len(runs) - 1: "after: "}.get(number, "") if len(runs) > 1 else ""
        idle = known(run.idle_percent)
        tail = " (EMULATED)" if is_emulated(run) else ""
        rows.append(_Idle(f"{when}{run.label}", tail, () if idle is None else (idle,)))
    return rows


def _predicted(diagnosis: Diagnosis) -> list[_Idle]:
    ways = [(f"now, on {diagnosis.tpu}", diagnosis.idle_percent)]
    for number, action in enumerate(diagnosis.actions[:_MOST_ACTIONS], 1):
        ways.append((f"after action {number}: {action.do}", action.idle_percent))
    return [_Idle(label, " (predicted)", percent, True) for label, percent in ways if percent is not None]


def _draw(axes: Axes, row: _Idle, top: float) -> None:
    """Words above a bar; a bar that is predicted is hatched up to its high end, with a line at each end."""
    text, middle, half = top + 12, top + 28, 5.5
    room = WIDTH_PX - 2 * _MARGIN_PX - width_of(row.tail, LABEL_PX)
    axes.text(0, text, f"{fit(row.label, room, LABEL_PX)}{row.tail}", va="center", size=LABEL_PX)
    value: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "weight": "bold"}
    axes.annotate(row.value, (1, middle), (8, 0), va="center", size=LABEL_PX, **value)
    axes.barh(middle, 100, 2 * half, color=BAND)
    if row.percent:
        low, high = min(row.percent), max(row.percent)
        if row.predicted:
            axes.barh(middle, high, 2 * half, color=PAPER, edgecolor=PREDICTED, hatch="////", linewidth=0.8)
            axes.vlines([low, high], middle - half - 1.5, middle + half + 1.5, color=PREDICTED, linewidth=2)
        else:
            axes.barh(middle, high, 2 * half, color=WAIT)
    axes.vlines([5, 20], middle - half, middle + half, color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
