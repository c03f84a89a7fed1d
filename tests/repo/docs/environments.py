"""Environments made from the wheel, as a stranger has them: no source in sight, and no network.

The wheel is built from a copy of the tree. The frameworks are those of .venv, which an environment sees through a
folder of links to all that is installed there but tpufeed.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests import lean
from tests.repo.docs.pages import ROOT

INSTALLED = Path(sysconfig.get_path("purelib"))
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
UV = """#!python
import argparse, subprocess
from pathlib import Path

parser = argparse.ArgumentParser("uv")
parser.add_argument("command", choices=["venv"])
parser.add_argument("--seed", action="store_true", required=True)
parser.add_argument("--python", required=True)
parser.add_argument("folder", type=Path)
given = parser.parse_args()
assert (3, 11) <= tuple(map(int, given.python.split("."))) < (3, 15)
subprocess.run(["{python}", "-m", "venv", "--without-pip", given.folder], check=True)
(given.folder / "{site}/frameworks.pth").write_text("{packages}\\n")
pip = given.folder / "bin/pip"
pip.write_text('#!/bin/sh\\nexec "$(dirname "$0")/python" -m pip "$@"\\n')
pip.chmod(0o755)
"""


def build_wheel(folder: Path) -> None:
    """Build the wheel of this tree into the folder."""
    tree = folder / "tree"
    shutil.copytree(ROOT / "tpufeed", tree / "tpufeed", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    _call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, tree)


def link_packages(folder: Path, names: Collection[str] | None = None) -> Path:
    """Fill the folder with links to all that .venv has but tpufeed, or to what has one of these names."""
    folder.mkdir()
    for path in INSTALLED.iterdir():
        if "tpufeed" not in path.name and path.suffix != ".pth" and (names is None or path.name in names):
            (folder / path.name).symlink_to(path)
    (folder / "sitecustomize.py").symlink_to(Path(lean.FOLDER, "sitecustomize.py"))
    return folder


def make_environment(folder: Path, wheel: Path) -> Path:
    """Make the environment `folder/env` of the wheel alone, and returns its Python.

    Beside it are folders for PYTHONPATH: `required`, which pip would install with the wheel, and `frameworks`.
    """
    packages, required = link_packages(folder / "frameworks"), _required_by("tpufeed")
    files = [file for name in required for file in metadata.files(name) or ()]
    link_packages(folder / "required", {file.parts[0] for file in files})
    _call(sys.executable, "-m", "venv", "--without-pip", folder / "env")
    python = folder / "env/bin/python"
    _call("env", f"PYTHONPATH={packages}", python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    return python


def _required_by(name: str) -> set[str]:
    """The distributions that one needs without its extras, and what these need."""
    markers = {line: Requirement(line).marker for line in metadata.requires(name) or ()}
    direct = {
        Requirement(line).name for line, marker in markers.items() if not marker or marker.evaluate({"extra": ""})
    }
    return direct.union(*map(_required_by, direct))


def make_image(folder: Path) -> tuple[Path, Path]:
    """Make the Python of a TPU VM, which has pip alone, and what an index has for it; returns the folders of both.

    What an index has and .venv has not are a libtpu, which is empty here, and uv: one that makes environments of the
    Python that runs the tests.
    """
    _call(sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", folder / "image")
    (folder / "image" / SITE / "pip").symlink_to(INSTALLED / "pip")
    packages, index = link_packages(folder / "frameworks"), folder / "index"
    index.mkdir()
    program = UV.format(python=sys.executable, site=SITE, packages=packages)
    _write_wheel(index, "uv", "0.1", {"uv-0.1.data/scripts/uv": program})
    (libtpu,) = re.findall(r"libtpu==([\d.]+)\.\*; extra == \"tpu\"", "\n".join(metadata.requires("jax") or ()))
    _write_wheel(index, "libtpu", f"{libtpu}.0", {})
    return folder / "image/bin", index


def _write_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    files |= {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    files |= {f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", f"{info}/RECORD": ""}
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o100755 << 16  # scripts are run
            archive.writestr(entry, text)


def _call(*command: object) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
