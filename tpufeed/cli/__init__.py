"""The command line: argv -> one function call -> exit code."""

import io
import signal
import sys

from tpufeed.cli.console import CLOSED_PIPE, INTERRUPTED, TERMINATED, Stopped, drop_stdout
from tpufeed.engines.child import fill_streams


def main() -> None:
    """Run the `tpufeed` command and exit.

    Exit codes: 0 done, 1 the work failed or damage was found, 2 the request cannot be met, 130 and 143 stopped by
    SIGINT and SIGTERM, 141 who read stdout has closed it.
    """
    # A stream that is closed leaves its number to the next file that is opened, into which libraries would print.
    fill_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # who starts us may have it ignored
        signal.signal(signal.SIGTERM, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    sys.exit(_flush(_run()))


def _run() -> str | int | None:
    try:
        # Imported in here, so that Ctrl-C during the second that imports take ends in one line, too.
        from tpufeed.cli.app import app

        app(prog_name="tpufeed")
    except KeyboardInterrupt:  # while modules are imported
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Stopped:
        print("interrupted", file=sys.stderr)
        return TERMINATED
    except SystemExit as end:
        return end.code
    return 0


def _flush(code: str | int | None) -> str | int | None:
    """Write out what stdout still holds, which the interpreter would do with a trace; return the exit code."""
    try:
        # A pipe that is closed or a disk that is full may show only now, and at exit it would be a trace and code 120.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        return code or CLOSED_PIPE
    except OSError as error:
        drop_stdout()
        print(f"error: stdout cannot be written to: {error.strerror or error}", file=sys.stderr)
        return code or 1
    return code


def _stop(number: int, _: object) -> None:
    """Stop once: `timeout` signals a process and then its group, and a second signal would cut the tidying short."""
    signal.signal(number, signal.SIG_IGN)
    raise Stopped(TERMINATED)
