"""Further images of a sample: masks, depth and second views, in tables, tars and parallel folders."""

import io
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.gcs_server import GcsServer
from tests.sharding.forging import begun
from tests.sharding.outputs import rejects_of
from tests.sharding.outputs import samples_of as lists_of
from tests.sharding.previews import preview_shard
from tests.sharding.written import encode_tar
from tpufeed.cli.app import app
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetNotFoundError, DuplicateWriterError, OptionError, SourceError
from tpufeed.storage.local import LocalStore
from tpufeed.storage.store import read_span

PALETTE = np.array([[230, 20, 20], [20, 200, 30], [30, 30, 220], [240, 240, 240]], np.uint8)
MASKS = {"image_columns": {"mask": "mask:mask"}}


def png(values, mode=None):
    buffer = io.BytesIO()
    image = Image.fromarray(values)
    (image if mode is None else image.convert(mode)).save(buffer, "PNG")
    return buffer.getvalue()


def classes(height=48, width=64, seed=0):
    """Classes of pixels, in blocks."""
    blocks = np.random.default_rng(seed).integers(0, 4, (-(-height // 16), -(-width // 16)), np.uint8)
    return blocks.repeat(16, axis=0).repeat(16, axis=1)[:height, :width]


def picture(values, orientation=1):
    """The image in which each class has its colour, stored such that `orientation` turns it upright."""
    turns = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    image, exif, buffer = Image.fromarray(PALETTE[values]), Image.Exif(), io.BytesIO()
    if turns[orientation] is not None:
        image, exif[0x0112] = image.transpose(turns[orientation]), orientation
    image.save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


def load(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def samples_of(url):
    """Values of one item, and lists of others, by column and file name."""
    return {
        path: {name: values[0] if len(values) == 1 else values for name, values in sample.items()}
        for path, sample in lists_of(url).items()
    }


@pytest.fixture
def source(tmp_path):
    """`source(rows, **files)`: a table of these rows, next to the files."""

    def make(rows, **files):
        folder = tmp_path / "source"
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder / "table.jsonl"

    return make


@pytest.fixture
def few(source):
    """A table of three images with masks."""
    files = {}
    for number in range(3):
        files |= {f"{number}.png": picture(classes(seed=number)), f"masks/{number}.png": png(classes(seed=number))}
    return source([{"path": f"{n}.png", "mask": f"masks/{n}.png", "label": n % 2} for n in range(3)], **files)


def shard(url, folder, **options):
    return tpufeed.shard(url, folder, **{"workers": 1, "max_rejects": 20, **options})


def test_masks_of_a_table_are_stored_as_they_are(few, tmp_path):
    result = shard(few, tmp_path / "d", **MASKS)
    assert result.images == 3
    last = result.manifest.features[-1]
    assert (last.name, last.dtype, last.shape, last.kind) == ("mask", "uint8", (), "mask")
    for number, sample in enumerate(samples_of(result.url)[f"{n}.png"] for n in range(3)):
        assert list(sample)[-1] == "mask"
        assert sample["mask"] == png(classes(seed=number))
        assert "mask_path" not in sample


def test_kinds_of_images_stand_behind_the_other_columns_in_the_order_of_the_options(source, tmp_path):
    depth = (np.arange(48 * 64, dtype=np.uint16) * 20).reshape(48, 64)
    right = picture(classes(30, 40, 5))
    files = {"a.png": picture(classes()), "d.png": png(depth), "m.png": png(classes()), "r.png": right}
    table = source([{"path": "a.png", "d": "d.png", "right_path": "r.png", "m": "m.png", "caption": "ä"}], **files)
    columns = {"right": "right_path:image", "distance": "d:depth", "classes": "m:mask"}
    result = shard(table, tmp_path / "d", image_columns=columns)
    assert [(f.name, f.dtype, f.kind) for f in result.manifest.features[-3:]] == [
        ("right", "uint8", "image"),
        ("distance", "int32", "depth"),
        ("classes", "uint8", "mask"),
    ]
    (sample,) = samples_of(result.url).values()
    assert sample["caption"].decode() == "ä"
    assert (load(sample["distance"]) == depth).all()
    assert load(sample["right"]).shape == (30, 40, 3)
    other = shard(table, tmp_path / "e", image_columns=columns, images=tpufeed.Images(encode="jpeg", presize=24))
    (sample,) = samples_of(other.url).values()
    assert sample["right"].startswith(b"\xff\xd8")
    assert load(sample["right"]).shape == (24, 32, 3)
    assert load(sample["distance"]).shape == (24, 32)


@pytest.mark.first_cases(6)
@pytest.mark.parametrize("mode", ["short", "long", "fit"])
@pytest.mark.parametrize("size", [(48, 64), (64, 49), (330, 530)])
def test_a_mask_is_resized_with_its_image(size, mode, source, tmp_path):
    values, orientations = classes(*size, seed=4), (1, 3, 6, 8)
    files = {f"{orientation}.png": picture(values, orientation) for orientation in orientations}
    rows = [{"path": name, "mask": "m.png"} for name in files]
    result = shard(
        source(rows, **files, **{"m.png": png(values)}),
        tmp_path / "d",
        images=tpufeed.Images(presize=40, presize_mode=mode),
        **MASKS,
    )
    samples = samples_of(result.url)
    assert samples.keys() == files.keys()
    for name, sample in samples.items():
        image, mask = load(sample["image/encoded"]), load(sample["mask"])
        assert mask.shape == image.shape[:2] == (sample["image/height"], sample["image/width"]), name
        assert min(mask.shape) == 40 if mode != "long" else max(mask.shape) == 40
        seen = np.abs(image[:, :, None].astype(int) - PALETTE).sum(axis=3).argmin(axis=2)
        near = np.stack([np.roll(seen, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1)])[:, 1:-1, 1:-1]
        assert (near == mask[1:-1, 1:-1]).any(axis=0).all(), name


def test_masks_of_tars_are_found_by_their_suffix(tmp_path):
    members = []
    for number in range(3):
        values = classes(seed=number)
        members += [(f"s/{number}.png", picture(values)), (f"s/{number}.cls", b"%d" % number)]
        members += [(f"s/{number}.Mask.png", png(values)), (f"s/{number}.depth.png", png(values.astype(np.uint16)))]
    (tmp_path / "a.tar").write_bytes(encode_tar(members))
    columns = {"mask": "mask.png:mask", "depth": ".depth.png:depth"}
    result = shard(tmp_path / "a.tar", tmp_path / "d", image_columns=columns)
    for number in range(3):
        sample = samples_of(result.url)[f"a.tar/s/{number}.png"]
        assert sample["mask"] == png(classes(seed=number))
        assert (load(sample["depth"]) == classes(seed=number)).all()
        assert sample["image/class/label"] == number
    with pytest.raises(OptionError, match=r"png, mask\.png, depth\.png"):
        shard(tmp_path / "a.tar", tmp_path / "e")


def test_a_sample_of_a_tar_without_its_mask_is_a_reject(tmp_path):
    members = [("0.png", picture(classes())), ("0.mask.png", png(classes())), ("1.png", picture(classes()))]
    (tmp_path / "a.tar").write_bytes(encode_tar(members))
    result = shard(tmp_path / "a.tar", tmp_path / "d", image_columns={"mask": "mask.png:mask"})
    assert result.images == 1
    reason, message = rejects_of(tmp_path / "d")["a.tar/1.png"]
    assert reason == "bad_mask"
    assert "1.mask.png" in message


def test_a_key_of_a_json_that_is_called_as_an_image_column(tmp_path):
    members = [("0.png", picture(classes())), ("0.seg.png", png(classes())), ("0.json", b'{"seg": 1}')]
    (tmp_path / "a.tar").write_bytes(encode_tar(members))
    with pytest.raises(SourceError, match="'seg'"):
        shard(tmp_path / "a.tar", tmp_path / "d", image_columns={"seg": "seg.png:mask"})


@pytest.fixture
def folders(tmp_path):
    """Folders of images in splits and classes, and of their masks."""
    for split, label, name in [("train", "a", "0.png"), ("train", "b", "x.y.jpeg"), ("val", "a", "0.png")]:
        for folder in ("images", "masks"):
            (tmp_path / folder / split / label).mkdir(parents=True, exist_ok=True)
        values = classes(seed=len(name))
        path = tmp_path / "images" / split / label / name
        Image.fromarray(PALETTE[values]).save(path)
        path = tmp_path / "masks" / split / label / (Path(name).stem + (".PNG" if split == "val" else ".png"))
        path.write_bytes(png(values))
    return tmp_path / "images", tmp_path / "masks"


def test_a_parallel_folder_of_masks(folders, tmp_path):
    images, masks = folders
    (masks / "train/a/7.png").write_bytes(b"without an image")
    (masks / "train/a/.hidden.png").write_bytes(b"")
    (masks / "notes.txt").write_text("no mask")
    result = shard(images, tmp_path / "d", masks=masks)
    assert set(samples_of(result.url)) == {"train/a/0.png", "train/b/x.y.jpeg", "val/a/0.png"}
    assert samples_of(result.url)["train/b/x.y.jpeg"]["mask"] == png(classes(seed=8))
    assert result.manifest.features[-1].kind == "mask"
    assert Counter(result.listed.ignored_files) == {".png": 1, ".txt": 1, "": 1}
    preview = preview_shard(images, tmp_path / "e", masks=masks)
    assert preview.source_bytes == sum(p.stat().st_size for f in (images, masks) for p in f.rglob("*/?/[0x]*"))


def test_an_image_without_a_mask_or_with_two_is_a_reject(folders, tmp_path):
    images, masks = folders
    shutil.copy(masks / "train/a/0.png", masks / "train/a/0.tif")
    (masks / "val/a/0.PNG").unlink()
    (masks / "train/b/x.y.png").unlink()
    (masks / "train/b/x.y.png").symlink_to("nowhere")
    (images / "val/a/1.png").write_bytes(picture(classes()))
    (masks / "val/a/1.png").write_bytes(png(classes()))
    result = shard(images, tmp_path / "d", masks=masks)
    assert set(samples_of(result.url)) == {"val/a/1.png"}
    rejects = rejects_of(tmp_path / "d")
    assert {reason for reason, _ in rejects.values()} == {"bad_mask"}
    said = {
        "train/a/0.png": f"{masks}/train/a/0.png, {masks}/train/a/0.tif",
        "val/a/0.png": f"{masks}/val/a/0.png",
        "train/b/x.y.jpeg": f"{masks}/train/b/x.y.png",
    }
    assert rejects.keys() == said.keys()
    assert all(said[path] in message for path, (_, message) in rejects.items())


def jpeg(values):
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "JPEG")
    return buffer.getvalue()


BAD = {
    "a JPEG": (jpeg(classes()), "PNG"),
    "colours": (png(PALETTE[classes()]), "channel"),
    "alpha": (png(classes(), "LA"), "channel"),
    "another size": (png(classes(64, 48)), "48"),
    "16 bits": (png(classes().astype(np.uint16)), "16 bits"),
    "cut short": (png(classes())[:-30], ""),
    "text": (b"no image at all", ""),
    "empty": (b"", ""),
}


@pytest.fixture
def table_of_masks(source):
    """`table_of_masks(masks)`: a table of as many equal images, which names these masks."""

    def make(masks):
        files = {f"{number}.png": picture(classes()) for number in range(len(masks))}
        files |= {f"masks/{number}.png": data for number, data in enumerate(masks)}
        return source([{"path": f"{n}.png", "mask": f"masks/{n}.png"} for n in range(len(masks))], **files)

    return make


def test_a_bad_mask_is_a_reject_with_its_path(table_of_masks, tmp_path):
    result = shard(table_of_masks([png(classes()), *(data for data, _ in BAD.values())]), tmp_path / "d", **MASKS)
    assert set(samples_of(result.url)) == {"0.png"}
    rejects = rejects_of(tmp_path / "d")
    for number, (bad, (_, said)) in enumerate(BAD.items(), 1):
        reason, message = rejects[f"{number}.png"]
        assert reason == "bad_mask", bad
        assert message.startswith(f"'mask', masks/{number}.png: ")
        assert said in message


def test_depth_of_8_bits_is_taken(table_of_masks, tmp_path):
    table = table_of_masks([png(classes()), png(classes().astype(np.uint16))])
    assert shard(table, tmp_path / "d", image_columns={"mask": "mask:depth"}).images == 2


@pytest.mark.parametrize("options", [{}, {"images": tpufeed.Images(presize=32)}])
def test_damage_that_pillow_does_not_see_is_a_reject(options, table_of_masks, tmp_path):
    masks = [png(classes())]
    for mode in ("L", "1"):  # the second is stored with 8 bits
        data = png(classes() * 80, mode)
        for bad in (data[:-12], data[:-16] + bytes(4) + data[-12:]):  # without its end; a wrong CRC of pixels
            np.testing.assert_array_equal(load(bad), load(data))
            masks.append(bad)
    result = shard(table_of_masks(masks), tmp_path / "d", **MASKS, **options)
    rejects = rejects_of(result.url)
    assert rejects.keys() == {f"{number}.png" for number in range(1, len(masks))}
    for number in range(1, len(masks)):
        reason, message = rejects[f"{number}.png"]
        assert reason == "bad_mask"
        assert message.startswith(f"'mask', masks/{number}.png: ")


def test_a_further_image_that_cannot_be_taken_is_a_reject_by_its_own_reason(few, tmp_path):
    (few.parent / "masks/1.png").write_bytes(png(classes())[:-30])
    shard(few, tmp_path / "d", image_columns={"right": "mask:image"})
    assert rejects_of(tmp_path / "d")["1.png"][0] == "truncated"


def test_missing_masks_of_a_table_are_named_with_row_and_column(source, tmp_path):
    values = [None, "", 7, "no/such.png", "m.png"]
    files = {f"{number}.png": picture(classes()) for number in range(len(values))} | {"m.png": png(classes())}
    table = source([{"path": f"{number}.png", "m": value} for number, value in enumerate(values)], **files)
    result = shard(table, tmp_path / "d", image_columns={"mask": "m:mask"})
    assert result.images == 1
    rejects = rejects_of(tmp_path / "d")
    assert {reason for reason, _ in rejects.values()} == {"bad_mask"}
    for row in (2, 3, 4):
        assert rejects[f"{row - 1}.png"][1].startswith(f"row {row} of {table}, column 'm': ")
    assert "'no/such.png'" in rejects["3.png"][1]
    other = shard(table, tmp_path / "e", image_columns={"right": "m:image"})
    assert {reject for reject, _ in rejects_of(other.url).values()} == {"unreadable"}


def test_a_mask_that_changes_after_the_listing_is_a_reject(few, tmp_path, monkeypatch):
    shard(few, tmp_path / "d", **MASKS)
    begun(tmp_path / "d")
    (few.parent / "masks/0.png").write_bytes(png(classes(seed=9)))
    (few.parent / "masks/1.png").unlink()
    result = shard(few, tmp_path / "d", **MASKS)
    rejects = rejects_of(result.url)
    assert {path: reason for path, (reason, _) in rejects.items()} == dict.fromkeys(
        ("0.png", "1.png"), "changed_during_build"
    )
    assert rejects["1.png"][1].startswith("masks/1.png: the file is gone")


def test_a_mask_that_came_damaged_is_read_again(few, tmp_path, monkeypatch):
    read, again = LocalStore.read, []

    def damage(self, name, version=""):
        data = read(self, name, version)
        return data[:-1] + b"x" if name == "masks/1.png" and not again else data

    def read_again(store, span):
        again.append(span.name)
        return read_span(store, span)

    monkeypatch.setattr(LocalStore, "read", damage)
    monkeypatch.setattr("tpufeed.sources.inputs.read_span", read_again)
    result = shard(few, tmp_path / "d", **MASKS)
    assert "masks/1.png" in again
    assert (result.images, result.rejects) == (3, 0)


def test_masks_count_in_the_sizes_of_shards(source, tmp_path):
    rng = np.random.default_rng(0)
    files = {}
    for number in range(24):
        files |= {f"{number}.png": picture(classes()), f"m{number}.png": png(rng.integers(0, 255, (48, 64), np.uint8))}
    table = source([{"path": f"{number}.png", "mask": f"m{number}.png"} for number in range(24)], **files)
    options = {"shard_bytes": "12KB", **MASKS}
    preview = preview_shard(table, tmp_path / "d", **options)
    result = shard(table, tmp_path / "d", **options)
    ((_, split),) = result.manifest.splits.items()
    sizes = [each.bytes for each in split.variants[0].shards]
    assert len(sizes) == preview.splits["train"].shards > 5
    assert max(sizes) - min(sizes) < 4500  # a record
    assert preview.source_bytes == sum(path.stat().st_size for path in table.parent.glob("*.png"))
    assert abs(preview.bytes - sum(sizes)) < 0.1 * sum(sizes)
    with pytest.raises(OptionError, match="cannot hold"):
        shard(table, tmp_path / "e", shard_bytes="2KB", **MASKS)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"image_columns": {"mask": "m"}}, "mask=m"),
        ({"image_columns": {"mask": "m:segmentation"}}, "image, mask or depth"),
        ({"image_columns": {"image": "m:mask"}}, "image"),
        ({"image_columns": {"a b": "m:mask"}}, "a b"),
        ({"image_columns": {"a": "m:mask", "b": "m:depth"}}, "'m'"),
        ({"image_columns": {"a": "m:mask"}, "masks": "masks"}, "masks"),
    ],
)
def test_image_columns_that_cannot_be(options, match, few, tmp_path):
    with pytest.raises(OptionError, match=match):
        shard(few, tmp_path / "d", **options)


