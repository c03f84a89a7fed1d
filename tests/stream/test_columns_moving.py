"""Masks, boxes, keypoints, further images and views, from files to batches: they move with the crop of their image."""

import io
import json
from dataclasses import fields
from inspect import signature

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.frameworks import lazy
from tests.tfrecords import encode_features
from tpufeed.cache import warmup
from tpufeed.dataset.record_check import RecordCheck
from tpufeed.errors import OpError, OptionError, RecordError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    Custom,
    CutMix,
    HorizontalFlip,
    MixUp,
    RandomResizedCrop,
    Resize,
    Rotate,
)
from tpufeed.stream.options import LoaderOptions
from tpufeed.tfrecord.example import Feature, decode_example

jax = lazy("jax")
tf = lazy("tensorflow")

COUNT, COLOURS = 12, ((250, 20, 20), (20, 250, 20), (20, 20, 250))
RANDOM_OPS = [RandomResizedCrop(64, scale=(0.4, 1.0)), HorizontalFlip(), Rotate(15)]
WHOLE = [Resize((60, 80))]
COLUMNS = ["image", "mask", "boxes", "label", "iscrowd", "corners", "depth", "again", "window", "sample"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A table of photographs with up to three rectangles each, and what is known of them."""
    folder, random, rows = tmp_path_factory.mktemp("scenes"), np.random.default_rng(4), []
    for number in range(COUNT):
        height, width = random.integers(90, 130, 2).tolist()
        image, mask = np.full((height, width, 3), 128, np.uint8), np.zeros((height, width), np.uint8)
        boxes, names, corners = [], [], []
        for kind in range(number % 4):  # side by side, so that none hides another
            left, right = kind * width // 3 + 3, (kind + 1) * width // 3 - 4
            top, bottom = int(random.integers(2, 30)), int(random.integers(50, height))
            image[top:bottom, left:right], mask[top:bottom, left:right] = COLOURS[kind], kind + 1
            boxes.append([left, top, right - left, bottom - top])
            names.append(["red", "green", "blue"][kind])
            corners.append([left, top, 2])
        Image.fromarray(image).save(folder / f"{number}.png")
        Image.fromarray(mask).save(folder / f"{number}-mask.png")
        Image.fromarray(mask.astype(np.uint16) * 1000).save(folder / f"{number}-depth.png")
        Image.fromarray(255 - image).save(folder / f"{number}-again.png")
        row = {"path": f"{number}.png", "label": names, "boxes": boxes, "iscrowd": [len(boxes)] * len(boxes)}
        files = {name: f"{number}-{name}.png" for name in ("mask", "depth", "again")}
        rows.append(row | {f"{name}_file": file for name, file in files.items()} | {"corners": corners})
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    images = {"mask": "mask_file:mask", "depth": "depth_file:depth", "again": "again_file:image"}
    result = tpufeed.shard(
        folder / "table.jsonl",
        folder / "dataset",
        workers=1,
        image_columns=images,
        boxes=tpufeed.Boxes(column="boxes", format="xywh", keypoints="corners", columns=["iscrowd"]),
    )
    return result.url


def batches(url, columns=tuple(COLUMNS), **options):
    """One epoch as dicts of a sample each."""
    options = {"batch_size": COUNT, "columns": columns, "seed": 3, "processes": 0, **options}
    with tpufeed.Loader(url, **options) as loader:
        return dict(zip(loader.stream.form.names, next(iter(loader)), strict=True))


MASKS = {"red": (161, 121, 65), "green": (66, 178, 66), "blue": (163, 235, 67)}  # the colours of 1, 2 and 3


def check_agreement(batch, tolerance=1.6):
    """The colours of the image, its mask and its boxes agree on the places of things."""
    seen = 0
    for row in range(len(batch["image"])):
        image, mask = batch["image"][row].astype(int), batch["mask"][row]
        np.testing.assert_array_equal(batch["depth"][row], mask.astype(np.int32) * 1000)
        count = batch["boxes_length"][row]
        assert (batch["label"][row, count:] == -1).all()
        names = batch["label"][row, :count]
        for box, label in zip(batch["boxes"][row, :count], names, strict=True):
            kind = {2: 0, 1: 1, 0: 2}[int(label)]  # classes are sorted: blue, green, red
            rows, columns = np.nonzero(mask == kind + 1)
            if min(box[2] - box[0], box[3] - box[1]) < 4:
                continue
            found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            np.testing.assert_allclose(box, found, atol=tolerance)
            middle = int(np.median(rows)), int(np.median(columns))
            if mask[middle] == kind + 1:
                assert np.abs(image[middle] - COLOURS[kind]).max() < 60
                assert np.abs(255 - batch["again"][row][middle].astype(int) - image[middle]).max() <= 2
                seen += 1
        assert (batch["boxes"][row, count:] == 0).all()
    return seen


@pytest.mark.uses("torch")
def test_all_of_a_sample_moves_with_an_image_that_a_device_crops(scenes):
    options = {"ops": [Resize((80, 96))], "device_ops": [RandomResizedCrop(64, scale=(0.4, 1.0)), HorizontalFlip()]}
    expected = batches(scenes, **options)
    with tpufeed.Loader(scenes, batch_size=COUNT, columns=COLUMNS, seed=3, processes=0, **options) as loader:
        found = next(iter(loader.to_device("cpu")))
        found = {name: column.numpy() for name, column in zip(loader.stream.form.names, found, strict=True)}
    for name, column in expected.items():
        most = 1 if name == "image" else 0
        np.testing.assert_allclose(found[name].astype(float), column, rtol=0, atol=most, err_msg=name)
    assert check_agreement(found) >= 6


PIXELS = ["image", "mask", "depth", "again"]


@pytest.mark.parametrize("adapt", ["numpy", pytest.param("to_jax", marks=pytest.mark.uses("jax"))])
def test_cutmix_pastes_all_pixels_of_a_sample(scenes, adapt):
    given = {"batch_size": COUNT, "columns": [*PIXELS, "label", "sample"], "seed": 3, "label_format": "multi_hot"}
    given |= {"processes": 0, "ops": [Resize((80, 96))]}
    with tpufeed.Loader(scenes, **given) as loader:
        plain = dict(zip(loader.stream.form.names, next(iter(loader)), strict=True))
    with tpufeed.Loader(scenes, device_ops=[CutMix()], **given) as loader:
        feed = loader if adapt == "numpy" else loader.to_jax(jax.sharding.SingleDeviceSharding(jax.devices()[0]))
        found = dict(zip(loader.stream.form.names, map(np.asarray, next(iter(feed))), strict=True))
    np.testing.assert_array_equal(found["sample"], plain["sample"])
    pairs, own, pasted = np.arange(COUNT) ^ 1, True, True
    for name in PIXELS:
        own &= (found[name] == plain[name]).reshape(COUNT, 80, 96, -1).all(-1)
        pasted &= (found[name] == plain[name][pairs]).reshape(COUNT, 80, 96, -1).all(-1)
    assert (own | pasted).all()
    assert not own.all()


@pytest.mark.parametrize(
    ("ops", "column", "said"),
    [
        ([MixUp()], "mask", "MixUp cannot mix the column 'mask'.*or MixUp out"),
        ([CutMix(), MixUp()], "depth", "MixUp cannot mix the column 'depth'"),
        ([CutMix()], "boxes", "CutMix cannot mix the column 'boxes'"),
        ([CutMix()], "iscrowd", "'iscrowd'"),
        ([MixUp()], "corners", "MixUp cannot mix the column 'corners'"),
        ([CutMix()], "window", "'window'"),
    ],
    ids=str,
)
def test_columns_that_cannot_be_mixed_are_refused(scenes, ops, column, said):
    with pytest.raises(OptionError, match=said):
        batches(scenes, ["image", "label", column], ops=WHOLE, device_ops=ops, label_format="multi_hot")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("ops", [WHOLE, RANDOM_OPS, [Resize(70), CenterCrop(60)]])
def test_all_of_a_sample_moves_together(scenes, ops, processes):
    batch = batches(scenes, ops=ops, processes=processes)
    size = batch["image"].shape[1:3]
    assert batch["mask"].shape == batch["depth"].shape == (COUNT, *size)
    assert [batch[name].dtype for name in ("mask", "depth", "boxes", "corners", "window", "boxes_length")] == [
        np.uint8, np.int32, np.float32, np.float32, np.float32, np.int32,
    ]  # fmt: skip
    assert batch["boxes"].shape == (COUNT, 3, 4)
    assert batch["corners"].shape == (COUNT, 3, 3)
    assert batch["corners_visible"].dtype == np.bool_
    assert check_agreement(batch) >= 6
    assert "label_length" not in batch  # `boxes_length` counts them
    if ops is WHOLE:
        assert batch["boxes_length"].tolist() == [number % 4 for number in _numbers(scenes, batch)]
        np.testing.assert_allclose(batch["corners"][..., :2], batch["boxes"][..., :2], atol=1e-3)


def _numbers(url, batch):
    with tpufeed.Loader(url, columns=["filename"], shuffle=False, batch_size=COUNT, processes=0) as loader:
        names = next(iter(loader))
    return np.array([int(names[sample].partition(".")[0]) for sample in batch["sample"]])


def test_padding_lengths_and_visibility(scenes):
    everything = batches(scenes, ops=[CenterCrop(40)])
    visible = batches(scenes, ops=[CenterCrop(40)], min_visibility=0.5, pad={"boxes": 5}, fill={"boxes": -1, "mask": 9})
    assert visible["boxes"].shape == (COUNT, 5, 4)
    assert (visible["boxes"][visible["boxes_length"] == 0] == -1).all()
    assert visible["boxes_length"].sum() < everything["boxes_length"].sum()
    with tpufeed.Loader(scenes, columns=["boxes"], ops=[CenterCrop(40)], batch_size=COUNT, processes=0) as loader:
        next(iter(loader))
        assert (
            loader.stats().dropped_boxes
            == sum(number % 4 for number in range(COUNT)) - everything["boxes_length"].sum()
        )
    with pytest.raises(RecordError, match="boxes has 3"):
        batches(scenes, ops=WHOLE, pad={"boxes": 2})
    cut = batches(scenes, ops=WHOLE, pad={"boxes": 2, "label": 2}, truncate=True, columns=["boxes", "label"])
    assert cut["boxes_length"].max() == 2


@pytest.mark.parametrize("order", [1, -1])
def test_what_belongs_to_boxes_has_their_room(scenes, order):
    columns = ["boxes", "label", "iscrowd"][::order]
    whole = batches(scenes, ops=WHOLE, columns=columns)
    for options in ({"truncate": ["boxes"]}, {"truncate": True}, {"truncate": True, "pad": {"boxes": 2, "label": 2}}):
        cut = batches(scenes, ops=WHOLE, columns=columns, **{"pad": {"boxes": 2}, **options})
        for name in columns:
            np.testing.assert_array_equal(cut[name], whole[name][:, :2])
        np.testing.assert_array_equal((cut["label"] >= 0).sum(1), cut["boxes_length"])
    wide = batches(scenes, ops=WHOLE, columns=columns, pad={"boxes": 6})
    assert [wide[name].shape[1] for name in columns] == [6, 6, 6]
    alone = batches(scenes, ops=WHOLE, columns=["label"], pad={"label": 5})  # has a length of its own
    assert alone["label"].shape == (COUNT, 5)
    with pytest.raises(OptionError, match=r"pad=\{'boxes': 5\}"):
        batches(scenes, ops=WHOLE, columns=columns, pad={"label": 5})
    with pytest.raises(RecordError, match=r"pad=\{'boxes': 3\}"):
        batches(scenes, ops=WHOLE, columns=columns, pad={"boxes": 2})


@pytest.mark.parametrize("encode", ["", "raw", "png"])
def test_fills_are_any_numbers_that_the_batch_holds(scenes, encode, tmp_path):
    url = scenes
    if encode:
        url = warmup(scenes, tmp_path / "cache", ops=WHOLE, encode=encode, workers=1).url
    for depth in (-1, np.int64(70_000)):
        options = {"ops": [Resize((60, 80)), Rotate(40)], "columns": ["mask", "depth", "iscrowd", "boxes"]}
        batch = batches(url, fill={"mask": 255, "depth": depth, "iscrowd": np.int64(-7)}, **options)
        assert batch["depth"].dtype == np.int32
        np.testing.assert_array_equal(batch["depth"] == depth, batch["mask"] == 255)
        assert (batch["mask"] == 255).any()
        assert (batch["iscrowd"][batch["boxes_length"] == 0] == -7).all()
    for name, fill, held in (("mask", -1, "uint8"), ("mask", 300, "uint8"), ("depth", 2**31, "int32")):
        with pytest.raises(OptionError, match=f"'{name}'.* {held}.* {fill}"):
            batches(url, fill={name: fill}, **options)


def test_the_window_is_the_part_of_the_stored_image(scenes):
    batch = batches(scenes, ops=[CenterCrop(40)], columns=["window", "height", "width"])
    expected = np.stack([(batch["height"] - 40) // 2, (batch["width"] - 40) // 2], 1)
    np.testing.assert_array_equal(batch["window"][:, :2], expected)
    assert (batch["window"][:, 2:] == 40).all()


@pytest.mark.all
@pytest.mark.parametrize("encode", ["raw", "png"])
def test_a_cache_holds_what_its_variants_moved(scenes, encode, tmp_path):
    cache = warmup(scenes, tmp_path / "cache", ops=RANDOM_OPS, variants=2, encode=encode, workers=1, seed=5).url
    assert tpufeed.verify(cache, decode="all").records == 2 * COUNT
    with tpufeed.Loader(cache, columns=COLUMNS, batch_size=COUNT, processes=0) as loader:
        for batch in (next(iter(loader)), next(iter(loader))):
            assert check_agreement(dict(zip(loader.stream.form.names, batch, strict=True))) >= 6
    again = warmup(cache, tmp_path / "again", ops=WHOLE, encode="raw", workers=1, allow_augmented=True).url
    assert check_agreement(batches(again)) >= 6
    flipped = batches(cache, ops=[HorizontalFlip(1.0)])
    assert check_agreement(flipped) >= 6


@pytest.mark.all
@pytest.mark.uses("tensorflow")
def test_every_loader_gives_the_same(scenes):
    options = {"columns": COLUMNS, "ops": RANDOM_OPS, "batch_size": 8, "seed": 9}
    with tpufeed.Loader(scenes, **options) as loader:
        names, expected = loader.stream.form.names, next(iter(loader))
    for adapter in ("to_torch", "to_jax"):
        with getattr(tpufeed.Loader(scenes, **options), adapter)() as loader:
            for name, one, other in zip(names, next(iter(loader)), expected, strict=True):
                np.testing.assert_array_equal(np.asarray(one), other, err_msg=name)
    feed = tpufeed.Loader(scenes, **options).to_tf(deterministic=True)
    for one, other in zip(tf.nest.flatten(next(iter(feed))), expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    single = tpufeed.TFRecordImages(scenes, columns=COLUMNS, ops=RANDOM_OPS, seed=9)
    sample = int(expected[-1][2])
    for name, one, other in zip(names, single[sample], expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other[2], err_msg=name)


@pytest.mark.all
@pytest.mark.uses("torch")
def test_the_samples_of_a_torch_loader_are_read_with_all_of_its_options(scenes, tmp_path):
    """`dataset`, which trainers read; one by one, as some options exclude others."""
    given = {
        "ops": [WHOLE[0], HorizontalFlip(1.0)],
        "columns": ["image", "boxes"],
        "seed": 5,
        "local_dir": tmp_path,
        "local_bytes": 1 << 30,
        "pad": {"boxes": 7},
        "truncate": ["boxes"],
        "fill": {"boxes": -2.0},
        "label_format": "multi_hot",
        "min_visibility": 0.5,
        "views": [([RandomResizedCrop(32)], 2)],
        "share": "crop",
    }
    takes = signature(tpufeed.TFRecordImages).parameters.keys()
    assert {field.name for field in fields(LoaderOptions) if field.name in takes} == given.keys()
    for name, value in given.items():
        options = {"ops": WHOLE, "columns": ["image", "boxes", "label"], name: value}
        if name in ("views", "share"):
            options |= {"ops": None, "columns": ["image"], "views": given["views"]}
        options["columns"] = [*options["columns"], "sample"]
        with tpufeed.Loader(scenes, batch_size=4, processes=0, **options).to_torch() as loader:
            assert getattr(loader.dataset._samples.options, name) == getattr(loader.stream.options, name), name
            batch = next(iter(loader))
            for row, sample in enumerate(batch[-1].tolist()):
                for one, other in zip(loader.dataset[sample], batch, strict=True):
                    np.testing.assert_array_equal(np.asarray(one), other[row], err_msg=name)


# Views


@pytest.mark.all
def test_views_of_one_size_are_an_axis(scenes):  # of which some are of one colour
    crop = [RandomResizedCrop(32), HorizontalFlip()]
    batch = batches(scenes, columns=["image", "sample"], views=[(crop, 3)])
    assert batch["image"].shape == (COUNT, 3, 32, 32, 3)
    alone = batches(scenes, columns=["image", "sample"], ops=crop)
    np.testing.assert_array_equal(batch["image"][:, 0], alone["image"])
    assert (batch["image"][:, 1] != batch["image"][:, 2]).any(axis=(1, 2, 3)).mean() > 0.7
    again = batches(scenes, columns=["image", "sample"], views=[crop, crop, crop], processes=1)
    np.testing.assert_array_equal(batch["image"], again["image"])


def test_views_of_a_jpeg_that_is_mended(photos, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/x.jpg").write_bytes(photos["china.jpg"][:-2])  # without its end marker
    exact = tpufeed.Images(encode="exact")
    tpufeed.shard(tmp_path / "raw", tmp_path / "set", images=exact, label="none", workers=1, progress=False)
    options = {"columns": ["image", "sample"], "batch_size": 1}
    one = batches(tmp_path / "set", ops=WHOLE, **options)["image"]
    two = batches(tmp_path / "set", views=[(WHOLE, 2)], **options)["image"]
    np.testing.assert_array_equal(two, one[:, None].repeat(2, 1))


@pytest.mark.uses("torch")
def test_views_of_several_sizes_are_columns(scenes):
    large, small = [RandomResizedCrop(48)], [RandomResizedCrop((16, 24), scale=(0.05, 0.3)), HorizontalFlip()]
    options = {"views": [(large, 2), (small, 4)], "batch_size": 4}
    with tpufeed.Loader(scenes, **options, columns=["image", "sample"]).to_torch() as loader:
        two, four, sample = next(iter(loader))
    assert (two.shape, four.shape) == ((4, 2, 48, 48, 3), (4, 4, 16, 24, 3))
    with tpufeed.Loader(scenes, **options, columns=["image"]) as loader:
        assert loader.stream.form.names == ("image_48", "image_16x24")
    single = tpufeed.TFRecordImages(scenes, columns=["image"], views=options["views"])
    one, other = single[int(sample[0])]
    np.testing.assert_array_equal(one, two[0])
    np.testing.assert_array_equal(other, four[0])


CROP = [RandomResizedCrop(32), HorizontalFlip()]
JITTER = ColorJitter(0.9, 0.9)


def test_views_share_the_crop_and_masks_follow(scenes):
    views = [CROP, [JITTER, *CROP], [RandomResizedCrop(16), HorizontalFlip(), JITTER]]
    columns = ["image", "mask", "boxes", "sample"]
    batch = batches(scenes, columns=columns, views=views, share="crop", shuffle=False)
    alone = batches(scenes, columns=columns, ops=CROP, shuffle=False)
    for name in ("mask", "boxes"):
        np.testing.assert_array_equal(batch[name], alone[name])
    plain, coloured = batch["image_32"][:, 0], batch["image_32"][:, 1]
    np.testing.assert_array_equal(plain, alone["image"])
    assert (plain != coloured).any(axis=(1, 2, 3)).mean() > 0.7
    gray = batches(scenes, columns=["image", "sample"], views=[CROP, CROP], share="crop", shuffle=False)["image"]
    np.testing.assert_array_equal(gray[:, 0], gray[:, 1])
    small = batches(scenes, columns=["image", "sample"], ops=[RandomResizedCrop(16), HorizontalFlip()], shuffle=False)[
        "image"
    ]
    again = batches(scenes, columns=["image", "sample"], views=[views[2][:2], CROP], share="crop", shuffle=False)
    np.testing.assert_array_equal(again["image_16"][:, 0], small)
    np.testing.assert_array_equal(again["image_32"][:, 0], plain)


def test_views_share_the_colours(scenes):
    views = [[Resize((32, 32)), JITTER], [Resize((32, 32)), HorizontalFlip(1.0), JITTER]]
    both = batches(scenes, columns=["image", "sample"], views=views, share="colors", shuffle=False)["image"]
    np.testing.assert_array_equal(both[:, 0, :, ::-1], both[:, 1])
    crops = batches(scenes, columns=["image", "sample"], views=[([*CROP, JITTER], 2)], share="colors", shuffle=False)[
        "image"
    ]
    alone = batches(scenes, columns=["image", "sample"], views=[([*CROP, JITTER], 2)], shuffle=False)["image"]
    np.testing.assert_array_equal(crops[:, 0], alone[:, 0])
    assert (crops[:, 0] != crops[:, 1]).any(axis=(1, 2, 3)).mean() > 0.4
    assert (crops[:, 1] != alone[:, 1]).any(axis=(1, 2, 3)).mean() > 0.4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": "crop", "ops": WHOLE}, "views"),
        ({"share": "size", "views": [CROP]}, "'size'"),
        ({"share": "colors", "views": [CROP, CROP], "columns": ["image"]}, "nothing to share"),
        ({"share": "crop", "views": [CROP, CROP[:1]], "columns": ["image"]}, "no further op"),
        ({"share": "crop", "views": [CROP, CROP[::-1]], "columns": ["image"]}, "view 1 has HorizontalFlip"),
        (
            {"share": "crop", "views": [CROP, [RandomResizedCrop(32, scale=(0.5, 1.0))]], "columns": ["image"]},
            r"view 1 has RandomResizedCrop.*0\.5",
        ),
        ({"share": "colors", "views": [[*CROP, JITTER]] * 2, "columns": ["image", "mask"]}, "share='crop'"),
        ({"views": [WHOLE], "ops": WHOLE}, "views"),
        ({"views": [WHOLE, WHOLE], "columns": ["image", "mask"]}, "image"),
        ({"views": [[HorizontalFlip()], WHOLE], "columns": ["image"]}, "size"),
        ({"views": [(WHOLE, 0)], "columns": ["image"]}, "number of views"),
        ({"columns": ["mask"]}, "differ in size"),
    ],
)
def test_views_that_cannot_be(scenes, options, said):
    with pytest.raises(OptionError, match=said):
        tpufeed.Loader(scenes, **options)


def test_the_padding_mask_has_another_name_beside_a_column_mask(scenes):
    with tpufeed.Loader(scenes, columns=["mask", "sample"], ops=WHOLE, batch_size=8, remainder="pad") as loader:
        assert loader.stream.form.names == ("mask", "sample", "sample_mask")
        assert sum(int(real.sum()) for *_, real in loader) == COUNT


def test_the_contact_sheet_draws_masks_and_boxes_in_the_colours_of_their_classes(scenes, monkeypatch):
    from tpufeed.measure import contact_sheet

    dataset, said, write = tpufeed.open_dataset(scenes), [], contact_sheet._write
    monkeypatch.setattr(contact_sheet, "_write", lambda *given: said.append(given[2]))
    contact_sheet.make_contact_sheet(dataset, count=COUNT)
    monkeypatch.setattr(contact_sheet, "_write", write)
    sheet = contact_sheet.make_contact_sheet(dataset, count=COUNT)
    assert not sheet.problems
    assert list(sheet.legend) == said[-3:] == ["red", "green", "blue"]  # the most frequent first
    assert len(set(sheet.legend.values())) == 3
    pixels, size = np.asarray(sheet.image), 160
    for name, colour in sheet.legend.items():
        stored = np.array(COLOURS[["red", "green", "blue"].index(name)])
        found = (pixels == colour).all(2)
        below = found[max(top for _, top in sheet.corners) + size + 30 :]
        assert below.any(), f"{name} has no colour in the legend"
        # Inside the outline with the topmost corner is a rectangle of that class, under its mask and the grey of depth.
        rows, columns = np.nonzero(found[: -len(below)])
        assert len(rows) > 100
        inner, hue = pixels[rows[0] + 8, columns[0] + 8].astype(float), (stored + MASKS[name]) / 4
        np.testing.assert_allclose(inner - inner.mean(), hue - hue.mean(), atol=4)


# Functions of the user's over whole samples


def whole(sample, random):
    """Mirror everything, and add a box over all of it."""
    image = sample["image"][:, ::-1]
    height, width = image.shape[:2]
    left, top, right, bottom = sample["boxes"].T
    boxes = np.stack([width - right, top, width - left, bottom], 1)
    corners = sample["corners"] * (-1, 1, 1) + (width, 0, 0)
    return {
        "image": np.ascontiguousarray(image),
        "mask": sample["mask"][:, ::-1],
        "depth": sample["depth"][:, ::-1],
        "boxes": np.concatenate([boxes, [[0, 0, width, height]]]).astype(np.float32),
        "label": np.append(sample["label"], 2),
        "iscrowd": np.append(sample["iscrowd"], -5),
        "corners": np.concatenate([corners, np.zeros((1, 3))]).astype(np.float32),
    }


def shrunk(sample, random):
    return sample | {"mask": sample["mask"][:-1]}


def unchanged(sample, random):
    return sample


def without_a_box(sample, random):
    return sample | {"boxes": sample["boxes"][1:]}


def beyond_the_dtype(sample, random):
    return sample | {"mask": sample["mask"].astype(np.int64) + 300}


def wider(sample, random):
    """The same values of a larger dtype, as numpy's functions return them."""
    return sample | {"mask": sample["mask"].astype(np.int64), "depth": sample["depth"].astype(np.int64)}


def no_dict(sample, random):
    return sample["image"]


@pytest.mark.parametrize("behind", [[], [CenterCrop(50), HorizontalFlip(1.0)]])
def test_a_function_changes_a_whole_sample(scenes, behind):
    columns = [name for name in COLUMNS if name != "again"]
    ops = [Resize((60, 80)), Custom(whole, sample=True), *behind]
    pad = {name: 4 for name in ("boxes", "label", "iscrowd", "corners")}
    batch = batches(scenes, ops=ops, columns=columns, pad=pad, truncate=True)
    plain = batches(scenes, ops=[Resize((60, 80)), HorizontalFlip(1.0), *behind], columns=columns, pad=pad)
    np.testing.assert_array_equal(batch["boxes_length"], plain["boxes_length"] + 1)
    for name in ("image", "mask", "depth"):
        np.testing.assert_array_equal(batch[name], plain[name])
    for row, count in enumerate(plain["boxes_length"]):
        for name in ("boxes", "label", "iscrowd"):
            np.testing.assert_allclose(batch[name][row, :count], plain[name][row, :count], atol=1e-3)
        size = batch["image"].shape[1:3]
        assert batch["boxes"][row, count].tolist() == [0, 0, size[1], size[0]]
        assert batch["iscrowd"][row, count] == -5


@pytest.mark.parametrize("function", [unchanged, wider])
def test_fill_and_window_go_through_a_function_over_a_whole_sample(scenes, function):
    options = {"columns": ["image", "mask", "depth", "window"], "fill": {"mask": 255, "depth": -1}}
    for before, behind in (([CenterCrop(70), Rotate(40)], [CenterCrop(66)]), ([CenterCrop(40)], [])):
        batch = batches(scenes, ops=[*before, Custom(function, sample=True), *behind], **options)
        plain = batches(scenes, ops=[*before, *behind], **options)
        for name in ("mask", "depth"):
            np.testing.assert_array_equal(batch[name], plain[name])
        np.testing.assert_allclose(batch["window"], plain["window"], atol=1e-3)
        assert ((plain["mask"] == 255) == (plain["depth"] == -1)).all()
        assert (plain["mask"] == 255).any() == bool(behind)


@pytest.mark.parametrize(
    ("function", "columns", "error", "said"),
    [
        (shrunk, ["image", "mask"], OpError, r"'mask'.*\(59, 80\)"),
        (without_a_box, ["label"], OpError, r"'label'.*'boxes'"),
        (beyond_the_dtype, ["mask"], OpError, r"'mask'.*300"),
        (no_dict, ["image", "mask"], OpError, "ndarray"),
        (whole, ["image", "again", "mask"], OptionError, "'again'"),
    ],
)
def test_functions_that_give_something_else(scenes, function, columns, error, said):
    with pytest.raises(error, match=said):
        batches(scenes, ops=[Resize((60, 80)), Custom(function, sample=True)], columns=columns)


def test_a_cache_takes_no_function_over_whole_samples(scenes, tmp_path):
    with pytest.raises(OptionError, match="whole samples"):
        warmup(scenes, tmp_path / "cache", ops=[Resize((8, 8)), Custom(whole, sample=True)], workers=1)


@pytest.mark.uses("tensorflow")
def test_records_of_the_object_detection_api_are_adopted(tmp_path):
    """As `create_coco_tf_record.py` writes them: four lists of shares, classes that count from 1, and their names."""
    image = np.full((40, 50, 3), 90, np.uint8)
    records = []
    for count in range(4):
        boxes = np.array([[0.1 * n, 0.2, 0.1 * n + 0.2, 0.6] for n in range(count)]).reshape(-1, 4)
        features = {
            "image/encoded": tf.train.Feature(bytes_list={"value": [tf.io.encode_jpeg(image).numpy()]}),
            "image/height": tf.train.Feature(int64_list={"value": [40]}),
            "image/width": tf.train.Feature(int64_list={"value": [50]}),
            "image/filename": tf.train.Feature(bytes_list={"value": [b"%d.jpg" % count]}),
            "image/object/class/label": tf.train.Feature(int64_list={"value": [1 + n % 2 for n in range(count)]}),
            "image/object/class/text": tf.train.Feature(
                bytes_list={"value": [[b"cat", b"dog"][n % 2] for n in range(count)]}
            ),
            "image/object/is_crowd": tf.train.Feature(int64_list={"value": [10 * n for n in range(count)]}),
            "image/object/view": tf.train.Feature(int64_list={"value": [7]}),  # not of each box
        }
        if not count:
            del features["image/object/is_crowd"]
        for number, side in enumerate(("xmin", "ymin", "xmax", "ymax")):
            features[f"image/object/bbox/{side}"] = tf.train.Feature(float_list={"value": boxes[:, number]})
        records.append(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    with tf.io.TFRecordWriter(str(tmp_path / "train-00000-of-00001.tfrecord")) as writer:
        for record in records:
            writer.write(record)
    tpufeed.adopt(tmp_path)
    dataset = tpufeed.open_dataset(tmp_path)
    assert dataset.manifest.class_names == ("0", "cat", "dog")
    assert dataset.split("train").class_counts == (0, 3, 2)
    assert tpufeed.verify(tmp_path).records == 4
    batch = batches(tmp_path, ["image", "boxes", "label"], batch_size=4, shuffle=False, ops=[Resize((80, 100))])
    assert batch["boxes_length"].tolist() == [0, 1, 2, 3]
    assert batch["label"].tolist() == [[-1, -1, -1], [1, -1, -1], [1, 2, -1], [1, 2, 1]]
    np.testing.assert_allclose(batch["boxes"][2, 1], [10, 16, 30, 48], atol=1e-3)
    cache = warmup(tmp_path, tmp_path / "cache", ops=[Resize((80, 100))], workers=1).url
    again = batches(cache, ["image", "boxes", "label"], batch_size=4, shuffle=False)
    np.testing.assert_allclose(again["boxes"], batch["boxes"], atol=1e-3)
    np.testing.assert_array_equal(again["label"], batch["label"])
    owners = {spec.name: spec.of for spec in dataset.manifest.features if spec.name.startswith("image/object/")}
    assert owners["image/object/is_crowd"] == owners["image/object/class/text"] == "boxes"
    columns = ["boxes", "image/object/is_crowd", "image/object/view"]
    cut = warmup(tmp_path, tmp_path / "cut", ops=[CenterCrop(15)], workers=1).url  # the first two boxes lie left of it
    assert tpufeed.verify(cut).records == 4
    for url in (tmp_path, cut):
        batch = batches(url, columns, batch_size=4, shuffle=False, ops=[CenterCrop(15)])
        assert batch["boxes_length"].tolist() == [0, 0, 0, 1]
        assert batch["image/object/is_crowd"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [20, 0, 0]]
        assert batch["image/object/view"].tolist() == [7, 7, 7, 7]


def test_verify_decodes_masks(scenes):
    """A mask that was replaced by another tool, with the CRCs right."""
    dataset = tpufeed.open_dataset(scenes)
    (payload,) = dataset.reader("train").read_many([(0, 0)])
    features, buffer = dict(decode_example(payload)), io.BytesIO()
    Image.fromarray(np.zeros((5, 6), np.uint8)).save(buffer, "PNG")
    check = RecordCheck(dataset.manifest)
    check.check_image(check.check(payload))
    for data, said in (
        (buffer.getvalue(), "6x5"),
        (b"\xff\xd8\xff", "bad_mask"),
    ):
        bad = memoryview(encode_features(features | {"mask": Feature("bytes", [data])}))
        with pytest.raises(RecordError, match=said):
            check.check_image(check.check(bad))
