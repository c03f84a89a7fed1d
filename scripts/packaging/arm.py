"""Wheels of the core dependencies for Linux on 64-bit Arm, by pip's resolver run for that platform.

pip evaluates markers such as `platform_machine` for this machine: no core dependency may have one.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GLIBC = range(17, 36)  # 2.35 is Ubuntu 22.04's, which TPU VMs run
COMPILER = "aarch64-linux-gnu-gcc"


def main() -> int:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    failed = False
    for python in PYTHONS:
        try:
            found = find_wheels(requirements, python)
        except LookupError as error:
            failed = True
            print(f"Python {python}: NO WHEEL\n{error}")
        else:
            native = [name for name in found if "aarch64" in name]
            print(f"Python {python}: {len(found)} wheels, {len(native)} of them for aarch64: {', '.join(native)}")
    said = compile_extension()
    print(f"C extension: {said}")
    return int(failed or said.startswith("FAILS"))


def find_wheels(requirements: list[str], python: str) -> list[str]:
    """Names of the wheels that pip would install on Arm. Raises LookupError with pip's words where there is none."""
    command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", "--report", "-"]
    command += for_arm(python)
    with tempfile.TemporaryDirectory(prefix="tpufeed-arm-") as folder:  # pip wants one, and leaves it empty
        command += ["--target", folder, *requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError(done.stderr[-2000:])
    urls = [item["download_info"]["url"] for item in json.loads(done.stdout)["install"]]
    return sorted(url.rpartition("/")[2] for url in urls)


def for_arm(python: str) -> list[str]:
    """Options of pip that make it choose wheels for this Python on Arm."""
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in reversed(GLIBC)] + ["manylinux2014_aarch64"]
    tags = [word for platform in platforms for word in ("--platform", platform)]
    abis = [word for abi in (f"cp{python.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *tags, *abis]


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
