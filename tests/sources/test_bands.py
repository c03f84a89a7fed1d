"""Images of several files, one band each, and bands chosen by number: folders and tables, what lacks, and growth."""

import io
import json
from contextlib import closing

import cv2
import numpy as np
import pytest
import tifffile

import tpufeed
from tests.sharding.outputs import rejects_of, samples_of
from tpufeed.builds.item import ImageRef, Item
from tpufeed.errors import OptionError
from tpufeed.sources.bands import iter_scenes
from tpufeed.sources.inputs import Files, iter_read
from tpufeed.storage.store import ObjectInfo

KEEP = tpufeed.Images(pixels="keep")
BANDS = "B08,B02,B03"
REFS = tuple(ImageRef(f"c0/tile0_{name}.tif", 1, "1") for name in ("B02", "B03"))


def band(number, name, dtype="uint16"):
    seed = number * 10 + int(name[-1])
    return np.random.default_rng(seed).integers(0, 200, (9, 11)).astype(dtype)


def image(number, dtype="uint16"):
    return np.dstack([band(number, name, dtype) for name in BANDS.split(",")])


def write(folder, pattern="c{c}/tile{n}_{b}.tif", count=6, dtype="uint16"):
    for number in range(count):
        for name in BANDS.split(","):
            file = folder / pattern.format(c=number % 2, n=number, b=name)
            file.parent.mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(file, band(number, name, dtype))
    return folder


def shard(source, url, bands=BANDS, **options):
    options = {"images": KEEP, "workers": 1, "progress": False, "max_rejects": 100} | options
    return tpufeed.shard(source, url, bands=bands, **options)


def images_of(url):
    return {name: np.load(io.BytesIO(each["image/encoded"][0])) for name, each in samples_of(url).items()}


@pytest.mark.parametrize(
    "pattern", ["c{c}/tile{n}_{b}.tif", "c{c}/tile{n}/{b}.tif", "c{c}/{b}/tile{n}.tif", "c{c}/{b}-tile{n}.tif"]
)
def test_files_that_differ_in_the_band_alone_are_one_image(pattern, tmp_path):
    result = shard(write(tmp_path / "raw", pattern), tmp_path / "d")
    found = images_of(tmp_path / "d")
    assert sorted(found) == [f"c{number % 2}/tile{number}.tif" for number in (0, 2, 4, 1, 3, 5)]
    assert all(np.array_equal(found[f"c{number % 2}/tile{number}.tif"], image(number)) for number in range(6))
    assert result.manifest.class_names == ("c0", "c1")
    assert result.manifest.options["chosen_bands"] == BANDS.split(",")


def scenes(*names, bands=("B1", "B02")):
    notes = list[str]()
    found = list(iter_scenes([ObjectInfo(name, 1, "1") for name in names], bands, (), notes))
    return {info.name: [file.file for file in getattr(info, "others", ())] for info in found}, notes


def test_the_name_of_a_band_stands_alone():
    found, notes = scenes("LC_B1.TIF", "LC_B02.TIF", "LC_B10.TIF", "B1.tif", "B02.tif", "x/readme.txt", "B1/B02_B1.tif")
    assert found["LC.TIF"] == ["LC_B02.TIF"]
    assert found["scene.tif"] == ["B02.tif"]
    assert "x/readme.txt" in found
    assert found["B1/B02.tif"] == []  # of B1/B02_B1.tif, without the other band
    assert [note for note in notes if "1 image " in note and "LC_B10.TIF" in note]


def test_only_the_last_name_of_a_band_is_cut():
    """A class or a scene may have the name of a band in its own: `B1` of this test is also a class."""
    names = "B1/t_B1.tif", "B1/t_B02.tif", "of B02/x/t_B1.tif", "of B02/x/t_B02.tif", "y/-B1.tif", "y/-B02.tif"
    found, notes = scenes(*names)
    assert found == {"B1/t.tif": [names[1]], "of B02/x/t.tif": [names[3]], "y/scene.tif": [names[5]]}
    assert not notes


