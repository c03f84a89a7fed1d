"""Adopted photographs with an EXIF orientation: counted, and turned with their boxes by every loader if adopted so."""

import io
import json
import logging

import numpy as np
import pytest
from PIL import Image, ImageOps

import tpufeed
from tpufeed import cache
from tpufeed.errors import DatasetExistsError, OptionError
from tpufeed.images import (
    CenterCrop,
    HorizontalFlip,
    RandomCrop,
    Resize,
)
from tpufeed.images.decoding import decode
from tpufeed.images.pipeline import Pipeline

WINDOWS = {
    "a window": [RandomCrop((40, 56))],
    "a window first": [RandomCrop((40, 56)), HorizontalFlip(), CenterCrop(32)],
    "another op first": [HorizontalFlip(), RandomCrop((40, 56))],
    "all of it, at its size": [CenterCrop((96, 160))],
}


def with_orientation(upright, orientation, image_format):
    """`upright`, stored so that its tag turns it back."""
    exif, options = Image.Exif(), {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}
    exif[0x0112] = {6: 8, 8: 6}.get(orientation, orientation)
    stored = io.BytesIO()
    upright.save(stored, "PNG", exif=exif)
    turned = ImageOps.exif_transpose(Image.open(stored))
    exif[0x0112] = orientation
    data = io.BytesIO()
    turned.save(data, image_format, exif=exif, **options.get(image_format, {}))
    return data.getvalue()


@pytest.fixture(scope="module")
def files(photos):
    """A photograph of 160x96 in each orientation and format."""
    upright = Image.open(io.BytesIO(photos["china.jpg"])).convert("RGB").resize((160, 96))
    return [with_orientation(upright, turn, kind) for kind in ("JPEG", "PNG", "WEBP", "TIFF") for turn in range(1, 9)]


@pytest.fixture(scope="module")
def records(files, tmp_path_factory, write_tfrecords):
    folder = tmp_path_factory.mktemp("turned")
    write_tfrecords(folder / "train-00000-of-00001", [{"image": data, "label": 0} for data in files])
    return folder


@pytest.fixture(scope="module")
def turned(records, tmp_path_factory):
    return tpufeed.adopt(records, tmp_path_factory.mktemp("turned") / "dataset", exif="apply")


