"""Draw a report's figures with matplotlib, as inline SVG whose colours follow the page, light or dark."""

import io
import re
import warnings
from collections.abc import Sequence
from html import escape
from textwrap import shorten
from typing import Any

import numpy as np

from tpufeed.display.summary import clean
from tpufeed.errors import MissingExtraError
from tpufeed.measure.results import BenchRun, Diagnosis
from tpufeed.measure.tpu import TPUS
from tpufeed.text import format_count, format_range, format_rate

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator
except ImportError as error:
    raise MissingExtraError("matplotlib", "report") from error

EMULATED = "EMULATED: no accelerator was used; nominal step times stand in for one."
PREDICTED = "Hatched bars are predicted, not measured."
MOST_RUNS = 8  # if there are more, the first four and the last four are drawn

# Figures are drawn in these colours, and the page replaces each by the CSS variable of that name.
_VARIABLES = ("ink", "faint", "grid", "band", "wait", "sync", "compute", "chosen")
_INK, _FAINT, _GRID, _BAND, _WAIT, _SYNC, _COMPUTE, _CHOSEN = (f"#00f00{number}" for number in range(8))
_PREDICTED = " (predicted)"
_WIDTH_PX, _LETTERS = 380, 52  # a line holds a label of _LETTERS
_NAME_LETTERS = _LETTERS - len(f"action 1: {_PREDICTED}")  # of what an action does, at most
_SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": _FAINT,
    "axes.facecolor": "none",
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.dpi": 72,  # matplotlib's SVG has one unit per point: with 72 dpi that is a CSS pixel
    "figure.facecolor": "none",
    "font.size": 11,
    "grid.color": _GRID,
    "hatch.linewidth": 1.2,
    "legend.frameon": False,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text
    "text.color": _INK,
    "text.parse_math": False,  # a $ in a label is a $
    "xtick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.color": _FAINT,
    "ytick.labelcolor": _INK,
}
_PREDICTED_BAR: dict[str, Any] = {"facecolor": "none", "edgecolor": _FAINT, "hatch": "////", "linewidth": 1}


