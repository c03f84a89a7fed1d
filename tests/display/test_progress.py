"""Where progress is shown, what a log gets, and what a terminal is. A terminal and a kernel are in test_watched.py."""

import multiprocessing
import shutil

import pytest

import tpufeed
from tpufeed.cli.console import status
from tpufeed.display import progress
from tpufeed.display.progress import ProgressLine, find_place, show_progress

PARTS = ["13,500/30,000 images", "1,234 img/s", "12 MB/s", "2 rejected"]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Stream:
    def __init__(self, terminal):
        self.isatty = lambda: terminal


@pytest.fixture
def clock():
    return Clock()


def test_time_left_is_not_known_before_anything_is_done(clock, capsys):
    with ProgressLine("verifying", True, clock) as line:
        assert line.left is None
        clock.now = 10.0
        line.update(0, 100, ["0 records"])
    assert capsys.readouterr().err == "verifying: 0 records, ETA -:--:--\n"


def test_a_log_gets_a_line_now_and_then(clock, capsys):
    with ProgressLine("sharding", True, clock) as line:
        for second in range(100):
            clock.now = float(second)
            line.update(second, 200, [f"{second}/200 images", "1 img/s"])
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "sharding: 10/200 images, 1 img/s, ETA 0:03:10",
        "sharding: 40/200 images, 1 img/s, ETA 0:02:40",
        "sharding: 70/200 images, 1 img/s, ETA 0:02:10",
    ]
    assert "\r" not in said.err


@pytest.mark.parametrize("wanted", [None, False])
def test_nothing_where_nobody_watches_or_wants_it(wanted, clock, capsys):
    with ProgressLine("sharding", wanted, clock) as line:
        clock.now = 1e6
        line.update(1, 2, PARTS)
        assert line.left == 1e6
    with status("measuring") as tell:
        tell("storage")
    assert capsys.readouterr() == ("", "")


def test_a_log_that_cannot_be_written_stops_no_work(clock, monkeypatch):
    for stderr in (None, open("/dev/full", "w")):  # noqa: SIM115, PTH123
        monkeypatch.setattr("sys.stderr", stderr)
        with ProgressLine("sharding", True, clock) as line:
            clock.now += 60
            line.update(1, 2, PARTS)


def test_what_can_be_written_over(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for term, terminal, live in (("xterm", True, True), ("dumb", True, False), ("xterm", False, False)):
        monkeypatch.setenv("TERM", term)
        assert progress.is_live(Stream(terminal)) == live
    for name, value in (("JPY_PARENT_PID", "7"), ("MPLBACKEND", "module://matplotlib_inline.backend_inline")):
        with monkeypatch.context() as kernel:
            kernel.setenv(name, value)
            assert not progress.is_live(Stream(True))
    assert progress.is_live(Stream(True))
    assert not progress.is_terminal(None)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_worker_shows_nothing_unless_it_is_told_to(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Stream(terminal))
    shown = "terminal" if terminal else "log"
    assert [find_place(wanted) for wanted in (None, False, True)] == ["terminal" if terminal else None, None, shown]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(find_place, [None, False, True]) == [None, None, shown]


def test_a_listener_replaces_the_bar(monkeypatch, capsys):
    class Work:
        def figures(self, seconds):
            return progress.Figures(1, 2, PARTS)

    monkeypatch.setattr(progress, "_FIRST_LINE_SECONDS", 0.0)
    heard = []
    for wanted in (None, False, True):
        with show_progress("sharding", wanted, heard.append) as listen:
            listen(Work())
    assert len(heard) == 3
    assert capsys.readouterr().err.count("sharding: 13,500/30,000 images") == 1


def test_all_calls_show_progress_if_they_are_told_to(photo_files, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(progress, "_FIRST_LINE_SECONDS", 0.0)
    for number, file in enumerate(file for file in photo_files if file.suffix == ".jpg"):
        folder = tmp_path / f"photos{number % 2}" / "a"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)
    url, given = tmp_path / "d", {"workers": 1, "progress": True}
    tpufeed.shard(tmp_path / "photos0", url, **given)
    tpufeed.append(tmp_path / "photos1", url, **given)
    tpufeed.verify(url, progress=True)
    tpufeed.compact(url, **given)
    tpufeed.cache.warmup(url, tmp_path / "c", size=32, **given)
    for shard in url.glob("*.tfrecord"):
        (tmp_path / "foreign").mkdir(exist_ok=True)
        shutil.copy(shard, tmp_path / "foreign")
    tpufeed.adopt(tmp_path / "foreign", tmp_path / "a", progress=True)
    verbs = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert list(dict.fromkeys(verbs)) == ["sharding", "appending", "verifying", "compacting", "warming", "adopting"]
