"""What a report says: verdict, actions, tables and the sentence under each plot; and all of it as Markdown."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tpufeed.diagnosis.results import Action, Diagnosis, Run, Spread
from tpufeed.errors import mask_secrets

HEADING = "# tpufeed report\n"  # tells our summaries from other people's files
EMULATED = "EMULATED: no accelerator was used; nominal step times stand in for one."
PREDICTED = "Predicted from what was measured of each stage on this host."
EMULATED_PLOT = "EMULATED: no accelerator was used."
HATCHED = "Hatched is predicted, not measured."
WHOLE = "The whole"
UNKNOWN = "n/a"
MOST_RUNS = 8  # have plots of their own


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture as inline SVG.

    Attributes:
        group: plots of a group stand together under it.
        title: what it shows.
        sentence: what is seen on it.
        svg: well-formed; its ids are unique in the report.
    """

    group: str
    title: str
    sentence: str
    svg: str


@dataclass(frozen=True, slots=True)
class Summary:
    """All that a report says, in its order.

    Attributes:
        subject: which dataset.
        verdict: in plain words.
        idle: that the verdict is about, in percent; None where it is not known or not to be trusted.
        marks: what every reader must know of the figures: that they are predicted, that nothing real was fed.
        remarks: the verdicts of the runs, their problems and the doctor's notes, as (about, sentence).
    """

    subject: str
    verdict: str
    idle: float | None
    marks: tuple[str, ...]
    remarks: tuple[tuple[str, str], ...]
    actions: tuple[Action, ...]
    plots: tuple[Plot, ...]
    tables: tuple[Table, ...]


def make_summary(
    diagnosis: Diagnosis | None, runs: Sequence[Run], plots: Sequence[Plot], machine: dict[str, Any] | None = None
) -> Summary:
    """Of a diagnosis or of runs, or of both; the machine is the diagnosis' own where it has one."""
    last = runs[-1] if runs else None
    if diagnosis is not None:
        subject, verdict = diagnosis.url, diagnosis.verdict
        idle = max(diagnosis.idle_percent, default=None) if diagnosis.idle_percent else None
    else:
        assert last is not None
        subject, verdict = ", ".join(dict.fromkeys(run.url for run in runs)), _verdict(last)
        idle = None if last.problems else last.idle_percent
    marks = [PREDICTED] if diagnosis is not None else []
    marks += [EMULATED] * any(map(is_emulated, runs))
    return Summary(
        subject,
        verdict,
        idle,
        tuple(marks),
        tuple(_iter_remarks(diagnosis, runs)),
        diagnosis.actions if diagnosis else (),
        tuple(plots),
        (*_iter_tables(diagnosis, runs), *_iter_facts(diagnosis, machine)),
    )


def is_emulated(run: Run) -> bool:
    """Whether no accelerator took its batches."""
    return "emulated" in run.device.lower()


def known(value: float | None) -> float | None:
    """A finite number, or None."""
    return value if value is not None and math.isfinite(value) else None


def say(value: float | None, unit: str = "", digits: int = 0) -> str:
    """A figure with its unit; n/a where there is none."""
    if known(value) is None:
        return UNKNOWN
    return f"{value:,.{digits}f}{' ' if unit else ''}{unit}"


def say_range(pair: tuple[float, float] | None, unit: str = "", digits: int = 0) -> str:
    """The lower to the higher of two figures."""
    if pair is None or any(known(value) is None for value in pair):
        return UNKNOWN
    low, high = (f"{value:,.{digits}f}" for value in sorted(pair))
    return f"{low}{'' if low == high else f' to {high}'}{' ' if unit else ''}{unit}"


def capitalise(text: str) -> str:
    """With a large first letter, and the others as they are."""
    return text[:1].upper() + text[1:]


def to_markdown(summary: Summary) -> str:
    """The same without pictures."""
    lines = [HEADING, f"**{escape(summary.verdict)}**\n", f"Dataset: {escape(summary.subject)}\n"]
    lines += [f"{escape(mark)}\n" for mark in summary.marks]
    lines += [f"- {escape(about)}: {escape(sentence)}" for about, sentence in summary.remarks]
    if summary.actions:
        lines.append("\n## What to do next\n")
        lines += [
            f"{number}. {escape(action.do)} ({escape(effect_of(action))})"
            for number, action in enumerate(summary.actions, 1)
        ]
    if summary.plots:
        lines.append("\n## What the pictures show\n")
        lines += [f"- {escape(plot.group)}, {escape(plot.title)}: {escape(plot.sentence)}" for plot in summary.plots]
    for table in summary.tables:
        lines += [
            "",
            f"## {escape(table.title)}",
            "",
            _row(map(escape, table.columns)),
            _row(("---",) * len(table.columns)),
        ]
        lines += [_row(map(escape, row)) for row in table.rows]
    return "\n".join(lines) + "\n"


