"""Which wheels pip would install on another Python or processor. Asks pip and installs nothing.

pip evaluates markers such as `platform_machine` for this machine: no core dependency may have one.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

GLIBC = range(17, 36)  # 2.35 is Ubuntu 22.04's, which TPU VMs run


class NoWheelError(Exception):
    """pip finds no wheel of a package.

    Attributes:
        package: its name, as the requirement has it; empty if pip fails otherwise.
    """

    def __init__(self, words: str) -> None:
        super().__init__(words)
        found = re.search(r"No matching distribution found for ([\w.-]+)", words)
        self.package = found[1] if found else ""


def find_wheels(requirements: Sequence[str], python: str, machine: str = "x86_64") -> list[str]:
    """Names of the wheels that pip would install on Linux. Raises NoWheelError with pip's words if there is none.

    Args:
        requirements: as pip takes them.
        python: like "3.14", or "3.14t" for the free-threaded build, which takes no abi3 wheels.
        machine: "x86_64" or "aarch64".
    """
    command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", "--report", "-"]
    # pip install, unlike pip download, holds requires-python of packages against the Python that runs it.
    command += ["--ignore-requires-python", *choosing(python, machine)]
    with tempfile.TemporaryDirectory(prefix="tpufeed-wheels-") as folder:  # pip wants one, and leaves it empty
        command += ["--target", folder, *requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoWheelError(done.stderr[-2000:])
    urls = [item["download_info"]["url"] for item in json.loads(done.stdout)["install"]]
    return sorted(url.rpartition("/")[2] for url in urls)


def choosing(python: str, machine: str) -> list[str]:
    """Options with which pip chooses wheels for a Python and a processor, as `find_wheels` takes them."""
    version, free_threaded = python.removesuffix("t"), python.endswith("t")
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in reversed(GLIBC)]
    platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]  # the last is of a wheel that was built there
    abis = [f"cp{python.replace('.', '')}", *["abi3"] * (not free_threaded), "none"]
    tags = [("--platform", platform) for platform in platforms] + [("--abi", abi) for abi in abis]
    return [
        *("--only-binary=:all:", "--implementation", "cp", "--python-version", version),
        *(word for tag in tags for word in tag),
    ]


def without_wheels(requirements: Sequence[str], python: str) -> tuple[list[str], int]:
    """Which of the requirements have no wheel for this Python on x86-64, and how many wheels the others take."""
    left, missing = list(requirements), list[str]()
    while True:
        try:
            found = find_wheels(left, python)
        except NoWheelError as error:
            others = [each for each in left if re.split(r"[^\w.-]", each)[0] != error.package]
            if len(others) == len(left):  # of a dependency's dependency, or no network
                raise
            missing.append(error.package)
            left = others
        else:
            # pip of today takes abi3 wheels for a free-threaded Python, which itself does not.
            unfit = [name for name in found if python.endswith("t") and "-abi3-" in name]
            missing += [name.partition("-")[0].replace("_", "-") for name in unfit]
            return missing, len(found) - len(unfit)
