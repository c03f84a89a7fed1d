"""The table of loaders in docs/moving.md: each cell against the library, by its signatures and on ten samples.

The libraries of `scripts/setup-peers` are compared if they are installed. `scripts/test --long` installs them.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.docs.pages import ROOT, text_of

SECTION = text_of("moving.md").partition("## Loader options elsewhere")[2].partition("\n## ")[0]
LINES = [line for line in SECTION.splitlines() if line.startswith("| ") and "`" in line]
ROWS = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in LINES}
# The function of loaders_elsewhere.py, which is the peer's name, or what it needs of .venv.
OF_VENV = {"ours": "simplejpeg", "dataloader": "torchdata", "tfdata": "tensorflow"}
LOADERS = {
    "`tpufeed.Loader`": "ours",
    "`DataLoader`": "dataloader",
    "`tf.data.Dataset`": "tfdata",
    "`tfds.load`": "tfds",
    "`WebDataset`": "webdataset",
    "MosaicML `StreamingDataset`": "mosaic",
    "LitData `StreamingDataset`": "litdata",
    "DALI `fn.readers.file`": "dali",
    "FFCV `Loader`": "ffcv",
}
LAST = {"kept": [4, 4, 2], "dropped": [4, 4], "filled": [4, 4, 4]}  # ten samples in batches of four


def python_of(loader: str) -> Path:
    if loader in OF_VENV:
        return Path(sys.executable)
    folder = ROOT / ".peers" / loader
    if (folder / "failed").exists() or not (folder / "bin/python").exists():
        pytest.skip(f"{loader} is not installed: scripts/setup-peers {loader}")
    return folder / "bin/python"


def check_names(cell: str, defaults: dict[str, dict[str, str]]) -> int:
    """Check each name, parameter and default in code, and return their number. A bare parameter is the loader's."""
    own, checked = next(iter(defaults)), 0
    for code in re.findall(r"`([^`]+)`", cell):
        called, arguments = re.fullmatch(r"(?:([\w.]*)\((.*)\)|(.*))", code).group(1, 2)
        bare = code if called is None else ""
        if "=" in bare:
            called, arguments = own, bare
        called = (called or bare).rpartition(".")[2]
        assert called in defaults, code
        for argument in (arguments or "").split(", ") if arguments else ():
            name, _, default = argument.partition("=")
            assert defaults[called][name] == (default.strip('"') if "=" in argument else "required"), code
            checked += 1
    return checked


def test_the_table_has_all_loaders() -> None:
    assert list(ROWS) == list(LOADERS)
    peers = re.findall(r"^    \[(\w+)\]=", (ROOT / "scripts/setup-peers").read_text(), re.MULTILINE)
    assert {*LOADERS.values()} - {*OF_VENV} == {*peers} - {"spdl", "bands", "dlio"}  # of these nobody moves data


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.uses(OF_VENV[of]) if of in OF_VENV else ()) for row, of in LOADERS.items()],
)
def test_names_defaults_and_what_they_mean(row: str, tmp_path: Path) -> None:
    order, ranks, last, state, copies, mixture = ROWS[row]
    loader = LOADERS[row]
    program = [python_of(loader), ROOT / "tests/repo/docs/loaders_elsewhere.py", loader, tmp_path]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [len(batch) for batch in found["epoch"]] == LAST[last.partition(":")[0]]
    assert found["again"] == found["epoch"]
    assert found["resumed"] == (found["epoch"][1:] if state else None)
    cells = (row, order, ranks, last, state, copies, mixture)
    assert sum(check_names(cell, found["defaults"]) for cell in cells) >= 2
