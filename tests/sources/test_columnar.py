"""Images inside of columns: Parquet files as the hub has them, what `datasets` saves to disk, and hf:// URLs."""

import io
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import fsspec.config
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import tpufeed
from tests.sharding.outputs import rejects_of, samples_of
from tests.sharding.written import embed, hub_table, save_to_disk
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import NoInputsError, OptionError, SourceError, StoreError
from tpufeed.sources import row_groups
from tpufeed.sources.kinds import find_source
from tpufeed.sources.options import ShardOptions

ROWS_A_GROUP = 5


def write(path, table, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=ROWS_A_GROUP, **options)


@pytest.fixture
def hub(small_jpegs, tmp_path):
    """A repository with 24 images of train in two files of row groups of 5, and 6 of validation."""
    folder = tmp_path / "hub"
    for split, part, numbers in (
        ("train", 0, range(12)),
        ("train", 1, range(12, 24)),
        ("validation", 0, range(24, 30)),
    ):
        table = hub_table(
            embed([small_jpegs[number] for number in numbers], numbers[0]),
            label=[number % 3 for number in numbers],
            caption=[f"number {number}" for number in numbers],
        )
        parts = 2 if split == "train" else 1
        write(folder / f"data/{split}-{part:05d}-of-{parts:05d}.parquet", table)
    (folder / "README.md").write_text("---\n---\n")
    return folder


def stored(url, split="train"):
    """The bytes of each image by its name."""
    return {
        bytes(features["image/filename"].values[0]).decode(): bytes(features["image/encoded"].values[0])
        for features in open_dataset(url).iter_examples(split)
    }


def test_a_repository_of_the_hub(hub, small_jpegs, tmp_path, monkeypatch):
    result = tpufeed.shard(hub, tmp_path / "d", images=tpufeed.Images(encode="exact"), workers=1)
    manifest = open_dataset(tmp_path / "d").manifest
    assert manifest.class_names == ("tench", "goldfish", "3")
    assert {name: split.records for name, split in manifest.splits.items()} == {"train": 24, "validation": 6}
    assert result.warnings == ()
    train = stored(tmp_path / "d")
    assert train["data/train-00001-of-00002.parquet/000000007/n0019.JPEG"] == small_jpegs[19]
    assert sorted(train.values()) == sorted(small_jpegs[:24])
    sample = samples_of(tmp_path / "d")["data/validation-00000-of-00001.parquet/000000005/n0029.JPEG"]
    assert [sample[f"image/class/{name}"] for name in ("label", "text")] == [[2], [b"3"]]
    assert sample["caption"] == [b"number 29"]
    monkeypatch.setattr(row_groups, "iter_leaf", None)  # a finished build is recognised without reading an image
    tpufeed.shard(hub, tmp_path / "d", images=tpufeed.Images(encode="exact"), workers=1)


@pytest.mark.parametrize("shards", [1, 4])
def test_each_row_group_is_decoded_once_for_each_shard_that_has_rows_of_it(hub, shards, tmp_path, monkeypatch):
    decoded, original = [], row_groups.iter_leaf
    monkeypatch.setattr(row_groups, "iter_leaf", lambda *what: decoded.append(what) or original(*what))
    tpufeed.shard(str(hub / "data/train-*.parquet"), tmp_path / "d", shards=shards, workers=1)
    groups = 6
    assert len(decoded) <= groups + shards - 1
    assert len(samples_of(tmp_path / "d")) == 24


def test_row_groups_that_are_larger_than_a_shard_are_said(hub, tmp_path):
    result = tpufeed.shard(str(hub / "data/train-*.parquet"), tmp_path / "d", shard_bytes=4096, workers=1)
    assert "more than a shard: each shard decodes its row group from the start" in result.warnings[0]


def test_no_image_is_read_before_the_plan(hub, take, monkeypatch):
    monkeypatch.setattr(row_groups, "iter_leaf", None)
    inventory, inputs = take(hub)
    assert inventory.count == len(inputs) == 30
    sizes = [path.stat().st_size for path in hub.glob("data/train-*")]
    assert 0.8 * sum(sizes) < inventory.totals["train"][1] < 1.2 * sum(sizes)


