"""What the command says about mistakes, and its exit code."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetNotFoundError


@pytest.fixture
def refused(run):
    """`refused(code, message, *arguments)`: the command ends with this code and one line that matches."""

    def check(code, message, *arguments, **environment):
        done = run(*arguments, **environment)
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        assert re.fullmatch(rf"error: .*{message}.*\n", done.stderr), done.stderr

    return check


def files_of(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def no_dataset(url):
    with pytest.raises(DatasetNotFoundError):
        open_dataset(url)
    return True


def test_a_source_without_images(refused, tmp_path):
    (tmp_path / "empty/cat").mkdir(parents=True)
    (tmp_path / "empty/cat/notes.txt").touch()
    refused(
        2,
        r"1 files \(1 \.txt\).*photos/cat/1\.jpg",
        "shard",
        tmp_path / "empty",
        tmp_path / "d",
    )
    assert not (tmp_path / "d").exists()


def test_sources_that_cannot_be_read(refused, photo_folder, tmp_path):
    (tmp_path / "file.jpg").touch()
    refused(2, "nowhere ", "shard", tmp_path / "nowhere", tmp_path / "d")
    refused(2, r"file\.jpg is a file", "shard", tmp_path / "file.jpg", tmp_path / "d")
    refused(2, "does not exist", "shard", tmp_path / "file.jpg/below", tmp_path / "d")
    shutil.copytree(photo_folder, tmp_path / "mixed")
    shutil.copy(next(photo_folder.glob("*/*.jpg")), tmp_path / "mixed/stray.jpg")
    refused(2, r"stray\.jpg ", "shard", tmp_path / "mixed", tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_destination_that_holds_a_dataset(refused, photo_folder, dataset_url):
    before = files_of(dataset_url)
    refused(
        2,
        "shard_bytes is 60000 there",
        "shard",
        photo_folder,
        dataset_url,
    )
    refused(2, "is the source itself", "cache", "warmup", dataset_url, dataset_url)
    assert files_of(dataset_url) == before


def test_a_destination_of_another_build(refused, photo_folder, dataset_url, tmp_path):
    shutil.copytree(dataset_url, tmp_path / "d")
    (tmp_path / "d/manifest.json").unlink()
    refused(
        2,
        "shard_bytes is 60000 there and 70000 here",
        *("shard", photo_folder, tmp_path / "d"),
        *("--shard-size", "70KB", "--splits", "train=0.7,val=0.3"),
    )
    assert no_dataset(tmp_path / "d")


def test_a_destination_that_is_a_file(refused, photo_folder, tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(2, "file is a file", "shard", photo_folder, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shard-size", "1KB"], r"\.jpg.* \d+\. .*--shard-size"),
        (["--shard-size", "ten"], "'ten'.*64MB"),
        (["--shard-size", "9" * 400 + "GiBB"], "64MB"),
        (["--splits", "train=0.9"], "add up to 0.9, not 1"),
        (["--splits", "train=0.9,val=x"], "is not a split with a share; write them like train=0.9,val=0.1"),
        (["--splits", "a/b"], "a split is named by letters"),
        (["--splits", "train=nan"], "a share has to be in"),
        (["--check", "fast"], "check is 'full' or 'header', not 'fast'"),
        (["--workers", "0"], "workers is a whole number, at least 1, not 0"),
        (["--presize", "3"], "presize.* between 8 and 16384, not 3"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_values_that_shard_cannot_take(flags, message, refused, photo_folder, tmp_path):
    refused(2, message, "shard", photo_folder, tmp_path / "d", *flags)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--encode", "gif"], "encode is .*not 'gif'"),
        (["--size", "0"], "size is "),
        (["--variants", "0"], "variants is a whole number between 1 and 1000, not 0"),
        (["--workers", "-1"], "workers is a whole number, at least 1, not -1"),
        (["--shard-size", "10KB"], "a shard of 10000 bytes cannot hold .*--shard-size"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_warmup_cannot_take(flags, message, refused, dataset_url, tmp_path):
    refused(2, message, "cache", "warmup", dataset_url, tmp_path / "d", *flags)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shard"], "Missing argument"),
        (["shard", "x"], "Missing argument"),
        (["cache", "warmup", "x"], "Missing argument"),
        (["info"], "Missing argument"),
        (["verify"], "Missing argument"),
        (["shard", "x", "y", "--workers", "many"], "Invalid value for '--workers'"),
        (["shard", "x", "y", "--seed", "1.5"], "Invalid value for '--seed'"),
        (["bench", "x", "--seconds", "abc"], "'--seconds'"),
        (["shard", "x", "y", "--nope"], "No such option"),
        (["polish"], "No such command 'polish'"),
    ],
    ids=" ".join,
)
def test_command_lines_that_are_none(arguments, message, run):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: tpufeed" in done.stderr
    assert message in done.stderr


def test_an_unknown_scheme(refused, photo_folder, tmp_path):
    message = "foo://bucket/x: nothing opens foo:// URLs. Give a local path, gs://"
    refused(2, message, "shard", "foo://bucket/x", tmp_path / "d")
    refused(2, message, "shard", photo_folder, "foo://bucket/x")
    refused(2, message, "verify", "foo://bucket/x")
    assert not (tmp_path / "d").exists()


def test_no_dataset_there(refused, dataset_url, tmp_path):
    for arguments in (["info", tmp_path], ["verify", tmp_path], ["cache", "warmup", tmp_path, f"{tmp_path}-c"]):
        refused(2, r"manifest\.json\. .*tpufeed shard", *arguments)
    assert not Path(f"{tmp_path}-c").exists()


def test_images_where_a_dataset_is_expected(refused, photo_folder):
    for command in ("info", "verify"):
        refused(2, f"tpufeed shard {photo_folder} DATASET", command, photo_folder)


def test_a_manifest_of_another_version(refused, dataset_url, tmp_path):
    shutil.copytree(dataset_url, tmp_path / "d")
    manifest = json.loads((tmp_path / "d/manifest.json").read_text())
    (tmp_path / "d/manifest.json").write_text(json.dumps({**manifest, "format_version": 9, "news": {}}))
    for arguments in (
        ["info", tmp_path / "d"],
        ["verify", tmp_path / "d"],
        ["cache", "warmup", tmp_path / "d", tmp_path / "c"],
    ):
        refused(1, "version 9, .*version 1", *arguments)
    (tmp_path / "d/manifest.json").write_text("{")
    refused(1, r"manifest\.json: ", "info", tmp_path / "d")


def test_a_corrupt_image_is_a_count_and_a_line(run, photo_folder, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "photos")
    bad = sorted((tmp_path / "photos").glob("*/*.jpg"))[4]
    bad.write_bytes(bad.read_bytes()[:5000])
    done = run("shard", tmp_path / "photos", tmp_path / "d")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"rejected: 1 image (1 truncated); {tmp_path}/d/rejects.jsonl lists them" in done.stdout
    assert "left out: 1 file not named as images are\n" in done.stdout  # make_photos' marker
    (line,) = (tmp_path / "d/rejects.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == str(bad.relative_to(tmp_path / "photos"))


def test_corrupt_images_only(refused, photo_folder, tmp_path):
    (tmp_path / "photos/cat").mkdir(parents=True)
    for number in range(3):
        (tmp_path / f"photos/cat/{number}.jpg").write_text("no photograph")
    refused(
        1,
        r"none of the 3 .*cat/\d\.jpg: ",
        *("shard", tmp_path / "photos", tmp_path / "d"),
    )
    assert no_dataset(tmp_path / "d")