@pytest.fixture(scope="module")
def seen(files):
    """What Pillow shows of each file. It turns a TIFF as it loads it, and that is so with loaders, too."""
    return [np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")) for data in files]


@pytest.mark.first_cases(4)
@pytest.mark.parametrize(("ops", "processes"), [*((ops, 0) for ops in WINDOWS), ("a window", 1)])
def test_loaders_show_what_pillow_shows(turned, seen, ops, processes):
    options = {"shuffle": False, "columns": ["image", "sample"], "batch_size": 8, "seed": 3, "processes": processes}
    chosen = WINDOWS[ops]
    with tpufeed.Loader(turned.url, ops=chosen, **options) as loader:
        pipeline = Pipeline(chosen, loader.dataset.manifest.draws_seed(3))
        count = 0
        for images, samples in loader:
            draws = pipeline.draw(0, samples)
            for row, (image, sample) in enumerate(zip(images, samples, strict=True)):
                expected = pipeline.run(seen[sample], [op[row] for op in draws])
                assert np.array_equal(image, expected), sample
                count += 1
    assert count == len(seen)


@pytest.mark.uses("tensorflow", "torch")
def test_torch_tensorflow_and_the_map_style_dataset_turn_too(turned, seen):
    ops = [CenterCrop((96, 160))]
    for sample, item in enumerate(tpufeed.TFRecordImages(turned.url, "train", ops=ops)):
        assert np.array_equal(np.asarray(item[0]), seen[sample])
    options = {"ops": ops, "shuffle": False, "batch_size": 8}
    for adapter in ("to_torch", "to_tf"):
        images = np.concatenate(
            [np.asarray(images) for images, _ in getattr(tpufeed.Loader(turned.url, **options), adapter)()]
        )
        assert np.array_equal(images, np.stack(seen))
    with pytest.raises(OptionError, match=r"--exif apply.*direct=True"):
        tpufeed.Loader(turned.url, **options).to_tf(direct=True)


@pytest.mark.all
def test_reduced_decoding_begins_at_the_same_corner(photos, tmp_path, write_tfrecords):
    """321 pixels are 160 pairs and a single one, which must not come first in the image that is turned."""
    upright = Image.open(io.BytesIO(photos["china.jpg"])).convert("RGB").resize((640, 321))
    files = [with_orientation(upright, turn, "JPEG") for turn in range(1, 9)]
    write_tfrecords(tmp_path / "in/train-00000-of-00001", [{"image": data} for data in files])
    tpufeed.adopt(tmp_path / "in", exif="apply")
    ops = [Resize((40, 80))]
    with tpufeed.Loader(tmp_path / "in", ops=ops, shuffle=False, batch_size=8) as loader:
        (images,) = loader
    for image in images[1:]:
        assert np.abs(image.astype(int) - images[0]).mean() < 2


def test_caches_hold_them_turned(turned, seen, tmp_path):
    ops = [RandomCrop((40, 56)), HorizontalFlip()]
    cache.warmup(turned.url, tmp_path / "cache", ops=ops, seed=4, workers=1)
    warmed = tpufeed.open_dataset(tmp_path / "cache")
    assert not warmed.manifest.upright
    pipeline = Pipeline(ops, 4)
    with tpufeed.Loader(tmp_path / "cache", shuffle=False, batch_size=8, columns=["image", "sample"]) as loader:
        for images, samples in loader:
            draws = pipeline.draw(0, samples)
            for row, (image, sample) in enumerate(zip(images, samples, strict=True)):
                expected = pipeline.run(seen[sample], [op[row] for op in draws])
                assert np.array_equal(image, expected)


def test_as_stored_they_are_counted_and_warned_of(records, files, turned, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        result = tpufeed.adopt(records, tmp_path / "stored")
    warnings = [record.getMessage() for record in caplog.records]
    assert [
        text for text in warnings if text.startswith("21 images have an EXIF orientation") and "--exif apply" in text
    ]
    assert result.manifest.odd == turned.manifest.odd == {"exif": 21}  # TIFFs come turned from their decoder
    assert not result.manifest.upright
    assert result.manifest.content_digest != turned.manifest.content_digest
    with tpufeed.Loader(result.url, ops=[CenterCrop(90)], shuffle=False, batch_size=8) as loader:
        images = np.concatenate([images for images, _ in loader])
    for image, data in zip(images, files, strict=True):
        assert np.array_equal(image, Pipeline([CenterCrop(90)], 0).run(decode(data), [()]))
    assert tpufeed.verify(turned.url, decode="100%").records == tpufeed.verify(result.url, decode="100%").records == 32


def test_adopting_again_otherwise_is_refused(turned, records):
    again = tpufeed.adopt(records, turned.url, exif="apply")
    assert not again.seconds
    with pytest.raises(DatasetExistsError, match="these options"):
        tpufeed.adopt(records, turned.url)
    with pytest.raises(OptionError, match="not 'turn'"):
        tpufeed.adopt(records, turned.url, exif="turn")


def test_upright_photographs_say_nothing_of_it(photos, tmp_path, write_tfrecords, caplog):
    write_tfrecords(tmp_path / "in/train-00000-of-00001", [{"image": data} for data in photos.values()])
    with caplog.at_level(logging.WARNING):
        result = tpufeed.adopt(tmp_path / "in")
    assert result.manifest.odd == {}
    assert "exif" not in json.loads((tmp_path / "in/manifest.json").read_bytes())  # earlier versions read it
    assert "orientation" not in caplog.text


def test_boxes_of_is_of_boxes(records, tmp_path):
    with pytest.raises(OptionError, match="boxes_of"):
        tpufeed.adopt(records, tmp_path / "d", boxes_of="upright")
    with pytest.raises(OptionError, match="boxes_of"):
        tpufeed.adopt(records, tmp_path / "d", boxes_of="turned")


def test_avif_is_turned_by_loaders_and_heic_and_jpeg_xl_are_decoded(photos, tmp_path, write_tfrecords):
    pytest.importorskip("PIL._avif")
    import pillow_heif
    import pillow_jxl  # noqa: F401  # for Pillow to save them

    upright = Image.open(io.BytesIO(photos["china.jpg"])).convert("RGB").resize((160, 96))
    heic, jxl = io.BytesIO(), io.BytesIO()
    pillow_heif.from_pillow(upright).save(heic, quality=90)
    upright.save(jxl, "JXL")
    images = [with_orientation(upright, 6, "AVIF"), heic.getvalue(), jxl.getvalue()]
    write_tfrecords(tmp_path / "in/train-00000-of-00001", [{"image": data, "label": 0} for data in images])
    tpufeed.adopt(tmp_path / "in", exif="apply")
    assert tpufeed.open_dataset(tmp_path / "in").manifest.images == {"avif": 1, "heic": 1, "jxl": 1}
    with tpufeed.Loader(tmp_path / "in", ops=[CenterCrop((96, 160))], shuffle=False, batch_size=3) as loader:
        ((found, _),) = loader
    assert np.abs(found.astype(int) - np.asarray(upright)).mean() < 8
