"""Boxes of TensorFlow's Object Detection API lie on their objects, however the image is turned."""

import io

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.adoption.test_orientation import with_orientation
from tpufeed import cache
from tpufeed.errors import DatasetExistsError
from tpufeed.images import (
    CenterCrop,
    Custom,
    HorizontalFlip,
    RandomResizedCrop,
    Resize,
    Rotate,
    VerticalFlip,
)
from tpufeed.measure.contact_sheet import make_contact_sheet


def unchanged(sample, random):
    return sample


RED, GREY, SIZE = (250, 20, 20), 90, (60, 100)
BOX = (60, 10, 90, 30)  # in pixels of the upright image
MOVES = {
    "resized": [Resize((80, 80))],
    "cropped and mirrored": [RandomResizedCrop(80, scale=(0.5, 1.0)), HorizontalFlip()],
    "rotated": [Resize((80, 120)), Rotate(25), VerticalFlip(1.0)],
    "at a fraction of its size": [Resize(10), CenterCrop(10)],
    "through a function": [Resize((80, 80)), Custom(unchanged, sample=True), HorizontalFlip(1.0)],
}


def scene(orientation, sizes, of, size=SIZE, image_format="JPEG"):
    """A record with a red box, which its boxes say as shares of the `stored` or of the `upright` image.

    `sizes` are those that it says: of one of the two, of `another` image, or None.
    """
    pixels = np.full((*size, 3), GREY, np.uint8)
    left, top, right, bottom = BOX if size == SIZE else (40, 10, 55, 30)
    pixels[top:bottom, left:right] = RED
    data = with_orientation(Image.fromarray(pixels), orientation, image_format)
    seen = {"upright": pixels, "stored": np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))}
    height, width = seen[of].shape[:2]
    rows, columns = np.nonzero(is_red(seen[of]))
    sides = {"xmin": columns.min() / width, "xmax": (columns.max() + 1) / width}
    sides |= {"ymin": rows.min() / height, "ymax": (rows.max() + 1) / height}
    record = {"image/encoded": data, **{f"image/object/bbox/{side}": [float(at)] for side, at in sides.items()}}
    record["image/object/class/label"] = [1]
    if sizes is not None:
        height, width = (31, 17) if sizes == "another" else seen[sizes].shape[:2]
        record |= {"image/height": height, "image/width": width}
    return record


def is_red(pixels):
    return (pixels[..., 0] > 170) & (pixels[..., 1] < 110)


def off_by(pixels, box):
    """Pixels between the edges of a box and those of what is red."""
    rows, columns = np.nonzero(is_red(pixels))
    found = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return np.abs(found - box).max()


def adopted(records, folder, write_tfrecords, **options):
    write_tfrecords(folder / "in/train-00000-of-00001", records)
    return tpufeed.adopt(folder / "in", folder / "dataset", **options)


def check_boxes(url, records, ops, most=2.5, **options):
    """Each box lies on what is red, in any loader; a crop may have left none of it."""
    options = {"ops": ops, "columns": ["image", "boxes"], "shuffle": False, "batch_size": records, **options}
    with tpufeed.Loader(url, processes=0, **options) as loader:
        images, boxes, counts = next(iter(loader))
    assert counts.any()
    for image, box, count in zip(images, boxes, counts, strict=True):
        if count and min(box[0, 2] - box[0, 0], box[0, 3] - box[0, 1]) > 3:
            assert off_by(image, box[0]) <= most
    return images, boxes, counts


ORIENTATIONS = range(1, 9)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("exif", ["apply", "ignore"])
@pytest.mark.parametrize(("sizes", "of"), [("stored", "stored"), ("upright", "upright"), (None, "stored")])
def test_boxes_lie_on_what_they_are_of(exif, sizes, of, tmp_path, write_tfrecords):
    records = [scene(turn, sizes, of) for turn in ORIENTATIONS]
    url = adopted(records, tmp_path, write_tfrecords, exif=exif).url
    for name, ops in MOVES.items():
        check_boxes(url, len(records), ops, 1.5 if name.startswith("at") else 2.5)