def test_options_of_another_kind_of_source(few, folders, tmp_path):
    images, masks = folders
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars/0.tar").write_bytes(encode_tar([("0.png", (images / "train/a/0.png").read_bytes())]))
    for other in (few, tmp_path / "tars"):
        with pytest.raises(OptionError, match="--image-column"):
            shard(other, tmp_path / "d", masks=masks)
    with pytest.raises(OptionError, match="--masks DIR"):
        shard(images, tmp_path / "d", **MASKS)
    with pytest.raises(OptionError, match="masks"):
        shard(images.parent, tmp_path / "d", masks=masks)
    with pytest.raises(OptionError, match="'segments'"):
        shard(few, tmp_path / "d", image_columns={"mask": "segments:mask"})
    with pytest.raises(OptionError, match="nowhere"):
        shard(images, tmp_path / "d", masks=tmp_path / "nowhere")


def test_a_column_that_is_called_as_an_image_column(source, tmp_path):
    table = source([{"path": "a.png", "m": "m.png", "seg": 1}], **{"a.png": b"", "m.png": b""})
    with pytest.raises(SourceError, match="'seg'"):
        shard(table, tmp_path / "d", image_columns={"seg": "m:mask"})


def test_the_same_command_with_other_masks_is_another_build(few, folders, tmp_path):
    shard(few, tmp_path / "d", **MASKS)
    assert shard(few, tmp_path / "d", **MASKS).earlier_images == 3
    with pytest.raises(DuplicateWriterError, match="image_columns"):
        shard(few, tmp_path / "d")
    images, masks = folders
    shard(images, tmp_path / "e", masks=masks)
    assert shard(str(images), tmp_path / "e", masks=f"{masks}/").earlier_images == 3
    with pytest.raises(DuplicateWriterError, match="masks"):
        shard(images, tmp_path / "e")


