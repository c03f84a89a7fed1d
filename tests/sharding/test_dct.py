"""DCT images of photographs of any size: batches as of the JPEGs, and what cannot be one stays as it is."""

import io
import shutil

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.conftest import make_photos
from tests.frameworks import lazy
from tests.sharding.test_worker import stored
from tests.tfrecords import encode_record, records_of
from tpufeed import Loader
from tpufeed.cache import warmup
from tpufeed.cli.app import app
from tpufeed.errors import OptionError, RecordError
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize
from tpufeed.images.decoding import decode
from tpufeed.images.windows import resize

tf = lazy("tensorflow")
DCT = tpufeed.Images(encode="dct")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, photos):
    """JPEGs of each sampling, a progressive, a turned and a grey one, and what becomes no DCT image."""
    folder = tmp_path_factory.mktemp("dct") / "photos" / "a"
    folder.mkdir(parents=True)
    picture = Image.open(io.BytesIO(photos["china.jpg"])).resize((263, 185))
    pixels = np.asarray(picture)
    for sampling in ("444", "422", "420", "440"):
        file = simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling)
        (folder / f"{sampling}.jpg").write_bytes(file)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(folder / "turned.jpg", exif=exif)
    picture.save(folder / "progressive.jpg", progressive=True, quality=95)
    picture.convert("L").save(folder / "grey.jpg")
    picture.convert("CMYK").save(folder / "cmyk.jpg")
    picture.save(folder / "rgb.jpg", keep_rgb=True)
    picture.save(folder / "picture.png")
    return folder.parent


@pytest.fixture(scope="module")
def datasets(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("made")
    tpufeed.shard(folder, out / "jpeg", workers=1)
    tpufeed.shard(folder, out / "dct", images=DCT, workers=1)
    return out / "jpeg", out / "dct"


def batches(url, **options):
    with Loader(url, split="train", columns=["image"], batch_size=5, processes=0, seed=3, **options) as loader:
        return np.concatenate(list(loader))


def test_jpegs_become_dct_images_without_loss_and_all_else_stays(folder, datasets):
    jpegs, images = map(stored, datasets)
    formats = {name.rpartition("/")[2]: "dct" if data[:4] == b"\x89DCT" else "other" for name, data in images.items()}
    assert {name for name, kind in formats.items() if kind == "other"} == {"440.jpg", "rgb.jpg", "picture.png"}
    for name, data in images.items():
        np.testing.assert_array_equal(decode(data), decode(jpegs[name]), err_msg=name)
    manifest = tpufeed.open_dataset(datasets[1]).manifest
    assert manifest.images == {"dct": 5, "dct, encoded anew": 2, "jpeg": 2, "png": 1}
    assert manifest.markers.rewritten == 5
    assert manifest.markers.unmarked == {"colours other than YCbCr": 1, "neither 4:2:0, 4:2:2, 4:4:4 nor grey": 1}
    said = CliRunner().invoke(app, ["info", str(datasets[1])]).stdout
    assert "DCT images: 5 JPEGs kept without loss, +0." in said
    assert "JPEGs stay as they are: 1 colours other" in said


@pytest.mark.parametrize("ops", [[RandomResizedCrop(150), HorizontalFlip()], [CenterCrop(160)], [Resize((150, 160))]])
def test_batches_are_those_of_the_jpegs(datasets, ops):
    one, other = (batches(url, ops=ops) for url in datasets)
    np.testing.assert_array_equal(one, other)
    single = tpufeed.TFRecordImages(datasets[1], split="train", columns=["image"], ops=ops, seed=3)
    assert single[0].shape == one[0].shape


def test_crops_that_shrink_are_those_of_whole_pixels(datasets):
    """JPEGs are decoded at half of their size."""
    expected = [resize(decode(data, fast=True), 40, 50) for data in stored(datasets[1]).values()]
    found = batches(datasets[1], ops=[Resize((40, 50))], shuffle=False)
    is_dct = [data[:4] == b"\x89DCT" for data in stored(datasets[1]).values()]
    np.testing.assert_array_equal(found[is_dct], np.stack(expected)[is_dct])


def test_it_is_verified_shown_and_cached_like_any_dataset(datasets, tmp_path):
    assert tpufeed.verify(datasets[1], decode="all").decoded == 10
    shown = ["show", str(datasets[1]), "--split", "train", "--out", str(tmp_path / "a.png")]
    assert CliRunner().invoke(app, shown).exit_code == 0
    ops = [Resize((150, 160))]
    one, other = (warmup(url, tmp_path / url.name, encode="raw", ops=ops, workers=1) for url in datasets)
    np.testing.assert_array_equal(*(batches(each.url, shuffle=False) for each in (one, other)))


def test_a_damaged_image_is_named_and_counted(datasets, tmp_path):
    url = tmp_path / "damaged"
    shutil.copytree(datasets[1], url)
    (shard,) = url.glob("*.tfrecord")
    records = [bytearray(payload) for _, payload in records_of(shard.read_bytes())]
    damaged = next(record for record in records if b"\x89DCT" in record)
    at = damaged.index(b"\x89DCT") + 8  # its height
    damaged[at : at + 2] = b"\1\0"
    shard.write_bytes(b"".join(map(encode_record, records)))
    with pytest.raises(RecordError, match=f"{shard.name}.*DCT image"):
        batches(url, ops=[CenterCrop(32)])
    options = {"split": "train", "columns": ["image"], "batch_size": 5, "processes": 0, "ops": [CenterCrop(32)]}
    with Loader(url, max_bad_records=1, **options) as loader:
        assert sum(int((~mask).sum()) for _, mask in loader) == 1


def test_the_help_names_it():
    assert '"dct"' in CliRunner().invoke(app, ["shard", "--help"]).stdout


def test_it_grows(tmp_path):
    make_photos(tmp_path / "a", 12)
    make_photos(tmp_path / "b", 15)
    tpufeed.shard(tmp_path / "a", tmp_path / "d", images=DCT, workers=1)
    grown = tpufeed.append(tmp_path / "b", tmp_path / "d", workers=1)
    assert set(grown.manifest.images) == {"dct"}
    assert grown.manifest.markers.rewritten == sum(grown.manifest.images.values())


@pytest.mark.uses("tensorflow")
def test_tensorflow_itself_cannot_read_it(datasets):
    assert tf is not None
    loader = Loader(datasets[1], split="train", batch_size=2, ops=[CenterCrop(32)])
    with pytest.raises(OptionError, match="knows no DCT images"):
        loader.to_tf(direct=True)
