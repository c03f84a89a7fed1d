"""The commands and the program of docs/bands.md, over TIFFs of 13 bands."""

import shlex

import numpy as np
import pytest
import tifffile
from typer.testing import CliRunner

from tests.repo.docs.pages import blocks, commands, ran
from tpufeed.cli.app import app

RUNS = {"bands.md": ""}


@pytest.mark.uses("jax")
def test_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "scenes" / ("water" if number % 2 else "forest")
        place.mkdir(parents=True, exist_ok=True)
        bands = rng.integers(0, 3000, (13, 64, 64), np.uint16)
        tifffile.imwrite(place / f"{number}.tif", bands, planarconfig="separate", photometric="minisblack")
    (program,) = blocks("bands.md")
    for line in commands("bands.md"):
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert not done.exit_code, (line, done.stderr)
    exec(program, {"__name__": "page"})
    ran(program, *commands("bands.md"))
    assert capsys.readouterr().out == "uint16 (8, 32, 32, 13) float32\n"
