"""The commands and programs of docs/bands.md, over TIFFs of 13 bands, and of docs/clips.md, over folders of frames."""

import shlex

import numpy as np
import pytest
import tifffile
from typer.testing import CliRunner

from tests.clips import write_folder
from tests.repo.docs.pages import blocks, commands, ran
from tpufeed.cli.app import app

RUNS = {"bands.md": "", "clips.md": ""}


@pytest.mark.uses("jax")
def test_bands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "scenes" / ("water" if number % 2 else "forest")
        place.mkdir(parents=True, exist_ok=True)
        bands = rng.integers(0, 3000, (13, 64, 64), np.uint16)
        tifffile.imwrite(place / f"{number}.tif", bands, planarconfig="separate", photometric="minisblack")
    for number in range(12):
        for name in ("B02", "B03", "B04", "B08"):
            place = tmp_path / "landsat" / ("wheat" if number % 2 else "maize") / f"field{number}"
            place.mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(place / f"{name}.tif", rng.integers(0, 3000, (64, 64), np.uint16), compression="zlib")
    rows = (f"wheat/field{number}/B04.tif,wheat/field{number}/B08.tif" for number in range(1, 12, 2))
    (tmp_path / "landsat/tiles.csv").write_text("\n".join(["red,nir", *rows]))
    run("bands.md")
    assert capsys.readouterr().out == "uint16 (8, 32, 32, 13) float32\n"


@pytest.mark.uses("jax")
def test_clips(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for clip in range(24):
        write_folder(tmp_path / "videos" / ("walk" if clip % 2 else "run") / f"clip{clip}", clip, name="{:05d}.jpg")
    run("clips.md")
    assert capsys.readouterr().out.startswith("(8, 8, 64, 64, 3) loss 0.69\n(8, 8, 64, 64, 3) loss ")


def run(page):
    (program,) = blocks(page)
    for line in commands(page):
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert not done.exit_code, (line, done.stderr)
    exec(program, {"__name__": "page"})
    ran(program, *commands(page))
