"""Write the report: one HTML page without scripts or downloads, readable on a phone, in light and dark mode."""

import importlib.util
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from tpufeed.display.summary import clean
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.measure.clock import HIGH_PERCENT, MODERATE_PERCENT
from tpufeed.measure.files import check_output, write_file
from tpufeed.measure.results import BenchRun, Diagnosis
from tpufeed.text import format_figure, format_percent, format_range, format_rate

# "default-src 'none'": nothing may be loaded, whatever texts the page contains.
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>tpufeed report: $subject</title>
<style>
:root{--page:#f4f5f7;--card:#fff;--ink:#1b2230;--faint:#69758a;--grid:#e3e7ee;--line:#d5dae3;--band:#dfe5ee;
--wait:#d9480f;--sync:#7048b8;--compute:#1971c2;--chosen:#0b7a53;--good:#0b7a53;--fair:#b77900;--bad:#d9480f}
@media (prefers-color-scheme:dark){:root{--page:#10141b;--card:#19202b;--ink:#e8ecf3;--faint:#94a0b5;--grid:#2a3341;
--line:#333d4d;--band:#303b4c;--wait:#ff8a4c;--sync:#b197fc;--compute:#5aa9f2;--chosen:#3ecf96;--good:#3ecf96;
--fair:#f0b849;--bad:#ff8a4c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1300px;padding:12px;background:var(--page);color:var(--ink);overflow-wrap:anywhere;
font:16px/1.45 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:1rem;color:var(--faint)}h2{font-size:1.15rem;margin:1.6rem 0 .6rem}h3{font-size:1rem;margin:0 0 .3rem}
.card,figure{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;margin:0}
.verdict{border-left:8px solid var(--faint);font-size:1.4rem;line-height:1.25;font-weight:700}
.good{border-left-color:var(--good)}.fair{border-left-color:var(--fair)}.bad{border-left-color:var(--bad)}
.mark{border:2px dashed var(--fair);border-radius:6px;padding:2px 8px;width:fit-content}
ol.card,ul.card{padding-left:2.2rem}li{margin:.35rem 0}.faint{color:var(--faint)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr));gap:12px;align-items:start}
figure{min-width:0}figcaption{font-size:.875rem}
svg{display:block;width:100%;max-width:480px;margin:0 auto}svg *{stroke-linejoin:round;stroke-linecap:butt}
svg text{font-family:system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif!important}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:4px 14px 4px 0;border-bottom:1px solid var(--line)}
th:first-child{white-space:nowrap}td{min-width:6rem}
@media print{figure,.card{break-inside:avoid}}
</style>
</head>
<body>
<h1>tpufeed report: $subject</h1>
<main>
$body
</main>
</body>
</html>
""")


_NO_GAIN_PERCENT = 1.0  # runs whose idle time differs by less are equally good

# Rows in the table of runs: (name, field of `BenchRun`, unit, digits).
_FIGURES = (
    ("idle", "idle_percent", "%", 1), ("AU", "au_percent", "%", 1), ("step", "step_ms", "ms", 2),
    ("wait, p50", "wait_ms_p50", "ms", 2), ("wait, p95", "wait_ms_p95", "ms", 2), ("wait, p99", "wait_ms_p99", "ms", 2),
    ("first batch", "first_batch_seconds", "s", 2), ("compilation", "compile_seconds", "s", 2),
    ("recompilations", "recompilations", "", 0), ("MXU", "mxu_percent", "%", 1), ("MFU", "mfu_percent", "%", 1),
    ("duty cycle", "duty_cycle_percent", "%", 1), ("oversleep", "oversleep_percent", "%", 2),
    ("measured for", "wall_seconds", "s", 1),
)  # fmt: skip


def write_report(
    path: Path | str, diagnosis: Diagnosis | None, runs: Sequence[BenchRun], machine: dict[str, Any] | None = None
) -> None:
    """Write the page to `path`, which ends in .html, whole or not at all. An earlier report is replaced.

    The same arguments give the same bytes.

    Args:
        path: the page's file.
        diagnosis: the doctor's findings, if any.
        runs: runs in order: the first is "before", the last is "after".
        machine: the machine of the measurements, if there is no diagnosis.

    Raises:
        OptionError: as `check_report_path`, or there is neither a diagnosis nor a run.
        MissingExtraError: matplotlib is not installed.
        StoreError: the file cannot be written.
    """
    path = Path(path)
    check_report_path(path)
    if diagnosis is None and not runs:
        raise OptionError(f"{path}: there is nothing to report; give a diagnosis or a run")
    page = _page(diagnosis, runs, machine)
    write_file(path, page.encode("utf-8", "replace"))


def check_report_path(path: Path | str) -> None:
    """Check that a report can be written to `path`. Raises as `check_output`, or MissingExtraError."""
    check_output(Path(path), (".html",), "a report's name must end in .html")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "report")


def headline(runs: Sequence[BenchRun]) -> str:
    """Say in a sentence what improved from the first run to the best, or why the best has no verdict."""
    best = _find_best(runs)
    if best is None:
        doubted = next((run for run in runs if run.problems), None)
        if doubted is not None:
            return f"No verdict for any run: {doubted.problems[0]}"
        fastest = max(runs, key=lambda run: run.images_per_second or 0)
        rate = format_figure(fastest.images_per_second)
        return f"{fastest.label}: {rate} images a second; how long a device waits is n/a."
    mark = "EMULATED: " if best.emulated else ""
    idle = format_percent(best.idle_percent)
    if best.problems:
        return f"{mark}no verdict for the best run, {best.label}: {best.problems[0]}"
    if not has_verdict(runs[0]):
        return f"{mark}idle {idle} with {best.label}. {runs[0].label} has no verdict to compare it with."
    first, before = runs[0], format_percent(runs[0].idle_percent)
    if (first.idle_percent or 0) - (best.idle_percent or 0) < _NO_GAIN_PERCENT:
        return f"{mark}idle {before} with {first.label}" + "; no other run improves on that." * (len(runs) > 1)
    ratio = (best.images_per_second or 0) / (first.images_per_second or float("inf"))
    times = f": {ratio:.1f} times as many images a second" if ratio else ""
    return f"{mark}idle falls from {before} with {first.label} to {idle} with {best.label}{times}."


def _find_best(runs: Sequence[BenchRun]) -> BenchRun | None:
    """Return the run on the first run's device that idles least, or None if no such run has a verdict.

    Of runs that are equally good, the naive loader, which is the baseline, comes last, and a run with a verdict first.
    """
    measured = [run for run in runs if run.device == runs[0].device and run.idle_percent is not None]
    if not any(map(has_verdict, measured)):
        return None
    most = min(run.idle_percent or 0 for run in measured) + _NO_GAIN_PERCENT
    good = [run for run in measured if (run.idle_percent or 0) < most]
    return min(good, key=lambda run: (run.loader == "naive", bool(run.problems), run.idle_percent))


def has_verdict(run: BenchRun) -> bool:
    """Return True if a run's idle time is known and can be trusted."""
    return not run.problems and run.idle_percent is not None


