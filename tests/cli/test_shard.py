"""What `tpufeed shard` prints, for people and for programs, and that each of its options reaches the build."""

import csv
import json
import re
import shutil

import pytest
import typer

from tpufeed.builds.plan import read_plan
from tpufeed.cli.app import app
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.reader import open_dataset
from tpufeed.storage.store import open_store

SMALL = ["--shard-size", "60KB", "--splits", "train=0.7,val=0.3"]


def events_of(stderr):
    """Of a command with --log-json: every line is an event."""
    events = [json.loads(line) for line in stderr.splitlines()]
    assert all(event["event"] in ("progress", "warning", "done", "error", "interrupted") for event in events)
    return events


def facts_of(manifest: Manifest):
    shards = [shard for split in manifest.splits.values() for variant in split.variants for shard in variant.shards]
    return {"images": sum(shard.records for shard in shards), "bytes": sum(shard.bytes for shard in shards)}


@pytest.fixture(scope="session")
def flawed_folder(photo_folder, tmp_path_factory):
    """30 files, two of which are no images."""
    folder = tmp_path_factory.mktemp("cli") / "flawed"
    shutil.copytree(photo_folder, folder)
    bad = sorted(folder.glob("*/*.jpg"))[4:20:12]
    bad[0].write_bytes(bad[0].read_bytes()[:5000])
    bad[1].write_text("no photograph")
    return folder


def test_json_and_log_json_keep_to_their_streams(run, flawed_folder, tmp_path):
    done = run("shard", flawed_folder, tmp_path / "d", *SMALL, "--json", "--log-json", "--hosts", 2)
    assert done.returncode == 0, done.stderr
    report, manifest = json.loads(done.stdout), open_dataset(tmp_path / "d").manifest
    assert report["url"] == str(tmp_path / "d")
    assert report["content_digest"] == manifest.content_digest
    assert facts_of(manifest) == {"images": 28, "bytes": report["bytes"]}
    assert (report["images"], report["earlier_images"], report["classes"]) == (28, 0, 3)
    assert report["rejects"] == {"not_an_image": 1, "truncated": 1}
    for name, split in manifest.splits.items():
        assert report["splits"][name]["images"] == split.records
        assert report["splits"][name]["shards"] == len(split.variants[0].shards)
    assert report["seconds"] > 0
    assert report["images_per_second"] == pytest.approx(28 / report["seconds"])
    *progress, last = events_of(done.stderr)
    assert {event["event"] for event in progress} == {"progress"}
    assert all(event["total_images"] == 30 for event in progress)
    assert {"images", "bytes", "rejects", "images_per_second", "mb_per_second", "eta_seconds"} <= set(progress[0])
    assert last == {"event": "done", **report}


def test_json_alone_leaves_warnings_to_stderr(run, photo_folder, tmp_path):
    done = run("shard", photo_folder, tmp_path / "d", "--shard-size", "25KB", "--hosts", 64, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, len(report["warnings"])) == (0, 1), done.stderr
    assert done.stderr == "".join(f"warning: {warning}\n" for warning in report["warnings"])
    assert report["warnings"] == [
        "split train has fewer shards (30) than hosts (64): some hosts read nothing. Add images"
    ]


def test_shards_that_are_too_small_are_warned_of(run, photo_folder, tmp_path):
    done = run("shard", photo_folder, tmp_path / "d", *SMALL)
    assert done.returncode == 0
    said = [
        line for line in done.stderr.splitlines() if re.match(r"warning: split (train|val) has \d+ shards of", line)
    ]
    assert len(said) == len(done.stderr.splitlines()) == 2  # no progress where there is no terminal
    assert all(
        line.endswith("less than 10 MB. Fewer and larger ones are read faster: --shard-size 128MB") for line in said
    )


def test_what_becomes_of_a_table_s_columns_is_said(run, photo_folder, tmp_path):
    rows = [[path, path.parent.name, n / 2] for n, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))[:9])]
    rows[7][2] = "tall"
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "species", "height_cm", "note"], *([*row, row[2]] for row in rows)])
        csv.writer(file).writerow([rows[0][0], "cat", "", 3])
    warnings = [
        "warning: no labels: none of the columns species, height_cm, note is called label, class or the like. "
        "Pass --label COLUMN or --label none",
        "warning: height_cm is text: row 8 says 'tall'; 8 of 9 are numbers",
        "warning: note is text: row 8 says 'tall'; 9 of 10 are numbers",
    ]
    for dry_run in (["--dry-run"], []):
        done = run("shard", tmp_path / "t.csv", tmp_path / "d", *dry_run)
        assert done.stderr.splitlines() == warnings
        assert "\ncolumns: species string, height_cm string[0 to 1], note string\n" in done.stdout


