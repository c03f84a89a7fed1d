"""Progress of work: a bar on terminals and in notebooks, lines in a log, or nothing.

A person watches a terminal or a notebook. In a notebook the bar is rich's, in a display of IPython that each update
replaces: a saved notebook has one output with the last state. rich's own way needs ipywidgets, and prints a warning
instead of a bar without them. So does tqdm's, and then writes every state into the notebook.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_FIRST_LINE_SECONDS, _LINE_SECONDS = 10.0, 30.0  # until the first line of a log, and between the others
_NOTEBOOK_SECONDS = 0.5  # between two states of a bar in a notebook
# What every kernel of IPython sets for the programs that it starts, and with older releases.
_INLINE = ("module://matplotlib_inline", "module://ipykernel")
_BAR_COLUMNS = 12
_LEAST_COLUMNS = 60  # on a narrower terminal, bar and clocks would leave no room for the figures


class Figures(NamedTuple):
    """The state of some work: how much of `total` is done, what to say of it, and what was done before it began."""

    done: float
    total: float
    parts: Sequence[str]
    earlier: float = 0


class HasFigures(Protocol):
    """Progress, as listeners get it."""

    def figures(self, seconds: float) -> Figures:
        """Return the state after this many seconds."""


W = TypeVar("W", bound=HasFigures)


@contextmanager
def show_progress(
    verb: str, progress: bool | None, listener: Callable[[W], None] | None
) -> Iterator[Callable[[W], None]]:
    """Yield the function that work calls with its progress, from one thread: it shows it, and calls the listener.

    Args:
        verb: what is done ("sharding").
        progress: True shows progress everywhere, False nowhere, None on terminals and in notebooks. With a listener
            None is False: the caller shows it.
        listener: called with the progress.
    """
    wanted = False if progress is None and listener is not None else progress
    if find_place(wanted) is None:
        yield listener or (lambda _: None)
        return
    with ProgressLine(verb, wanted) as line:

        def listen(work: W) -> None:
            line.update(*work.figures(line.seconds))
            if listener is not None:
                listener(work)

        yield listen


class ProgressLine:
    """The line that shows progress, on stderr or in a notebook. A context manager, not thread-safe.

    `wanted` is the `progress` of `show_progress`.
    """

    def __init__(self, verb: str, wanted: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._verb, self._clock, self._place = verb, clock, find_place(wanted)
        self._start = clock()
        self._due = self._start + (_FIRST_LINE_SECONDS if self._place == "log" else 0)
        self._done = self._earlier = self._total = 0.0
        self._bar: tuple[Bar, TaskID] | None = None
        self._output: Any = None  # the bar's output in a notebook
        self._updated = False

    def __enter__(self) -> Self:
        if self._place in ("terminal", "notebook"):
            from rich.console import Console
            from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True, highlight=False)
            columns: list[ProgressColumn] = [TextColumn("{task.description} {task.fields[said]}", markup=False)]
            if console.width >= _LEAST_COLUMNS:
                said, left = TextColumn("{task.fields[said]}", markup=False), TextColumn("ETA {task.fields[left]}")
                columns = [TextColumn("{task.description}"), BarColumn(_BAR_COLUMNS), said, TimeElapsedColumn(), left]
            # A transient line vanishes if there was nothing to report. `update` makes it stay.
            bar = Bar(*columns, console=console, transient=True)
            self._bar = bar, bar.add_task(self._verb, total=None, said="", left=_clock_face(None))
            if self._place == "terminal":
                bar.start()
            else:
                import IPython.display

                display: Any = IPython.display.display  # untyped
                self._output = display(bar.make_tasks_table(bar.tasks), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._output is not None:
            if self._updated:
                self._redraw()
            else:
                self._output.update({"text/plain": ""}, raw=True)
        elif self._bar is not None:
            self._bar[0].stop()

    @property
    def seconds(self) -> float:
        """Seconds since the start, never 0."""
        return max(self._clock() - self._start, 1e-3)

    @property
    def left(self) -> float | None:
        """Estimated seconds until the end, or None if unknown."""
        rate = (self._done - self._earlier) / self.seconds
        return (self._total - self._done) / rate if rate > 0 else None

    def update(self, done: float, total: float, parts: Sequence[str], earlier: float = 0) -> None:
        """Show `parts`, and the time left, estimated from the work that is `done` but was not done `earlier`."""
        self._done, self._total, self._earlier = done, total, earlier
        left = _clock_face(self.left)
        if self._bar is not None:
            bar, task = self._bar
            bar.live.transient, self._updated = False, True
            bar.update(task, completed=done, total=total, said=" ".join(parts), left=left)
            if self._output is not None and self._clock() >= self._due:
                self._redraw()
        elif self._place == "log" and self._clock() >= self._due:
            self._due = self._clock() + _LINE_SECONDS
            with suppress(OSError, AttributeError, ValueError):  # no reader, None or closed: the work continues
                sys.stderr.write(f"{self._verb}: {', '.join([*parts, f'ETA {left}'])}\n")
                sys.stderr.flush()

    def _redraw(self) -> None:
        assert self._bar is not None, "there is an output"
        self._due = self._clock() + _NOTEBOOK_SECONDS
        self._output.update(self._bar[0].make_tasks_table(self._bar[0].tasks))


def find_place(wanted: bool | None) -> Literal["terminal", "notebook", "log"] | None:
    """Return the place where this process shows progress, see `show_progress`, or None."""
    is_worker = multiprocessing.parent_process() is not None  # beside others, with the same terminal
    if wanted is False or (wanted is None and is_worker):
        return None
    # A function of IPython. It is not imported for this: a kernel of another process has no such function.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None and not is_worker:
        return "notebook"
    if is_live():
        return "terminal"
    return "log" if wanted or is_terminal(sys.stderr) else None


def is_terminal(stream: Any) -> bool:
    """Return True if the stream is a terminal. rich would also check FORCE_COLOR, which only concerns colours."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # it is None or closed
        return False


def is_live(stream: Any = None) -> bool:
    """Return True if a line on `stream`, by default stderr, can be overwritten.

    That is not so for a command of a notebook ("!tpufeed shard ..."), which has a terminal whose output is kept whole.
    """
    in_notebook = "JPY_PARENT_PID" in os.environ or os.environ.get("MPLBACKEND", "").startswith(_INLINE)
    dumb = os.environ.get("TERM", "") in ("dumb", "unknown")
    return is_terminal(stream or sys.stderr) and not dumb and not in_notebook


def _clock_face(seconds: float | None) -> str:
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