def test_a_band_that_changes_is_told_by_its_file(tmp_path):
    raw = write(tmp_path / "raw", count=2)
    with closing(iter_read(Files(str(raw)), [Item("c0/t.tif", 1, "1", file="c0/tile0_B08.tif", images=REFS)])) as read:
        ((_, found),) = read
    assert str(found).startswith("c0/tile0_B08.tif: ")


def test_8_bit_bands_become_rgb(tmp_path):
    shard(write(tmp_path / "raw", dtype="uint8"), tmp_path / "d")
    (sample, *_) = samples_of(tmp_path / "d").values()
    assert sample["image/format"] == [b"png"]
    assert tpufeed.open_dataset(tmp_path / "d").manifest.pixels.channels == 3
    stored = cv2.imdecode(np.frombuffer(sample["image/encoded"][0], np.uint8), cv2.IMREAD_COLOR_RGB)
    assert any(np.array_equal(stored, image(number, "uint8")) for number in range(6))


def test_images_without_all_bands_are_rejects_with_names(tmp_path):
    raw = write(tmp_path / "raw", count=12)
    (raw / "c1/tile1_B02.tif").unlink()
    tifffile.imwrite(raw / "c0/tile2_B03.tif", np.zeros((5, 6), np.uint16))
    tifffile.imwrite(raw / "c1/tile3_B03.tif", np.zeros((9, 11), np.float32))
    several = {"photometric": "minisblack", "planarconfig": "contig"}
    tifffile.imwrite(raw / "c0/tile4_B03.tif", np.zeros((9, 11, 4), np.uint16), **several)
    (raw / "c1/tile5_B03.tif").write_bytes(b"II*\0")
    (raw / "c0/tile6").mkdir()
    tifffile.imwrite(raw / "c0/tile6/B08.tif", band(6, "B08"))
    result = shard(raw, tmp_path / "d")
    assert result.manifest.rejects == {"bad_bands": 5, "unreadable": 1}
    said = {path: message for path, (_, message) in rejects_of(tmp_path / "d").items()}
    for path, parts in {
        "c1/tile1.tif": ["no file of B02", "tile1_B08.tif"],
        "c0/tile2.tif": ["tile2_B08.tif has 11x9", "tile2_B03.tif has 6x5"],
        "c1/tile3.tif": ["tile3_B03.tif", "float32"],
        "c0/tile4.tif": ["tile4_B03.tif", "4 channels"],
        "c1/tile5.tif": ["tile5_B03.tif", "tifffile"],
        "c0/tile6.tif": ["B08", "c0/tile6/B08.tif", "c0/tile6_B08.tif"],
    }.items():
        assert all(part in said[path] for part in parts), said[path]


