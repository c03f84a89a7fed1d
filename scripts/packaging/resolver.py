"""What installing tpufeed would change in environments that have TensorFlow and torch. Installs no framework.

Each environment is resolved once from its requirements. A virtual environment is then given the metadata of all those
packages, as if they were installed, and pip is asked what it would do for tpufeed there.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

# Name, what is installed there, and what its user asks for.
ENVIRONMENTS = [
    (
        "TensorFlow, torch, torch_xla and JAX of today, with OpenCV as on Kaggle and Colab",
        ["tensorflow-cpu", "torch==2.9.*", "torch_xla==2.9.0", "jax", "opencv-python-headless==4.13.*"],
        ["."],
    ),
    ("TensorFlow and torch of today", ["tensorflow-cpu", "torch==2.9.*"], ["."]),
    (
        "TensorFlow 2.18 and torch 2.6 with numpy 1.26, which has to be named",
        ["tensorflow-cpu==2.18.*", "torch==2.6.*", "numpy==1.26.4"],
        [".", "numpy<2"],
    ),
    ("pandas 2.1 with numpy 1.26, which has to be named", ["pandas==2.1.4", "numpy==1.26.4"], [".", "numpy<2"]),
]


def main() -> int:
    failed = False
    for name, installed, wanted in ENVIRONMENTS:
        present = ask_pip(Path(sys.executable), ["--ignore-installed", *installed])
        with tempfile.TemporaryDirectory(prefix="tpufeed-resolver-") as folder:
            python = pretend_installed(Path(folder), present)
            news = {package["name"].lower(): package["version"] for package in ask_pip(python, wanted)}
        before = {package["name"].lower(): package["version"] for package in present}
        changed = {package: f"{before[package]} -> {news[package]}" for package in before.keys() & news.keys()}
        failed |= bool(changed)
        print(f"{name} ({len(before)} packages): {f'CHANGES {changed}' if changed else 'nothing there changes'}")
        print(f"  pip install {' '.join(wanted)} adds {', '.join(sorted(news.keys() - before.keys()))}")
    return int(failed)


def ask_pip(python: Path, requirements: list[str]) -> list[dict[str, Any]]:
    """Metadata of what pip would install. Exits where there is no solution."""
    command = [str(python), "-m", "pip", "install", "-qq", "--dry-run", "--report", "-", *requirements]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(f"pip finds no solution for {requirements}:\n{found.stderr[-2000:]}")
    return [item["metadata"] for item in json.loads(found.stdout)["install"]]


def pretend_installed(folder: Path, packages: list[dict[str, Any]]) -> Path:
    """The Python of a new virtual environment that holds the metadata of `packages`, and nothing of their code."""
    venv.create(folder, with_pip=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in packages:
        info = site / f"{package['name'].replace('-', '_')}-{package['version']}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {package['name']}", f"Version: {package['version']}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in package.get("requires_dist", [])]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text("")
    return folder / "bin" / "python"


if __name__ == "__main__":
    sys.exit(main())