@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_boxes_of_other_formats_and_sizes_of_other_kinds(exif, tmp_path, write_tfrecords):
    records = [scene(turn, "upright", "upright", SIZE, kind) for turn in range(5, 9) for kind in ("PNG", "WEBP")]
    url = adopted(records, tmp_path / "a", write_tfrecords, exif=exif).url
    check_boxes(url, len(records), MOVES["cropped and mirrored"])
    odd = [{"image/height": b"60", "image/width": b"100"}, {"image/height": [60, 100]}, {"image/height": 60.0}]
    records = [scene(6, None, "stored") | sizes for sizes in odd]
    url = adopted(records, tmp_path / "b", write_tfrecords, exif=exif).url
    check_boxes(url, len(records), MOVES["resized"])


@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_each_record_is_taken_at_its_word(exif, tmp_path, write_tfrecords):
    """Two tools have written the records; the sizes of a square, or of an image upside down, tell nothing."""
    records = [scene(turn, of, of) for turn in range(5, 9) for of in ("stored", "upright")]
    records += [scene(turn, "stored", "stored", size) for turn in range(1, 5) for size in (SIZE, (60, 60))]
    url = adopted(records, tmp_path, write_tfrecords, exif=exif).url
    check_boxes(url, len(records), MOVES["resized"])


@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_images_that_do_not_tell_are_taken_as_all_others(exif, tmp_path, write_tfrecords, caplog):
    square = [scene(turn, "upright", "upright", (60, 60)) for turn in ORIENTATIONS]
    without = [scene(turn, None, "upright") for turn in ORIENTATIONS]
    records = [*(scene(turn, "upright", "upright") for turn in ORIENTATIONS), *square, *without]
    result = adopted(records, tmp_path, write_tfrecords, exif=exif)
    check_boxes(result.url, len(records), MOVES["cropped and mirrored"])
    assert "--boxes-of stored" in caplog.text  # says what was assumed, and what to do if it is wrong


@pytest.mark.parametrize("exif", ["apply", "ignore"])
@pytest.mark.parametrize("of", ["stored", "upright"])
def test_a_user_who_knows_better_is_obeyed(exif, of, tmp_path, write_tfrecords, caplog):
    other = {"stored": "upright", "upright": "stored"}[of]
    records = [scene(turn, other, of) for turn in ORIENTATIONS]
    result = adopted(records, tmp_path, write_tfrecords, exif=exif, boxes_of=of)
    check_boxes(result.url, len(records), MOVES["rotated"])
    assert "--boxes-of" not in caplog.text
    again = tpufeed.adopt(tmp_path / "in", result.url, exif=exif, boxes_of=of)
    assert not again.seconds
    with pytest.raises(DatasetExistsError):
        tpufeed.adopt(tmp_path / "in", result.url, exif=exif, boxes_of=other)


def test_sizes_that_contradict_the_image_are_counted(tmp_path, write_tfrecords, caplog):
    records = [scene(turn, "another", "stored") for turn in ORIENTATIONS]
    result = adopted(records, tmp_path, write_tfrecords, exif="apply")
    assert result.manifest.odd == {"exif": 7, "exif, of another size": 7}
    assert "7 do not tell (7" in caplog.text
    assert "--boxes-of upright" in caplog.text
    check_boxes(result.url, 8, MOVES["resized"])


def test_records_without_boxes_say_nothing_of_them(tmp_path, write_tfrecords, caplog):
    records = [scene(1, "stored", "stored"), *(scene(turn, "another", "stored") for turn in ORIENTATIONS)]
    for record in records[1:]:
        record |= {key: [] for key in record if key.startswith("image/object/")}
    result = adopted(records, tmp_path, write_tfrecords, exif="apply")
    assert result.manifest.odd == {"exif": 7}
    assert "--boxes-of" not in caplog.text
    _, _, counts = check_boxes(result.url, 9, MOVES["resized"])
    assert counts.tolist() == [1] + [0] * 8


