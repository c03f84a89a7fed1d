"""Georeferences of GeoTIFFs as text. The expected transforms are those of rasterio 1.4."""

import io
import json

import numpy as np
import pytest
import tifffile

import tpufeed
from tests.sharding.outputs import texts_of
from tpufeed.errors import ImageError, OptionError
from tpufeed.images.georeference import read_georeference

UTM, WGS84, OWN = (3072, 32633), (2048, 4326), (3072, 32767)
SCALE, TIEPOINT = (33550, "d", 3, (10.0, 20.0, 0.0), True), (33922, "d", 6, (1, 2, 0, 400000.0, 5000000.0, 0), True)
MATRIX = (34264, "d", 16, (9.0, 1, 0, 500.0, -1, -9, 0, 700, 0, 0, 0, 0, 0, 0, 0, 1), True)


def geotiff(*keys, tags=(), raster=1):
    entries = [
        (1024, 0, 1, 2 if WGS84 in keys[:1] else 1),
        (1025, 0, 1, raster),
        *((key, 0, 1, value) for key, value in keys),
    ]
    directory = [1, 1, 0, len(entries), *(number for entry in entries for number in entry)]
    file = io.BytesIO()
    tags = [*tags, *([(34735, "H", len(directory), directory, True)] if keys else [])]
    tifffile.imwrite(file, np.zeros((4, 5), np.uint16), extratags=tags)
    return file.getvalue()


AREA = [10.0, 0.0, 399990.0, 0.0, -20.0, 5000040.0]
CASES = {
    "projected": (geotiff(UTM, tags=[SCALE, TIEPOINT]), {"crs": "EPSG:32633", "transform": AREA}),
    "points": (
        geotiff(WGS84, tags=[SCALE, TIEPOINT], raster=2),
        {"crs": "EPSG:4326", "transform": [10.0, 0.0, 399985.0, 0.0, -20.0, 5000050.0]},
    ),
    "turned": (
        geotiff(OWN, WGS84, tags=[MATRIX]),
        {"crs": "", "transform": [9.0, 1.0, 500.0, -1.0, -9.0, 700.0]},
    ),
    "no place": (geotiff(UTM), {"crs": "EPSG:32633"}),
    "nodata alone": (geotiff(tags=[(42113, "s", 0, "-9999", True)]), {"nodata": "-9999"}),
    "none": (geotiff(), {}),
    "no TIFF": (b"\x89PNG\r\n\x1a\n", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_georeferences_are_told(name):
    data, expected = CASES[name]
    assert json.loads(read_georeference(data)) == expected


def test_a_build_has_them_as_a_column(tmp_path):
    (tmp_path / "raw").mkdir()
    for name in ("1_B04.tif", "1_B08.tif", "2_B04.tif", "2_B08.tif"):
        (tmp_path / "raw" / name).write_bytes(CASES["projected" if name == "1_B04.tif" else "none"][0])
    keep = {"images": tpufeed.Images(pixels="keep"), "georeference": True, "workers": 1, "progress": False}
    tpufeed.shard(tmp_path / "raw", tmp_path / "d", bands="B04,B08", rename={"georeference": "place"}, **keep)
    (tmp_path / "raw/3_B04.tif").write_bytes(CASES["points"][0])
    (tmp_path / "raw/3_B08.tif").write_bytes(CASES["points"][0])
    assert tpufeed.append(tmp_path / "raw", tmp_path / "d", workers=1, progress=False).added == 1
    found = {name: json.loads(sample["place"][0]) for name, sample in texts_of(tmp_path / "d").items()}
    assert found == {"1.tif": CASES["projected"][1], "2.tif": {}, "3.tif": CASES["points"][1]}
    (tmp_path / "t.csv").write_text("path,georeference\nraw/1_B04.tif,here")
    with pytest.raises(OptionError, match="already"):
        tpufeed.shard(tmp_path / "t.csv", tmp_path / "e", **keep)
    with pytest.raises(OptionError, match="--presize"):
        tpufeed.shard(tmp_path / "raw", tmp_path / "e", **keep | {"images": tpufeed.Images(pixels="keep", presize=16)})


def test_damaged_tags_are_an_error():
    with pytest.raises(ImageError, match="georeference"):
        read_georeference(geotiff(UTM, tags=[(33550, "d", 1, (10.0,), True), TIEPOINT]))
