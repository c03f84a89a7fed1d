"""Wheels of the core dependencies for Linux on 64-bit Arm, by pip's resolver run for that platform."""

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from available import NoWheelError, find_wheels

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
COMPILER = "aarch64-linux-gnu-gcc"


def main() -> int:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    failed = False
    for python in PYTHONS:
        try:
            found = find_wheels(requirements, python, "aarch64")
        except NoWheelError as error:
            failed = True
            print(f"Python {python}: NO WHEEL\n{error}")
        else:
            native = [name for name in found if "aarch64" in name]
            print(f"Python {python}: {len(found)} wheels, {len(native)} of them for aarch64: {', '.join(native)}")
    said = compile_extension()
    print(f"C extension: {said}")
    return int(failed or said.startswith("FAILS"))


def compile_extension() -> str:
    """Compile it for Arm with this Python's headers, which hold for both; say what came of it."""
    if shutil.which(COMPILER) is None:
        return f"n/a, there is no {COMPILER}"
    command = [COMPILER, "-c", "-O3", "-fPIC", "-DPy_LIMITED_API=0x030b0000", f"-I{sysconfig.get_path('include')}"]
    command += ["-o", "/dev/null", str(ROOT / "tpufeed/images/_restart.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"FAILS\n{done.stderr[-2000:]}" if done.returncode else "compiles for aarch64"


if __name__ == "__main__":
    sys.exit(main())
