"""Completion: by bash itself, and the values that are offered."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.testing import CliRunner

from tpufeed.cli import flags
from tpufeed.cli.app import app

TPUFEED = str(Path(sys.executable).with_name("tpufeed"))


def complete(*words):
    """What is offered for the last word, as zsh and fish ask."""
    asked = {"_TPUFEED_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    line = " ".join(["tpufeed", *words])
    done = CliRunner().invoke(app, [], prog_name="tpufeed", env={**asked, "_TYPER_COMPLETE_ARGS": line})
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines() if offer]


def test_names_are_those_that_are_obeyed():
    from tpufeed.engines import choice
    from tpufeed.images import policy
    from tpufeed.measure import bench

    assert flags.ENGINES == choice._NAMES
    assert tuple(bench.LOADERS) == flags.LOADERS
    assert bench.REAL_DEVICES == flags.REAL_DEVICES
    hints = get_type_hints(policy.Images)
    assert {name: get_args(hints[name]) for name in flags.POLICIES} == flags.POLICIES


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sh"], ["shard", "show"]),
        (["cache", "w"], ["warmup"]),
        (["verify", "x", "--d"], ["--decode"]),
        (["bench", "x", "--loader", "t"], ["torch", "tf", "tf-direct"]),
        (["bench", "x", "--device", "emulated:tpu-v3"], [f"emulated:tpu-v3-8{end}" for end in ("", "-low", "-high")]),
        (["bench", "x", "--device", "x"], ["xla-cpu", "xla-tpu"]),
        (["doctor", "x", "--tpu", "v5"], ["v5e-8", "v5p-8"]),
        (["doctor", "x", "--model", "resnet1"], ["resnet18", "resnet101", "resnet152"]),
        (["shard", "x", "y", "--engine", "r"], ["ray"]),
        (["shard", "x", "y", "--policy", "alpha="], ["alpha=white", "alpha=black", "alpha=reject"]),
        (["shard", "x", "y", "--presize-mode", ""], ["short", "long", "fit"]),
        (["cache", "warmup", "x", "y", "--op", "Horiz"], ["HorizontalFlip"]),
        (["show", "x", "--select", "fo"], ["fold="]),
        (["info", "fl"], []),  # the shell goes on with files
    ],
    ids=" ".join,
)
def test_offers(words, offered):
    assert complete(*words) == offered


@pytest.mark.all
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(tmp_path):
    cases = {
        ("tpufeed", "ver"): "verify",
        ("tpufeed", "bench", "x", "--loader", "tf"): "tf-direct",
        ("tpufeed", "doctor", "x", "--tpu", "v4"): "v4-8",
    }
    lines = [f"_TPUFEED_COMPLETE=source_bash {TPUFEED} > script && source ./script"]
    for words in cases:
        quoted = " ".join(f"'{word}'" for word in words)
        lines.append(
            f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _tpufeed_completion {TPUFEED}; echo ${{COMPREPLY[@]}}"
        )
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "PATH": f"{Path(TPUFEED).parent}:{os.environ['PATH']}"},
    )
    assert done.stderr == ""
    offers = [line.split() for line in done.stdout.splitlines()]
    assert len(offers) == len(cases)
    for (words, offer), offered in zip(cases.items(), offers, strict=True):
        assert offer in offered, words


@pytest.mark.all
def test_nothing_heavy_is_imported_to_complete():
    program = (
        "import sys; from tpufeed.cli import main\n"
        "try: main()\nexcept SystemExit: print(sorted({'numpy', 'rich.console', 'fsspec', 'PIL'} & set(sys.modules)))"
    )
    asked = {"_TPUFEED_COMPLETE": "complete_bash", "COMP_WORDS": "tpufeed\nbench\nx\n--device\nemu", "COMP_CWORD": "4"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **asked}
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "emulated" in done.stdout.splitlines()
