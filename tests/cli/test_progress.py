"""The progress line: what a log gets, and what a terminal is."""

import pytest

from tpufeed.cli import console, progress
from tpufeed.cli.progress import ProgressLine, status

PARTS = ["13,500/30,000 images", "1,234 img/s", "12 MB/s", "2 rejected"]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_time_left_is_not_known_before_anything_is_done(clock, capsys):
    with ProgressLine("verifying", clock=clock) as line:
        assert line.left is None
        clock.now = 30.0
        line.update(0, 100, ["0 records"])
    assert capsys.readouterr().err == "verifying: 0 records, ETA -:--:--\n"


def test_a_log_gets_a_line_now_and_then(clock, capsys):
    with ProgressLine("sharding", clock=clock) as line:
        for second in range(100):
            clock.now = float(second)
            line.update(second, 200, [f"{second}/200 images", "1 img/s"])
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "sharding: 30/200 images, 1 img/s, ETA 0:02:50",
        "sharding: 60/200 images, 1 img/s, ETA 0:02:20",
        "sharding: 90/200 images, 1 img/s, ETA 0:01:50",
    ]
    assert "\r" not in said.err


def test_nothing_where_it_is_to_be_quiet(clock, capsys):
    with ProgressLine("sharding", quiet=True, clock=clock) as line:
        clock.now = 1e6
        line.update(1, 2, PARTS)
    with status("measuring") as tell:
        tell("storage")
    assert capsys.readouterr() == ("", "")


def test_what_can_be_written_over(monkeypatch):
    class Stream:
        def __init__(self, terminal):
            self.isatty = lambda: terminal

    monkeypatch.setenv("FORCE_COLOR", "1")
    for term, terminal, live in (("xterm", True, True), ("dumb", True, False), ("xterm", False, False)):
        monkeypatch.setenv("TERM", term)
        assert progress.is_live(Stream(terminal)) == live
    assert not console.is_terminal(None)
