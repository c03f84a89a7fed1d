"""The plots of one run's steps: a timeline, how long the waits were, and how many batches were ready."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from tpufeed.diagnosis.pages.canvas import (
    BAND,
    COMPUTE,
    FONT_PX,
    GRID,
    INK,
    SYNC,
    WAIT,
    make_figure,
    place_axes,
    to_svg,
)
from tpufeed.diagnosis.pages.summary import EMULATED_PLOT, MOST_RUNS, Plot, capitalise, is_emulated
from tpufeed.diagnosis.results import Run, Timeline
from tpufeed.diagnosis.wording import number_of

Array = NDArray[np.float64]

_MOST_BINS = 100
_HISTOGRAM_BINS = 28
_HEIGHT_PX = 210
_LEFT_PX, _RIGHT_PX, _BOTTOM_PX, _TOP_PX = 48, 30, 46, 28
_CUT = 6.0  # times the median: what is higher, as a first step is, would flatten all else
_LEAST_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class Bins:
    """Steps in groups of nearly equal size: group b is `[edges[b], edges[b + 1])`."""

    edges: NDArray[np.int64]

    @property
    def each(self) -> str:
        """How many steps a group has; of single ones nothing."""
        sizes = np.diff(self.edges)
        fewest, most = int(sizes.min()), int(sizes.max())
        return "" if most == 1 else f"{most:,}" if fewest == most else f"{fewest:,} or {most:,}"

    def mean(self, values: Array) -> Array:
        """Of each group."""
        return np.asarray(np.add.reduceat(values, self.edges[:-1]) / np.diff(self.edges), np.float64)


def make_bins(steps: int, most: int = _MOST_BINS) -> Bins:
    """Every step by itself where there are few of them."""
    count = min(steps, most)
    return Bins(np.arange(count + 1, dtype=np.int64) * steps // count)


def iter_step_plots(runs: Sequence[Run]) -> Iterator[Plot]:
    """Of the first runs and the last, where more than `MOST_RUNS` have a timeline."""
    told = [(number, run) for number, run in enumerate(runs, 1) if run.timeline.wait_seconds]
    if len(told) > MOST_RUNS:
        told = [*told[: MOST_RUNS // 2], *told[-MOST_RUNS // 2 :]]
    for number, run in told:
        steps = _Steps.of(run.timeline)
        if not len(steps.wait):
            continue
        group = f"Run {number}: {run.label}"
        plots = [("Timeline of steps", "timeline", *_draw_timeline(steps))]
        if len(steps.wait) > 1:
            plots.append(("How long the waits were", "waits", *_draw_waits(steps.wait[1:])))
        if len(steps.ready):
            plots.append(("Batches ready", "ready", *_draw_ready(steps.ready)))
        for title, name, figure, sentence in plots:
            said = f"{sentence} {EMULATED_PLOT}" if is_emulated(run) else sentence
            yield Plot(group, title, said, to_svg(figure, f"run{number}-{name}", f"{title}, {group}", said))


@dataclass(frozen=True, slots=True)
class _Steps:
    """A timeline as arrays of one length; `ready` may be empty."""

    wait: Array
    sync: Array
    compute: Array
    ready: Array

    @classmethod
    def of(cls, timeline: Timeline) -> "_Steps":
        parts = [timeline.wait_seconds, timeline.sync_seconds, timeline.compute_seconds, timeline.ready]
        arrays = [np.asarray(part, np.float64) for part in parts]
        length = min(len(array) for array in arrays if len(array))
        rows = np.array([array[:length] if len(array) else np.zeros(length) for array in arrays])
        rows = np.maximum(rows[:, np.isfinite(rows).all(axis=0)], 0)
        return cls(rows[0], rows[1], rows[2], rows[3] if len(arrays[3]) else rows[3, :0])


def _draw_timeline(steps: _Steps) -> tuple[Figure, str]:
    """The first step, which waits for the start and compiles, is told and not drawn; unless it is the only one."""
    first = 1 if len(steps.wait) > 1 else 0
    bins = make_bins(len(steps.wait) - first)
    layers = {"compute": (COMPUTE, steps.compute), "tracing and sync": (SYNC, steps.sync), "wait": (WAIT, steps.wait)}
    layers = {name: layer for name, layer in layers.items() if layer[1].any()}
    means = {name: bins.mean(values[first:]) for name, (_, values) in layers.items()}
    edges = bins.edges + first + 0.5
    total = np.sum(list(means.values()), axis=0) if means else np.zeros(len(edges) - 1)
    limit = _limit(total)
    scale, unit = _unit(limit)
    figure, axes = _axes("step", f"{unit} a step")
    below = np.zeros(len(total))
    for name, values in means.items():
        above = below + values
        colour = layers[name][0]
        axes.stairs(
            above * scale,
            edges,
            baseline=below * scale,
            fill=True,
            color=colour,
            label=name.rpartition(" ")[2],
            linewidth=0,
        )
        below = above
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.05 * limit * scale))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if means:
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.04, 0.99), ncols=3, frameon=False,
            handlelength=1, handletextpad=0.3, columnspacing=0.8, borderpad=0.1,
        )  # fmt: skip
    shares = {name: values[first:].sum() for name, (_, values) in layers.items()}
    return figure, _say_timeline(steps, shares, bins, total, limit)


def _say_timeline(steps: _Steps, sums: dict[str, float], bins: Bins, total: Array, limit: float) -> str:
    count, whole = len(steps.wait), sum(sums.values())
    binned = f", drawn as {len(total)} means of {bins.each} steps each" if bins.each else ""
    parts = [f"{number_of(count, 'step')}{binned}."]
    if whole > 0:
        shares = ", ".join(f"{name} {100 * part / whole:.1f} %" for name, part in reversed(sums.items()))
        parts.append(f"{capitalise(shares)}.")
    if count > 1:
        first = steps.wait[0] + steps.sync[0] + steps.compute[0]
        wait = _say_seconds(steps.wait[0])
        parts.append(f"The first step is left out: it took {_say_seconds(first)}, {wait} of it waiting.")
    cut = int((total > limit).sum())
    if cut:
        parts.append(f"Cut off at the top: {cut}, the highest {_say_seconds(total.max())}.")
    return " ".join(parts)


def _draw_waits(waits: Array) -> tuple[Figure, str]:
    """Waits of all steps but the first; those under a microsecond count as one."""
    shown = np.maximum(waits, _LEAST_SECONDS)
    low, high = shown.min() / 1.2, shown.max() * 1.2
    edges = np.geomspace(low, high, _HISTOGRAM_BINS + 1)
    counts, _ = np.histogram(shown, edges)
    figure, axes = _axes("wait for a batch, log scale", "steps")
    axes.stairs(counts, edges, fill=True, color=WAIT, lw=0)
    axes.set(xscale="log", xlim=(low, high), ylim=(0, 1.12 * counts.max()))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(*_ticks(low, high))
    p50, p95 = np.percentile(waits, [50, 95])
    for place, name, align in ((max(p50, _LEAST_SECONDS), "p50 ", "right"), (max(p95, _LEAST_SECONDS), " p95", "left")):
        axes.axvline(place, color=INK, linewidth=1, linestyle=(0, (3, 2)))
        axes.annotate(
            name, (place, 1), xycoords=("data", "axes fraction"), ha=align, va="bottom", annotation_clip=False
        )
    sentence = (
        f"{len(waits):,} waits, the first step's left out: half of them were at most {_say_seconds(p50)}, "
        f"95 % at most {_say_seconds(p95)}, the longest {_say_seconds(float(waits.max()))}."
    )
    sentence += " Those under 1 µs stand at 1 µs." * bool((waits < _LEAST_SECONDS).any())
    return figure, sentence


def _draw_ready(ready: Array) -> tuple[Figure, str]:
    bins = make_bins(len(ready))
    least = np.minimum.reduceat(ready, bins.edges[:-1])
    most = np.maximum.reduceat(ready, bins.edges[:-1])
    figure, axes = _axes("step", "batches ready")
    edges = bins.edges + 0.5
    axes.stairs(most, edges, baseline=least, fill=True, color=BAND, lw=0)
    axes.stairs(bins.mean(ready), edges, baseline=None, color=COMPUTE, linewidth=1.6)
    axes.set(xlim=(0.5, len(ready) + 0.5), ylim=(-0.05 * max(ready.max(), 1), 1.1 * max(ready.max(), 1)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True))
    none = float((ready == 0).mean())
    binned = f" Line: means of {bins.each} steps; band: their least and most." if bins.each else ""
    average = f"On average {ready.mean():.1f} batches were ready when a step asked for one"
    return figure, f"{average}; at {none:.1%} of the steps none was.".replace("%", " %") + binned


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure = make_figure(_HEIGHT_PX)
    axes = place_axes(figure, _LEFT_PX, _TOP_PX, _RIGHT_PX, _BOTTOM_PX)
    axes.set(xlabel=x)
    axes.annotate(y, (0, 1), (8 - _LEFT_PX, 8), xycoords="axes fraction", textcoords="offset points")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    thousands = FuncFormatter(lambda value, _: f"{value:,.6g}")
    axes.xaxis.set_major_formatter(thousands)
    axes.yaxis.set_major_formatter(thousands)
    axes.tick_params(labelsize=FONT_PX)
    return figure, axes


def _limit(total: Array) -> float:
    """How high the plot goes."""
    highest, usual = float(total.max()), float(np.median(total))
    return min(highest, _CUT * usual) if usual > 0 else highest or 1e-3


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds >= 2 else (1e3, "ms") if seconds >= 2e-3 else (1e6, "µs")


def _say_seconds(seconds: float) -> str:
    scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e3, "ms")) if seconds * s >= 0.9995), (1e6, "µs"))
    return f"{seconds * scale:.3g} {unit}" if seconds * scale < 1000 else f"{seconds * scale:,.0f} {unit}"


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Powers of ten with their units, or two or three places where there is none or one."""
    powers = [10.0**power for power in range(-6, 7) if low <= 10.0**power <= high]
    if len(powers) < 2:
        powers = [float(place) for place in np.geomspace(low, high, 5)[1::2]]
    powers = powers[:: -(-len(powers) // 5)]
    return powers, [_say_seconds(place) for place in powers]