def test_a_folder_that_datasets_has_saved(small_jpegs, tmp_path):
    tables = [
        hub_table(embed(small_jpegs[first : first + 10], first), label=[number % 3 for number in range(10)])
        for first in (0, 10)
    ]
    save_to_disk(tmp_path / "saved/train", tables)
    save_to_disk(tmp_path / "saved/my_split", tables[:1])
    (tmp_path / "saved/dataset_dict.json").write_text(json.dumps({"splits": ["train", "my_split"]}))
    tpufeed.shard(tmp_path / "saved", tmp_path / "d", images=tpufeed.Images(encode="exact"), workers=1)
    train = stored(tmp_path / "d")
    assert train["train/data-00001-of-00002.arrow/000000007/n0017.JPEG"] == small_jpegs[17]
    assert len(train) == 20
    assert len(stored(tmp_path / "d", "my_split")) == 10
    assert open_dataset(tmp_path / "d").manifest.class_names == ("tench", "goldfish", "3")
    tpufeed.shard(tmp_path / "saved/train", tmp_path / "one", splits="a=0.5,b=0.5", workers=1)
    assert set(open_dataset(tmp_path / "one").manifest.splits) == {"a", "b"}
    tpufeed.shard(str(tmp_path / "saved/train/data-*.arrow"), tmp_path / "named", workers=1)
    assert len(stored(tmp_path / "named")) == 20


def test_plain_bytes_further_images_and_values_in_structs(small_jpegs, tmp_path):
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(small_jpegs[0])) as image:
        Image.new("L", image.size, 3).save(buffer, "PNG")
    columns = {
        "picture": small_jpegs[:8],
        "annotation": [{"bytes": buffer.getvalue(), "path": None}] * 8,
        "thumbnail": small_jpegs[8:16],
        "clips": [[b"x"]] * 8,
        "uuid": [bytes([number]) for number in range(8)],
        "objects": [{"bbox": [[0.0, 0.0, 4.0, 4.0]] * (n % 3), "category": [1] * (n % 3)} for n in range(8)],
    }
    write(tmp_path / "t.parquet", pa.table(columns))
    options = {
        "image_columns": {"mask": "annotation:mask"},
        "boxes": tpufeed.Boxes(column="objects.bbox", format="xywh"),
    }
    result = tpufeed.shard(
        tmp_path / "t.parquet", tmp_path / "d", image="picture", label="objects.category", workers=1, **options
    )
    (warning, *_) = result.warnings
    assert "--image-column thumbnail=thumbnail:image" in warning
    assert "clips (list<" in warning
    types = {spec.name: spec.type_text for spec in open_dataset(tmp_path / "d").manifest.features}
    assert types["mask"] == "mask"
    assert types["objects.bbox"] == "float32[0 to 2, 4] boxes"
    assert types["uuid"] == "bytes"
    assert "thumbnail" not in types
    (mask,) = {bytes(each["mask"].values[0]) for each in open_dataset(tmp_path / "d").iter_examples("train")}
    assert Image.open(io.BytesIO(mask)).getextrema() == (3, 3)


def test_rows_without_bytes_are_read_by_their_path_or_rejected(small_jpegs, tmp_path):
    images = [*embed(small_jpegs[:3]), {"bytes": None, "path": "sub/x.jpg"}, {"bytes": None, "path": None}, None]
    images += [{"bytes": None, "path": "lost.jpg"}, {"bytes": b"", "path": None}, {"bytes": b"no image", "path": "y"}]
    write(tmp_path / "rows/data/train.parquet", hub_table(images))
    (tmp_path / "rows/data/sub").mkdir()
    (tmp_path / "rows/data/sub/x.jpg").write_bytes(small_jpegs[9])
    tpufeed.shard(
        str(tmp_path / "rows/data/*.parquet"), tmp_path / "d", images=tpufeed.Images(encode="exact"), workers=1
    )
    assert stored(tmp_path / "d")["sub/x.jpg"] == small_jpegs[9]
    assert len(stored(tmp_path / "d")) == 4
    rejects = rejects_of(tmp_path / "d")
    base = f"{tmp_path}/rows/data/train.parquet"
    assert rejects[f"{base}, row 4"] == (
        "unreadable",
        f"row 4 of {base} has nothing in its column 'image'. Expected bytes or a path",
    )
    assert rejects[f"{base}, row 5"][0] == "unreadable"
    assert rejects["lost.jpg"] == ("unreadable", f"there is no such file; row 6 of {base} names it")
    assert rejects["train.parquet/000000007"][0] == "zero_bytes"
    assert rejects["train.parquet/000000008/y"][0] == "not_an_image"


