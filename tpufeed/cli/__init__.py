"""The command line: argv -> one function call -> exit code."""

import io
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the `tpufeed` command and exit: 0 done, 1 the work failed, 2 the request cannot be met, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        from tpufeed.cli.app import app

        app(prog_name="tpufeed")
    except KeyboardInterrupt:  # while modules are imported
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
