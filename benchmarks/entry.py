"""What scripts share before they measure: folders, options, and the command by which a script starts itself again.

Imports nothing of tpufeed: some children measure what that import takes.
"""

import argparse
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
RESULTS = FOLDER / "results"
PEERS = ROOT / ".peers"
MEMORY = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp")


def make_parser(  # noqa: PLR0913  # an option each
    name: str,
    about: str | None,
    *,
    save: bool = True,
    repeats: int | None = None,
    photos: int | None = None,
    keeps: bool = False,
    work: Path | None = None,
) -> argparse.ArgumentParser:
    """Make the parser of the script `name`, with the options that several scripts have.

    Args:
        name: as `run.py` is given it, and of the result file.
        about: the script's docstring.
        save: add `--save`.
        repeats: the default of `--repeats`.
        photos: the default of `--photos`.
        keeps: add `--work`, a folder to keep data in, which is None by default.
        work: add `--work`, a folder for temporary data; its default.
    """
    parser = argparse.ArgumentParser(
        prog=f"run.py {name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if photos is not None:
        parser.add_argument(
            "--photos", type=int, default=photos, metavar="N", help=f"photographs (default: {photos:,})"
        )
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats, metavar="N", help=f"rounds (default: {repeats})")
    if keeps:
        parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep data here (default: temporary)")
    elif work is not None:
        where = f"put temporary data here (default: {work})"
        parser.add_argument("--work", type=Path, default=work, metavar="FOLDER", help=where)
    if save:
        where = f"write benchmarks/results/NAME.json (default: {name})"
        parser.add_argument("--save", nargs="?", const=name, metavar="NAME", help=where)
    return parser


def command_of(name: str, *arguments: object, python: str | Path = sys.executable) -> list[str]:
    """Return the command that runs a script in a process of its own."""
    return [str(python), str(FOLDER / "run.py"), name, *map(str, arguments)]
