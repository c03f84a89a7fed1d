"""Pixels of a sheet: the right thumbnail at its place, labels, classes, variants, and what damage looks like."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops

import tpufeed
from tests.tfrecords import records_of
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import ImageError, OptionError, ShardError
from tpufeed.images.decoding import decode
from tpufeed.images.pipeline import Pipeline
from tpufeed.measure import contact_sheet
from tpufeed.measure.contact_sheet import make_contact_sheet, write_sheet
from tpufeed.measure.sampling import draw_evenly
from tpufeed.tfrecord.example import decode_example

SIZE = 60


def middles(made, size=SIZE):
    """The colour in the middle of each image."""
    return [made.image.getpixel((left + size // 2, top + size // 2)) for left, top in made.corners]


def stored(dataset, split, place, variant=0):
    reader = dataset.reader(split, variant)
    return decode_example(reader.read(*place))


@pytest.mark.parametrize("split", ["train", "val"])
def test_each_thumbnail_is_its_samples(split, dataset_url):
    dataset = open_dataset(dataset_url)
    made = make_contact_sheet(dataset, split, count=7, size_px=SIZE, seed=3)
    places = draw_evenly(dataset, split, 7, 3)
    pixels = [decode(stored(dataset, split, place)["image/encoded"].values[0]) for place in places]
    assert middles(made) == [tuple(map(int, image[0, 0])) for image in pixels]
    assert (len(made.corners), made.problems) == (7, ())


def test_the_first_split_is_the_default(dataset_url):
    dataset = open_dataset(dataset_url)
    one, other = make_contact_sheet(dataset), make_contact_sheet(dataset, "train")
    assert not ImageChops.difference(one.image, other.image).getbbox()
    with pytest.raises(OptionError, match=r"'test'\. .*train, val"):
        make_contact_sheet(dataset, "test")


def test_variants_stand_side_by_side(cache_url):
    dataset = open_dataset(cache_url)
    made = make_contact_sheet(dataset, "train", count=14, size_px=32)
    places = draw_evenly(dataset, "train", 4, 0)
    expected = []
    for place in places:
        for variant in range(3):
            image = np.frombuffer(stored(dataset, "train", place, variant)["image/tensor"].values[0], np.uint8)
            expected.append(tuple(map(int, image.reshape(32, 32, 3)[16, 16])))
    assert middles(made, 32) == expected
    assert len(made.corners) == 12
    assert len(make_contact_sheet(dataset, "train", count=1).corners) == 3


def test_an_image_that_does_not_decode_is_marked_under_its_own_name(dataset_url, monkeypatch):
    def fail(*_):
        raise ImageError("unreadable", "rotten")

    monkeypatch.setattr(Pipeline, "run_stored", fail)
    made = make_contact_sheet(open_dataset(dataset_url), "train", count=2, size_px=SIZE)
    assert middles(made) == [contact_sheet._FAULT_INK] * 2  # where the lines of the cross meet
    assert len(made.problems) == 2
    assert all(re.search(r"tfrecord, record \d+.*: rotten$", problem) for problem in made.problems)


def test_a_missing_shard(copy):
    for path in copy.glob("train-*.tfrecord"):
        path.unlink()
    with pytest.raises(ShardError, match="tfrecord"):
        make_contact_sheet(open_dataset(copy))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".PNG"])
def test_a_sheet_replaces_what_was_there(suffix, tmp_path):
    path = tmp_path / f"sheet{suffix}"
    path.write_text("old")
    write_sheet(Image.new("RGB", (30, 20), "red"), path)
    assert Image.open(path).size == (30, 20)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"Umask:\s+(\d+)", status)[1], 8)


def test_where_no_sheet_can_go(tmp_path):
    image = Image.new("RGB", (20_000, 1))
    for name, message in (
        ("sheet.gif", r"end in \.png, \.jpg or \.webp"),
        ("sheet", "end in"),
        ("none/sheet.png", "no folder .*none"),
        ("sheet.webp", "too many for WEBP"),
    ):
        with pytest.raises(OptionError, match=message):
            write_sheet(image, tmp_path / name)
    (tmp_path / "x.png").mkdir()
    with pytest.raises(OptionError, match="is a folder"):
        write_sheet(image, tmp_path / "x.png")
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]


def test_a_sheet_too_large_for_memory(dataset_url, monkeypatch):
    monkeypatch.setattr(contact_sheet, "_MOST_PIXELS", 10_000)
    with pytest.raises(OptionError, match="too large"):
        make_contact_sheet(open_dataset(dataset_url))


def test_damage_is_marked_and_told(copy):
    dataset = open_dataset(copy)
    places = draw_evenly(dataset, "train", 6, 0)
    shard = dataset.split("train").variants[0].shards[places[2][0]]
    data = bytearray((copy / shard.name).read_bytes())
    offset, _ = records_of(data)[places[2][1]]
    data[offset + 100] ^= 1
    (copy / shard.name).write_bytes(data)
    made = make_contact_sheet(open_dataset(copy), "train", count=6, size_px=SIZE)
    (problem,) = made.problems
    assert re.match(rf"{re.escape(str(copy / shard.name))}, record {places[2][1]}, byte {offset}: the CRC", problem)
    left, top = made.corners[2]
    assert made.image.getpixel((left + SIZE // 2, top + 2)) == contact_sheet._FAULT
    assert len({colour for number, colour in enumerate(middles(made)) if number != 2}) == 5


@pytest.mark.parametrize(("count", "variants"), [(1, 1), (63, 1), (14, 3)])
def test_sheets_are_about_square(count, variants, dataset_url, cache_url):
    made = make_contact_sheet(open_dataset(dataset_url if variants == 1 else cache_url), count=count)
    columns = len({left for left, _ in made.corners}) // variants
    rows = len({top for _, top in made.corners})
    assert columns == 1 or rows == 1 or 0.5 < made.image.width / made.image.height < 2
    assert (rows - 1) * columns < len(made.corners) // variants <= rows * columns


def boxed(folder, classes, each=1):
    """A dataset whose images have a box of each class, by a table."""
    folder.mkdir()
    Image.new("RGB", (60, 40), "grey").save(folder / "a.png")
    boxes = [[2, 2, 50, 30]] * len(classes) * each
    row = {"path": "a.png", "boxes": boxes} | ({"label": [*classes] * each} if classes else {})
    (folder / "table.jsonl").write_text(json.dumps(row | ({} if classes else {"boxes": [[2, 2, 50, 30]]})) + "\n")
    options = {"boxes": tpufeed.Boxes(column="boxes"), "workers": 1} | ({} if classes else {"label": "none"})
    return open_dataset(tpufeed.shard(folder / "table.jsonl", folder / "out", **options).url)


def test_the_legend_names_the_most_frequent_classes_in_colours_that_stay(tmp_path, monkeypatch):
    names = [f"class {number:03}" for number in range(100)]
    few, many = boxed(tmp_path / "few", names[:3]), boxed(tmp_path / "many", names)
    small, large = (make_contact_sheet(dataset, count=1, size_px=SIZE) for dataset in (few, many))
    assert small.legend == {name: large.legend[name] for name in names[:3]}
    assert len(set(list(large.legend.values())[:24])) == 24
    assert all(max(colour) >= 160 for colour in large.legend.values())
    said, write = [], contact_sheet._write
    monkeypatch.setattr(contact_sheet, "_write", lambda *given: said.append(given[2]) or write(*given))
    make_contact_sheet(many, count=1, size_px=SIZE)
    assert said[-61:] == [*names[:60], "and 40 classes more"]
    plain = make_contact_sheet(boxed(tmp_path / "none", []), count=1, size_px=SIZE)
    assert plain.legend == {}
    assert contact_sheet._MARK in [colour for _, colour in plain.image.getcolors(1 << 20)]
    assert plain.image.height < small.image.height < large.image.height


@pytest.mark.parametrize(
    "text",
    ["", "77", "größe", "Жук", "猫", "قطة", "👩‍🚀", "a\tb\n", "\x00", "\udcff", "\U0010fffd", "long" * 40, "猫" * 60],
)
def test_the_label_is_drawn_under_its_image_whatever_it_is(text, dataset_url, flat_url, monkeypatch):
    """And only there: another label changes no pixel elsewhere."""
    dataset, options = open_dataset(dataset_url), {"count": 1, "size_px": SIZE}
    plain = make_contact_sheet(dataset, "train", **options)
    monkeypatch.setattr(contact_sheet, "_labels_of", lambda *_: [text] if text else [])
    box = ImageChops.difference(plain.image, make_contact_sheet(dataset, "train", **options).image).getbbox()
    left, top = plain.corners[0]
    assert box is not None
    assert left - 1 <= box[0] < box[2] <= left + SIZE + 1  # a glyph may begin a pixel before its place
    assert top + SIZE <= box[1] < box[3] <= top + SIZE + 32
    monkeypatch.undo()
    assert make_contact_sheet(open_dataset(flat_url), "train", **options).problems == ()


def test_a_sheet_of_a_view_shows_its_samples_only(dataset_url, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dataset, said, write = open_dataset(dataset_url), [], contact_sheet._write

    def hear(draw, corner, text, *rest):
        said.append(text)
        write(draw, corner, text, *rest)

    monkeypatch.setattr(contact_sheet, "_write", hear)
    names, stored = dataset.class_names, list(dataset.iter_examples("train"))
    colours = [tuple(map(int, decode(each["image/encoded"].values[0])[0, 0])) for each in stored]
    labels = [names[each["image/class/label"].values[0]] for each in stored]
    fold, two = dataset.select(fold=(0, 3)), dataset.select(classes=[names[3], names[1]])
    for view in (fold, two, two.select(classes=[names[1]]), fold.select(classes=[names[2]])):
        said.clear()
        made = make_contact_sheet(view, "train", count=100, size_px=SIZE)
        samples = view.samples("train").tolist()
        assert middles(made) == [colours[sample] for sample in samples]
        assert said[1::2] == [labels[sample] for sample in samples]
        assert view.selection.text in said[0]
    assert len(make_contact_sheet(fold, "train", count=4, size_px=SIZE).corners) == 4
    one = dataset.select(samples=[labels.index(names[0])], split="train").select(classes=[names[1]])
    with pytest.raises(OptionError, match=r"samples=1 samples.* holds no samples"):
        make_contact_sheet(one, "train")
