"""Restart markers through a whole build: what the manifest counts, what `info` says, hosts without the extension."""

import io
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tpufeed.cli.app import app
from tpufeed.engines.choice import SerialEngine
from tpufeed.engines.preflight import check_hosts, view_here
from tpufeed.errors import BuildError, DuplicateWriterError
from tpufeed.images import HorizontalFlip, RandomResizedCrop
from tpufeed.images import policy as policy_module
from tpufeed.sharding import worker
from tpufeed.tfrecord.example import decode_example


def stored(url):
    """The encoded images of a dataset by the names of their files."""
    dataset = tpufeed.open_dataset(url)
    count = dataset.manifest.splits["train"].records
    features = [decode_example(payload) for payload in dataset.reader("train").iter_payloads(0, count)]
    return {str(each["image/filename"].values[0], "utf-8"): each["image/encoded"].values[0] for each in features}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, photos):
    """A photograph as it is, a progressive one, a small one, a PNG."""
    folder = tmp_path_factory.mktemp("markers") / "photos" / "a"
    folder.mkdir(parents=True)
    picture = Image.open(io.BytesIO(photos["china.jpg"]))
    (folder / "plain.jpg").write_bytes(photos["china.jpg"])
    picture.save(folder / "progressive.jpg", progressive=True, quality=90)
    picture.resize((64, 43)).save(folder / "small.jpg")
    picture.resize((320, 213)).save(folder / "picture.png")
    return folder.parent


def test_the_manifest_and_info_count_what_was_rewritten(folder, tmp_path):
    tpufeed.shard(folder, tmp_path / "d")
    markers = tpufeed.open_dataset(tmp_path / "d").manifest.markers
    files = {path.name: path.read_bytes() for path in folder.rglob("*.*")}
    images = {name.rpartition("/")[2]: data for name, data in stored(tmp_path / "d").items()}
    assert {name for name in files if images[name] == files[name]} == {"progressive.jpg", "small.jpg", "picture.png"}
    assert markers.rewritten == 1
    assert markers.added_bytes == len(images["plain.jpg"]) - len(files["plain.jpg"])
    assert markers.unmarked == {"progressive": 1, "too small to gain by it": 1}
    said = CliRunner().invoke(app, ["info", str(tmp_path / "d")]).stdout
    assert "restart markers: added to 1 JPEGs" in said
    assert "none in 1 progressive, 1 too small to gain by it" in said


DAMAGE = {
    "an empty comment": lambda data: data[:20] + b"\xff\xfe\0\0" + data[20:],
    "stray bytes": lambda data: data[:20] + b"stray" + data[20:],
    "no end marker": lambda data: data[:-2],
    "JFIF 2.0": lambda data: data[:11] + b"\2\0" + data[13:],
    "an ICC profile with a missing part": lambda data: data[:20] + b"\xff\xe2\0\x14ICC_PROFILE\0\1\2body" + data[20:],
}


def test_verify_finds_nothing_wrong_with_the_bytes_that_exact_stores(folder, tmp_path):
    """Bytes that decoders ignore, or loaders mend, are no damage."""
    plain = (folder / "a" / "small.jpg").read_bytes()
    (tmp_path / "in" / "a").mkdir(parents=True)
    for number, damage in enumerate(DAMAGE.values()):
        (tmp_path / "in" / "a" / f"{number}.jpg").write_bytes(damage(plain))
    tpufeed.shard(tmp_path / "in", tmp_path / "exact", images=tpufeed.Images(encode="exact"))
    for name, data in stored(tmp_path / "exact").items():
        assert data == (tmp_path / "in" / name).read_bytes()
    assert tpufeed.verify(tmp_path / "exact", decode="all").decoded == len(DAMAGE)


def test_verify_mends_further_images_as_loaders_do(folder, tmp_path):
    plain = (folder / "a" / "small.jpg").read_bytes()
    rows = ["path,other"]
    for number, damage in enumerate(DAMAGE.values()):
        (tmp_path / f"{number}.jpg").write_bytes(damage(plain))
        rows.append(f"{number}.jpg,{number}.jpg")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    columns = {"other": "other:image"}
    tpufeed.shard(
        tmp_path / "table.csv",
        tmp_path / "exact",
        images=tpufeed.Images(encode="exact"),
        label="none",
        image_columns=columns,
    )
    assert tpufeed.verify(tmp_path / "exact", decode="all").decoded == len(DAMAGE)


