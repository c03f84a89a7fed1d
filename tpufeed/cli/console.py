"""Console output of all commands, and errors as one line and an exit code."""

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
from tpufeed.display.progress import is_live, is_terminal
from tpufeed.errors import StoreError, TpufeedError
from tpufeed.processes.limits import limit_reached

P = ParamSpec("P")

INTERRUPTED, CLOSED_PIPE, TERMINATED = 130, 141, 143  # 128 plus the signal's number, as in shells
_BREAK = re.compile("[\t\n\u2028\u2029]")  # `errors.printable` keeps these, but they would break a line in two
_TRACE = "Traceback (most recent call last):\n"
_CONTROL_IN_JSON = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_PIPE_COLUMNS = 200  # width of a pipe. rich would use 80
_PIPED_PROSE_COLUMNS = 100  # wider text is hard to read in a log or an email
_PROSE_COLUMNS = 30  # narrower columns of text are hard to read


class Stopped(SystemExit):
    """Raised in the main thread on SIGTERM, as KeyboardInterrupt is on SIGINT."""


class OutputStream(io.TextIOWrapper):
    """Replacement of Python's stdout or stderr. All writers, including rich and --help, then fail in the same way.

    After the first error all output is discarded.

    Raises:
        StoreError: stdout cannot be written to, for example because the disk is full. Errors of stderr are ignored:
            there is no way to report them.
        SystemExit: the reader has closed the pipe. The code is `CLOSED_PIPE`.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer,
            stream.encoding,
            "backslashreplace",  # do not fail on a name that the terminal cannot show
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
    """Report tpufeed's errors as a line on stderr and an exit code. Other errors are bugs and keep their trace."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_lines = bool(kwargs.get("log_json"))
        try:
            with _logging(as_lines):
                command(*args, **kwargs)
                if sys.stdout is not None:
                    sys.stdout.flush()  # only now does a full disk raise
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
            _report(type(error), f"not enough memory: {error or 'the system has no more'}", as_lines)
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
    """Do the same as `reports_errors` for a command that can continue after an interruption."""
    return reports_errors(command, "interrupted. Run the same command again to continue")


def _report(kind: type[Exception], message: str, as_json: bool) -> None:
    if as_json:
        log_event({"event": "error", "type": kind.__name__, "message": message})
    else:  # one line, unless it contains the traceback of a worker
        for line in f"error: {message}".rstrip().split("\n") if _TRACE in message else [f"error: {message}"]:
            echo_error(line)


@contextmanager
def _logging(as_lines: bool) -> Iterator[None]:
    """Show tpufeed's warnings. Silence other packages: they log with traces the errors that we handle."""
    # If the root logger has no handler, Python prints the warnings of other packages with its handler of last resort.
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
    """Return `text` as one line, without secrets and control characters: names may contain anything."""
    return _BREAK.sub(lambda found: found[0].encode("unicode_escape").decode(), errors.printable(text))


def echo(text: object = "") -> None:
    """Print a line of the result to stdout."""
    print(printable(str(text)))


def echo_error(text: object) -> None:
    """Print a line to stderr."""
    if sys.stderr is not None:  # with None, print would use stdout
        print(printable(str(text)), file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Print a warning to stderr. It does not change the exit code."""
    echo_error(f"warning: {message}")


@contextmanager
def status(verb: str) -> Iterator[Callable[[str], None]]:
    """Show a status line, for work without progress. It only appears on a terminal."""
    if not is_live():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True, highlight=False).status(verb) as live:
        yield lambda what: live.update(Text(f"{verb}: {printable(what)}"))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: Collection[int] = (0,),
    prose: bool = False,
) -> None:
    """Print a table to stdout if it fits, else one line per row.

    Args:
        title: the line above the table.
        columns: names of the columns.
        rows: cells of each row.
        texts: numbers of the columns with text. The other columns have figures.
        prose: True if the last column is text that may be wrapped.
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
    echo(title)  # rich would wrap a table's own title to the width of the table
    seen = is_terminal(sys.stdout)
    console = Console(highlight=False, width=None if seen else _PIPED_PROSE_COLUMNS if prose else _PIPE_COLUMNS)
    unlimited = console.options.update(width=_PIPE_COLUMNS)
    if seen and Measurement.get(console, unlimited, table).minimum > console.width:
        for row in rows:
            named = [f"{column} {cell}" for column, cell in zip(columns[1:], row[1:], strict=True)]
            if prose:  # do not name the last column
                named[-1:] = [row[-1]] if row[-1] else []
            echo(f"{row[0]}: {', '.join(named)}")
        return
    console.print(table)


def find_own_modules() -> None:
    """Let --op find functions in the current folder, as with `python -m`. It comes last and hides no module."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)


def print_json(facts: Any) -> None:
    """Print a JSON document to stdout."""
    import msgspec

    print(_printable_json(msgspec.json.format(msgspec.json.encode(facts), indent=2)))


def log_event(event: dict[str, Any]) -> None:
    """Print a JSON line to stderr."""
    import msgspec

    print(_printable_json(msgspec.json.encode(event)), file=sys.stderr, flush=True)


def _printable_json(document: bytes) -> str:
    text = errors.mask_secrets(document.decode())
    return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
