"""Installs tpufeed as its users do, in an empty environment for each case, and tries it: see scripts/package-matrix.

uv installs, which takes a fifth of pip's time, and keeps what it downloads. Environments are removed one by one: all of
them together would take 30 GB.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from artifacts import SAME_TIMES, check_artifacts, unpack
from bounds import lowest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = (
    *("gcs", "rapid", "tf", "torch", "xla", "torchtpu", "jax", "keras", "grain", "ray", "beam"),
    *("lightning", "metrics", "report", "profile", "tpu-compiler", "parquet", "annotations", "formats", "bands"),
    "dicom",
)
CASES = ("none", *EXTRAS, "sdist", "no-compiler", "oldest")
OLDEST_PYTHON = "3.11"
UV = (sys.executable, "-m", "uv")
INSTALL_SECONDS, SMOKE_SECONDS, TESTS_SECONDS = 1800, 600, 1800
# What runs on the lower bounds, besides the smoke. Tests of the command line want the test runner of a later click, and
# most of tests/storage Google's client.
STORAGE = ("tests/storage/test_local.py", "tests/storage/test_reading.py")
TESTS = (
    "tests/images",
    "tests/tfrecord",
    "tests/dataset",
    "tests/adoption",
    "tests/sources",
    "tests/sharding",
    *STORAGE,
)
TEST_TOOLS = ("pytest", "pytest-timeout", "hypothesis", "scikit-image", "scikit-learn")
# Not for a case's processes: they would find this tree, or compile at each start all that uv has left uncompiled.
UNWANTED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a case.

    Attributes:
        case: its name.
        python: the version, like "3.11".
        install_seconds: of uv, with what it had to download.
        seconds: of all.
        megabytes: that the packages take, tpufeed's own among them and pip not.
        result: "ok", or what failed, or why it was skipped.
    """

    case: str
    python: str
    install_seconds: float | None = None
    seconds: float | None = None
    megabytes: int | None = None
    result: str = "ok"

    def line(self) -> str:
        figures = (
            "" if figure is None else f"{figure:,.0f}"
            for figure in (self.install_seconds, self.seconds, self.megabytes)
        )
        return "{:<18} {:<7} {:>10} {:>8} {:>13}   {}".format(self.case, self.python, *figures, self.result)


