"""The commands and programs of docs/bands.md, over files that tifffile and pydicom wrote, and of docs/clips.md."""

import re
import shlex

import numpy as np
import pytest
import tifffile
from typer.testing import CliRunner

from tests.clips import write_folder
from tests.frameworks import lazy
from tests.repo.docs.pages import blocks, commands, ran
from tpufeed.cli.app import app

RUNS = {"bands.md": "", "clips.md": ""}
pydicom, uid = lazy("pydicom"), lazy("pydicom.uid")


def write_scan(path, kind):
    stored = np.random.default_rng(int(path.stem)).integers(0, 4096, (80, 96)).astype(np.uint16)
    scan = pydicom.Dataset()
    scan.file_meta = pydicom.dataset.FileMetaDataset()
    scan.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    scan.SOPClassUID, scan.SOPInstanceUID = uid.SecondaryCaptureImageStorage, uid.generate_uid()
    scan.WindowCenter, scan.WindowWidth = 2048, 4096
    scan.set_pixel_data(stored, kind, 12)
    scan.save_as(path, enforce_file_format=True)


@pytest.mark.uses("jax", "torch", "pydicom")
def test_bands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("scenes", "xrays/ill", "xrays/sound", "landsat"):
        (tmp_path / name).mkdir(parents=True)
    for number in range(8):
        bands = rng.integers(0, 3000, (13, 64, 64), np.uint16)
        tifffile.imwrite(f"scenes/{number}.tif", bands, planarconfig="separate", photometric="minisblack")
        kind = "MONOCHROME1" if number == 3 else "MONOCHROME2"
        write_scan(tmp_path / "xrays" / ("ill" if number % 2 else "sound") / f"{number}.dcm", kind)
    for number in range(24):
        place = tmp_path / "landsat" / ("wheat" if number % 2 else "maize") / f"field{number}"
        place.mkdir(parents=True)
        for name in ("B02", "B03", "B04", "B08"):
            tifffile.imwrite(place / f"{name}.tif", rng.integers(0, 3000, (64, 64), np.uint16), compression="zlib")
    rows = (f"wheat/field{number}/B04.tif,wheat/field{number}/B08.tif" for number in range(1, 24, 2))
    (tmp_path / "landsat/tiles.csv").write_text("\n".join(["red,nir", *rows]))
    printed = run("bands.md")
    assert "8 window, not applied" in printed
    assert "1 MONOCHROME1, inverted" in printed
    satellites, xrays = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"uint16 \(8, 32, 32, 4\) loss \d\.\d\d", satellites)
    assert re.fullmatch(r"torch.uint16 \(4, 64, 64, 1\) loss \d\.\d\d", xrays)


@pytest.mark.uses("jax", "torch", "pydicom")  # in the process of the other
def test_clips(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for clip in range(24):
        write_folder(tmp_path / "videos" / ("walk" if clip % 2 else "run") / f"clip{clip}", clip, name="{:05d}.jpg")
    run("clips.md")
    assert capsys.readouterr().out.startswith("(8, 8, 64, 64, 3) loss 0.69\n(8, 8, 64, 64, 3) loss ")


def run(page):
    """Run the page's commands, then its programs. Return what the commands printed."""
    printed = ""
    for line in commands(page):
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert not done.exit_code, (line, done.stderr)
        printed += done.stdout
    for program in blocks(page):
        exec(program, {"__name__": "page"})
    ran(*blocks(page), *commands(page))
    return printed
