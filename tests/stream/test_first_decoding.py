"""Types are decoded for the first time by several threads at once: docs/decisions/2026-11-26-format.md."""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import tpufeed

PACKAGE = Path(tpufeed.__file__).parent
OPEN_THREE = """
import sys
sys.setswitchinterval(1e-6)
import tpufeed
tpufeed.Mixture(dict.fromkeys(sys.argv[1:], 1)).open("train")
"""


def calls_in(tree):
    """Yield each call with the name of what it calls, and whether it is within a function."""
    within = {id(each) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func), id(node) in within


@pytest.mark.all
def test_each_type_has_a_decoder_that_is_made_while_its_module_is_imported():
    made, wrong = Counter(), []
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    for path, text in texts.items():
        for call, name, within in calls_in(ast.parse(text)) if "msgspec" in text else ():
            decoder = name.startswith("msgspec.") and name.endswith(".Decoder")
            typed = name.startswith("msgspec.") and name.endswith(".decode") and len(call.args) + len(call.keywords) > 1
            if (decoder and within) or typed or name == "msgspec.convert":
                wrong.append(f"{path.relative_to(PACKAGE)}:{call.lineno}: {ast.unparse(call)}")
            made[decoder] += 1
    assert made[True] >= 15
    assert wrong == []


@pytest.mark.all
@pytest.mark.parametrize("rounds", [5, pytest.param(150, marks=pytest.mark.long)])
def test_a_mixture_is_opened_as_the_first_thing_that_a_process_does(rounds, photo_folder, tmp_path):
    """Its manifests are decoded in threads. Every second process has ended so by SIGSEGV."""
    datasets = []
    for folder in (folder for folder in photo_folder.iterdir() if folder.is_dir()):
        datasets.append(str(tmp_path / folder.name))
        tpufeed.shard(folder, datasets[-1], workers=1)
    assert len(datasets) == 3
    command = [sys.executable, "-c", OPEN_THREE, *datasets]
    ended = Counter(subprocess.run(command, check=False).returncode for _ in range(rounds))
    assert ended == {os.EX_OK: rounds}
