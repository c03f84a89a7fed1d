"""Datasets that grow: `append` at the public face, what it skips, and what it refuses."""

import json
import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.clips import build, write_source
from tests.gcs_server import GcsServer
from tests.sharding.outputs import rejects_of
from tests.web_server import WebServer
from tpufeed.dataset.naming import DIGESTS
from tpufeed.dataset.reader import find_versions
from tpufeed.errors import (
    DatasetNotFoundError,
    DuplicateWriterError,
    OptionError,
    SourceError,
    TooManyRejectsError,
)


def draw(folder: Path, names: list[str], seed: int = 0) -> Path:
    """Images of noise, whose files differ, by their paths below the folder."""
    random = np.random.default_rng(seed)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (12, 12, 3), np.uint8)).save(folder / name)
    return folder


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def samples_of(url, split="train", **options):
    """The file names of a split's samples, in the order of the dataset."""
    return [
        bytes(features["image/filename"].values[0]).decode()
        for features in tpufeed.open_dataset(url, **options).iter_examples(split)
    ]


OLD = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(20)]
NEW = [f"{name}/{number}.png" for name in ("ape", "cat", "emu") for number in range(100, 110)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folders that `grown` copies; not to be changed."""
    folder = tmp_path_factory.mktemp("append")
    tpufeed.shard(draw(folder / "old", OLD), folder / "d", splits="train=0.8,val=0.2", workers=1)
    before = bytes_below(folder / "d")
    return folder, before, tpufeed.append(draw(folder / "new", NEW, 1), folder / "d", workers=1)


@pytest.fixture
def grown(whole, tmp_path):
    """A dataset of 40 images (`old`), to which 30 were appended (`new`); its files before that, and the result."""
    folder, before, result = whole
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "d", before, result


def test_a_new_version_has_all_samples_and_what_stands_stays(grown):
    url, before, result = grown
    assert (result.added, result.skipped, result.manifest.number) == (30, 0, 2)
    after = bytes_below(url)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {"manifest.json"}
    assert after["_tpufeed/versions/1.json"] == before["manifest.json"]
    dataset, old = tpufeed.open_dataset(url), tpufeed.open_dataset(url, version=1)
    assert dataset.manifest.class_names == ("cat", "dog", "ape", "emu"), "ids stay"
    for split in ("train", "val"):
        names, first = samples_of(url, split), samples_of(url, split, version=1)
        assert names[: len(first)] == first
        assert dataset.split(split).records == len(names)
        labels = [dataset.manifest.class_names[f["image/class/label"].values[0]] for f in dataset.iter_examples(split)]
        assert labels == [name.partition("/")[0] for name in names]
        counts = [labels.count(name) for name in dataset.manifest.class_names]
        assert list(dataset.split(split).class_counts) == counts
    assert sum(split.records for split in dataset.manifest.splits.values()) == 70
    assert sum(split.records for split in old.manifest.splits.values()) == 40
    for version in (1, 2):
        tpufeed.verify(url, "all", version=version)
    assert find_versions(dataset.store, dataset) == [1, 2]


def test_the_splits_are_those_that_one_build_deals(grown, tmp_path):
    url, _, _ = grown
    shutil.copytree(tmp_path / "old", tmp_path / "both")
    shutil.copytree(tmp_path / "new", tmp_path / "both", dirs_exist_ok=True)
    tpufeed.shard(tmp_path / "both", tmp_path / "at-once", splits="train=0.8,val=0.2", workers=1)
    for split in ("train", "val"):
        assert sorted(samples_of(url, split)) == sorted(samples_of(tmp_path / "at-once", split))


def test_appended_twice_nothing_changes(grown, tmp_path):
    url, _, _ = grown
    before = bytes_below(url)
    for folder, count in (("new", 30), ("old", 40)):
        result = tpufeed.append(tmp_path / folder, url, workers=1)
        assert (result.added, result.skipped, result.manifest.number) == (0, count, 2)
    assert bytes_below(url) == before


def test_images_that_are_there_are_skipped_by_their_content(grown, tmp_path, caplog):
    url, _, _ = grown
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "old", copy)  # other times, and the same bytes
    for path in copy.rglob("*.png"):
        os.utime(path)
    draw(copy, ["cat/0.png"], 7)  # the same path and size: another image
    draw(copy, ["fox/1.png"], 8)
    size = (copy / "cat/0.png").stat().st_size
    assert size == (tmp_path / "old/cat/0.png").stat().st_size, "noise of one size, so that only reading tells"
    result = tpufeed.append(copy, url, workers=1)
    assert (result.added, result.skipped, result.manifest.number) == (2, 39, 3)
    assert "40 images are read before the build, to compare them" in caplog.text
    assert any(
        "1 images have the path of an image in the dataset but other content" in said for said in result.warnings
    )
    assert len(samples_of(url)) + len(samples_of(url, "val")) == 72


def test_clips_that_have_not_changed_are_not_read_again(tmp_path, caplog):
    build(write_source(tmp_path / "raw", 2), tmp_path / "d")
    assert tpufeed.append(write_source(tmp_path / "raw", 1, start=2), tmp_path / "d", workers=1).skipped == 2
    assert "are read before the build" not in caplog.text


def test_without_digests_path_and_size_decide_and_that_is_said(grown, tmp_path):
    url, _, _ = grown
    (url / DIGESTS).unlink()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "old", copy)
    for path in copy.rglob("*.png"):
        os.utime(path)
    result = tpufeed.append(copy, url, workers=1)
    assert (result.added, result.skipped) == (0, 40)
    assert any("40 images were compared with the dataset's by path and size alone" in said for said in result.warnings)


def test_a_digest_stands_for_each_input_that_was_read(tmp_path):
    draw(tmp_path / "old", ["a/1.png", "a/2.png"])
    (tmp_path / "old/a/3.png").write_bytes(b"no image")
    tpufeed.shard(tmp_path / "old", tmp_path / "d", max_rejects=1, workers=1)
    import hashlib

    entries = {(tmp_path / "d" / DIGESTS).read_bytes()[at : at + 17] for at in range(0, 51, 17)}
    files = [path.read_bytes() for path in (tmp_path / "old/a").iterdir()]
    assert entries == {bytes([data != b"no image"]) + hashlib.blake2b(data, digest_size=16).digest() for data in files}


GOOD, UPSIDE_DOWN = [[1, 1, 9, 9]], [[9, 9, 1, 1]]


def table_of(folder, boxes):
    lines = (json.dumps({"path": f"im/{name}", "label": ["x"], "boxes": each}) for name, each in boxes.items())
    (folder / "t.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder / "t.jsonl"


@pytest.fixture
def boxes(tmp_path):
    """The boxes of a table of six images, of which two are upside down, and the dataset of the other four."""
    draw(tmp_path / "im", [f"{number}.png" for number in range(6)])
    boxes = {f"{number}.png": UPSIDE_DOWN if number in (2, 4) else GOOD for number in range(6)}
    tpufeed.shard(table_of(tmp_path, boxes), tmp_path / "d", boxes=tpufeed.Boxes(column="boxes"), workers=1)
    assert sorted(samples_of(tmp_path / "d")) == [f"im/{number}.png" for number in (0, 1, 3, 5)]
    return boxes


def test_an_input_that_was_rejected_gets_in_once_it_is_mended(boxes, tmp_path):
    boxes["2.png"] = GOOD
    result = tpufeed.append(table_of(tmp_path, boxes), tmp_path / "d", workers=1, max_rejects=0)
    assert (result.added, result.skipped) == (1, 4)
    assert samples_of(tmp_path / "d")[4:] == ["im/2.png"]
    assert any(said.startswith("1 inputs are left out because this dataset rejected them") for said in result.warnings)
    draw(tmp_path / "im", ["2.png"], 9)  # its boxes are good; the image is another now
    boxes["4.png"] = [[9, 9, 2, 2]]  # mended, and bad as before
    result = tpufeed.append(table_of(tmp_path, boxes), tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (1, 4)
    assert list(rejects_of(tmp_path / "d/part-00003")) == ["im/4.png"]
    boxes["4.png"] = GOOD
    result = tpufeed.append(table_of(tmp_path, boxes), tmp_path / "d", workers=1, max_rejects=0)
    assert (result.added, result.skipped) == (1, 5)
    assert tpufeed.append(table_of(tmp_path, boxes), tmp_path / "d", workers=1).skipped == 6


def test_what_is_rejected_again_for_the_same_reason_is_left_out_and_said(boxes, tmp_path):
    for path in (tmp_path / "im").iterdir():
        os.utime(path, (1, 1))
    before = bytes_below(tmp_path / "d")
    result = tpufeed.append(table_of(tmp_path, boxes), tmp_path / "d", workers=1, max_rejects=0)
    assert (result.added, result.skipped) == (0, 4)
    assert any(said.startswith("2 inputs are left out because this dataset rejected them") for said in result.warnings)
    assert bytes_below(tmp_path / "d") == before


def test_what_was_rejected_is_tried_again_with_other_options(tmp_path):
    draw(tmp_path / "old", ["a/1.png", "a/2.png"])
    Image.new("RGB", (9, 9)).save(tmp_path / "old/a/small.png")
    tpufeed.shard(tmp_path / "old", tmp_path / "d", images=tpufeed.Images(min_side=10), workers=1)
    assert tpufeed.append(tmp_path / "old", tmp_path / "d", workers=1).added == 0
    options = {"append": True, "allow_different": True, "workers": 1}
    assert tpufeed.shard(tmp_path / "old", tmp_path / "d", images=tpufeed.Images(min_side=5), **options).added == 1


@pytest.mark.parametrize(
    "options", [{"classes": ["a"]}, {"shards": 1}, {"hosts": 2}, {"seed": 3}, {"images": tpufeed.Images(encode="png")}]
)
def test_what_was_rejected_is_not_tried_again_whatever_the_first_build_was_given(options, tmp_path):
    draw(tmp_path / "old", ["a/1.png", "a/2.png"])
    (tmp_path / "old/a/3.png").write_bytes(b"no image")
    tpufeed.shard(tmp_path / "old", tmp_path / "d", workers=1, **options)
    result = tpufeed.append(tmp_path / "old", tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (0, 2)


def test_what_was_rejected_is_tried_again_by_another_tpufeed(boxes, tmp_path, monkeypatch):
    monkeypatch.setattr("tpufeed.sharding.standing.__version__", "99")
    draw(tmp_path / "im", ["6.png"], 5)
    result = tpufeed.append(table_of(tmp_path, {**boxes, "6.png": GOOD}), tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (1, 4)
    assert sorted(rejects_of(tmp_path / "d/part-00002")) == ["im/2.png", "im/4.png"]


def test_without_digests_the_list_of_rejects_tells_what_is_not_there(boxes, tmp_path):
    (tmp_path / "d" / DIGESTS).unlink()
    with (tmp_path / "d/rejects.jsonl").open("a") as file:
        file.write("\n{")
    boxes["2.png"] = GOOD
    result = tpufeed.append(table_of(tmp_path, boxes), tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (1, 4)


class Signed(SimpleHTTPRequestHandler):
    """Files for those whose URL is signed; the server does not say what version they are."""

    def send_head(self):
        query = parse_qs(urlsplit(self.path).query)
        if not query.get("X-Goog-Signature", [""])[0].startswith("sEcReT"):
            self.send_error(404)
            return None
        return super().send_head()

    def log_message(self, *_):
        pass


@pytest.fixture
def sign(tmp_path):
    """`sign(count, signature)` makes a table of the signed URLs of `count` images and of their masks."""
    draw(tmp_path / "www", [f"{number}.png" for number in range(14)])
    for number in range(14):
        Image.new("L", (12, 12), number).save(tmp_path / f"www/mask{number}.png")
    with WebServer(("127.0.0.1", 0), partial(Signed, directory=str(tmp_path / "www"))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()

        def make(count, signature):
            def signed(name, place):
                query = f"X-Goog-Date={signature}{place}&id=7&X-Goog-Signature=sEcReT{signature}{place}"
                return f"http://127.0.0.1:{server.server_port}/{name}.png?{query}"

            rows = [f"{signed(number, number)},{signed(f'mask{number}', number)}" for number in range(count)]
            (tmp_path / "t.csv").write_text("\n".join(["path,mask", *rows, f"{signed('lost', 0)},", ""]))
            return tmp_path / "t.csv"

        yield make
        server.shutdown()
        thread.join()


SIGNED = {"splits": "train=0.5,val=0.5", "image_columns": {"mask": "mask:mask"}, "workers": 1, "max_rejects": 1}


@pytest.mark.all
def test_urls_that_are_signed_again_are_the_same_images(sign, tmp_path):
    first = tpufeed.shard(sign(10, "a"), tmp_path / "d", **SIGNED)
    names = {split: samples_of(tmp_path / "d", split) for split in ("train", "val")}
    assert all(name.endswith("png?id=7") for several in names.values() for name in several)
    again = tpufeed.shard(sign(10, "b"), tmp_path / "d", **SIGNED)
    assert again.earlier_images == first.images == 10, "it is recognised"
    result = tpufeed.append(sign(12, "c"), tmp_path / "d", workers=1, max_rejects=0)
    assert (result.added, result.skipped) == (2, 10)
    assert any(said.startswith("1 inputs are left out because this dataset rejected") for said in result.warnings)
    draw(tmp_path / "www", ["3.png"], 9)
    changed = tpufeed.append(sign(12, "d"), tmp_path / "d", workers=1)
    assert (changed.added, changed.skipped) == (1, 11), "without a version its bytes tell"
    draw(tmp_path / "www", [f"{number}.png" for number in range(14)])
    assert tpufeed.append(sign(12, "e"), tmp_path / "d", workers=1).skipped == 12
    names = {split: samples_of(tmp_path / "d", split, version=2) for split in ("train", "val")}
    tpufeed.shard(sign(12, "e"), tmp_path / "at-once", **SIGNED)
    for split in names:
        assert sorted(names[split]) == sorted(samples_of(tmp_path / "at-once", split))
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix != ".csv" and path.name != "plan.jsonl":
            assert b"sEcReT" not in path.read_bytes(), path


def test_a_build_of_signed_urls_goes_on_when_they_are_signed_again(sign, tmp_path):
    tpufeed.shard(sign(10, "a"), tmp_path / "d", shards=2, **SIGNED)
    whole = bytes_below(tmp_path / "d")
    for name in ("manifest.json", "_tpufeed/reports/000000.json"):
        (tmp_path / "d" / name).unlink()
    tpufeed.shard(sign(10, "b"), tmp_path / "d", shards=2, **SIGNED)
    now = bytes_below(tmp_path / "d")
    assert {name: now[name] for name in now if name.endswith(".tfrecord")} == {
        name: whole[name] for name in whole if name.endswith(".tfrecord")
    }


def test_a_file_that_was_signed_twice_is_listed_twice(sign, tmp_path):
    table = sign(4, "a")
    table.write_text(table.read_text() + "".join(sign(4, "b").read_text().splitlines(keepends=True)[1:3]))
    result = tpufeed.shard(table, tmp_path / "d", **SIGNED)
    assert (result.images, result.listed.listed_twice) == (6, 2)
    assert result.duplicates is None, "each pair is in one split"


@pytest.mark.all
def test_a_reader_goes_on_with_the_version_that_it_has_opened(grown, tmp_path):
    url, _, _ = grown
    options = {"columns": ["sample"], "batch_size": 4, "shuffle": False}
    for processes in (0, 1):
        loader = tpufeed.Loader(url, processes=processes, **options)
        batches = iter(loader)
        next(batches)
        records = tpufeed.open_dataset(url).split("train").records
        tpufeed.append(
            draw(tmp_path / f"more{processes}", [f"cat/{processes}-{n}.png" for n in range(9)], processes + 5),
            url,
            workers=1,
        )
        rest = list(batches)
        again = list(loader)  # workers that start now open that version, too
        assert 4 * (len(rest) + 1) == 4 * len(again) == records - records % 4
        loader.close()
    old = tpufeed.open_dataset(url, version=1)
    with tpufeed.Loader(old, processes=1, **options) as loader:
        assert len(list(loader)) == old.split("train").records // 4


def test_states_name_their_version(grown, tmp_path):
    url, _, _ = grown
    options = {"columns": ["sample"], "batch_size": 4, "processes": 0}
    with tpufeed.Loader(tpufeed.open_dataset(url, version=1), **options) as loader:
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), [batch.tolist() for batch in batches]
    with tpufeed.Loader(tpufeed.open_dataset(url, version=1), **options) as loader:
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == rest
    with tpufeed.Loader(url, **options) as loader:
        with pytest.raises(OptionError, match="grown=True"):
            loader.load_state_dict(state)
        assert loader.state_dict()["dataset_version"] == 2
    with tpufeed.Loader(tpufeed.open_dataset(url, grown=True), **options) as loader:
        loader.load_state_dict(state)
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (1, 0)
        later = loader.state_dict()
    with tpufeed.Loader(url, **options) as loader:
        loader.load_state_dict(later)
        assert sum(map(len, loader)) == 4 * len(loader)
    # At the start of an epoch nothing of it was given: it is still to come.
    with tpufeed.Loader(tpufeed.open_dataset(url, version=1), **options) as loader:
        loader.set_epoch(3)
        untouched = loader.state_dict()
    with tpufeed.Loader(tpufeed.open_dataset(url, grown=True), **options) as loader:
        loader.load_state_dict(untouched)
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (3, 0)
    # Pruned versions are known as well, and other datasets are still refused.
    tpufeed.prune(url, keep=1)
    with tpufeed.Loader(tpufeed.open_dataset(url, grown=True), **options) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict()["epoch"] == 1
        with pytest.raises(OptionError, match="content_digest"):
            loader.load_state_dict(state | {"content_digest": "other"})
    with tpufeed.Loader(url, **options) as loader, pytest.raises(OptionError, match="pruned"):
        loader.load_state_dict(state)


def test_an_append_that_fails_changes_nothing_and_goes_on(grown, tmp_path):
    url, _, _ = grown
    more = draw(tmp_path / "more", [f"cat/m{number}.png" for number in range(12)], 3)
    for number in range(3):
        (more / f"cat/bad{number}.png").write_bytes(b"no image")
    before = (url / "manifest.json").read_bytes()
    with pytest.raises(TooManyRejectsError):
        tpufeed.append(more, url, max_rejects=1, workers=1)
    assert (url / "manifest.json").read_bytes() == before
    tpufeed.verify(url)
    with pytest.raises(DuplicateWriterError, match="version 3"):
        tpufeed.append(draw(tmp_path / "other", ["cat/x.png"], 9), url, workers=1)
    result = tpufeed.append(more, url, max_rejects=3, workers=1)
    assert (result.added, result.manifest.number) == (12, 3)
    assert result.manifest.rejects == {"not_an_image": 3} or sum(result.manifest.rejects.values()) == 3


def test_overwrite_discards_what_an_append_has_left(grown, tmp_path):
    url, _, _ = grown
    more = draw(tmp_path / "more", ["cat/m.png"], 3)
    (more / "cat/bad.png").write_bytes(b"no image")
    with pytest.raises(TooManyRejectsError):
        tpufeed.append(more, url, max_rejects=0, workers=1)
    result = tpufeed.append(draw(tmp_path / "other", ["cat/x.png"], 9), url, overwrite=True, workers=1)
    assert (result.added, result.manifest.number) == (1, 3)
    assert "cat/x.png" in [*samples_of(url), *samples_of(url, "val")]
    tpufeed.verify(url)


def test_shard_appends_with_the_options_of_the_dataset_alone(grown, tmp_path):
    url, _, _ = grown
    more = draw(tmp_path / "more", ["cat/m.png"], 3)
    with pytest.raises(OptionError, match=r"splits.*presize"):
        tpufeed.shard(more, url, append=True, images=tpufeed.Images(presize=8), workers=1)
    with pytest.raises(OptionError, match="allow_different"):
        tpufeed.shard(more, url, allow_different=True, workers=1)
    result = tpufeed.shard(more, url, append=True, images=tpufeed.Images(presize=8), allow_different=True, workers=1)
    assert result.manifest.history[-1].different["presize"] == 8
    assert (
        tpufeed.shard(draw(more, ["cat/n.png"], 4), url, append=True, splits="train=0.8,val=0.2", workers=1).added == 1
    )


def test_what_cannot_grow_is_refused(grown, tmp_path):
    url, _, _ = grown
    new = tmp_path / "new"
    with pytest.raises(DatasetNotFoundError, match="none"):
        tpufeed.append(new, tmp_path / "none", workers=1)
    tpufeed.cache.warmup(url, tmp_path / "cache", size=8, workers=1)
    with pytest.raises(OptionError, match="cache"):
        tpufeed.append(new, tmp_path / "cache", workers=1)
    shutil.copytree(url, tmp_path / "adopted", ignore=lambda *_: ["manifest.json", "_tpufeed", "part-00002"])
    for index in (tmp_path / "adopted").glob("*.npy"):
        index.unlink()
    tpufeed.adopt(tmp_path / "adopted")
    with pytest.raises(OptionError, match="adopt"):
        tpufeed.append(new, tmp_path / "adopted", workers=1)
    (url / "_tpufeed/plan.jsonl").rename(url / "_tpufeed/gone")
    with pytest.raises(OptionError, match="plan"):
        tpufeed.append(draw(tmp_path / "more", ["cat/m.png"], 3), url, workers=1)


def make_table(folder: Path, name: str, rows: list[dict]) -> Path:
    images = draw(folder / f"{name}-images", [f"{number}.png" for number in range(len(rows))], len(name))
    lines = [json.dumps({"path": str(images / f"{number}.png"), **row}) for number, row in enumerate(rows)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder / f"{name}.jsonl"


def test_columns_become_those_of_the_dataset(tmp_path):
    first = [{"label": "a", "score": 0.5, "tags": [1, 2]}, {"label": "b", "score": 1.5, "tags": [3]}]
    tpufeed.shard(make_table(tmp_path, "one", first), tmp_path / "d", workers=1)
    second = [{"label": "a", "score": 2, "tags": [1, 2, 3, 4]}, {"label": "c", "score": None, "tags": []}]
    result = tpufeed.append(make_table(tmp_path, "second", second), tmp_path / "d", workers=1)
    assert result.manifest.class_names == ("a", "b", "c")
    specs = {spec.name: spec for spec in result.manifest.features}
    assert specs["tags"].lengths == (0, 4)
    assert specs["score"].dtype == "float32"
    assert specs["score"].lengths == (0, 1)
    tpufeed.verify(tmp_path / "d")
    options = {"columns": ["score", "tags"], "fill": {"score": -1}, "batch_size": 4, "shuffle": False, "processes": 0}
    with tpufeed.Loader(tmp_path / "d", **options) as loader:
        ((score, tags, length),) = loader
    assert sorted(score.tolist()) == [-1, 0.5, 1.5, 2]
    assert sorted(length.tolist()) == [0, 1, 2, 4]
    assert tags.shape == (4, 4)


@pytest.mark.parametrize(
    ("corrected", "is_said"),
    [({}, False), ({"label": "tiger"}, True), ({"score": 2}, True), ({"tags": [1, 2, 3]}, True)],
    ids=str,
)
def test_a_correction_of_an_image_that_is_there_is_said_and_changes_nothing(corrected, is_said, tmp_path):
    """No class and no length comes of a row that is skipped."""
    rows = [{"label": "a", "score": 1, "tags": [1]}, {"label": "b", "score": 1, "tags": [2]}]
    tpufeed.shard(make_table(tmp_path, "one", rows), tmp_path / "d", workers=1)
    source = make_table(tmp_path, "one", [rows[0] | corrected, rows[1], rows[1]])
    for added in (1, 0):
        result = tpufeed.append(source, tmp_path / "d", workers=1)
        said = [each for each in result.warnings if "the dataset keeps the old ones" in each]
        assert (result.added, len(said), "one-images/0.png" in "".join(said)) == (added, is_said, is_said)
    assert result.manifest.class_names == ("a", "b")
    specs = {spec.name: spec for spec in result.manifest.features}
    assert (specs["tags"].lengths, specs["score"].shape) == ((1, 1), ())


def test_an_append_of_another_schema_is_refused_and_both_sides_are_named(tmp_path):
    tpufeed.shard(make_table(tmp_path, "one", [{"label": "a", "score": 1}] * 3), tmp_path / "d", workers=1)
    before = bytes_below(tmp_path / "d")
    with pytest.raises(OptionError, match="'score'"):
        tpufeed.append(make_table(tmp_path, "less", [{"label": "a"}]), tmp_path / "d", workers=1)
    with pytest.raises(OptionError, match="'more'"):
        tpufeed.append(make_table(tmp_path, "more", [{"label": "a", "score": 1, "more": 2}]), tmp_path / "d", workers=1)
    with pytest.raises(OptionError, match="'high'"):
        tpufeed.append(make_table(tmp_path, "text", [{"label": "a", "score": "high"}] * 20), tmp_path / "d", workers=1)
    assert {name: data for name, data in bytes_below(tmp_path / "d").items() if "part-" not in name} == before


def test_ids_and_names_of_classes_do_not_mix(tmp_path):
    tpufeed.shard(make_table(tmp_path, "ids", [{"label": number} for number in range(3)]), tmp_path / "ids", workers=1)
    result = tpufeed.append(make_table(tmp_path, "more", [{"label": 5}]), tmp_path / "ids", workers=1)
    assert result.manifest.class_names == ("0", "1", "2", "3", "4", "5")
    with pytest.raises(SourceError, match="'cat'"):
        tpufeed.append(make_table(tmp_path, "names", [{"label": "cat"}]), tmp_path / "ids", workers=1)
    tpufeed.shard(make_table(tmp_path, "named", [{"label": "cat"}]), tmp_path / "named", workers=1)
    with pytest.raises(SourceError, match="'cat'"):
        tpufeed.append(make_table(tmp_path, "id", [{"label": 3}]), tmp_path / "named", workers=1)


@pytest.mark.all
def test_a_bucket_grows_as_a_folder_does(grown, tmp_path):
    url, _, _ = grown
    with GcsServer(md5=False) as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment().items():
            patch.setenv(key, value)
        tpufeed.shard(tmp_path / "old", "gs://bucket/d", splits="train=0.8,val=0.2", workers=1)
        old = tpufeed.open_dataset("gs://bucket/d")
        result = tpufeed.append(tmp_path / "new", "gs://bucket/d", workers=1)
        assert (result.added, result.manifest.number) == (30, 2)
        assert samples_of("gs://bucket/d") == samples_of(url)
        assert samples_of("gs://bucket/d", version=1) == [
            bytes(features["image/filename"].values[0]).decode() for features in old.iter_examples("train")
        ]
        tpufeed.verify("gs://bucket/d", "all")
        assert tpufeed.append(tmp_path / "new", "gs://bucket/d", workers=1).added == 0
