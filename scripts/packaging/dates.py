"""Which results of benchmarks and of scripts/platforms are older than what they measure, as git's history says.

Of the benchmarks those that `run.py figures` measures: others are of a machine that is not at hand, or of a decision,
and tell their day.
"""

import ast
import datetime
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pythons import TESTS
from run import PROXIES

from benchmarks import figures, ran_page

LOADING = ("adapters", "dataset", "images", "processes", "storage", "stream", "tfrecord")
BUILDING = ("builds", "dataset", "engines", "images", "processes", "sharding", "sources", "storage", "tfrecord")
MEASURED = {  # rooms and files of tpufeed by the script that measures them; a script that is not here measures all
    **dict.fromkeys(
        ("bands", "dlio", "feed", "gil", "grain", "imread", "mixture", "soak", "spdl", "views", "window"), LOADING
    ),
    **dict.fromkeys(("bench-device", "doctor", "stages"), (*LOADING, "measure")),
    **dict.fromkeys(("plan", "shard"), BUILDING),
    **dict.fromkeys(("ops", "pixels"), ("images",)),
    "clock": ("measure/clock.py",),
    "engines": ("engines",),
    "grown": (*BUILDING, "adapters", "stream"),
    "order": ("dataset/order.py", "stream/sampler.py"),
    "staging": ("storage",),
}
# What each of scripts/platforms runs beside its own program, and what some run besides.
PLATFORM = ("tpufeed", "pyproject.toml", "scripts/packaging/matrix.py", "scripts/packaging/smoke.py")
COMMON = tuple(f"scripts/proxies/{name}" for name in ("chroot.py", "platform_run.py", "programs", "vm.py"))
# Of tests/ what the Pythons run, and what that imports. Arm runs a part of it. The oracle's walks, hostile files and
# the tests of the repository run on this machine alone.
IMPORTED = (
    *("clips.py", "conftest.py", "faults", "forked.py", "frameworks.py", "gcs_server", "lean"),
    *("local_copies.py", "measure", "oracle/sources.py", "quick_xla.py", "repo/docs/pages.py"),
    *("repo/docs/test_cli_page.py", "tfrecords.py", "web_server.py"),
)
SUITE = tuple(f"tests/{name}" for name in (*TESTS, *IMPORTED))
RUN = {
    **dict.fromkeys(("arm64", "pythons"), (*SUITE, "scripts/make_photos.py", "scripts/packaging/available.py")),
    **dict.fromkeys(("fuse", "limits"), ("tests/gcs_server",)),
    **dict.fromkeys(("nfs", "numa"), ("scripts/make_photos.py",)),
    "slurm": ("examples/slurm",),
}
_DOCSTRING = re.compile(r"""body=\[Expr\(value=Constant\(value=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\)\)(?:, )?""")


class GitError(Exception):
    """Git is missing, or there is no history."""


class Result(NamedTuple):
    """A result's name, the day on which it was measured, the file it stands in, and the paths that it measures."""

    name: str
    day: str
    file: Path
    measures: tuple[str, ...]


def find_older(root: Path) -> tuple[int, dict[str, list[str]]]:
    """How many results there are, and the older ones, by the change that they lack.

    A result is older if it was measured on an earlier day than the last change of what it measures, or committed before
    it. Only a result that was measured before a change of the same day, and committed after it, is missed.
    """
    results = [*iter_benchmarks(root), *iter_platforms(root)]
    older: dict[str, list[str]] = {}
    for result in results:
        seconds, changed, subject = last_change(root, result.measures)
        file = str(result.file.relative_to(root))
        committed = git(root, "log", "-1", "--first-parent", "--format=%ct", "--", file).strip()
        if result.day < changed or int(committed or 0) < seconds:
            older.setdefault(f"{changed}, {subject}", []).append(f"{result.name} ({result.day or 'no date'})")
    return len(results), older


def iter_benchmarks(root: Path) -> Iterator[Result]:
    others = {*figures.ELSEWHERE, *figures.DECIDED}
    for path in sorted((root / "benchmarks/results").glob("*.json")):
        if path.stem not in others:
            result = json.loads(path.read_text())
            script = re.search(r"run\.py ([\w-]+)", result.get("command", ""))
            rooms = MEASURED.get(script[1], ()) if script else ()
            day = (result.get("machine") or result.get("host") or {}).get("date", "")
            yield Result(path.stem, day, path, tuple(f"tpufeed/{room}" for room in rooms) or ("tpufeed",))


def iter_platforms(root: Path) -> Iterator[Result]:
    path = root / "benchmarks/results/platforms.json"
    for row in json.loads(path.read_text())["rows"] if path.exists() else ():
        if row["check"] == ran_page.WHOLE and row["platform"] in PROXIES:
            module = PROXIES[row["platform"]].module
            measures = (*PLATFORM, *COMMON, f"scripts/proxies/{module}.py", *RUN.get(module, ()))
            yield Result(f"scripts/platforms {row['platform']}", row["date"], path, measures)


@cache
def last_change(root: Path, paths: tuple[str, ...]) -> tuple[int, str, str]:
    """Seconds, day and subject of the last commit that changed more of these files than comments and docstrings."""
    for line in git(root, "log", "--first-parent", "--format=%H %ct %h %s", "--", *paths).splitlines():
        commit, seconds, subject = line.split(" ", 2)
        parent = git(root, "rev-list", "--parents", "-n1", commit).split()[1:2]
        names = git(root, "diff", "--name-only", parent[0], commit, "--", *paths).splitlines() if parent else []
        if not parent or any(do(root, parent[0], name) != do(root, commit, name) for name in names):
            day = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).date().isoformat()
            return int(seconds), day, subject
    return 0, "", ""


def do(root: Path, commit: str, name: str) -> str:
    """What a file of a commit does, as text without comments and docstrings; empty if it is not there."""
    if not git(root, "ls-tree", commit, "--", name):
        return ""
    text = git(root, "show", f"{commit}:{name}")
    return _DOCSTRING.sub("body=[", ast.dump(ast.parse(text))) if name.endswith(".py") else text


def git(root: Path, *arguments: str) -> str:
    if shutil.which("git") is None:
        raise GitError("git is missing: install it")
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason"])[0]
        raise GitError(f"{root} is no clone with a commit: run it in one (git {arguments[0]}: {said})")
    return done.stdout
