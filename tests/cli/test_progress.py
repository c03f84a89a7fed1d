"""The progress line: what is left out on narrow terminals, and what a log gets."""

import pytest

from tpufeed.cli import progress
from tpufeed.cli.progress import Progress, Status

PARTS = ["13,500/30,000 images", "1,234 img/s", "12 MB/s", "2 rejected"]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def line(clock):
    """At 45 %, of which a third was done by an earlier run, after a minute."""
    line = Progress("sharding", clock=clock)
    clock.now = 60
    line.update(13_500, 30_000, PARTS, earlier=4_500)
    return line


def test_all_of_it_where_there_is_room(line):
    text = line.line(120)
    assert text.startswith("sharding ━━━")
    assert text.endswith("┈ 13,500/30,000 images 1,234 img/s 12 MB/s 2 rejected 0:01:00 ETA 0:01:50")
    assert len(text) == 120
    assert set(line.line(120, ascii_only=True)) <= set(map(chr, range(32, 127)))


@pytest.mark.parametrize("width", range(1, 121))
def test_no_width_is_too_narrow(line, width):
    assert len(line.line(width)) <= width


def test_what_matters_most_stays(line):
    assert line.line(43) == "sharding 13,500/30,000 images ETA 0:01:50"
    assert line.line(30) == "sharding 13,500/30,000 images"
    assert line.line(28) == "sharding 45% ETA 0:01:50"
    assert line.line(15) == "sharding 45%"


def test_time_left_is_not_known_before_anything_is_done(clock):
    line = Progress("verifying", clock=clock)
    assert line.left is None
    clock.now = 3
    line.update(0, 100, ["0 records"])
    assert "ETA -:--:--" in line.line(80)


def test_a_log_gets_a_line_now_and_then(clock, capsys):
    with Progress("sharding", clock=clock) as line:
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
    with Progress("sharding", quiet=True, clock=clock) as line:
        clock.now = 1e6
        line.update(1, 2, PARTS)
    with Status("measuring") as status:
        status.say("storage")
    assert capsys.readouterr() == ("", "")
    assert status.line(80) == "measuring: storage"


def test_what_can_be_written_over(monkeypatch):
    class Stream:
        def __init__(self, terminal):
            self.isatty = lambda: terminal

    monkeypatch.setenv("FORCE_COLOR", "1")
    for term, terminal, live in (("xterm", True, True), ("dumb", True, False), ("xterm", False, False)):
        monkeypatch.setenv("TERM", term)
        assert progress.is_live(Stream(terminal)) == live
    assert not progress.is_terminal(None)
