"""Every command and every program of the README runs, in an empty folder, as a newcomer would run it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, re.DOTALL)
PROGRAMS = [code for language, code in BLOCKS if language == "python"]
PROJECT_SCRIPTS = ("./scripts/", "pip install")  # run by CI itself, and by .venv's installation


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with photos in it, after the README's commands."""
    folder = tmp_path_factory.mktemp("newcomer")
    _run(folder, [sys.executable, str(ROOT / "scripts/make_photos.py"), "photos", "--count", "200"])
    return folder


def _run(folder: Path, command: list[str] | str) -> str:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    environment.pop("TPU_SKIP_MDS_QUERY", None)  # jax sets it for good, and torch_xla stumbles over it
    done = subprocess.run(
        command,
        cwd=folder,
        check=False,
        env=environment,
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_the_readme_has_a_loop_for_each_framework() -> None:
    assert [
        next(name for name in ("keras", "torch_xla", "lightning", "jax") if f"import {name}" in program)
        for program in PROGRAMS
    ] == ["keras", "torch_xla", "lightning", "jax"]


def test_the_commands_run_as_they_stand(workplace: Path) -> None:
    commands = [line for language, code in BLOCKS if language == "bash" for line in code.splitlines() if line]
    own = [line for line in commands if not line.startswith(PROJECT_SCRIPTS)]
    assert [line.split()[:2] for line in own[:5]] == [
        ["tpufeed", "shard"],
        ["tpufeed", "show"],
        ["tpufeed", "cache"],
        ["tpufeed", "info"],
        ["tpufeed", "verify"],
    ]
    for line in own:
        output = _run(workplace, line.replace("python benchmarks/", f"{sys.executable} {ROOT}/benchmarks/"))
        assert output.strip(), line


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_programs_run_as_they_stand(workplace: Path, number: int) -> None:
    if not (workplace / "flowers-224" / "manifest.json").exists():
        _run(workplace, "tpufeed shard photos flowers --split train=0.8,val=0.2")
        _run(workplace, "tpufeed cache warmup flowers flowers-224 --size 224 --variants 2")
    (workplace / f"program{number}.py").write_text(PROGRAMS[number])
    output = _run(workplace, [sys.executable, f"program{number}.py"])
    assert re.search(r"accuracy|loss", output)


def test_its_figures_are_those_of_the_results() -> None:
    results = ROOT / "benchmarks/results"
    feed = json.loads((results / "feed.json").read_text())
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if re.match(r"\| .*(\d|n/a) \|$", line)]
    assert len(rows) == 14
    for name, *cells in rows:
        medians = [feed[work]["loaders"].get(name.strip("`"), {}).get("median") for work in ("jpeg", "presized", "raw")]
        assert cells == [f"{median:,.0f}" if median else "n/a" for median in medians], name
    labels = (
        "raw files, Pillow in one thread",
        "shards, tf.data as Kaggle's TPU guide writes it",
        "shards, tpufeed.numpy_loader",
        "cache, tpufeed.numpy_loader",
    )
    idle = {row["label"]: row["idle_percent"] for row in json.loads((results / "demo.json").read_text())["rows"]}
    said = re.findall(r"([\d.]+) %", README[README.index("The picture is what") : README.index("## Use it")])
    assert said == [f"{idle[label]:.1f}".removesuffix(".0") for label in labels]


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
