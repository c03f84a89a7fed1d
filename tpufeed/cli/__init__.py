"""The command line: argv -> one function call -> exit code."""


def main() -> None:
    """Run the `tpufeed` command and exit: 0 done, 1 the work failed, 2 the request cannot be met, 130 interrupted."""
    from tpufeed.cli.app import app

    app(prog_name="tpufeed")