def without_controls(text: str) -> str:
    """Without what no XML may hold, and without secrets of URLs."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", mask_secrets(text))


def escape(text: str) -> str:
    """As Markdown shows it as it is: no tag, link, table or line of its own comes of it."""
    text = " ".join(without_controls(text).split())
    for sign in "\\`*[]|~":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def effect_of(action: Action) -> str:
    """What an action is expected to come to, in a sentence that says so."""
    parts = [
        "" if known(action.factor) is None else f"{action.factor:,.1f}x",
        "" if known(action.images_per_second) is None else f"{say(action.images_per_second)} images a second",
        "" if action.idle_percent is None else f"idle {say_range(action.idle_percent, '%')}",
    ]
    expected = ", ".join(filter(None, parts)) or "effect not known"
    return f"predicted: {expected}" + (f"; cost: {action.cost}" if action.cost else "")


def _verdict(run: Run) -> str:
    if run.problems:
        return f"No verdict: {run.problems[0]}"
    words = run.verdict or f"Idle {say(known(run.idle_percent), '%', 1)}."
    return words if not is_emulated(run) or "EMULATED" in words else f"EMULATED: {words}"


def _iter_remarks(diagnosis: Diagnosis | None, runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    for number, run in enumerate(runs, 1):
        about = f"Run {number}, {run.label}"
        if diagnosis is not None or len(runs) > 1 or run.problems:
            yield about, _verdict(run)
        for problem in run.problems[1:]:
            yield about, problem
    if len(runs) > MOST_RUNS:
        yield (
            "Note",
            f"{len(runs)} runs: the first {MOST_RUNS // 2} and the last {MOST_RUNS // 2} have plots of their own.",
        )
    if diagnosis is not None:
        for note in diagnosis.notes:
            yield "Note", note


def _iter_tables(diagnosis: Diagnosis | None, runs: Sequence[Run]) -> Iterator[Table]:
    if runs:
        columns = ("figure", *(f"{number}: {run.label}" for number, run in enumerate(runs, 1)))
        by_run = [_figures(run) for run in runs]
        yield Table("Runs", columns, tuple((name, *(row[name] for row in by_run)) for name in by_run[0]))
    if diagnosis is None:
        return
    needed = f"{say_range(diagnosis.needed)} images a second ({diagnosis.model})"
    facts = {
        "split": diagnosis.split,
        "to be fed": diagnosis.tpu,
        "it needs": needed,
        "this host feeds": f"{say(diagnosis.fed)} images a second",
        "idle (predicted)": say_range(diagnosis.idle_percent, "%", 1),
        "binds": diagnosis.binding,
    }
    yield Table("Diagnosis", ("what", "figure"), tuple(facts.items()))
    rows = []
    for stage in diagnosis.stages:
        how = (stage.detail, stage.why_not if known(stage.images_per_second) is None else "")
        rows.append((stage.name, say(stage.images_per_second), "; ".join(filter(None, how))))
    yield Table("Stages", ("stage", "images a second", "how"), tuple(rows))


def _iter_facts(diagnosis: Diagnosis | None, machine: dict[str, Any] | None) -> Iterator[Table]:
    settings = diagnosis.settings if diagnosis else {}
    machine = (diagnosis.machine if diagnosis else None) or machine or {}
    for title, values in (("Settings for this host", settings), ("Machine", machine)):
        if values:
            yield Table(title, ("name", "value"), tuple((str(name), _plain(value)) for name, value in values.items()))


def _figures(run: Run) -> dict[str, str]:
    """By name; every run has the same names."""
    ms, percent, seconds = ("ms", 2), ("%", 1), ("s", 2)
    return {
        "dataset": f"{run.url} ({run.source})",
        "loader": run.loader,
        "device": run.device,
        "batch": f"{run.batch_size:,}",
        "steps": f"{run.steps:,}",
        "images": f"{run.images:,}",
        "images a second": say(run.images_per_second),
        "of all repeats": _say_spread(run.rates),
        "idle": say(run.idle_percent, *percent),
        "AU": say(run.au_percent, *percent),
        "step": say(run.step_ms, *ms),
        "wait, p50": say(run.wait_ms_p50, *ms),
        "wait, p95": say(run.wait_ms_p95, *ms),
        "wait, p99": say(run.wait_ms_p99, *ms),
        "first batch": say(run.first_batch_seconds, *seconds),
        "compilation": say(run.compile_seconds, *seconds),
        "recompilations": say(run.recompilations),
        "MXU": say(run.mxu_percent, *percent),
        "MFU": say(run.mfu_percent, *percent),
        "duty cycle": say(run.duty_cycle_percent, *percent),
        "to the device": say(None if run.bytes_per_second is None else run.bytes_per_second / 1e6, "MB/s", 1),
        "oversleep": say(run.oversleep_percent, "%", 2),
        "repeated images": say(run.repeated),
        "missing images": say(run.missing),
        "measured for": say(run.wall_seconds, "s", 1),
    }


def _say_spread(rates: Spread | None) -> str:
    return UNKNOWN if rates is None else f"{say_range((rates.lowest, rates.highest))} ({len(rates.values)})"


def _plain(value: Any) -> str:
    """A value of settings or of the machine's description, whatever its type."""
    if value is None:
        return UNKNOWN
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else str(value)


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
