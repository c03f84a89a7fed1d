"""Hostile inputs: each is refused with an error that names it, or is harmless."""

import io
import json
import os
import re
import shutil
import struct
import tarfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from crc32c import crc32c
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.repo.docs.pages import ran
from tpufeed.cli.app import app
from tpufeed.errors import (
    DatasetDamagedError,
    OptionError,
    SourceError,
    StoreError,
    TpufeedError,
    printable,
)
from tpufeed.images import CenterCrop, Resize
from tpufeed.images.header import MAX_PIXELS
from tpufeed.tfrecord.framing import encode_header

RUNS = {"security.md": "mask_secrets"}

ESCAPES = "\x1b[2J\x1b]0;owned\x07"


def jpeg(seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """The folder of photos, a dataset of them whose names attack terminals, and a raw cache of it."""
    folder = tmp_path_factory.mktemp("security")
    for name in (f"a{ESCAPES}", "b"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(3):
            (folder / "photos" / name / f"{number}.jpg").write_bytes(jpeg(number))
    (folder / "photos/b" / f"bad{ESCAPES}.jpg").write_bytes(b"no image")
    tpufeed.shard(folder / "photos", folder / "encoded", workers=1, max_rejects=1)
    tpufeed.cache.warmup(folder / "encoded", folder / "raw", size=32, encode="raw", workers=1)
    return folder


@pytest.fixture
def forged(datasets, tmp_path):
    """`forged(kind, change)`: a copy of a dataset, its manifest changed; `change` gets the parts of its JSON."""

    def forge(kind, change):
        shutil.copytree(datasets / kind, tmp_path / "forged")
        path = tmp_path / "forged/manifest.json"
        manifest = json.loads(path.read_text())
        split = manifest["splits"]["train"]
        said = change(SimpleNamespace(all=manifest, split=split, variant=split["variants"][0]))
        path.write_text(said if isinstance(said, str) else json.dumps(manifest))
        return tmp_path / "forged"

    return forge


def load(url):
    """All labels that a loader gives."""
    ops = None if list(url.glob("train-v0-*")) else [Resize(32), CenterCrop(32)]
    with tpufeed.Loader(url, batch_size=2, lanes=1, ops=ops, remainder="pad") as loader:
        return [label for _, labels, _ in loader for label in labels]


def set_name(name):
    return lambda parts: parts.variant["shards"][0].update(name=name)


def set_records(count):
    def change(parts):
        parts.split.update(records=count, class_counts=[count, 0])
        parts.variant["shards"][0].update(records=count)
        parts.variant["index"].update(bytes=128 + 8 * (count + 1))

    return change


def set_shape(*shape):
    def change(parts):
        parts.all["features"][0]["shape"] = parts.all["cache"]["shape"] = shape

    return change


def set_bytes(count):
    return lambda parts: parts.variant["shards"][0].update(bytes=count)


def twice(parts):
    parts.variant["shards"].append(parts.variant["shards"][0])
    parts.split["records"] *= 2


MANIFESTS = {
    "an absolute name": set_name("/etc/passwd"),
    "a name that leads out": set_name("../encoded/train-00000-of-00001.tfrecord"),
    "a name with NUL": set_name("a\0b"),
    "a name that is a URL": set_name("http://127.0.0.1:1/x"),
    "a name for a terminal": set_name(ESCAPES),
    "a name twice": twice,
    "more records than bytes": set_records(10**9),
    "records of 2**63": set_records(2**63),
    "records of 2**64": set_records(2**64),
    "records below zero": set_records(-1),
    "bytes of 2**63": set_bytes(2**63),
    "bytes below zero": set_bytes(-1),
    "a shape beyond 64 bits": set_shape(2**31, 2**31, 3),
    "a shape of nothing": set_shape(0, 0, 0),
    "a shape below zero": set_shape(-32, -32, 3),
    "a shape of other records": set_shape(33, 32, 3),
    "a shape of gigabytes": set_shape(26000, 26000, 3),
    "lists in lists": lambda _: f'{{"options": {"[" * 100_000}{"]" * 100_000}}}',
    "objects in objects": lambda _: '{"a":' * 100_000,
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_a_forged_manifest_is_refused(change, forged):
    url = forged("raw", change)
    for use in (tpufeed.verify, load):
        with pytest.raises(TpufeedError) as caught:
            use(url)
        assert "\x1b" not in str(caught.value)


def test_what_a_manifest_names_is_not_imported(forged):
    def change(parts):
        parts.all["cache"]["live"] = [{"op": "Custom", "version": "1", "target": "antigravity:geohash"}]

    with pytest.raises(OptionError, match="manifest"):
        load(forged("raw", change))


def reseal(folder, **files):
    """Replace the bytes of the shard or the index, and let the manifest vouch for them."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    variant = manifest["splits"]["train"]["variants"][0]
    for kind, data in files.items():
        entry = variant["index"] if kind == "index" else variant["shards"][0]
        (folder / entry["name"]).write_bytes(data)
        entry.update(bytes=len(data), crc32c=crc32c(data))
    path.write_text(json.dumps(manifest))


def moved(offsets, place, value):
    changed = offsets.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    "forge",
    [
        lambda offsets: moved(offsets, 1, offsets[3]),
        lambda offsets: moved(offsets, 1, 5),
        lambda offsets: moved(offsets, -1, 2**63),
        lambda offsets: moved(offsets, 0, 1),
    ],
    ids=["decreasing", "within a record's frame", "beyond the end", "not from the start"],
)
def test_a_forged_index_is_refused_although_its_crc_fits(forge, forged):
    url = forged("encoded", lambda _: None)
    buffer = io.BytesIO()
    np.save(buffer, forge(np.load(url / "train.index.npy")))
    reseal(url, index=buffer.getvalue())
    with pytest.raises(DatasetDamagedError, match=r"train\.index\.npy"):
        tpufeed.verify(url)
    with pytest.raises(TpufeedError):
        load(url)


def test_a_length_that_no_shard_can_hold_asks_for_no_memory(forged):
    url = forged("encoded", lambda _: None)
    shard = next(url.glob("*.tfrecord"))
    reseal(url, shard=encode_header(1 << 60) + shard.read_bytes()[12:])
    for use in (tpufeed.verify, load):
        with pytest.raises(TpufeedError, match=str(1 << 60)):
            use(url)


@pytest.mark.parametrize("name", ["manifest.json", "train.index.npy", "train-00000-of-00001.tfrecord"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.timeout(60)
def test_a_pipe_or_device_in_a_dataset_is_neither_waited_for_nor_read_without_end(name, kind, forged):
    url = forged("encoded", lambda _: None)
    (url / name).unlink()
    os.mkfifo(url / name) if kind == "pipe" else (url / name).symlink_to("/dev/zero")
    with pytest.raises(TpufeedError):
        tpufeed.verify(url)
    with pytest.raises(TpufeedError):
        list(tpufeed.open_dataset(url).iter_examples("train"))


# Sources


def test_names_in_a_tar_are_names_and_its_links_lead_nowhere(tmp_path):
    members = [("../../x/1.jpg", None), ("/abs/2.jpg", None), (f"3{ESCAPES}.jpg", None)]
    members += [("4.jpg", tarfile.SYMTYPE), ("6.jpg", tarfile.CHRTYPE)]
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in/a.tar", "w") as tar:
        for name, kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind or tarfile.REGTYPE, "/etc/passwd"
            info.size = 0 if kind else len(jpeg(1))
            tar.addfile(info, None if kind else io.BytesIO(jpeg(1)))
    result = tpufeed.shard(tmp_path / "in/a.tar", tmp_path / "in/out", workers=1, label="none")
    assert (result.images, sum(result.listed.ignored_files.values())) == (3, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_hard_link_of_a_tar_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("5.jpg")
        info.type, info.linkname = tarfile.LNKTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(SourceError, match=r"5\.jpg .*/etc/passwd"):
        tpufeed.shard(tmp_path / "a.tar", tmp_path / "out", workers=1, label="none")


def test_a_table_may_name_any_file_but_only_images_are_taken(tmp_path):
    """Naming files is a table's purpose; docs/security.md says what follows from it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "outside.jpg").write_bytes(jpeg(1))
    os.mkfifo(tmp_path / "in/pipe.jpg")
    header = struct.pack(">II5B", 100_000, 100_000, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(10**6))), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    (tmp_path / "in/bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    refused = ["/etc/passwd", "file:///etc/passwd", "/dev/zero", "pipe.jpg", "bomb.png", "nosuch://x", f"x{ESCAPES}"]
    rows = "".join(f"{path},x\n" for path in ("../outside.jpg", *refused))
    (tmp_path / "in/t.csv").write_text(f"path,label\n{rows}")
    result = tpufeed.shard(tmp_path / "in/t.csv", tmp_path / "out", workers=1, max_rejects=len(refused))
    assert result.images == 1
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    assert {reject["path"] for reject in rejects} == set(refused)
    assert {reject["reason"] for reject in rejects if reject["path"] == "bomb.png"} == {"too_large"}


# What is shown


def test_no_control_character_of_a_dataset_reaches_a_terminal(datasets, tmp_path):
    url, runner = str(datasets / "encoded"), CliRunner()
    commands = [["info", url], ["info", url, "--json"], ["verify", url, "--decode", "all"]]
    commands += [["show", url, "--out", str(tmp_path / "sheet.png")], ["verify", f"{url}{ESCAPES}"]]
    commands += [["card", url, "--out", str(tmp_path / "card.md")]]
    commands += [["shard", str(datasets / "photos"), str(tmp_path / "out"), "--workers", "1"]]
    for command in commands:
        result = runner.invoke(app, command, env={"TERM": "xterm-256color"})
        assert result.output.strip()
        assert not any(sequence in result.output for sequence in ("\x1b[2J", "\x1b]0", "\x07")), command


def test_printable_text_keeps_all_that_is_harmless():
    for harmless in ("größe 猫 a\nb\tc", "", "x" * 10_000):
        assert printable(harmless) == harmless
    assert printable("a\rb\x9b\u202e\x00") == "a\\rb\\x9b\\u202e\\x00"
    assert str(StoreError(f"x{ESCAPES}")) == "x\\x1b[2J\\x1b]0;owned\\x07"


@pytest.mark.all
def test_the_program_of_the_page_runs_and_its_limits_are_those_of_the_code(capsys):
    page = (Path(__file__).parents[1] / "docs/security.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(program, {})
    ran(program)
    assert capsys.readouterr().out == "https://***@host/flowers?sig=***&se=2026\n"
    assert f"{MAX_PIXELS:,} pixels" in page
