"""`tpufeed show`: the file it writes, what it says, and what it refuses."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tpufeed.dataset.reader import open_dataset


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_a_sheet(suffix, run, dataset_url, tmp_path):
    out = tmp_path / f"sheet.{suffix}"
    done = run("show", dataset_url, "--out", out, "--count", "9", "--size", "64")
    assert (done.returncode, done.stderr) == (0, "")
    with Image.open(out) as image:
        width, height = image.size
    assert done.stdout == f"{out}: 9 images, {width} x {height} pixels\n"
    assert list(tmp_path.iterdir()) == [out]


def test_choices_change_the_sheet(run, dataset_url, cache_url, tmp_path):
    sheets = set()
    for number, flags in enumerate(
        [
            [dataset_url],
            [dataset_url, "--seed", "1"],
            [dataset_url, "--split", "val"],
            [dataset_url, "--select", "classes=cat"],
            [cache_url],
        ]
    ):
        assert run("show", *flags, "--count", "4", "--out", tmp_path / f"{number}.png").returncode == 0
        sheets.add((tmp_path / f"{number}.png").read_bytes())
    assert len(sheets) == 5
    again = run("show", dataset_url, "--count", "4", "--out", tmp_path / "again.png", "--json")
    with Image.open(tmp_path / "again.png") as image:
        facts = {"file": str(tmp_path / "again.png"), "images": 4, "width": image.width, "height": image.height}
    assert json.loads(again.stdout) == facts | {"problems": []}
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "0.png").read_bytes()


def test_damage_is_a_warning_and_exit_1_after_the_sheet(run, dataset_url, tmp_path):
    copy = Path(shutil.copytree(dataset_url, tmp_path / "d"))
    shard = min(copy.glob("train-*.tfrecord"))
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    done = run("show", copy, "--out", tmp_path / "sheet.png")
    assert done.returncode == 1
    assert done.stderr.startswith(f"warning: {shard}, record 0, byte 0: the CRC of the payload")
    assert done.stderr.count("\n") == 1
    assert "sheet.png: 2" in done.stdout
    assert (tmp_path / "sheet.png").exists()


def test_what_show_refuses(run, dataset_url, tmp_path):
    for flags, message in (
        (["--out", tmp_path / "sheet.bmp"], "sheet.bmp: the sheet's name"),
        (["--out", tmp_path / "no/sheet.png"], "there is no folder"),
        (["--out", tmp_path / "s.png", "--split", "test"], "has no split 'test'"),
        (["--out", tmp_path / "s.png", "--select", "classes=dog"], "no class 'dog'"),
        (["--out", tmp_path / "s.png", "--count", "0"], "count is a whole number between 1"),
        (["--out", tmp_path / "s.png", "--size", "1"], "a whole number between 16 and 2048, not 1"),
    ):
        done = run("show", dataset_url, *flags)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_only_samples_of_a_view_are_shown(run, dataset_url, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "labels"))
    (tmp_path / "ids.csv").write_text("sample,keep\n1,1\n2,0\n17,1\n")
    out, words = tmp_path / "sheet.png", ["--out", tmp_path / "sheet.png", "--json"]
    for select, images in (
        (["samples=" + str(tmp_path / "ids.csv"), "split=train"], 2),
        (["classes=cat"], len(open_dataset(dataset_url).select(classes=["cat"]).samples("train"))),
    ):
        flags = [word for text in select for word in ("--select", text)]
        done = run("show", dataset_url, *flags, *words)
        assert (done.returncode, json.loads(done.stdout)["images"]) == (0, images), done.stderr
    assert out.exists()
