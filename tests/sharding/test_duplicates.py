"""Images that are there twice: counted and named."""

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.gcs_server import GcsServer
from tpufeed.builds.destination import Destination, Owner
from tpufeed.builds.digests import Overlap, group_equal, read_digests
from tpufeed.builds.plan import iter_tasks, read_plan
from tpufeed.cli.app import app
from tpufeed.dataset.naming import DIGESTS, DUPLICATES, PLAN, report_name
from tpufeed.storage.local import LocalStore

SHARES = "train=0.7,val=0.3"


@pytest.fixture
def doubled(tmp_path):
    """60 images, of which 20 are there a second time under another name, and two of these with another label."""
    random, folder = np.random.default_rng(0), tmp_path / "photos"
    for number in range(60):
        path = folder / ("cat", "dog")[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (10, 10, 3), np.uint8)).save(path)
    for number in range(20):
        name = ("cat", "dog")[(number + (number < 2)) % 2]
        shutil.copy(folder / ("cat", "dog")[number % 2] / f"{number:02d}.png", folder / name / f"copy{number:02d}.png")
    return folder


def make_photos(folder, count):
    """Images of noise, no two alike."""
    random = np.random.default_rng(7)
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(random.integers(0, 255, (30, 30, 3), np.uint8)).save(folder / f"{number:02d}.png")
    return sorted(folder.iterdir())


def blake2b(path):
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def names_of(url, split):
    examples = tpufeed.open_dataset(url).iter_examples(split)
    return [bytes(features["image/filename"].values[0]).decode() for features in examples]


def report_of(url):
    return [json.loads(line) for line in (Path(url) / DUPLICATES).read_text().splitlines()]


def test_duplicates_are_counted_and_named_and_those_across_splits_warned_of(doubled, tmp_path):
    result = tpufeed.shard(doubled, tmp_path / "d", splits=SHARES, workers=1)
    groups = report_of(tmp_path / "d")
    assert len(groups) == 20
    crossing = [group for group in groups if len({image["split"] for image in group["images"]}) > 1]
    both, val = len(crossing), tpufeed.open_dataset(tmp_path / "d").split("val").records
    (of_val,) = [said for said in result.warnings if "images of val" in said]
    assert of_val.startswith(f"{both} of {val} images of val are in train as well, byte for byte: see {result.url}")
    assert both > 3
    found = result.duplicates
    assert (found.groups, found.images, found.labels) == (20, 20, 2)
    assert found.crossing == {"val": Overlap(both, val, ("train",))}
    assert any("different labels: 2. " in said for said in result.warnings)
    for group in groups:
        first, second = (image["path"] for image in group["images"])
        assert (doubled / first).read_bytes() == (doubled / second).read_bytes()
    assert sum(split.records for split in result.manifest.splits.values()) == 80, "none was left out"
    again = tpufeed.shard(doubled, tmp_path / "d", splits=SHARES, workers=1)
    assert (again.seconds, again.duplicates) == (0, found)
    assert of_val in again.warnings


def test_members_of_tars_and_rows_of_tables(doubled, tmp_path):
    files = sorted(doubled.rglob("*.png"))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, path in enumerate(files):
            tar.add(path, f"{number:03d}.png")
    tpufeed.shard(tmp_path / "a.tar", tmp_path / "tar", workers=1)
    assert len(report_of(tmp_path / "tar")) == 20
    lines = "\n".join(json.dumps({"path": str(path), "label": path.parent.name}) for path in files)
    (tmp_path / "t.jsonl").write_text(lines)
    result = tpufeed.shard(tmp_path / "t.jsonl", tmp_path / "table", splits=SHARES, workers=1)
    assert len(report_of(tmp_path / "table")) == 20
    assert any("images of val are in train as well" in said for said in result.warnings)


