"""Progress of a command: a live line on a terminal, else a line every 30 seconds."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from tpufeed.cli.console import echo_error, is_terminal, printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_LINE_SECONDS = 30.0  # between the lines of a log
_BAR_COLUMNS = 12
_LEAST_COLUMNS = 60  # on a narrower terminal, bar and clocks would leave no room for the figures


class ProgressLine:
    """The progress line of a command, on stderr. A context manager; not thread-safe."""

    def __init__(self, verb: str, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._verb, self._quiet, self._clock = verb, quiet, clock
        self._start = clock()
        self._due = self._start + _LINE_SECONDS
        self._done = self._earlier = self._total = 0.0
        self._live: tuple[Bar, TaskID] | None = None

    def __enter__(self) -> Self:
        if not self._quiet and is_live():
            from rich.console import Console
            from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True, highlight=False)
            columns: list[ProgressColumn] = [TextColumn("{task.description} {task.fields[said]}", markup=False)]
            if console.width >= _LEAST_COLUMNS:
                said, left = TextColumn("{task.fields[said]}", markup=False), TextColumn("ETA {task.fields[left]}")
                columns = [TextColumn("{task.description}"), BarColumn(_BAR_COLUMNS), said, TimeElapsedColumn(), left]
            # A transient line vanishes if there was nothing to report; `update` makes it stay.
            bar = Bar(*columns, console=console, transient=True)
            self._live = bar, bar.add_task(self._verb, total=None, said="", left=_clock_face(None))
            bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live[0].stop()

    @property
    def seconds(self) -> float:
        """Seconds since the start, never 0."""
        return max(self._clock() - self._start, 1e-3)

    @property
    def left(self) -> float | None:
        """Estimated seconds until the end; None if unknown."""
        rate = (self._done - self._earlier) / self.seconds
        return (self._total - self._done) / rate if rate > 0 else None

    def update(self, done: float, total: float, parts: Sequence[str], earlier: float = 0) -> None:
        """Show `parts`, and the time left, estimated from the work that is `done` but was not done `earlier`."""
        self._done, self._total, self._earlier = done, total, earlier
        left = _clock_face(self.left)
        if self._live is not None:
            bar, task = self._live
            bar.live.transient = False
            bar.update(task, completed=done, total=total, said=" ".join(map(printable, parts)), left=left)
        elif not self._quiet and self._clock() >= self._due:
            self._due = self._clock() + _LINE_SECONDS
            echo_error(f"{self._verb}: {', '.join([*parts, f'ETA {left}'])}")


@contextmanager
def status(verb: str) -> Iterator[Callable[[str], None]]:
    """Show a status line, for work without progress; it only appears on a terminal."""
    if not is_live():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True, highlight=False).status(verb) as live:
        yield lambda what: live.update(Text(f"{verb}: {printable(what)}"))


def is_live(stream: Any = None) -> bool:
    """Return True if a line on `stream`, by default stderr, can be overwritten."""
    return is_terminal(stream or sys.stderr) and os.environ.get("TERM", "") not in ("dumb", "unknown")


def _clock_face(seconds: float | None) -> str:
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