@pytest.mark.parametrize("kind", ["bytes", "struct"])
def test_files_and_row_groups_without_rows(kind, small_jpegs, tmp_path):
    images = small_jpegs[:3] if kind == "bytes" else embed(small_jpegs[:3])
    table = pa.table({"image": images, "label": [0, 1, 1]})
    write(tmp_path / "hub/0.parquet", table.slice(0, 0))
    with parquet.ParquetWriter(tmp_path / "hub/1.parquet", table.schema) as file:
        for first, stop in ((0, 1), (1, 1), (1, 3)):
            file.write_table(table.slice(first, stop - first))
    for number, name in enumerate(("hub", "hub/*.parquet")):
        tpufeed.shard(str(tmp_path / name), tmp_path / f"d{number}", workers=1)
        assert sorted(stored(tmp_path / f"d{number}").values()) == sorted(small_jpegs[:3])


def test_a_damaged_row_group_rejects_its_rows(hub, tmp_path):
    path = hub / "data/train-00000-of-00002.parquet"
    data = bytearray(path.read_bytes())
    chunk = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + 40] = bytes(40)
    path.write_bytes(data)
    tpufeed.shard(hub, tmp_path / "d", workers=1)
    rejects = rejects_of(tmp_path / "d")
    assert len(rejects) == ROWS_A_GROUP
    for name, (reason, message) in rejects.items():
        assert name.startswith("data/train-00000-of-00002.parquet/")
        assert 5 <= int(name.split("/")[2]) <= 9
        assert (reason, "row " in message, "not a readable Parquet file" in message) == ("unreadable", True, True)


def test_a_file_that_changes_during_the_build(hub, take):
    from tpufeed.errors import ImageError
    from tpufeed.sources.inputs import Files, iter_read

    inventory, inputs = take(str(hub / "data/validation-00000-of-00001.parquet"))
    path = hub / "data/validation-00000-of-00001.parquet"
    write(path, hub_table(embed([b"another"] * 6), label=[0] * 6, caption=[""] * 6))
    found = [data for _, data in iter_read(Files(inventory.base), inputs)]
    assert [(type(data), data.reason) for data in found] == [(ImageError, "changed_during_build")] * 6