def test_an_append_tells_what_the_dataset_has_under_other_names(doubled, tmp_path):
    first = tmp_path / "first"
    shutil.copytree(doubled, first, ignore=shutil.ignore_patterns("copy*"))
    tpufeed.shard(first, tmp_path / "d", workers=1)
    second = tmp_path / "second"
    shutil.copytree(doubled, second, ignore=shutil.ignore_patterns("[0-9]*"))
    result = tpufeed.append(second, tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (20, 0)
    groups = report_of(tmp_path / "d/part-00002")
    assert len(groups) == 20
    assert any("different labels" in said for said in result.warnings)


def test_digests_are_those_of_the_source_files(doubled, tmp_path):
    (doubled / "cat/gone.png").symlink_to(doubled / "nowhere.png")
    tpufeed.shard(doubled, tmp_path / "d", images=tpufeed.Images(encode="jpeg"), workers=1)
    store = LocalStore(str(tmp_path / "d"))
    plan = read_plan(store)
    inputs = [item for task in iter_tasks(store, plan) for item in task.inputs]
    fates, digests = read_digests(store, len(inputs))
    assert digests.shape == (len(inputs), 16)
    for item, fate, digest in zip(inputs, fates, digests, strict=True):
        path = doubled / item.path
        assert fate == path.exists()
        assert digest.tobytes().hex() == (blake2b(path) if path.exists() else "0" * 32)


def test_reports_of_an_older_tpufeed_have_no_digests(doubled, tmp_path, caplog):
    url = tmp_path / "d"
    before = tpufeed.shard(doubled, url, workers=1)
    store = LocalStore(str(url))
    plan = read_plan(store)
    report = Destination(store).read_report(plan.tasks[0], plan.header.run_id)
    for name in ("manifest.json", DIGESTS, DUPLICATES, report_name(0)):
        (url / name).unlink()
    owner = Owner(plan.header.run_id, store.stat(PLAN).version)
    Destination(store, owner).put_report(msgspec.structs.replace(report, digests=msgspec.UNSET))
    again = tpufeed.shard(doubled, url, workers=1)
    assert (again.duplicates, again.earlier_images) == (None, 80)
    assert "duplicates are not counted" in caplog.text
    assert again.manifest.content_digest == before.manifest.content_digest
    assert not (url / DIGESTS).exists()
    assert not (url / DUPLICATES).exists()


@pytest.mark.all
def test_a_build_that_was_killed_reports_the_same(doubled, command, bytes_of, tmp_path):
    flags = ["--shards", 8, "--splits", SHARES, "--workers", 1]
    whole = command(doubled, flags).run_here(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    killed = command(doubled, flags)
    killed.order("os.link", "/reports/", "kill_group()", nth=3)
    killed.run_killed(tmp_path / "d")
    again = command(doubled, flags).run_here(tmp_path / "d")
    assert again.returncode == 0, again.stderr
    assert bytes_of(tmp_path / "d") == bytes_of(tmp_path / "whole")
    for name in (DIGESTS, DUPLICATES):
        assert (tmp_path / "d" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_copies_of_an_image_that_is_rejected_are_neither_taken_nor_doubles(tmp_path):
    make_photos(tmp_path / "photos", 3)
    for name in ("bad1.png", "bad2.png", "bad3.png"):
        (tmp_path / "photos" / name).write_bytes(b"no image")
    result = tpufeed.shard(tmp_path / "photos", tmp_path / "d", workers=1)
    assert (result.images, result.rejects, result.duplicates) == (3, 3, None)
    again = tpufeed.append(tmp_path / "photos", tmp_path / "d", workers=1)
    assert (again.added, again.skipped) == (0, 3)
    assert any(said.startswith("3 inputs are left out") for said in again.warnings)
    for path in (tmp_path / "photos").iterdir():
        if path.name != "bad1.png" and path.name.startswith("bad"):  # now it is an image
            shutil.copy(make_photos(tmp_path / path.name, 5)[4], path)
    assert tpufeed.append(tmp_path / "photos", tmp_path / "d", workers=1).added == 2


def test_one_file_in_several_rows_is_no_duplicate_unless_it_is_in_two_splits(doubled, tmp_path):
    rows = [f"{doubled}/dog/{number:02d}.png,{part}\n" for number in (21, 23) for part in ("train", "train")]
    (tmp_path / "t.csv").write_text("path,part\n" + "".join(rows))
    result = tpufeed.shard(tmp_path / "t.csv", tmp_path / "d", split_by="part", workers=1)
    assert (result.listed.listed_twice, result.duplicates) == (2, None)
    (tmp_path / "t.csv").write_text("path,part\n" + "".join([*rows, rows[0].replace("train", "val")]))
    result = tpufeed.shard(tmp_path / "t.csv", tmp_path / "e", split_by="part", workers=1)
    assert result.duplicates.crossing == {"val": Overlap(1, 1, ("train",))}
    assert any("1 of 1 images of val is in train as well" in said for said in result.warnings)


def test_names_and_paths_that_are_odd(tmp_path):
    (first,) = make_photos(tmp_path / "s/a", 1)
    for name in ("it's.png", 'say "so".png', "猫\n.png", "%s?.png"):
        shutil.copy(first, tmp_path / "s/a" / name)
    result = tpufeed.shard(tmp_path / "s", tmp_path / "d", workers=1)
    assert (result.images, result.duplicates.images) == (5, 4)
    (group,) = report_of(tmp_path / "d")
    assert {image["path"] for image in group["images"]} == {f"a/{path.name}" for path in (tmp_path / "s/a").iterdir()}


@pytest.mark.all
def test_images_of_coco_and_in_a_bucket(doubled, tmp_path, monkeypatch):
    files = [sorted((doubled / "cat").glob("*.png"))[0]] * 2 + sorted((doubled / "dog").glob("0*.png"))[:3]
    root = tmp_path / "raw"
    (root / "coco/annotations").mkdir(parents=True)
    (root / "coco/val2017").mkdir()
    for number, path in enumerate(files):
        shutil.copy(path, root / f"coco/val2017/{number}.png")
    images = [{"id": number, "file_name": f"{number}.png"} for number in range(len(files))]
    content = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    (root / "coco/annotations/instances_val2017.json").write_text(json.dumps(content))
    with tarfile.open(root / "a.tar", "w") as tar:
        for number, path in enumerate(files):
            tar.add(path, f"{number}.png")
    with GcsServer(["raw"], process=True) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for path in (path for path in root.rglob("*") if path.is_file()):
            server.put("raw", path.relative_to(root).as_posix(), path.read_bytes())
        for number, source in enumerate(("coco/annotations/instances_val2017.json", "coco/val2017", "a.tar")):
            dst = f"gs://raw/out-{number}"
            result = tpufeed.shard(f"gs://raw/{source}", dst, workers=1)
            assert (result.images, result.duplicates.images) == (5, 1), source
            assert result.duplicates.report == f"{dst}/{DUPLICATES}"
            again = tpufeed.shard(f"gs://raw/{source}", dst, workers=1)
            assert (again.seconds, again.duplicates) == (0, result.duplicates)


def test_the_report_is_written_block_by_block(doubled, tmp_path, monkeypatch):
    """It is the same with room for the names of a few images at once, or of fewer than a group has."""
    whole = tpufeed.shard(doubled, tmp_path / "whole", splits=SHARES, workers=1)
    for most in (6, 1):
        monkeypatch.setattr("tpufeed.builds.digests._IMAGES_AT_ONCE", most)
        result = tpufeed.shard(doubled, tmp_path / f"d{most}", splits=SHARES, workers=1)
        assert report_of(tmp_path / f"d{most}") == report_of(tmp_path / "whole")
        assert result.duplicates.crossing == whole.duplicates.crossing


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.integers(0, 40),
)
def test_groups_are_those_of_equal_digests_with_a_new_one(numbers, first_new):
    """Number 0 stands for a file that was not read."""
    digests = np.zeros((len(numbers), 16), np.uint8)
    digests[:, 11] = numbers
    places, starts = group_equal(digests, first_new)
    groups = [each.tolist() for each in np.split(places, starts[1:])] if len(starts) else []
    expected = [[place for place, one in enumerate(numbers) if one == number] for number in sorted(set(numbers) - {0})]
    assert sorted(groups) == sorted(group for group in expected if len(group) > 1 and group[-1] >= first_new)


@pytest.mark.all
def test_the_command(doubled, tmp_path):
    run = CliRunner().invoke
    words = ["shard", str(doubled), str(tmp_path / "d"), "--splits", SHARES, "--workers", "1"]
    done = run(app, words)
    assert done.exit_code == 0, done.output
    assert "of val are in train as well" in done.output.replace("\n", " ")
    assert "duplicates: 20 images more than once" in done.output
    found = json.loads(run(app, [*words, "--json"]).stdout)["duplicates"]
    assert (found["groups"], found["images"], found["labels"]) == (20, 20, 2)


@pytest.mark.parametrize(
    ("splits", "measured"),
    [
        ({"train": 4, "test": 12}, {"test"}),
        ({"train": 4, "val": 12, "test": 6}, {"val", "test"}),
        ({"training_set": 4, "test": 12}, {"test"}),
        ({"mine": 4, "holdout_test": 12}, {"holdout_test"}),
        ({"a": 4, "b": 12}, {"a"}),
    ],
)
def test_what_is_measured_is_what_is_not_trained_on(splits, measured, small_jpegs, tmp_path):
    """The split to train on may be the smaller one, if only few images have labels."""
    for split, count in splits.items():
        for number in range(count):
            path = tmp_path / "photos" / split / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(small_jpegs[number])
    result = tpufeed.shard(tmp_path / "photos", tmp_path / "d", split_by="folder", workers=1)
    assert result.duplicates.crossing.keys() == measured
    again = tpufeed.shard(tmp_path / "photos", tmp_path / "d", split_by="folder", workers=1)
    assert again.duplicates == result.duplicates
    said = " ".join(result.warnings)
    assert all((f"Results on {split} will be" in said) == (split in measured) for split in splits)
