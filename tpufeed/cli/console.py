"""Console output that all commands share, and errors as one line and an exit code."""

import functools
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec

from tpufeed import errors
from tpufeed.errors import StoreError, TpufeedError
from tpufeed.processes.limits import limit_reached

P = ParamSpec("P")

INTERRUPTED, CLOSED_PIPE, TERMINATED = 130, 141, 143  # 128 and the signal's number, as a shell has it
_BREAK = re.compile("[\t\n\u2028\u2029]")  # beyond what `errors.printable` escapes: a line is one line
_TRACE = "Traceback (most recent call last):\n"
_CONTROL_IN_JSON = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_PIPE_COLUMNS = 200  # width of a pipe, for which rich would take 80
_PIPED_PROSE_COLUMNS = 100  # wider text is hard to read in a log or a mail
_PROSE_COLUMNS = 30  # narrower columns of text are hard to read


class Stopped(SystemExit):
    """SIGTERM has come. Raised wherever the main thread is, as KeyboardInterrupt is for SIGINT."""


class OutputStream(io.TextIOWrapper):
    """stdout or stderr of the command, instead of Python's own: all writers, also rich and --help, fail alike.

    After the first error all that is written goes nowhere.

    Raises:
        StoreError: stdout cannot be written to, say because the disk is full. The same of stderr is passed over: there
            is nobody to tell.
        SystemExit: the reader has closed the pipe; with the code `CLOSED_PIPE`.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer,
            stream.encoding,
            "backslashreplace",  # a name that the terminal cannot show is no reason to fail
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(CLOSED_PIPE) from None
        if self.fileno() == 1:
            raise StoreError(f"stdout cannot be written to: {error.strerror or error}") from error


def reports_errors(command: Callable[P, None], interrupted: str = "interrupted") -> Callable[P, None]:
    """Turn errors raised on purpose into a line on stderr and their exit code; others are bugs and keep their trace."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_lines = bool(kwargs.get("log_json"))
        try:
            with _logging(as_lines):
                command(*args, **kwargs)
                if sys.stdout is not None:
                    sys.stdout.flush()  # if a disk is full, that shows only now
        except TpufeedError as error:
            _report(type(error), str(error), as_lines)
            raise SystemExit(error.exit_code) from None
        except (OSError, RuntimeError) as error:
            limit = limit_reached(error)
            if not limit:
                raise
            _report(type(error), limit, as_lines)
            raise SystemExit(1) from None
        except MemoryError as error:
            _report(type(error), f"there is not enough memory: {error or 'the system gives no more'}", as_lines)
            raise SystemExit(1) from None
        except (KeyboardInterrupt, Stopped) as stop:
            said = "interrupted" if kwargs.get("dry_run") else interrupted
            if as_lines:
                log_event({"event": "interrupted", "message": said})
            else:
                echo_error(said)
            raise SystemExit(TERMINATED if isinstance(stop, Stopped) else INTERRUPTED) from None

    return run


def reports_build_errors(command: Callable[P, None]) -> Callable[P, None]:
    """`reports_errors` for a command that continues where it was interrupted."""
    return reports_errors(command, "interrupted; run the same command again to go on from here")


def _report(kind: type[Exception], message: str, as_json: bool) -> None:
    if as_json:
        log_event({"event": "error", "type": kind.__name__, "message": message})
    else:  # one line, unless it carries the traceback of a worker
        for line in f"error: {message}".rstrip().split("\n") if _TRACE in message else [f"error: {message}"]:
            echo_error(line)


@contextmanager
def _logging(as_lines: bool) -> Iterator[None]:
    """Show what tpufeed warns of. Other packages log the errors that we handle, with their traces: they are silent."""
    # Without a handler of the root logger Python prints warnings of other packages by its last resort.
    logging.basicConfig(level=logging.CRITICAL, handlers=[logging.NullHandler()])
    ours, handler = logging.getLogger("tpufeed"), _Handler(as_lines)
    level = ours.level
    ours.setLevel(logging.WARNING)
    ours.addHandler(handler)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)


class _Handler(logging.Handler):
    """Log handler that writes lines, or JSON lines, to stderr."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        level, message = record.levelname.lower(), record.getMessage()
        if self._as_json:
            log_event({"event": level, "message": message})
        else:
            echo_error(f"{level}: {message}")


def printable(text: str) -> str:
    """Return `text` as one line without secrets and control characters: names may hold anything."""
    return _BREAK.sub(lambda found: found[0].encode("unicode_escape").decode(), errors.printable(text))


def echo(text: object = "") -> None:
    """Print a line of the result on stdout."""
    print(printable(str(text)))


def echo_error(text: object) -> None:
    """Print a line on stderr."""
    if sys.stderr is not None:  # or print would take stdout
        print(printable(str(text)), file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Print a warning on stderr; the exit code stays."""
    echo_error(f"warning: {message}")


def is_terminal(stream: Any) -> bool:
    """Return True if a person sees the stream. FORCE_COLOR, by which rich goes, is about colours alone."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: Collection[int] = (0,),
    prose: bool = False,
) -> None:
    """Print a table on stdout if there is room for it, else a line per row.

    Args:
        title: a line above it.
        columns: their names.
        rows: their cells.
        texts: the numbers of the columns that hold text; the others hold figures.
        prose: True if the last column is text that may be folded.
    """
    from rich.box import SIMPLE
    from rich.cells import cell_len
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    columns, rows = list(map(printable, columns)), [list(map(printable, row)) for row in rows]
    table = Table(box=SIMPLE)
    for number, column in enumerate(columns):
        folds = prose and number == len(columns) - 1
        width = _PROSE_COLUMNS if folds else max(cell_len(cells[number]) for cells in (columns, *rows))
        figures = not folds and number not in texts
        table.add_column(column, justify="right" if figures else "left", no_wrap=not folds, min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    echo(title)  # not the table's, which would fold it to the table's width
    seen = is_terminal(sys.stdout)
    console = Console(highlight=False, width=None if seen else _PIPED_PROSE_COLUMNS if prose else _PIPE_COLUMNS)
    unlimited = console.options.update(width=_PIPE_COLUMNS)
    if seen and Measurement.get(console, unlimited, table).minimum > console.width:
        for row in rows:
            named = [f"{column} {cell}" for column, cell in zip(columns[1:], row[1:], strict=True)]
            if prose:  # text needs no name
                named[-1:] = [row[-1]] if row[-1] else []
            echo(f"{row[0]}: {', '.join(named)}")
        return
    console.print(table)


def find_own_modules() -> None:
    """Let --op find functions in the current folder, as `python -m` does; last, so that it hides no module."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)


def print_json(facts: Any) -> None:
    """Print a JSON document on stdout."""
    import msgspec

    print(_printable_json(msgspec.json.format(msgspec.json.encode(facts), indent=2)))


def log_event(event: dict[str, Any]) -> None:
    """Print a JSON line on stderr."""
    import msgspec

    print(_printable_json(msgspec.json.encode(event)), file=sys.stderr, flush=True)


def _printable_json(document: bytes) -> str:
    text = errors.mask_secrets(document.decode())
    return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
