"""The commands for bench in docs/measuring.md run, in as few steps as will do."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.repo.docs.pages import lines_of, ran
from tpufeed.cache import warmup
from tpufeed.cli.app import app

RUNS = {"measuring.md": "^tpufeed bench flowers"}

PAGE = (Path(__file__).parents[2] / "docs/measuring.md").read_text().partition("\n## Bench\n")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """420 images, as a batch of MLPerf's has 400."""
    place = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    for number in range(420):
        path = place / "photos" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    tpufeed.shard(place / "photos", place / "flowers", workers=1)
    warmup(place / "flowers", place / "flowers-224", size=16, workers=1)
    return place


@pytest.mark.all
def test_the_commands_run_as_they_stand(folder: Path) -> None:
    commands = [line for block in blocks("bash") for line in lines_of(block)]
    assert len(commands) == 3
    short = ["--steps", "2", "--repeats", "1", "--warm-up", "0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = [CliRunner().invoke(app, [*shlex.split(command)[1:], *short]) for command in commands]
    ran(*commands)
    outputs = [one.output for one in done]
    assert [one.exit_code for one in done] == [0] * 3, outputs
    assert "EMULATED tpu-v3-8, batches of 128" in outputs[0]
    assert "EMULATED flowers-224, naive" in outputs[1]
    assert "EMULATED mlperf-h100, batches of 400" in outputs[1]
    assert "EMULATED 40ms-step, batches of 64" in outputs[2]
    assert (folder / "result.json").stat().st_size > 1000
    assert "<svg" in (folder / "bench.html").read_text()
