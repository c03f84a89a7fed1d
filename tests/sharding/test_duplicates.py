"""Images that are there twice: counted, named, dropped, or kept on one side of a split."""

import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tpufeed.cli.app import app
from tpufeed.dataset.naming import DIGESTS, DUPLICATES
from tpufeed.errors import OptionError, TooManyRejectsError

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


def names_of(url, split):
    examples = tpufeed.open_dataset(url).iter_examples(split)
    return [bytes(features["image/filename"].values[0]).decode() for features in examples]


def report_of(url):
    return [json.loads(line) for line in (Path(url) / DUPLICATES).read_text().splitlines()]


def test_duplicates_are_counted_and_named_and_those_across_splits_warned_of(doubled, tmp_path):
    result = tpufeed.shard(doubled, tmp_path / "d", shares=SHARES, workers=1)
    groups = report_of(tmp_path / "d")
    assert len(groups) == 20
    crossing = [group for group in groups if len({image["split"] for image in group["images"]}) > 1]
    both, val = len(crossing), tpufeed.open_dataset(tmp_path / "d").split("val").records
    (of_val,) = [said for said in result.warnings if "in another split as well" in said]
    assert of_val.startswith(f"of {val} images of val {both} lie in another split as well, under other names")
    assert both > 3
    assert any("different labels: 2;" in said for said in result.warnings)
    for group in groups:
        first, second = (image["path"] for image in group["images"])
        assert (doubled / first).read_bytes() == (doubled / second).read_bytes()
    assert sum(split.records for split in result.manifest.splits.values()) == 80, "none was left out"


def test_keep_says_nothing_and_makes_the_same_bytes(doubled, tmp_path):
    result = tpufeed.shard(doubled, tmp_path / "kept", shares=SHARES, duplicates="keep", workers=1)
    assert not [said for said in result.warnings if "split as well" in said]
    assert not (tmp_path / "kept" / DUPLICATES).exists()
    tpufeed.shard(doubled, tmp_path / "told", shares=SHARES, workers=1)
    for name in ("train-00000-of-00001.tfrecord", "train.index.npy"):
        assert (tmp_path / "kept" / name).read_bytes() == (tmp_path / "told" / name).read_bytes()
    again = tpufeed.shard(doubled, tmp_path / "kept", shares=SHARES, workers=1)
    assert again.images == again.earlier_images, "how they are reported is no other dataset"


def test_drop_keeps_the_first_of_each_and_names_the_others(doubled, tmp_path, caplog):
    result = tpufeed.shard(doubled, tmp_path / "d", shares=SHARES, duplicates="drop", max_rejects=0, workers=1)
    assert result.manifest.rejects == {"duplicate": 20}
    assert "images are read before the build, to find duplicates among those of equal size" in caplog.text
    kept = names_of(tmp_path / "d", "train") + names_of(tmp_path / "d", "val")
    assert len(kept) == 60
    assert len({(doubled / name).read_bytes() for name in kept}) == 60
    rejects = [json.loads(line) for line in (tmp_path / "d/rejects.jsonl").read_text().splitlines()]
    assert len(rejects) == 20
    for reject in rejects:
        first = reject["message"].removeprefix("its file has the same bytes as ")
        assert first < reject["path"]
        assert (doubled / first).read_bytes() == (doubled / reject["path"]).read_bytes()
    assert not report_of(tmp_path / "d") if (tmp_path / "d" / DUPLICATES).exists() else True
    caplog.clear()
    again = tpufeed.shard(doubled, tmp_path / "d", shares=SHARES, duplicates="drop", workers=1)
    assert again.images == again.earlier_images
    assert "images are read" not in caplog.text, "a finished build is recognised without reading"


def test_other_rejects_still_count(doubled, tmp_path):
    (doubled / "cat/bad.png").write_bytes(b"no image")
    with pytest.raises(TooManyRejectsError, match="1 of 81 inputs cannot be taken"):
        tpufeed.shard(doubled, tmp_path / "d", shares=SHARES, duplicates="drop", max_rejects=0, workers=1)


def test_split_by_content_keeps_equal_images_in_one_split(doubled, tmp_path):
    result = tpufeed.shard(doubled, tmp_path / "d", shares=SHARES, split_by_content=True, workers=1)
    assert not [said for said in result.warnings if "in another split as well" in said]
    content = Counter()
    for split in ("train", "val"):
        for data in {(doubled / name).read_bytes() for name in names_of(tmp_path / "d", split)}:
            content[data] += 1
    assert set(content.values()) == {1}
    assert 8 <= tpufeed.open_dataset(tmp_path / "d").split("val").records <= 40
    with pytest.raises(OptionError, match="split_by_content deals images to splits by shares"):
        tpufeed.shard(doubled, tmp_path / "e", split_by_content=True)
    with pytest.raises(OptionError, match="duplicates is 'keep', 'report' or 'drop', not 'remove'"):
        tpufeed.shard(doubled, tmp_path / "e", duplicates="remove")


def test_members_of_tars_and_rows_of_tables(doubled, tmp_path):
    files = sorted(doubled.rglob("*.png"))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, path in enumerate(files):
            tar.add(path, f"{number:03d}.png")
    tpufeed.shard(tmp_path / "a.tar", tmp_path / "tar", duplicates="drop", workers=1)
    assert tpufeed.open_dataset(tmp_path / "tar").split("train").records == 60
    lines = "\n".join(json.dumps({"path": str(path), "label": path.parent.name}) for path in files)
    (tmp_path / "t.jsonl").write_text(lines)
    result = tpufeed.shard(tmp_path / "t.jsonl", tmp_path / "table", shares=SHARES, workers=1)
    assert len(report_of(tmp_path / "table")) == 20
    assert any("in another split as well" in said for said in result.warnings)


def test_an_append_tells_what_the_dataset_has_under_other_names(doubled, tmp_path):
    first = tmp_path / "first"
    shutil.copytree(doubled, first, ignore=shutil.ignore_patterns("copy*"))
    tpufeed.shard(first, tmp_path / "d", workers=1)
    shutil.copytree(tmp_path / "d", tmp_path / "e")
    second = tmp_path / "second"
    shutil.copytree(doubled, second, ignore=shutil.ignore_patterns("[0-9]*"))
    result = tpufeed.append(second, tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (20, 0)
    groups = report_of(tmp_path / "d/part-00002")
    assert len(groups) == 20
    assert {image["part"] for group in groups for image in group["images"]} == {"", "part-00002"} or len(groups) == 20
    assert any("with different labels" in said for said in result.warnings)
    result = tpufeed.append(second, tmp_path / "e", duplicates="drop", workers=1)
    assert result.added == 0


def test_a_build_without_digests_reports_nothing(doubled, tmp_path):
    tpufeed.shard(doubled, tmp_path / "d", workers=1)
    assert (tmp_path / "d" / DIGESTS).stat().st_size == 80 * 16


def test_the_command(doubled, tmp_path):
    run = CliRunner().invoke
    words = ["shard", str(doubled), str(tmp_path / "d"), "--shares", SHARES, "--workers", "1"]
    preview = run(app, [*words, "--duplicates", "drop", "--dry-run"])
    assert "images of equal size are read before the build, to find duplicates" in preview.output
    assert run(app, [*words, "--split-by-content", "--dry-run"]).output.count("all 80 images are read before") == 1
    done = run(app, words)
    assert done.exit_code == 0, done.output
    assert "lie in another split as well" in done.output.replace("\n", " ")
    assert run(app, [*words, "--duplicates", "some"]).exit_code == 2