@pytest.mark.all
@pytest.mark.parametrize("exif", ["apply", "ignore"])
@pytest.mark.parametrize("of", ["stored", "upright"])
def test_caches_sheets_and_single_samples_have_the_boxes_there(exif, of, tmp_path, write_tfrecords):
    records = [scene(turn, of, of) for turn in ORIENTATIONS]
    url = adopted(records, tmp_path, write_tfrecords, exif=exif).url
    assert tpufeed.verify(url, decode="all").records == 8
    columns = ["image", "boxes"]
    images, boxes, _ = check_boxes(url, 8, MOVES["cropped and mirrored"])
    options = {"columns": columns, "ops": MOVES["cropped and mirrored"]}
    for number, (image, box, count) in enumerate(tpufeed.TFRecordImages(url, **options)):
        assert np.array_equal(np.asarray(image), images[number])
        assert np.array_equal(np.asarray(box)[:count], boxes[number][:count])
    for number, sample in enumerate(tpufeed.grain_source(url, **options).to_map_dataset()):
        assert np.array_equal(sample["boxes"], boxes[number])
    for encode in ("raw", "png"):
        ops = MOVES["cropped and mirrored"]
        warmed = cache.warmup(url, tmp_path / encode, ops=ops, variants=2, encode=encode, workers=1).url
        with tpufeed.Loader(
            warmed, columns=columns, ops=[HorizontalFlip(1.0)], batch_size=8, shuffle=False, processes=0
        ) as loader:
            for images, boxes, counts in (next(iter(loader)), next(iter(loader))):
                assert counts.sum() > 4
                for image, box, count in zip(images, boxes, counts, strict=True):
                    assert not count or box[0, 2] - box[0, 0] < 3 or off_by(image, box[0]) <= 2.5
    sheet = make_contact_sheet(tpufeed.open_dataset(url), count=8)
    pixels = np.asarray(sheet.image).astype(int)
    (colour,) = sheet.legend.values()
    for left, top in sheet.corners:
        tile = pixels[top : top + 160, left : left + 160]
        outline = (tile == colour).all(2)
        rows, columns = np.nonzero(outline)
        inner = ~outline & is_red(tile)
        inner_rows, inner_columns = np.nonzero(inner)
        assert abs(inner_rows.min() - rows.min()) <= 4
        assert abs(inner_columns.min() - columns.min()) <= 4
        assert abs(inner_rows.max() - rows.max()) <= 4
        assert abs(inner_columns.max() - columns.max()) <= 4


@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_an_image_that_is_mended_is_turned_with_its_boxes(exif, tmp_path, write_tfrecords):
    """Its end marker is missing, so that strict decoders refuse it; as it is mended, its orientation is read again."""
    records = [scene(turn, "stored", "stored") for turn in ORIENTATIONS]
    for record in records:
        assert record["image/encoded"].endswith(b"\xff\xd9")
        record["image/encoded"] = record["image/encoded"][:-2]
    result = adopted(records, tmp_path, write_tfrecords, exif=exif)
    assert result.manifest.odd == {"exif": 7}
    check_boxes(result.url, 8, MOVES["resized"])
    warmed = cache.warmup(result.url, tmp_path / "cache", ops=MOVES["resized"], workers=1)
    check_boxes(warmed.url, 8, [])


def test_a_damaged_image_with_boxes_is_a_reject_of_a_cache(tmp_path, write_tfrecords):
    records = [scene(turn, "stored", "stored") for turn in ORIENTATIONS]
    records[3]["image/encoded"] = b"\xff\xd8\xff no image"
    url = adopted(records, tmp_path, write_tfrecords, exif="apply").url
    warmed = cache.warmup(url, tmp_path / "cache", ops=MOVES["resized"], workers=1)
    assert sum(warmed.manifest.rejects.values()) == 1
    check_boxes(warmed.url, 7, [])
    options = {"ops": MOVES["resized"], "columns": ["boxes"], "batch_size": 8, "processes": 0, "max_bad_records": 1}
    with tpufeed.Loader(url, **options) as loader:
        assert next(iter(loader))[-1].sum() == 7


def test_features_that_nobody_moves_are_named(tmp_path, write_tfrecords, caplog):
    tied = {"image/object/mask": [b"png"], "image/object/keypoint/x": [0.5], "image/segmentation/class/encoded": b"png"}
    adopted([scene(1, "stored", "stored") | tied], tmp_path, write_tfrecords)
    for key in tied:
        assert key in caplog.text