def test_append_and_duplicates(hub, small_jpegs, tmp_path):
    train = str(hub / "data/train-*.parquet")
    tpufeed.shard(train, tmp_path / "d", workers=1)
    table = hub_table(embed(small_jpegs[22:27], 22), label=[0] * 5, caption=["again"] * 5)
    write(hub / "data/train-00002-of-00003.parquet", table)
    result = tpufeed.append(train, tmp_path / "d", workers=1)
    assert len(stored(tmp_path / "d")) == 29
    assert (open_dataset(tmp_path / "d").number, result.duplicates.images) == (2, 2)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_file_that_was_written_again_with_other_rows(kind, small_jpegs, tmp_path):
    """Rows of the dataset are found by their bytes, wherever they are now; each is one image."""
    source = tmp_path / "rows"

    def save(numbers):
        shutil.rmtree(source, ignore_errors=True)
        table = hub_table([{"bytes": small_jpegs[each], "path": None} for each in numbers], label=[0] * len(numbers))
        if kind == "arrow":
            save_to_disk(source, [table])
        else:
            write(source / "data/train.parquet", table)

    def all_stored():
        splits = tpufeed.open_dataset(tmp_path / "d").manifest.splits
        return {split: sorted(stored(tmp_path / "d", split).items()) for split in splits}

    save(range(8))
    options = {"splits": "train=0.5,val=0.5", "images": tpufeed.Images(encode="exact"), "workers": 1}
    tpufeed.shard(source, tmp_path / "d", **options)
    first = all_stored()
    save([*range(8), *range(8, 13)])  # more rows, in digits as well
    result = tpufeed.append(source, tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (5, 8)
    assert all(set(first[split]) <= set(all_stored()[split]) for split in first)
    save([20, *reversed(range(13)), 21])  # shuffled, with two new ones
    result = tpufeed.append(source, tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (2, 13)
    save([*range(5), 7, 7])  # some are gone, one is there twice
    result = tpufeed.append(source, tmp_path / "d", workers=1)
    assert (result.added, result.skipped + result.added) == (1, 7)
    save([*range(13), 20, 21])  # they return
    result = tpufeed.append(source, tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (0, 15)
    save(range(13))
    written = next(
        path for path in source.rglob("*") if path.name.endswith(f"00001.{kind}" if kind == "arrow" else kind)
    )
    written.rename(written.with_name(f"train-more.{kind}"))  # another file: its rows are new
    if kind == "arrow":
        (source / "state.json").write_text(json.dumps({"_data_files": [{"filename": "train-more.arrow"}]}))
    result = tpufeed.append(source, tmp_path / "d", workers=1)
    assert result.added == 13


def test_no_signature_of_a_row_is_stored(small_jpegs, tmp_path):
    image = {"bytes": small_jpegs[0], "path": "https://host/7.jpg?id=7&X-Amz-Signature=sEcReT"}
    write(tmp_path / "rows/data/train.parquet", hub_table([image]))
    tpufeed.shard(tmp_path / "rows", tmp_path / "d", workers=1)
    assert list(stored(tmp_path / "d")) == ["data/train.parquet/000000000/7.jpg?id=7"]
    assert not [path for path in (tmp_path / "d").rglob("*") if path.is_file() and b"sEcReT" in path.read_bytes()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": "caption"}, "'caption'"),
        ({"image": "nothing"}, "'nothing'"),
        ({"label": "nothing"}, "'nothing'"),
        ({"image_columns": {"mask": "caption:mask"}}, "'caption'"),
        ({"splits": "a=0.5,b=0.5"}, "train, validation"),
        ({"split_by": "folder"}, "folders"),
        ({"masks": "."}, "--image-column"),
    ],
)
def test_options_that_do_not_fit(options, message, hub, tmp_path):
    with pytest.raises(OptionError, match=message):
        tpufeed.shard(hub, tmp_path / "d", **options)
    assert not (tmp_path / "d").exists()


def test_folders_that_are_not_one_dataset(hub, small_jpegs, tmp_path):
    for name in ("plain", "augmented"):
        shutil.copytree(hub / "data", tmp_path / f"configs/{name}")
    with pytest.raises(OptionError, match="augmented, plain"):
        tpufeed.shard(tmp_path / "configs", tmp_path / "d")
    write(hub / "data/more.parquet", hub_table(embed(small_jpegs[:1])))
    with pytest.raises(OptionError, match=r"data/more\.parquet"):
        tpufeed.shard(hub, tmp_path / "d")
    write(tmp_path / "paths/train.parquet", pa.table({"path": ["x.jpg"]}))
    with pytest.raises(OptionError, match=r"\(path\)"):
        tpufeed.shard(tmp_path / "paths", tmp_path / "d")
    write(tmp_path / "two.parquet", pa.table({"a": small_jpegs[:2], "b": small_jpegs[:2]}))
    with pytest.raises(OptionError, match="--image a"):
        tpufeed.shard(tmp_path / "two.parquet", tmp_path / "d")


def test_saved_folders_that_cannot_be_read(small_jpegs, tmp_path):
    save_to_disk(tmp_path / "saved", [hub_table(embed(small_jpegs[:4]))])
    with pa.OSFile(str(tmp_path / "zstd.arrow"), "wb") as file:
        table = hub_table(embed(small_jpegs[:4]))
        with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    with pytest.raises(SourceError, match=r"zstd\.arrow"):
        tpufeed.shard(tmp_path / "zstd.arrow", tmp_path / "d")
    state = tmp_path / "saved/state.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps(content | {"_indices_data_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(OptionError, match="flatten_indices"):
        tpufeed.shard(tmp_path / "saved", tmp_path / "d")
    state.write_text(json.dumps({"_data_files": [{"filename": "gone.arrow"}]}))
    with pytest.raises(SourceError, match=r"gone\.arrow"):
        tpufeed.shard(tmp_path / "saved", tmp_path / "d")
    state.unlink()
    with pytest.raises(OptionError, match="cache"):
        tpufeed.shard(tmp_path / "saved", tmp_path / "d")
    with pytest.raises(SourceError, match=r"cache-1234\.arrow"):
        tpufeed.shard(tmp_path / "saved/cache-1234.arrow", tmp_path / "d")


def test_a_split_without_labels_is_left_out_and_said(hub, small_jpegs, tmp_path):
    table = hub_table(embed(small_jpegs[:4]), label=[-1] * 4, caption=["x"] * 4)
    write(hub / "data/test-00000-of-00001.parquet", table)
    result = tpufeed.shard(hub, tmp_path / "d", workers=1)
    assert set(open_dataset(tmp_path / "d").manifest.splits) == {"train", "validation"}
    assert "the split test has no labels (all are -1) and is left out" in result.warnings[0]
    with pytest.raises(NoInputsError, match="labels"):
        tpufeed.shard(str(hub / "data/test-*.parquet"), tmp_path / "e")
    tpufeed.shard(str(hub / "data/test-*.parquet"), tmp_path / "e", label="none", workers=1)
    assert len(stored(tmp_path / "e", "test")) == 4


class _Hub(BaseHTTPRequestHandler):
    """The requests that the hub's client makes for the repository me/flowers, answered from a local folder."""

    protocol_version = "HTTP/1.1"
    root = Path()

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if path == "/api/datasets/me/flowers/revision/v1":
            return self.answer(json.dumps({"id": "me/flowers", "sha": "a" * 40, "siblings": []}).encode())
        if path.startswith("/api/datasets/me/flowers/tree/v1"):
            folder = self.root / path.removeprefix("/api/datasets/me/flowers/tree/v1").lstrip("/")
            found = folder.rglob("*") if "recursive=true" in self.path.lower() else folder.iterdir()
            return self.answer(json.dumps([self.describe(each) for each in sorted(found)]).encode())
        if path.startswith("/datasets/me/flowers/resolve/v1/"):
            data = (self.root / path.removeprefix("/datasets/me/flowers/resolve/v1/")).read_bytes()
            start, stop = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            return self.answer(data[start : stop + 1], 206)
        return self.answer(b"{}", 404)

    def describe(self, path):
        info = path.stat()
        kind = "directory" if path.is_dir() else "file"
        return {
            "type": kind,
            "oid": f"{info.st_mtime_ns:040x}",
            "size": info.st_size,
            "path": str(path.relative_to(self.root)),
        }

    def answer(self, body, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server(hub, monkeypatch):
    monkeypatch.setattr(_Hub, "root", hub)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": f"http://127.0.0.1:{server.server_port}"})
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.uses("huggingface_hub")
@pytest.mark.usefixtures("server")
def test_urls_of_the_hub_by_its_own_client(hub, tmp_path):
    tpufeed.shard("hf://datasets/me/flowers@v1", tmp_path / "d", workers=1)
    tpufeed.shard(hub, tmp_path / "local", workers=1)
    assert open_dataset(tmp_path / "d").content_digest == open_dataset(tmp_path / "local").content_digest
    tpufeed.shard("hf://datasets/me/flowers@v1/data/train-*.parquet", tmp_path / "train", workers=1)
    assert len(stored(tmp_path / "train")) == 24
    with pytest.raises(SourceError, match="404"):
        tpufeed.shard("hf://datasets/me/nothing@v1", tmp_path / "e")


def test_without_the_client_of_the_hub_the_error_says_what_to_install(tmp_path, monkeypatch):
    def missing(*_, **__):
        raise ImportError("Install huggingface_hub to access HfFileSystem")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(StoreError, match="huggingface_hub"):
        tpufeed.shard("hf://datasets/me/flowers@v1", tmp_path / "d")


# Splits in the names of files.


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["test_tubes.parquet"], {"train"}),
        (["dev_kits.parquet", "train-stations.parquet"], {"train"}),
        (["test tubes/0.parquet"], {"train"}),
        (["flowers_test.parquet", "flowers_train.parquet"], {"train", "test"}),
        (["train_en.parquet", "test_en.parquet"], {"train", "test"}),
        (["train_v2.parquet", "val_images_0.parquet"], {"train", "validation"}),
        (["train-00000-of-00001-a09b74b3ef9c3b56.parquet", "test-dev.parquet"], {"train", "test"}),
        (["train/test_tubes.parquet", "val/test_tubes.parquet"], {"train", "validation"}),
    ],
)
def test_splits_that_names_of_files_say(names, splits, small_jpegs, take, tmp_path):
    for place, name in enumerate(names):
        write(tmp_path / "hub" / name, hub_table(embed([small_jpegs[place]]), label=[1], caption=["a"]))
    assert set(take(tmp_path / "hub")[0].splits) == splits