def _page(diagnosis: Diagnosis | None, runs: Sequence[BenchRun], machine: dict[str, Any] | None) -> str:
    from tpufeed.measure.figures import EMULATED, MOST_RUNS, draw_figures

    if diagnosis is not None:
        subject, verdict = diagnosis.url, diagnosis.verdict
        idle = max(diagnosis.idle_percent) if diagnosis.idle_percent else None
    else:
        subject, verdict = ", ".join(dict.fromkeys(run.url for run in runs)), headline(runs)
        best = _find_best(runs)
        idle = None if best is None or best.problems else best.idle_percent
    level = "" if idle is None else "good" if idle < MODERATE_PERCENT else "fair" if idle < HIGH_PERCENT else "bad"
    body = [f'<section class="card verdict {level}">{_text(verdict)}</section>']
    if diagnosis is not None:
        body.append('<p class="mark">Predicted from measurements of each stage on this host.</p>')
    if any(run.emulated for run in runs):
        body.append(f'<p class="mark">{EMULATED}</p>')
    if diagnosis is not None and diagnosis.actions:
        items = ""
        for action in diagnosis.actions:
            effect = f"predicted: {action.effect or 'effect not known'}"
            effect += f"; cost: {action.cost}" if action.cost else ""
            items += f'<li>{_text(action.do)}<br><span class="faint">{_text(effect)}</span></li>'
        body.append(f'<h2>What to do next</h2>\n<ol class="card">{items}</ol>')
    remarks = list[tuple[str, str]]()
    for number, run in enumerate(runs, 1):
        sentences = [f"No verdict: {problem}" for problem in run.problems] or [run.verdict]
        mark = " (EMULATED)" if run.emulated else ""
        remarks += [(f"Run {number}, {run.label}{mark}", sentence) for sentence in sentences if sentence]
    if len(runs) > MOST_RUNS:
        half = MOST_RUNS // 2
        remarks.append(("Note", f"{len(runs)} runs: the figures show the first {half} and the last {half}."))
    remarks += [("Note", note) for note in (diagnosis.notes if diagnosis is not None else ())]
    if remarks:
        items = "\n".join(f"<li><b>{_text(about)}</b>: {_text(sentence)}</li>" for about, sentence in remarks)
        body.append(f'<h2>Verdicts, problems and notes</h2>\n<ul class="card">{items}</ul>')
    figures = "\n".join(draw_figures(diagnosis, runs))
    body.append(f'<h2>Figures</h2>\n<div class="figures">{figures}</div>' if figures else "")
    if runs:
        columns = ["figure", *(f"{number}: {run.label}" for number, run in enumerate(runs, 1))]
        figures_of = [_figures(run) for run in runs]
        rows = [[name, *(each[name] for each in figures_of)] for name in figures_of[0]]
        body.append(_table("Runs", columns, rows))
    if diagnosis is not None:
        facts = {
            "split": diagnosis.split,
            "TPU to feed": diagnosis.tpu,
            "it needs": f"{diagnosis.need} images a second ({diagnosis.model})",
            "this host feeds": f"{format_rate(diagnosis.fed, diagnosis.fed_span)} images a second",
            "idle (predicted)": f"{format_range(*diagnosis.idle_percent, 1)} %" if diagnosis.idle_percent else "n/a",
            "binds": diagnosis.binding,
        }
        body.append(_table("Diagnosis", ["what", "figure"], list(facts.items())))
        stages = [
            (s.name, format_rate(s.images_per_second, s.span), "; ".join(filter(None, (s.detail, s.why_not))))
            for s in diagnosis.stages
        ]
        body.append(_table("Stages", ["stage", "images a second", "how"], stages))
        machine = diagnosis.machine
    about = {name: _plain(value) for name, value in (machine or {}).items()}
    body.append(_table("Machine", ["name", "value"], list(about.items())))
    return _PAGE.substitute(subject=_text(subject), body="\n".join(filter(None, body)))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column names the row, or nothing if there are no rows."""
    if not rows:
        return ""
    head = "".join(f"<th scope=col>{_text(name)}</th>" for name in columns)
    lines = "\n".join(
        f"<tr><th scope=row>{_text(name)}</th>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    region = f'<div class="card wide" role="region" aria-label="{title}" tabindex="0">'
    return f"<h2>{title}</h2>\n{region}<table><thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table></div>"


def _figures(run: BenchRun) -> dict[str, str]:
    """Return all figures of a run by name. All runs have the same names."""
    rates = run.rates
    sent = None if run.bytes_per_second is None else run.bytes_per_second / 1e6
    return {
        "dataset": f"{run.url} ({run.source})",
        "loader": run.loader,
        "device": run.device,
        "batch": f"{run.batch_size:,}",
        "steps": f"{run.steps:,}",
        "images": f"{run.images:,}",
        "images a second": format_figure(run.images_per_second),
        "of all repeats": f"{format_range(rates.lowest, rates.highest)} ({len(rates.values)})" if rates else "n/a",
        **{name: format_figure(getattr(run, field), unit, digits) for name, field, unit, digits in _FIGURES},
        "to the device": format_figure(sent, "MB/s", 1),
    }


def _plain(value: Any) -> str:
    """Return a value from the machine's description as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(entry)}" for name, entry in value.items())
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else str(value)


def _text(text: str) -> str:
    """Escape text, so that no name in a dataset becomes markup."""
    return escape(clean(text))
