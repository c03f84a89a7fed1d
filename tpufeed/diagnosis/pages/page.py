"""The report as one page of HTML: readable without network and script, on a phone, by day and by night."""

import re
from collections.abc import Iterator
from html import escape
from itertools import groupby

from tpufeed.diagnosis.pages.summary import Plot, Summary, Table, effect_of, without_controls

_SHORT = 18  # letters that stay on one line, as all figures do
_LEVELS = ((5.0, "good"), (20.0, "fair"))  # xprof's bands of idle, in percent

# Nothing may be loaded, whatever the texts are: "default-src 'none'".
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
"""

_STYLE = """
:root{--page:#f4f5f7;--card:#fff;--ink:#1b2230;--faint:#69758a;--grid:#e3e7ee;--line:#d5dae3;
--wait:#d9480f;--sync:#7048b8;--compute:#1971c2;--run:#0c8599;--band:#dfe5ee;--chosen:#0b7a53;--predicted:#8a5a00;
--good:#0b7a53;--fair:#b77900;--bad:#d9480f}
@media (prefers-color-scheme:dark){:root{--page:#10141b;--card:#19202b;--ink:#e8ecf3;--faint:#94a0b5;
--grid:#2a3341;--line:#333d4d;--wait:#ff8a4c;--sync:#b197fc;--compute:#5aa9f2;--run:#3bc9db;--band:#303b4c;--chosen:#3ecf96;
--predicted:#f0b849;--good:#3ecf96;--fair:#f0b849;--bad:#ff8a4c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1500px;padding:12px;background:var(--page);color:var(--ink);
font:16px/1.45 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1rem;margin:0 0 .5rem;color:var(--faint);font-weight:600}
h2{font-size:1.15rem;margin:1.6rem 0 .6rem}
h3{font-size:1rem;margin:0 0 .3rem}
.card,figure{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;margin:0}
.verdict{border-left:8px solid var(--faint)}
.verdict.good{border-left-color:var(--good)}.verdict.fair{border-left-color:var(--fair)}
.verdict.bad{border-left-color:var(--bad)}
.verdict p{margin:.2rem 0}.verdict .said{font-size:1.5rem;line-height:1.25;font-weight:700}
.mark{display:inline-block;border:2px dashed var(--fair);border-radius:6px;padding:2px 8px;margin-top:.5rem!important}
ul,ol{margin:.5rem 0 0;padding-left:1.4rem}li{margin:.35rem 0}.faint{color:var(--faint)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:12px;align-items:start}
figure{min-width:0}figcaption{font-size:.875rem;color:var(--ink)}
svg{display:block;width:100%;max-width:460px;height:auto;margin:0 auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}
svg text{font-family:system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif!important}
.tables{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,560px),1fr));gap:0 12px}
.tables section{min-width:0}.tables .many{grid-column:1/-1}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:4px 14px 4px 0;border-bottom:1px solid var(--line)}
th{overflow-wrap:normal}.short{white-space:nowrap}thead th{border-bottom:2px solid var(--faint)}th{font-weight:600}
.many td,.many thead th{min-width:9.5rem;max-width:22rem}
.many tr>:first-child{position:sticky;left:0;background:var(--card);min-width:7rem}
@media print{body{max-width:none}figure,.card{break-inside:avoid}}
"""


def to_html(summary: Summary) -> str:
    """The page. All texts are taken as text: none of them becomes markup."""
    return "\n".join(_iter_lines(summary)) + "\n"


def _iter_lines(summary: Summary) -> Iterator[str]:
    yield f"{_HEAD}<title>tpufeed report: {_text(summary.subject)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<header><h1>tpufeed report: {_text(summary.subject)}</h1></header>\n<main>"
    yield f'<section class="card verdict {_level(summary.idle)}"><p class="said">{_text(summary.verdict)}</p>'
    for mark in summary.marks:
        yield f'<p class="mark">{_text(mark)}</p>'
    yield "</section>"
    if summary.actions:
        yield '<h2>What to do next</h2>\n<ol class="card" style="padding-left:2.2rem">'
        for action in summary.actions:
            yield f'<li>{_text(action.do)}<br><span class="faint">{_text(effect_of(action))}</span></li>'
        yield "</ol>"
    if summary.remarks:
        yield '<h2>Verdicts, problems and notes</h2>\n<ul class="card" style="padding-left:2.2rem">'
        for about, sentence in summary.remarks:
            yield f"<li><b>{_text(about)}</b>: {_text(sentence)}</li>"
        yield "</ul>"
    for group, plots in groupby(summary.plots, lambda plot: plot.group):
        yield f'<h2>{_text(group)}</h2>\n<div class="plots">'
        yield from map(_figure, plots)
        yield "</div>"
    yield '<div class="tables">'
    for table in summary.tables:
        yield from _iter_table(table)
    yield "</div>\n</main>\n</body>\n</html>"


def _figure(plot: Plot) -> str:
    caption = re.sub(r"(?<=[0-9]) (?=(?:%|[mµ]?s)(?![a-z]))", "\u00a0", _text(plot.sentence))  # units stay with figures
    return f"<figure><h3>{_text(plot.title)}</h3>\n{plot.svg}\n<figcaption>{caption}</figcaption></figure>"


def _iter_table(table: Table) -> Iterator[str]:
    title = _text(table.title)
    many = ' class="many"' if len(table.columns) > 3 else ""
    yield f'<section{many}><h2>{title}</h2>\n<div class="card wide" role="region" aria-label="{title}" tabindex="0">'
    heads = "".join(f"<th scope=col>{_text(name)}</th>" for name in table.columns)
    yield f"<table><thead><tr>{heads}</tr></thead>\n<tbody>"
    for name, *cells in table.rows:
        yield f"<tr><th scope=row>{_text(name)}</th>{''.join(map(_cell, cells))}</tr>"
    yield "</tbody></table></div></section>"


def _cell(text: str) -> str:
    short = ' class="short"' if len(text) <= _SHORT else ""
    return f"<td{short}>{_text(text)}</td>"


def _level(idle: float | None) -> str:
    if idle is None:
        return ""
    return next((name for least, name in _LEVELS if idle < least), "bad")


def _text(text: str) -> str:
    return escape(without_controls(text))
