"""The command line: argv -> one function call -> exit code."""

import io
import signal
import sys
from collections.abc import Callable

from tpufeed.cli.console import INTERRUPTED, TERMINATED, OutputStream, Stopped
from tpufeed.errors import StoreError
from tpufeed.processes.child import fill_streams


def main() -> None:
    """Run the `tpufeed` command and exit.

    Exit codes: 0 done, 1 the work failed or damage was found, 2 the request cannot be met, 130 and 143 stopped by
    SIGINT and SIGTERM, 141 who read stdout has closed it.
    """
    # A stream that is closed leaves its number to the next file that is opened, into which libraries would print.
    fill_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # who starts us may have it ignored
        signal.signal(signal.SIGTERM, _stop)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = OutputStream(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = OutputStream(sys.stderr)
    code = _run(_app)
    # What --help leaves in the buffer: the interpreter would report a full disk with a trace and code 120.
    sys.exit(code or _run(_flush))


def _app() -> None:
    # Imported in here, so that Ctrl-C during the second that imports take ends in one line, too.
    from tpufeed.cli.app import app

    app(prog_name="tpufeed")


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _run(function: Callable[[], None]) -> str | int | None:
    """Call the function; return the exit code."""
    try:
        function()
    except KeyboardInterrupt:  # while modules are imported
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Stopped:
        print("interrupted", file=sys.stderr)
        return TERMINATED
    except SystemExit as end:
        return end.code
    except StoreError as error:  # stdout takes neither the help of a command nor what was buffered
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _stop(number: int, _: object) -> None:
    """Stop once: `timeout` signals a process and then its group, and a second signal would cut the tidying short."""
    signal.signal(number, signal.SIG_IGN)
    raise Stopped(TERMINATED)