def test_a_run_again_says_that_there_is_nothing_to_do(run, photo_folder, dataset_url):
    done = run("shard", photo_folder, dataset_url, *SMALL, "--json", "--log-json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["images"], report["earlier_images"]) == (0, 30, 30)
    assert report["images_per_second"] is None
    (event,) = events_of(done.stderr)
    assert event == {"event": "done", **report}
    for dry_run in ([], ["--dry-run"]):
        said = run("shard", photo_folder, dataset_url, *SMALL, *dry_run).stdout
        assert said == f"{dataset_url} is complete already: nothing to do\n"


def contents_of(folder):
    """By path: what a write changes, which the time of the last access is not."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.mark.parametrize("flags", [[], ["--presize", 64]], ids=["keep", "presize"])
def test_dry_run_tells_the_truth_and_changes_nothing(flags, run, flawed_folder, tmp_path):
    source = contents_of(flawed_folder)
    said = run("shard", flawed_folder, tmp_path / "d", *SMALL, *flags, "--dry-run", "--json")
    assert (said.returncode, said.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    assert contents_of(flawed_folder) == source
    foretold = json.loads(said.stdout)
    assert foretold["free_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert foretold["source_bytes"] == sum(path.stat().st_size for path in flawed_folder.rglob("*.jpg"))
    assert (foretold["classes"], foretold["probed"], foretold["probed_rejects"]) == (3, 30, 2)
    built = run("shard", flawed_folder, tmp_path / "d", *SMALL, *flags, "--json")
    assert built.returncode == 0
    report = json.loads(built.stdout)
    assert sum(split["inputs"] for split in foretold["splits"].values()) == report["images"] + 2
    for name, split in foretold["splits"].items():
        assert split["shards"] == report["splits"][name]["shards"]
    assert sum(split["bytes"] for split in foretold["splits"].values()) == pytest.approx(report["bytes"], rel=0.1)


def test_dry_run_for_people(run, flawed_folder, tmp_path):
    done = run("shard", flawed_folder, tmp_path / "d", *SMALL, "--dry-run")
    assert done.returncode == 0
    assert re.search(r"^disk: 0\.[34] MB needed, [\d,.]+ MB free$", done.stdout, re.MULTILINE)
    assert "tried: 30 images, of which 2 would be rejected" in done.stdout
    assert re.search(r"^time: about \d+ s$", done.stdout, re.MULTILINE)
    assert "nothing was changed" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_an_event_and_an_exit_code(run, flawed_folder, tmp_path):
    """2: what was asked for cannot be; 1: it did not work out."""
    for code, kind, flags in (
        (2, "OptionError", ["--quality", 0]),
        (2, "OptionError", ["--policy", "alpha"]),
        (2, "OptionError", ["--dry-run", "--workers", 0]),
        (1, "TooManyRejectsError", ["--max-rejects", "1"]),
    ):
        done = run("shard", flawed_folder, tmp_path / "d", *flags, "--json", "--log-json")
        assert (done.returncode, done.stdout) == (code, ""), flags
        *progress, error = events_of(done.stderr)
        assert {event["event"] for event in progress} <= {"progress"}
        assert (error["event"], error["type"]) == ("error", kind)
        assert error["message"]
    assert "1 not_an_image, 1 truncated" in error["message"]
    assert (tmp_path / "d/rejects.jsonl").exists()


OPTIONS = {
    "--shards": (4, {"shards": 4}),
    "--hosts": (2, {"hosts": 2}),
    "--names": ("kaggle", {"names": "kaggle"}),
    "--split-by": ("part", {"split_by": "part"}),
    "--image": ("file", {"image": "file"}),
    "--label": ("kind", {"label": "kind"}),
    "--classes": ("CLASSES", {"classes": ["coffee", "cat", "astronaut"]}),
    "--seed": (3, {"seed": 3}),
    "--check": ("header", {"check": "header"}),
    "--encode": ("webp", {"encode": "webp"}),
    "--progressive": ("keep", {"progressive": "keep"}),
    "--quality": (77, {"quality": 77}),
    "--presize": (64, {"presize": 64}),
    "--presize-mode": ("fit", {"presize_mode": "fit"}),
    "--max-pixels": (10**6, {"max_pixels": 10**6}),
    "--min-side": (16, {"min_side": 16}),
    "--policy": ("alpha=black", {"alpha": "black"}),
    "--boxes-outside": ("drop", {"boxes_outside": "drop"}),
}
OF_OTHER_TESTS = {
    "--column",  # test_columns_shapes.py
    "--label-separator",  # test_understood.py
    "--split-with",  # sharding/test_groups.py
    *("--label-type", "--class-level", "--unlabelled", "--rename"),  # sharding/test_labels.py
    *("--image-column", "--masks"),  # test_pictures.py
    *("--boxes", "--box-format", "--keypoints", "--box-columns"),  # test_boxes.py
    "--texts",  # sources/test_texts.py
    *("--pixels", "--bands", "--georeference"),  # stream/test_page.py
    *("--frames", "--frame-stride"),  # sources/test_clips.py
    "--group-by",  # sources/test_table_boxes.py
    "--flip-pairs",  # stream/test_columns_flips.py
    "--outlines",  # test_outlines.py
    *("--append", "--allow-different"),  # test_append.py
    "--workers",
    "--engine",
    "--ray-address",
    "--max-rejects",
    "--overwrite",
    "--fsync",
    "--dry-run",
    "--json",
    "--log-json",
}


def test_every_option_reaches_the_build(run, photo_folder, dataset_url, tmp_path):
    with (tmp_path / "table.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "kind", "part"])
        for number, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))):
            rows.writerow([path, path.parent.name, ["train", "val"][number % 5 == 0]])
    (tmp_path / "classes.txt").write_text("coffee\ncat\nastronaut\n")
    flags = [word for name, (value, _) in OPTIONS.items() for word in (name, value)]
    flags[flags.index("CLASSES")] = tmp_path / "classes.txt"
    done = run("shard", tmp_path / "table.csv", tmp_path / "d", *flags)
    assert done.returncode == 0, done.stderr
    manifest = open_dataset(tmp_path / "d").manifest
    wanted = {key: value for _, options in OPTIONS.values() for key, value in options.items()}
    assert {key: manifest.options[key] for key in wanted} == wanted
    assert read_plan(open_store(tmp_path / "d")).header.options.items() >= wanted.items()
    assert {name: (split.records, len(split.variants[0].shards)) for name, split in manifest.splits.items()} == {
        "train": (24, 4),
        "val": (6, 2),
    }
    assert manifest.class_names == ("coffee", "cat", "astronaut")
    assert manifest.images == {"webp, encoded anew": 30}
    small = open_dataset(dataset_url).manifest.options
    assert (small["shard_bytes"], small["splits"]) == (60000, {"train": 0.7, "val": 0.3})
    command = typer.main.get_command(app).commands["shard"]
    there_are = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert there_are == {*OPTIONS, "--shard-size", "--splits", *OF_OTHER_TESTS}


def test_overwrite_replaces_another_build(run, photo_folder, tmp_path):
    folder = tmp_path / "d"
    assert run("shard", photo_folder, folder, *SMALL).returncode == 0
    before = open_dataset(folder)
    refused = run("shard", photo_folder, folder, *SMALL, "--seed", 1, "--log-json")
    assert refused.returncode == 2
    (error,) = events_of(refused.stderr)
    assert (error["event"], error["type"]) == ("error", "DuplicateWriterError")
    assert "seed is 0 there and 1 here" in error["message"]
    assert open_dataset(folder).manifest == before.manifest
    done = run("shard", photo_folder, folder, "--shards", 2, "--seed", 1, "--overwrite", "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.glob("*.tfrecord")) == [
        "train-00000-of-00002.tfrecord",
        "train-00001-of-00002.tfrecord",
    ]
    assert open_dataset(folder).manifest.options["seed"] == 1


def test_what_is_logged_is_an_event_too(run, photo_folder, dataset_url, tmp_path):
    """A damaged report is made again, with a warning."""
    shutil.copytree(dataset_url, tmp_path / "d")
    (tmp_path / "d/manifest.json").unlink()
    (tmp_path / "d/_tpufeed/reports/000001.json").write_bytes(b"{")
    done = run("shard", photo_folder, tmp_path / "d", *SMALL, "--log-json")
    assert done.returncode == 0, done.stderr
    warnings = [event for event in events_of(done.stderr) if event["event"] == "warning"]
    assert len(warnings) == 1
    assert "000001.json is damaged. Its task runs again" in warnings[0]["message"]
