"""The report as a real browser shows it, on a phone's width and on a desk's, by day and by night."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.diagnosis.chromium import Chromium, find_chromium
from tests.diagnosis.report_example import NASTY, make_diagnosis, make_run, make_runs, make_xla_run
from tpufeed.diagnosis.report import write_report

_REQUIRED = os.environ.get("TPUFEED_BROWSER") == "required"  # set by .ci/run where it has installed one

# Of every text of the plots: its size on the screen, how far it reaches out of its plot, and out of the plots' others.
_PLOTS = """(() => [...document.querySelectorAll("svg")].map(svg => {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width
    const texts = [...svg.querySelectorAll("text")].map(text => ({
        text: text.textContent, box: text.getBoundingClientRect(),
        size: scale * parseFloat(getComputedStyle(text).fontSize)
    }))
    const out = texts.filter(({box: b}) => b.left < box.left - 1 || b.right > box.right + 1
        || b.top < box.top - 1 || b.bottom > box.bottom + 1).map(t => t.text)
    const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5
    const pairs = texts.flatMap((a, i) => texts.slice(i + 1).filter(b => over(a.box, b.box)).map(b => [a.text, b.text]))
    const shapes = [...svg.querySelectorAll("path")].filter(path => path.getBoundingClientRect().width > 0).length
    return {width: box.width, height: box.height, texts: texts.length, shapes, out, pairs,
            smallest: Math.min(...texts.map(t => t.size))}
}))()"""
_PAGE = """(() => ({
    width: document.documentElement.scrollWidth, view: innerWidth,
    title: document.title, text: document.body.innerText,
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    smallest: Math.min(...[...document.querySelectorAll("body :not(svg *)")].filter(e => e.innerText)
        .map(e => parseFloat(getComputedStyle(e).fontSize))),
    columns: new Set([...document.querySelectorAll("figure")].map(f => f.getBoundingClientRect().left)).size
}))()"""
_FAULTS = {"Network.loadingFailed", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        assert not _REQUIRED, "TPUFEED_BROWSER=required, and there is no chromium"
        pytest.skip("no chromium is installed")
    browser = Chromium(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "out.html"
    write_report(path, make_diagnosis(), [*make_runs(), make_xla_run(), make_run(NASTY, 12.0, 2_500)])
    return path


def look(browser: Chromium, path: Path, width: int, dark: bool = False) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The page and its plots, once it is clear that it loads itself and nothing else."""
    browser.open(path.as_uri(), width, dark=dark)
    page, plots = browser.evaluate(_PAGE), browser.evaluate(_PLOTS)
    events = browser.events
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if url != "data:,"] == [path.as_uri()]
    assert not [event for event in events if event["method"] in _FAULTS]
    return page, plots


@pytest.mark.parametrize(("width", "dark"), [(360, False), (390, True), (1280, False), (1280, True)])
def test_it_renders_and_can_be_read(chromium: Chromium, report: Path, width: int, dark: bool) -> None:
    page, plots = look(chromium, report, width, dark)
    assert page["width"] <= page["view"] == width
    assert make_diagnosis().verdict in page["text"]
    assert NASTY.replace("\0", "\ufffd") in page["text"]
    assert page["smallest"] >= 13
    assert page["columns"] >= (3 if width == 1280 else 1)
    assert len(plots) == 2 + 3 * 4 + 2
    for plot in plots:
        assert plot["width"] >= min(width, 340) - 50
        assert plot["height"] > 100
        assert plot["texts"] >= 5
        assert plot["shapes"] >= 5
        assert plot["smallest"] >= 9
        assert plot["out"] == []
        assert plot["pairs"] == []
    light = [sum(map(int, page[name].strip("rgb()").split(","))) > 384 for name in ("paper", "ink")]
    assert light == ([False, True] if dark else [True, False])


def test_the_look_finds_faults(chromium: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        '<link rel="icon" href="data:,"><div style="width:2000px">wide</div><script>console.error("x"); y()</script>'
        '<svg width="100" viewBox="0 0 400 100"><text font-size="20" x="390" y="50">out</text>'
        '<text font-size="20" x="385" y="52">over</text></svg><img src="none.png">'
    )
    chromium.open(path.as_uri(), 1280)
    page, (plot,) = chromium.evaluate(_PAGE), chromium.evaluate(_PLOTS)
    assert page["width"] > page["view"]
    assert plot["out"] == ["out", "over"]
    assert plot["pairs"] == [["out", "over"]]
    assert plot["smallest"] == 5
    assert {event["method"] for event in chromium.events} >= _FAULTS
