"""The command line: argv -> one function call -> exit code."""

import io
import signal
import sys

from tpufeed.cli.console import INTERRUPTED, TERMINATED, OutputStream, Stopped
from tpufeed.errors import StoreError
from tpufeed.processes.child import fill_streams


def main() -> None:
    """Run the `tpufeed` command and exit.

    Exit codes: 0 done, 1 the work failed or damage was found, 2 the request cannot be met, 130 and 143 stopped by
    SIGINT and SIGTERM, 141 the reader of stdout has closed it.
    """
    # The number of a closed stream goes to the next file that is opened, and libraries would print into that file.
    fill_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # the parent may have set it to be ignored
        signal.signal(signal.SIGTERM, _stop)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = OutputStream(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = OutputStream(sys.stderr)
    try:
        try:
            # Imported here: Ctrl-C during the import (a second) then also ends with one line.
            from tpufeed.cli.app import app

            app(prog_name="tpufeed")
        except SystemExit as end:
            # --help leaves text in the buffer, and the interpreter would report a full disk with a trace and code 120.
            if not end.code and sys.stdout is not None:
                sys.stdout.flush()
            raise
    except (KeyboardInterrupt, Stopped) as stop:  # while modules are imported
        print("interrupted", file=sys.stderr)
        sys.exit(TERMINATED if isinstance(stop, Stopped) else INTERRUPTED)
    except StoreError as error:  # stdout cannot be written to
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _stop(number: int, _: object) -> None:
    """Stop once: `timeout` signals a process and then its group, and a second signal would interrupt the cleanup."""
    signal.signal(number, signal.SIG_IGN)
    raise Stopped(TERMINATED)