def draw_figures(diagnosis: Diagnosis | None, runs: Sequence[BenchRun]) -> list[str]:
    """Return a `<figure>` for idle, for the rates and for the steps of each run, as far as there is data.

    The same data give the same text. The user's settings of matplotlib have no effect and do not change.
    """
    shown = list(enumerate(runs, 1))
    if len(shown) > MOST_RUNS:
        shown = [*shown[: MOST_RUNS // 2], *shown[-(MOST_RUNS // 2) :]]
    settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_SETTINGS}
    del settings["backend"]
    # The warnings are about glyphs that our font lacks. The browser's may have them.
    with warnings.catch_warnings(action="ignore"), matplotlib.rc_context(settings):
        figures = [_draw_idle(diagnosis, shown), _draw_rates(diagnosis, shown)]
        figures += [_draw_steps(number, run) for number, run in shown]
    return [figure for figure in figures if figure is not None]


def _draw_idle(diagnosis: Diagnosis | None, runs: Sequence[tuple[int, BenchRun]]) -> str | None:
    """Draw a bar for each run, from before to after, and below them, hatched, the doctor's predictions."""
    rows = list[tuple[str, str, tuple[float, ...]]]()  # (label, mark behind it, percents)
    for number, run in runs:
        when = {1: "before: ", runs[-1][0]: "after: "}.get(number, "") if len(runs) > 1 else ""
        mark = (" (EMULATED)" if run.emulated else "") + (", no verdict" if run.problems else "")
        idle = () if run.idle_percent is None else (run.idle_percent,)
        rows.append((f"{when}{run.label}", mark, idle))
    if diagnosis is not None:
        predicted = [(f"now, on {diagnosis.tpu}", diagnosis.idle_percent)]
        for number, action in enumerate(diagnosis.actions, 1):
            name = shorten(action.do.partition(": ")[0], _NAME_LETTERS, placeholder="…")
            predicted.append((f"action {number}: {name}", action.idle_percent))
        rows += [(label, _PREDICTED, pair) for label, pair in predicted if pair is not None]
    if not any(percents for *_, percents in rows):
        return None
    figure = Figure((_WIDTH_PX / 72, (42 * len(rows) + 50) / 72), layout="constrained")
    axes = figure.add_subplot(xlim=(0, 118), ylim=(len(rows) - 0.35, -0.75), xlabel="idle, % of the time", yticks=[])
    axes.set_xticks([0, 5, 20, 40, 60, 80, 100])
    axes.spines["left"].set_visible(False)
    sentences = []
    for place, (label, mark, percents) in enumerate(rows):
        is_predicted = mark == _PREDICTED
        value = f"{format_range(min(percents), max(percents), 1 - is_predicted)} %" if percents else "n/a"
        axes.text(0, place - 0.42, f"{_short(label, _LETTERS - len(mark))}{mark}", va="center")
        axes.barh(place, 100, 0.34, color=_BAND)
        if percents:
            axes.barh(place, max(percents), 0.34, **(_PREDICTED_BAR if is_predicted else {"color": _WAIT}))
        if is_predicted:
            axes.vlines(percents, place - 0.2, place + 0.2, color=_FAINT, linewidth=2)
        axes.vlines([5, 20], place - 0.17, place + 0.17, color=_INK, linewidth=0.8, linestyle=(0, (2, 2)))
        axes.text(101, place, value, va="center", weight="bold", size=10)
        sentences.append(f"{label}{mark}: {value}.")
    sentences.append("Dashed: 5 %, above which input counts as slow, and 20 %, above which it holds training back.")
    if any(mark == _PREDICTED for _, mark, _ in rows):
        sentences.append(f"{PREDICTED} They range from the TPU's low rate to its high rate.")
    sentences += [EMULATED] * any(run.emulated for _, run in runs)
    return _to_html(figure, "idle", "Idle before and after" if len(rows) > 1 else "Idle", " ".join(sentences))


def _draw_rates(diagnosis: Diagnosis | None, runs: Sequence[tuple[int, BenchRun]]) -> str | None:
    """Draw bars of stages, actions and runs, above what each TPU needs."""
    rows = list[tuple[str, float | None, str]]()  # (name, rate, colour). Without a colour the rate is predicted
    needs = {name: (tpu.low, tpu.high) for name, tpu in TPUS.items()}
    chosen = ""
    if diagnosis is not None:
        for stage in diagnosis.stages:
            rows.append((stage.name, stage.images_per_second, _WAIT if stage.name == diagnosis.binding else _COMPUTE))
        rows.append(("all together", diagnosis.fed, _INK))
        actions = [(f"action {n}", action.images_per_second) for n, action in enumerate(diagnosis.actions, 1)]
        rows += [(name, rate, "") for name, rate in actions if rate is not None]
        # The table's rates are for ResNet-50. Those of another model are scaled as on the chosen TPU.
        chosen = diagnosis.tpu
        low, high = (
            now / then for now, then in zip(diagnosis.needed, needs.get(chosen, diagnosis.needed), strict=True)
        )
        needs = {name: (need[0] * low, need[1] * high) for name, need in needs.items()} | {chosen: diagnosis.needed}
    rows += [(f"{number}: {run.loader}", run.images_per_second, _SYNC) for number, run in runs]
    known = {name: rate for name, rate, _ in rows if rate}
    if not known:
        return None
    low = 0.6 * min(*known.values(), *(least for least, _ in needs.values()))
    high = 4 * max(*known.values(), *(most for _, most in needs.values()))
    count = len(rows) + len(needs) + 1  # with an empty row between them
    figure = Figure((_WIDTH_PX / 72, (20 * count + 80) / 72), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlim=(low, high), ylim=(count - 0.4, -0.6))
    axes.set(title="this host feeds; below: TPUs need, low to high", xlabel="images a second, log scale")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(count), [*(_short(name, 14) for name, _, _ in rows), "", *needs])
    if chosen:
        axes.axvspan(*needs[chosen], color=_BAND, linewidth=0)
    for place, (name, _, colour) in enumerate(rows):
        rate = known.get(name)
        if rate is not None:
            axes.barh(place, rate - low, 0.6, low, **({"color": colour} if colour else _PREDICTED_BAR))
        axes.text((rate or low) * 1.06, place, "n/a" if rate is None else _prefixed(rate), va="center")
    for place, (name, (least, most)) in enumerate(needs.items(), len(rows) + 1):
        axes.barh(place, most - least, 0.6, least, color=_CHOSEN if name == chosen else _FAINT)
        weight = "bold" if name == chosen else "normal"
        axes.text(most * 1.06, place, f"{_prefixed(least)} to {_prefixed(most)}", va="center", weight=weight)
    if diagnosis is None:
        best = max(known, key=lambda name: known[name])
        said = f"The fastest run is {best}, with {known[best]:,.0f} images a second. TPU rates are for ResNet-50."
    else:
        said = (
            f"This host feeds {format_rate(diagnosis.fed, diagnosis.fed_span)} images a second; {diagnosis.tpu} needs "
            f"{diagnosis.need} for {diagnosis.model}. The stage that binds is {diagnosis.binding}."
        )
        said += f" {PREDICTED}" * any(not colour for *_, colour in rows)
    said += f" A run is no faster than its device. {EMULATED}" * any(run.emulated for _, run in runs)
    return _to_html(figure, "rates", "Rates against what TPUs need", said)