class CaseError(Exception):
    """A step of a case failed; the message says which, and how its output ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    rows = []
    with tempfile.TemporaryDirectory(prefix="tpufeed-packages-") as scratch:
        wheel, sdist = build(Path(scratch, "dist"))
        for line in check_artifacts(wheel, sdist, Path(scratch, "checked")):
            print(line)
        print(
            "{:<18} {:<7} {:>10} {:>8} {:>13}   {}".format(
                "case", "Python", "install s", "all s", "MB installed", "result"
            )
        )
        for python in options.python:
            for case in options.cases:
                row = run_case(case, python, wheel, sdist)
                print(row.line(), flush=True)
                rows.append(row)
                if options.save:
                    save(options.save, row)
    return int(any(row.result.startswith("FAILED") for row in rows))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/package-matrix", description=__doc__)
    known = [*CASES, *(f"oldest-{extra}" for extra in EXTRAS)]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=" ".join(known))
    parser.add_argument("--python", action="append", metavar="X.Y", help=f"{OLDEST_PYTHON} by default; may be repeated")
    parser.add_argument("--save", type=Path, metavar="FILE", help="add the rows to this JSON file")
    options = parser.parse_args(arguments)
    unknown = set(options.cases) - set(known)
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    options.cases, options.python = options.cases or list(CASES), options.python or [OLDEST_PYTHON]
    return options


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist that it is built from: the tree may hold objects of an earlier build."""
    command = [sys.executable, "-m", "build", "--installer", "uv", "--outdir", folder, ROOT]
    call("build", command, INSTALL_SECONDS, environment=SAME_TIMES)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def run_case(case: str, python: str, wheel: Path, sdist: Path) -> Row:
    interpreter = find_python(python)
    if interpreter is None:
        return Row(case, python, result=f"skipped: no Python {python} here")
    if case.startswith("oldest") and python != OLDEST_PYTHON:
        return Row(case, python, result=f"skipped: the lower bounds have wheels for Python {OLDEST_PYTHON}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"tpufeed-{case}-") as scratch:
        venv = Path(scratch, "venv")
        installed = None, None
        try:
            compiler = {"CC": "false"} if case == "no-compiler" else {}
            installed = install(interpreter, venv, wanted(case, wheel, sdist), compiler)
            with variables(case) as environment:
                try_it(case, venv, Path(scratch, "smoke"), environment)
            if case == "oldest":
                run_tests(venv, sdist, Path(scratch, "source"))
            result = "ok"
        except CaseError as error:
            result = f"FAILED: {error}"
    return Row(case, python, installed[0], time.monotonic() - began, installed[1], result)


def wanted(case: str, wheel: Path, sdist: Path) -> list[str]:
    """What uv is asked for."""
    if case in ("sdist", "no-compiler"):
        return [str(sdist)]
    if case.startswith("oldest"):
        extra = case.removeprefix("oldest").removeprefix("-")
        extras = PROJECT["optional-dependencies"]
        asked = [each for name in extras_of(extra) for each in extras.get(name, [])]
        return [str(wheel), *lowest(PROJECT["dependencies"]), *lowest(asked)]
    return [str(wheel)] if case == "none" else [f"{wheel}[{','.join(extras_of(case))}]"]


def extras_of(case: str) -> tuple[str, ...]:
    """The extras of a case: Keras needs a framework to run on, and has JAX here."""
    return (case, "jax") if case == "keras" else (case,)


def install(interpreter: Path, venv: Path, requirements: list[str], environment: dict[str, str]) -> tuple[float, int]:
    """Seconds and megabytes of what was asked for."""
    call("uv venv", [*UV, "venv", "-q", "--python", interpreter, venv], INSTALL_SECONDS)
    bare, began = size_bytes(venv), time.monotonic()
    uv_install(venv, requirements, environment)
    seconds = time.monotonic() - began
    call("uv pip check", [*UV, "pip", "check", "--python", venv / "bin/python"], SMOKE_SECONDS)
    return seconds, round((size_bytes(venv) - bare) / 1e6)


def uv_install(venv: Path, arguments: Sequence[object], environment: dict[str, str] | None = None) -> None:
    # Without --refresh-package, what an earlier case built of the sdist would be taken.
    command = [*UV, "pip", "install", "-q", "--python", venv / "bin/python"]
    call(
        "uv pip install",
        [*command, "--refresh-package", "tpufeed", *arguments],
        INSTALL_SECONDS,
        environment=environment,
    )


def try_it(case: str, venv: Path, folder: Path, environment: dict[str, str]) -> None:
    folder.mkdir()
    smoke = ROOT / "scripts/packaging/smoke.py"
    # -I: neither this folder nor PYTHONPATH lends it what the wheel might lack.
    call("smoke", [venv / "bin/python", "-I", smoke, case, folder], SMOKE_SECONDS, cwd=folder, environment=environment)


def run_tests(venv: Path, sdist: Path, folder: Path) -> None:
    """The sdist's tests against the installed wheel: the sdist's own code is removed."""
    tree = unpack(sdist, folder)
    shutil.rmtree(tree / "tpufeed")
    frozen = [line for line in pip_freeze(venv) if not line.startswith("tpufeed")]
    pins = folder / "constraints.txt"
    pins.write_text("\n".join(frozen) + "\n")
    uv_install(venv, ["-c", pins, *TEST_TOOLS])
    command = [venv / "bin/python", "-m", "pytest", "-q", "-m", "not long", *TESTS]
    call("tests", command, TESTS_SECONDS, cwd=tree)


def pip_freeze(venv: Path) -> list[str]:
    command = [*UV, "pip", "freeze", "--python", venv / "bin/python"]
    return call("uv pip freeze", command, SMOKE_SECONDS).splitlines()


@contextmanager
def variables(case: str) -> Iterator[dict[str, str]]:
    """Variables of the case's processes; for `gcs` and `rapid` those that lead to the tests' server."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
    zonal = ["--zonal", "rapid"] * case.endswith("rapid")
    if not (zonal or case.endswith("gcs")):
        yield quiet
        return
    command = [sys.executable, "-m", "tests.gcs_server", "--stop-with-stdin", *zonal]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(1 + bool(zonal))]
        yield quiet | dict(line.removeprefix("export ").split("=") for line in lines)


def call(
    step: str,
    command: Sequence[object],
    seconds: float,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    """What the command prints. Raises CaseError where it fails or takes longer."""
    inherited = {name: value for name, value in os.environ.items() if name not in UNWANTED} | {"PYTHONNOUSERSITE": "1"}
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env=inherited | (environment or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise CaseError(f"{step} took more than {seconds} s") from None
    if done.returncode:
        raise CaseError(f"{step}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done.stdout


def find_python(version: str) -> Path | None:
    """An interpreter of this version, on PATH or of pyenv, whose shims stand on PATH also for versions that are off."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        return Path(sys._base_executable)  # type: ignore[attr-defined]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}*/bin/python"))]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0:
            return Path(candidate)
    return None


def size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def save(path: Path, row: Row) -> None:
    """Add the row to the file, in place of an earlier one of the same case and Python. What was skipped is left out."""
    if row.result.startswith("skipped"):
        return
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    today = datetime.now(UTC).date().isoformat()
    new = asdict(row) | {"result": row.result.partition("\n")[0], "date": today}
    others = [case for case in before if (case["case"], case["python"]) != (row.case, row.python)]
    machine = {"cores": os.cpu_count(), "system": os.uname().sysname, "architecture": os.uname().machine}
    result = {"machine": machine, "command": "scripts/package-matrix ...", "about": {}, "rows": [*others, new]}
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