@pytest.mark.all
def test_killed_and_run_again_it_ends_with_the_same_bytes(command, folders, bytes_of, tmp_path):
    images, masks = folders
    for number in range(20):
        (images / f"train/a/n{number}.png").write_bytes(picture(classes(seed=number)))
        (masks / f"train/a/n{number}.png").write_bytes(png(classes(seed=number)))
    (masks / "train/a/n3.png").unlink()
    flags = ["--masks", masks, "--shard-size", "6KB", "--presize", 40, "--max-rejects", 5]
    calm = command(images, flags)
    assert calm.run_here(tmp_path / "expected", "--workers", 1).returncode == 0
    expected = bytes_of(tmp_path / "expected")
    assert len(expected) > 6
    killed = command(images, flags)
    killed.order("os.link", "/reports/", "kill_group()", 3)
    killed.run_killed(tmp_path / "d", "--workers", 2)
    with pytest.raises(DatasetNotFoundError):
        open_dataset(tmp_path / "d")
    done = command(images, flags).run_here(tmp_path / "d", "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "d") == expected
    assert rejects_of(tmp_path / "d")["train/a/n3.png"][0] == "bad_mask"


@pytest.mark.all
def test_masks_in_a_bucket(folders, few, monkeypatch, tmp_path):
    images, masks = folders
    with GcsServer(process=True) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        for folder in (images, masks, few.parent):
            for path in filter(Path.is_file, folder.rglob("*")):
                server.put("bucket", f"raw/{path.relative_to(tmp_path)}", path.read_bytes())
        options = {"masks": "gs://bucket/raw/masks"}
        result = shard("gs://bucket/raw/images", "gs://bucket/d", **options)
        local = shard(images, tmp_path / "d", masks=masks)
        assert samples_of(result.url) == samples_of(local.url)
        assert shard("gs://bucket/raw/images", "gs://bucket/d", **options).manifest == result.manifest
        table = shard("gs://bucket/raw/source/table.jsonl", tmp_path / "t", **MASKS)
        assert [sample["mask"] for sample in samples_of(table.url).values()]
        assert table.images == 3


def test_flags(run_cli, few, folders, tmp_path):
    images, masks = folders
    assert run_cli("shard", few, tmp_path / "d", "--image-column", "mask=mask:mask").exit_code == 0
    assert samples_of(tmp_path / "d")["1.png"]["mask"] == png(classes(seed=1))
    assert run_cli("shard", images, tmp_path / "e", "--masks", masks).exit_code == 0
    assert open_dataset(tmp_path / "e").manifest.options["masks"] == str(masks)
    for flags, said in (
        (["mask"], "Write it like mask=mask_path:mask"),
        (["m=a:mask", "m=b:mask"], "m is given twice"),
    ):
        done = run_cli("shard", few, tmp_path / "f", *(word for flag in flags for word in ("--image-column", flag)))
        assert done.exit_code == 2
        assert said in done.stderr


@pytest.fixture
def run_cli():
    def run(*words):
        return CliRunner().invoke(app, list(map(str, words)), env={**os.environ, "COLUMNS": "400"})

    return run
