"""A platform that stands in for one that users have: a folder to work in, and what was seen there, row by row."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]


class CheckError(Exception):
    """Something on the platform is not as it should be; the message says what was seen."""


class MissingError(Exception):
    """The machine lacks something that the platform needs; the message says what, and how to get it."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a check.

    Attributes:
        platform: its name, like "slurm".
        check: what was tried.
        result: "ok", "FAILED" or "n/a".
        seen: what was seen, or why it failed or did not run.
        seconds: that it took.
        date: of the run, in UTC.
    """

    platform: str
    check: str
    result: str
    seen: str
    seconds: float
    date: str

    def line(self) -> str:
        first = self.seen.partition("\n")[0]
        return f"{self.platform:<11} {self.check:<52} {self.seconds:>6,.0f} s  {self.result:<6} {first}".rstrip()


@dataclass
class Platform:
    """A run of one platform.

    Attributes:
        name: of the platform.
        work: a folder of its own, on a disk, which is removed at the end.
        wheel, sdist: of the tree.
        about: what stands in, with versions: "Debian 13.8, Python 3.13.5". A platform fills it in.
        rows: what was seen so far.
    """

    name: str
    work: Path
    wheel: Path
    sdist: Path
    about: str = ""
    rows: list[Row] = field(default_factory=list)

    def check(self, what: str, function: Callable[[], str]) -> bool:
        """Run a check and print its row. True where it is ok.

        The function returns what it saw in one line, with figures, and raises CheckError where that is not as it
        should be, or MissingError where the check cannot run here.
        """
        began, result = time.monotonic(), "ok"
        try:
            seen = function()
        except CheckError as error:
            result, seen = "FAILED", str(error)
        except MissingError as error:
            result, seen = "n/a", str(error)
        today = datetime.now(UTC).date().isoformat()
        row = Row(self.name, what, result, seen, round(time.monotonic() - began, 1), today)
        self.rows.append(row)
        print(row.line(), flush=True)
        if result == "FAILED":
            print(seen, flush=True)
        return result == "ok"


def call(
    command: Sequence[object],
    seconds: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    expected: int | None = 0,
) -> str:
    """What the command prints, stdout and stderr in one. Raises CheckError where it ends otherwise or takes longer.

    Args:
        command: program and arguments.
        seconds: that it may take; then it is killed with all that it started.
        cwd: the folder that it runs in.
        environment: all variables that it has; this process's by default, without PYTHONPATH.
        expected: its exit code; None takes any.
    """
    if environment is None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = list(map(str, command))
    out = subprocess.PIPE
    with subprocess.Popen(
        words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            text, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            text, _ = process.communicate()
            raise CheckError(f"{' '.join(words)[-200:]}: took more than {seconds} s\n{text[-4000:]}") from None
    if expected is not None and process.returncode != expected:
        raise CheckError(f"{' '.join(words)[-200:]}: exit code {process.returncode}\n{text[-4000:]}")
    return text


def expect(condition: bool, seen: str) -> None:
    """Raise CheckError with what was seen where the condition does not hold."""
    if not condition:
        raise CheckError(seen)


def need(program: str, package: str) -> str:
    """The path of a program of this machine. Raises MissingError with the Debian package that has it."""
    found = shutil.which(program)
    if found is None:
        raise MissingError(f"there is no {program} here: apt-get install {package}")
    return found
