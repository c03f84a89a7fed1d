"""The commands and programs of docs/bands.md, over files that tifffile and pydicom wrote."""

import shlex

import numpy as np
import pytest
import tifffile
from typer.testing import CliRunner

from tests.frameworks import lazy
from tests.repo.docs.pages import blocks, commands, ran
from tpufeed.cli.app import app

RUNS = {"bands.md": ""}
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
def test_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
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
    for line in commands("bands.md"):
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert not done.exit_code, (line, done.stderr)
        if "xrays" in line:
            assert "8 window, not applied" in done.stdout
            assert "1 MONOCHROME1, inverted" in done.stdout
    for program in blocks("bands.md"):
        exec(program, {"__name__": "page"})
    ran(*blocks("bands.md"), *commands("bands.md"))
    satellites, xrays = capsys.readouterr().out.splitlines()
    assert satellites.startswith("uint16 (8, 32, 32, 4) loss ")
    assert xrays == "torch.uint16 (4, 64, 64, 1)"