def test_masks_are_those_of_the_image(tmp_path):
    raw = write(tmp_path / "raw", count=3)
    for number in range(3):
        (tmp_path / f"masks/c{number % 2}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / f"masks/c{number % 2}/tile{number}.png"), np.full((9, 11), number, np.uint8))
    shard(raw, tmp_path / "d", masks=tmp_path / "masks")
    for images, masks, names in tpufeed.Loader(
        tmp_path / "d", "train", batch_size=1, columns=["image", "mask", "filename"], processes=0
    ):
        number = int(str(names[0])[-5])
        assert np.array_equal(images[0], image(number))
        assert (masks[0] == number).all()


def test_columns_of_a_table(tmp_path):
    write(tmp_path)
    rows = [{name: f"c{n % 2}/tile{n}_{name}.tif" for name in BANDS.split(",")} | {"label": n % 2} for n in range(6)]
    del rows[1]["B03"]
    rows[2]["B08"] = None
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = shard(tmp_path / "t.jsonl", tmp_path / "d")
    assert result.manifest.rejects == {"bad_bands": 2}
    found = images_of(tmp_path / "d")
    assert all(np.array_equal(found[f"c{n % 2}/tile{n}_B08.tif"], image(n)) for n in (0, 3, 4, 5))


def test_a_growing_dataset_knows_all_files_of_an_image(tmp_path):
    raw = write(tmp_path / "raw", count=4)
    shard(raw, tmp_path / "d")
    write(raw, count=6)  # all are written again, with other times
    result = tpufeed.append(raw, tmp_path / "d", workers=1, progress=False)
    assert (result.skipped, result.added) == (4, 2)
    tifffile.imwrite(raw / "c0/tile0_B03.tif", band(7, "B03"))
    tifffile.imwrite(raw / "c0/tile0_B08.tif", band(0, "B08"))
    assert tpufeed.append(raw, tmp_path / "d", workers=1, progress=False).added == 1


def test_a_growing_dataset_sees_that_one_file_of_an_image_has_changed(tmp_path):
    raw = write(tmp_path / "raw", count=4)
    shard(raw, tmp_path / "d")
    tifffile.imwrite(raw / "c1/tile1_B03.tif", band(7, "B03"))
    assert [tpufeed.append(raw, tmp_path / "d", workers=1, progress=False).added for _ in range(2)] == [1, 0]


@pytest.mark.parametrize(("bands", "channels"), [("4,3,2", [3, 2, 1]), ([1, 1], [0, 0]), ("5", [4])])
def test_bands_by_number(bands, channels, tmp_path):
    (tmp_path / "raw").mkdir()
    array = np.random.default_rng(0).integers(0, 4000, (9, 11, 5)).astype(np.uint16)
    np.save(tmp_path / "raw/0.npy", array)
    np.save(tmp_path / "raw/1.npy", array[..., :1])
    if len(channels) > 1:
        (tmp_path / "raw/1.npy").unlink()
    shard(tmp_path / "raw", tmp_path / "d", bands)
    assert np.array_equal(images_of(tmp_path / "d")["0.npy"], array[..., channels])
    said = rejects_of(tmp_path / "d").get("1.npy", ("bad_bands", "band 5"))
    assert said[0] == "bad_bands"
    assert "band 5" in said[1]


def test_a_band_of_a_photograph(tmp_path):
    (tmp_path / "raw").mkdir()
    array = np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "raw/0.png"), array)
    shard(tmp_path / "raw", tmp_path / "d", "3")
    assert np.array_equal(images_of(tmp_path / "d")["0.png"], array[..., :1])  # OpenCV's order is blue, green, red


@pytest.mark.parametrize(
    ("bands", "said"),
    [
        ("4,B02", "4,B02"),
        ("B02", "B02"),
        ("B02,B02", "B02,B02"),
        ("B02,", "B02,"),
        ("0,1", "0,1"),
        ("B08.tif,B02.tif", "without the ending"),
        ("B01,B09", "B01"),
        (range(1, 70), "69"),
    ],
)
def test_bands_that_cannot_be(bands, said, tmp_path):
    with pytest.raises(OptionError, match=said):
        shard(write(tmp_path / "raw"), tmp_path / "d", bands)


def test_bands_are_refused_elsewhere(tmp_path):
    with pytest.raises(OptionError, match="--pixels keep"):
        shard(write(tmp_path / "raw"), tmp_path / "d", images=tpufeed.Images())
    (tmp_path / "t.csv").write_text("path,B02\n1.tif,2.tif")
    with pytest.raises(OptionError, match="--image"):
        shard(tmp_path / "t.csv", tmp_path / "d", image="path")
    with pytest.raises(OptionError, match="no column 'B08'"):
        shard(tmp_path / "t.csv", tmp_path / "d")
    with pytest.raises(OptionError, match="beside them"):
        shard(tmp_path / "raw", tmp_path / "d", texts=True)