def test_a_name_that_says_no_split_among_others(small_jpegs, tmp_path):
    for name in ("train.parquet", "test_tubes.parquet"):
        write(tmp_path / "hub" / name, hub_table(embed(small_jpegs[:1]), label=[1], caption=["a"]))
    with pytest.raises(OptionError, match=r"test_tubes\.parquet"):
        tpufeed.shard(tmp_path / "hub", tmp_path / "d", workers=1)


def test_any_split_may_name_the_classes_but_not_only_a_later_file(hub, tmp_path):
    unlabelled, named = (
        hub / f"data/{name}" for name in ("test-00000-of-00001.parquet", "train-00000-of-00002.parquet")
    )
    table = parquet.read_table(named)
    write(unlabelled, table.drop_columns(["label"]).replace_schema_metadata(None))
    source = find_source(str(hub), ShardOptions())
    assert source.contents.class_names == ("tench", "goldfish", "3")
    for path in (named, hub / "data/validation-00000-of-00001.parquet"):
        write(path, parquet.read_table(path).replace_schema_metadata(None))
    with pytest.raises(SourceError, match=r"00001-of-00002[.]parquet names the classes"):
        tpufeed.shard(hub, tmp_path / "d", workers=1)


def test_lists_of_structs_with_a_box_are_columns_as_in_tables(small_jpegs, tmp_path):
    objects = [[{"bbox": [1, 2, 10, 12], "category": 1}, {"bbox": [0, 0, 4, 4], "category": 0}], [], None]
    kind = {"_type": "ClassLabel", "names": ["cow", "cat"]}
    features = {"objects": [{"bbox": {"_type": "List", "feature": {"dtype": "float32"}}, "category": kind}]}
    table = hub_table(embed(small_jpegs[:3]), features=features, objects=objects)
    write(tmp_path / "hub/train.parquet", table)
    save_to_disk(tmp_path / "saved", [table])
    options = {"boxes": tpufeed.Boxes(column="objects.bbox", format="xywh"), "label": "objects.category", "workers": 1}
    for source in ("hub", "saved"):
        tpufeed.shard(tmp_path / source, tmp_path / f"{source}-d", **options)
        samples = [samples_of(tmp_path / f"{source}-d")[name] for name in sorted(samples_of(tmp_path / f"{source}-d"))]
        assert [sample["objects.bbox"] for sample in samples] == [[1, 2, 11, 14, 0, 0, 4, 4], [], []]
        assert [sample["image/class/text"] for sample in samples] == [[b"cat", b"cow"], [], []]
