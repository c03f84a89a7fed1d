"""The command line: argv -> one function call -> exit code."""

import io
import signal
import sys

INTERRUPTED, TERMINATED = 130, 143


class Stopped(SystemExit):
    """SIGTERM has come. Raised wherever the main thread is, as KeyboardInterrupt is for SIGINT."""


def main() -> None:
    """Run the `tpufeed` command and exit.

    Exit codes: 0 done, 1 the work failed, 2 the request cannot be met, 130 and 143 stopped by SIGINT and SIGTERM.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # who starts us may have it ignored
        signal.signal(signal.SIGTERM, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        from tpufeed.cli.app import app

        app(prog_name="tpufeed")
    except KeyboardInterrupt:  # while modules are imported
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Stopped:
        print("interrupted", file=sys.stderr)
        raise


def _stop(number: int, _: object) -> None:
    """Once: `timeout` sends it to a process and then to its group, and the second one would cut the tidying short."""
    signal.signal(number, signal.SIG_IGN)
    raise Stopped(TERMINATED)