def test_exact_stores_the_very_bytes_and_baseline_all_but_the_small(folder, tmp_path):
    tpufeed.shard(folder, tmp_path / "exact", images=tpufeed.Images(encode="exact"))
    files = {path.name: path.read_bytes() for path in folder.rglob("*.*")}
    assert {name.rpartition("/")[2]: data for name, data in stored(tmp_path / "exact").items()} == files
    assert not tpufeed.open_dataset(tmp_path / "exact").manifest.markers
    tpufeed.shard(folder, tmp_path / "baseline", images=tpufeed.Images(progressive="baseline"))
    assert tpufeed.open_dataset(tmp_path / "baseline").manifest.markers.unmarked == {"too small to gain by it": 1}


@pytest.mark.parametrize("scale", [(0.05, 0.3), (0.08, 1.0)])
def test_loaders_give_the_pixels_of_the_very_files(folder, tmp_path, scale):
    """With markers and without, in each epoch, image by image."""
    ops = [RandomResizedCrop(64, scale=scale), HorizontalFlip()]
    batches = {}
    for encode in ("keep", "exact"):
        tpufeed.shard(folder, tmp_path / encode, images=tpufeed.Images(encode=encode))
        with tpufeed.Loader(
            tmp_path / encode, batch_size=4, ops=ops, processes=0, columns=("image", "sample")
        ) as loader:
            batches[encode] = [batch for _ in range(5) for batch in loader]
    for kept, exact in zip(batches["keep"], batches["exact"], strict=True):
        for one, other in zip(kept, exact, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.fixture
def without_extension(monkeypatch):
    monkeypatch.setattr(policy_module, "CAN_REWRITE", False)
    monkeypatch.setattr(worker, "CAN_REWRITE", False)


def test_without_the_extension_a_build_warns_and_keeps_the_very_bytes(folder, tmp_path, without_extension):
    result = tpufeed.shard(folder, tmp_path / "d")
    assert any("without its C extension" in warning for warning in result.warnings)
    images = {name.rpartition("/")[2]: data for name, data in stored(tmp_path / "d").items()}
    assert images == {path.name: path.read_bytes() for path in folder.rglob("*.*")}
    others = tpufeed.shard(folder, tmp_path / "png", images=tpufeed.Images(encode="png")).warnings
    assert not any("C extension" in warning for warning in others)


def test_the_preflight_names_a_host_without_the_extension(folder, tmp_path, monkeypatch):
    class Engine(SerialEngine):
        def run(self, job, tasks):
            here = view_here(pickle.dumps(job), pickle.dumps(tasks[0]))
            with monkeypatch.context() as patch:
                patch.setattr(worker, "CAN_REWRITE", False)
                there = replace(view_here(pickle.dumps(job), pickle.dumps(tasks[0])), host="worker-7")
            check_hosts([here], here)
            check_hosts([there], here)
            yield from super().run(job, tasks)

    with pytest.raises(BuildError, match="worker-7"):
        tpufeed.shard(folder, tmp_path / "d", engine=Engine())


def test_a_build_that_rewrites_is_not_joined_without_the_extension(folder, tmp_path, monkeypatch):
    """A worker refuses a plan that asks for markers, and another command is told what differs."""
    monkeypatch.setattr(worker, "CAN_REWRITE", False)
    with pytest.raises(BuildError, match="C extension"):
        tpufeed.shard(folder, tmp_path / "d", workers=1)
    monkeypatch.setattr(policy_module, "CAN_REWRITE", False)
    with pytest.raises(DuplicateWriterError, match="restart_markers"):
        tpufeed.shard(folder, tmp_path / "d")


def test_a_host_without_the_plug_in_of_the_launcher_fails_the_build(folder, tmp_path, monkeypatch):
    """Its images would be rejects only where it did them; a build without such images does not mind."""
    import pillow_heif

    photos = tmp_path / "photos"
    photos.mkdir()
    with Image.open(folder / "a" / "small.jpg") as picture:
        pillow_heif.from_pillow(picture).save(photos / "1.heic")

    class Engine(SerialEngine):
        def run(self, job, tasks):
            job = pickle.loads(pickle.dumps(job))
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, "pillow_heif", None)
                yield from super().run(job, tasks)

    with pytest.raises(BuildError, match=r"1\.heic.*pip install pillow-heif"):
        tpufeed.shard(photos, tmp_path / "d", engine=Engine())
    tpufeed.shard(folder, tmp_path / "others", engine=Engine())
