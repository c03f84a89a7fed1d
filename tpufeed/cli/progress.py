"""Progress of a command: one live line on a terminal, else a line now and then."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from tpufeed.cli.console import complain, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.live import Live
    from rich.text import Text

_LINE_SECONDS = 30.0  # between the lines of a log
_SMALLEST_BAR = 8
_NO_TIME = "-:--:--"


class Progress:
    """The line of one command, on stderr. Used by one thread, within `with`."""

    def __init__(self, verb: str, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._verb, self._quiet, self._clock = verb, quiet, clock
        self._start = clock()
        self._due = self._start + _LINE_SECONDS
        self._done, self._earlier, self._total = 0.0, 0.0, 0.0
        self._parts: tuple[str, ...] = ()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self._quiet and is_live():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(self, console=Console(stderr=True, highlight=False), refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.transient = not self._parts  # where there was nothing to tell, nothing is left behind
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Since the beginning, and never 0."""
        return max(self._clock() - self._start, 1e-3)

    def update(self, done: float, total: float, parts: Sequence[str], earlier: float = 0) -> None:
        """Show `parts`, the most important first; the time left follows from how much is `done` but not `earlier`."""
        self._done, self._total, self._earlier = done, total, earlier
        self._parts = tuple(map(printable, parts))
        if self._live is None and not self._quiet and self._clock() >= self._due:
            self._due = self._clock() + _LINE_SECONDS
            complain(f"{self._verb}: {', '.join(self._said())}")

    @property
    def left(self) -> float | None:
        """Seconds that the rest will take, where that can be told."""
        rate = (self._done - self._earlier) / self.seconds
        return (self._total - self._done) / rate if rate > 0 else None

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        yield Text(self.line(options.max_width - 1, ascii_only=options.ascii_only), no_wrap=True, overflow="crop")

    def line(self, width: int, ascii_only: bool = False) -> str:
        """The line for so many columns: what does not fit is left out, the least important first."""
        parts = [*self._parts, _clock_face(self.seconds), f"ETA {_clock_face(self.left)}"]
        if self._total and len(f"{self._verb} {parts[0]}") > width:
            parts[0] = f"{self._done / self._total:.0%}"
        order = [*range(len(self._parts))[:1], len(parts) - 1, *range(1, len(self._parts)), len(parts) - 2]
        shown = set[int]()
        for number in order:
            if len(" ".join([self._verb, *(parts[i] for i in {*shown, number})])) <= width:
                shown.add(number)
        texts = [parts[number] for number in sorted(shown)]
        room = width - len(" ".join([self._verb, *texts])) - 1
        if room >= _SMALLEST_BAR and self._total:
            texts.insert(0, _bar(min(self._done / self._total, 1.0), room, ascii_only))
        return " ".join([self._verb, *texts])[:width]

    def _said(self) -> Iterable[str]:
        yield from self._parts
        yield f"ETA {_clock_face(self.left)}"


class Status(Progress):
    """Message that says what is at work, where progress cannot be told; only a terminal shows it."""

    def __init__(self, verb: str) -> None:
        super().__init__(verb, quiet=not is_live())
        self._what = ""

    def say(self, what: str) -> None:
        """Show `what`."""
        self._what = printable(what)

    def line(self, width: int, ascii_only: bool = False) -> str:
        return f"{self._verb}: {self._what}"[:width]


def is_live(stream: Any = None) -> bool:
    """Return true where a line on `stream`, by default stderr, can be written over."""
    return is_terminal(stream or sys.stderr) and os.environ.get("TERM", "") not in ("dumb", "unknown")


def is_terminal(stream: Any) -> bool:
    """Return true where a person sees it. FORCE_COLOR, which makes rich say so of a file, is about colours alone."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _bar(share: float, width: int, ascii_only: bool) -> str:
    full, empty = ("#", ".") if ascii_only else ("━", "┈")
    done = int(share * width)
    return full * done + empty * (width - done)


def _clock_face(seconds: float | None) -> str:
    if seconds is None:
        return _NO_TIME
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