def _draw_steps(number: int, run: BenchRun) -> str | None:
    """Draw the time per step of a run. The first step and the waits are described, not drawn."""
    timeline = run.timeline
    parts = {"compute": timeline.compute_seconds, "sync": timeline.sync_seconds, "wait": timeline.wait_seconds}
    count = len(timeline.wait_seconds)
    if not count:
        return None
    seconds = np.array([part or (0.0,) * count for part in parts.values()])
    first = 1 if count > 1 else 0
    layers = [(name, row) for name, row in zip(parts, seconds, strict=True) if row.any()]
    figure = Figure((_WIDTH_PX / 72, 200 / 72), layout="constrained")
    axes = figure.add_subplot()
    # Thousands of steps are drawn as means: group b is the steps [edges[b], edges[b + 1]).
    edges = np.linspace(first, count, min(count - first, 100) + 1).astype(int)
    below = np.zeros(len(edges) - 1)
    for name, row in layers:
        above = below + np.add.reduceat(row, edges[:-1])[: len(below)] / np.diff(edges)
        colour = {"wait": _WAIT, "sync": _SYNC, "compute": _COMPUTE}[name]
        axes.stairs(above, edges + 0.5, baseline=below, fill=True, color=colour, label=name, linewidth=0)
        below = above
    usual, highest = float(np.median(below)), float(below.max())
    limit = min(highest, 6 * usual) if usual > 0 else highest or 1e-3  # one long step would flatten all others
    axes.set(xlim=(edges[0] + 0.5, edges[-1] + 0.5), ylim=(0, 1.05 * limit), xlabel="step", title="time per step")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(EngFormatter(unit="s"))
    axes.grid(axis="y")
    if layers:
        axes.legend(loc="lower right", bbox_to_anchor=(1.02, 0.98), ncols=3, handlelength=1, columnspacing=0.8)
    whole = float(seconds[:, first:].sum()) or 1.0
    shares = [f"{name} {100 * float(row[first:].sum()) / whole:.1f} %" for name, row in reversed(layers)]
    sentences = [f"{format_count(count, 'step')}: {', '.join(shares) or 'nothing took time'}."]
    if count - first > len(below):
        sentences.append(f"They are drawn as {len(below)} means.")
    if first:
        took, waited = (_prefixed(float(value), "s") for value in (seconds[:, 0].sum(), seconds[-1, 0]))
        sentences.append(f"The first step is not drawn: it took {took}, of which {waited} waiting.")
        waits = (*np.percentile(seconds[-1, 1:], [50, 95]), seconds[-1, 1:].max())
        half, most, longest = (_prefixed(float(value), "s") for value in waits)
        sentences.append(f"Half of the waits were at most {half}, 95 % at most {most}, the longest {longest}.")
    if highest > limit:
        sentences.append(f"The highest, {_prefixed(highest, 's')}, is cut off.")
    if timeline.ready:
        sentences.append(f"On average {np.mean(timeline.ready):.1f} batches were ready when a step asked for one.")
    sentences += [EMULATED] * run.emulated
    return _to_html(figure, f"run{number}", f"Run {number}: {run.label}", " ".join(sentences))


def _prefixed(value: float, unit: str = "") -> str:
    """Return a short figure: 950, 1.7k, 1.1M, or with a unit 2 ms."""
    return EngFormatter(unit=unit, sep=" " if unit else "")(float(f"{value:.3g}"))


def _short(text: str, letters: int) -> str:
    """Return the text on one line, or only the start and end of a long text."""
    text = clean(" ".join(text.split()))
    half = (letters - 1) // 2
    return text if len(text) <= letters else f"{text[:half]}…{text[-half:]}"


def _to_html(figure: Figure, name: str, title: str, sentence: str) -> str:
    """Return a `<figure>` with inline SVG and a sentence as its caption. `name` makes its ids unique on the page."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = file.getvalue()
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)  # the page has styles
    svg = re.sub(r"(?<=: )#00f00\d", lambda found: f"var(--{_VARIABLES[int(found[0][-1])]})", svg)
    referred = set(re.findall(r"[\"(]#([\w-]+)[\")]", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in referred else "", svg)
    view, rest = re.findall(r'viewBox="[^"]*"', svg)[0], svg.partition(">")[2]
    title, sentence = escape(clean(title)), escape(clean(sentence))
    words = f'<title id="{name}-title">{title}</title><desc id="{name}-desc">{sentence}</desc>'
    svg = f'<svg {view} role="img" aria-labelledby="{name}-title {name}-desc">{words}{rest}'
    return f"<figure><h3>{title}</h3>\n{svg}\n<figcaption>{sentence}</figcaption></figure>"
