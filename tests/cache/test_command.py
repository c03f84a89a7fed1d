"""`tpufeed cache warmup` and `python -m tpufeed.cache warmup`: the same flags and results, as text and as JSON."""

import json
import re
import shutil
from pathlib import Path

import pytest

import tpufeed
from tests.cli.conftest import run_here
from tests.sharding.previews import preview_warmup
from tpufeed.cache import warmup
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import OpError, TpufeedError
from tpufeed.images import CenterCrop, GaussianBlur, HorizontalFlip, RandomCrop, RandomResizedCrop, Resize
from tpufeed.images.description import to_dict
from tpufeed.storage.local import LocalStore

FLAGS = ["--size", "64", "--variants", "3", "--shard-size", "40KB"]
OPTIONS = {"size": 64, "variants": 3, "shard_bytes": "40KB"}


def run(*arguments):
    """`tpufeed cache warmup` in this process."""
    return run_here("cache", "warmup", *arguments)


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory):
    return warmup(source, tmp_path_factory.mktemp("command") / "cache", workers=1, **OPTIONS)


@pytest.mark.all
def test_the_command_does_what_the_function_does(source, undisturbed, bytes_of, tmp_path):
    done = run(source, tmp_path / "c", *FLAGS)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("warning: split ") for line in done.stderr.splitlines())
    assert re.search(r"^ *train +[0-9]+ +3 ", done.stdout, re.MULTILINE)
    assert bytes_of(tmp_path / "c") == bytes_of(undisturbed.url)
    for dry_run in ([], ["--dry-run"]):
        again = run(source, tmp_path / "c", *FLAGS, *dry_run)
        assert (again.returncode, again.stdout) == (0, f"{tmp_path}/c is complete already: nothing to do\n")


def test_every_flag_reaches_the_manifest(source, tmp_path):
    ops = ["Resize(40)", "RandomResizedCrop(size=24, scale=(0.3, 1.0))", "GaussianBlur(sigma=3)"]
    flags = ["--live", "RandomCrop(20)", "--live", "HorizontalFlip", "--variants", 2, "--encode", "webp"]
    flags += ["--quality", 70, "--seed", 9, "--shard-size", "30KB", "--max-rejects", "3%", "--workers", 1]
    for op in ops:
        flags += ["--op", op]
    keywords = {
        "ops": [Resize(40), RandomResizedCrop(24, scale=(0.3, 1.0)), GaussianBlur(sigma=3)],
        "live": [RandomCrop(20), HorizontalFlip()],
        "variants": 2,
        "encode": "webp",
        "quality": 70,
        "seed": 9,
        "shard_bytes": 30_000,
    }
    stored = {**keywords, **{name: [to_dict(op) for op in keywords[name]] for name in ("ops", "live")}}
    done = run(source, tmp_path / "cli", *flags)
    assert done.returncode == 0, done.stderr
    built = warmup(source, tmp_path / "api", workers=1, **keywords)
    manifest = open_dataset(tmp_path / "cli").manifest
    stored = json.loads(json.dumps(stored))
    assert {name: manifest.options[name] for name in stored} == stored
    assert manifest.cache == built.manifest.cache
    assert manifest.content_digest == built.manifest.content_digest
    assert (manifest.cache.encode, manifest.cache.seed, manifest.cache.variants) == ("webp", 9, 2)


def test_ways_out_on_the_command_line(source, tmp_path):
    assert run(source, tmp_path / "c", "--size", 24).returncode == 0
    refused = run(source, tmp_path / "c", "--size", 32)
    assert refused.returncode == 2
    assert re.fullmatch(
        r"error: .* already holds another cache: size of RandomResizedCrop \(ops, number 1\) is 24 there and 32 here "
        r"\(see.*--overwrite.*\n",
        refused.stderr,
    )
    assert run(source, tmp_path / "c", "--size", 32, "--overwrite", "--json").returncode == 0
    assert run(source, tmp_path / "c", "--size", 32, "--op", "Resize(3)").returncode == 2


def test_json_and_log_json(source, undisturbed, tmp_path):
    done = run(source, tmp_path / "c", *FLAGS, "--json", "--log-json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["images"] == undisturbed.images
    assert report["content_digest"] == undisturbed.manifest.content_digest
    assert report["splits"]["train"]["variants"] == 3
    assert report["stored"] == {"raw, augmented": 60}
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert {"progress", "done"} >= {event["event"] for event in events}
    assert events[-1] == {"event": "done", **report}
    refused = run(source, tmp_path / "c", "--size", 9, "--log-json")
    (event,) = map(json.loads, refused.stderr.splitlines())
    assert (refused.returncode, event["event"], event["type"]) == (2, "error", "DatasetExistsError")


def state_of(folder):
    return {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("encode", ["raw", "webp"])
def test_a_preview_changes_nothing_and_comes_near(encode, source, tmp_path):
    before = state_of(Path(source)), state_of(tmp_path)
    options = {"size": 48, "variants": 2, "encode": encode, "shard_bytes": "40KB"}
    foretold = preview_warmup(source, tmp_path / "c", workers=1, **options)
    assert (state_of(Path(source)), state_of(tmp_path)) == before
    done = warmup(source, tmp_path / "c", workers=1, **options)
    splits = done.manifest.splits
    assert {name: (split.inputs, split.shards) for name, split in foretold.splits.items()} == {
        name: (split.records, 2 * len(split.variants[0].shards)) for name, split in splits.items()
    }
    assert foretold.bytes == pytest.approx(done.bytes, rel=0.15)
    assert foretold.fingerprint == done.manifest.cache.fingerprint
    assert (foretold.variants, foretold.probed) == (2, 16)
    assert foretold.seconds > 0


def test_dry_run(source, undisturbed, tmp_path):
    before = state_of(tmp_path)
    done = run(source, tmp_path / "c", *FLAGS, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == len(undisturbed.warnings)
    assert done.stdout.endswith("nothing was changed\n")
    assert f"fingerprint: {undisturbed.manifest.cache.fingerprint}\n" in done.stdout
    foretold = json.loads(run(source, tmp_path / "c", *FLAGS, "--dry-run", "--json").stdout)
    assert foretold["bytes"] == pytest.approx(undisturbed.bytes, rel=0.1)
    assert {name: split["inputs"] for name, split in foretold["splits"].items()} == {"train": 50, "val": 10}
    assert run(source, tmp_path / "c", "--op", "HorizontalFlip", "--dry-run").returncode == 2
    assert state_of(tmp_path) == before


def test_a_preview_tries_the_ops(source, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with pytest.raises(OpError, match="augmentations:raises"):
        preview_warmup(source, tmp_path / "c", ops=[CenterCrop(9), tpufeed.images.Custom("augmentations:raises")])


@pytest.mark.parametrize(
    "way",
    ["dataset", "another cache", "beginnings", "file", "foreign file", "source", "budget", "two ways out", "room"],
)
def test_what_warmup_refuses_a_preview_refuses(way, source, undisturbed, monkeypatch, tmp_path):
    place, options = tmp_path / "c", {"size": 48}
    if way == "dataset":
        shutil.copytree(source, place)
    elif way in ("another cache", "beginnings", "two ways out"):
        shutil.copytree(undisturbed.url, place)
    elif way == "file":
        place.write_text("mine")
    elif way == "foreign file":
        place.mkdir()
        (place / "train-v0.index.npy").write_text("mine")
    elif way == "source":
        place.symlink_to(source)
    elif way == "room":
        monkeypatch.setattr(LocalStore, "free_bytes", lambda _: 10)
    if way == "beginnings":
        (place / "manifest.json").unlink()
    options |= {"budget": {"max_rejects": "abc"}}.get(way, {})
    before = state_of(tmp_path)
    with pytest.raises(TpufeedError) as foretold:
        preview_warmup(source, place, **options)
    assert state_of(tmp_path) == before
    with pytest.raises(foretold.type) as raised:
        warmup(source, place, workers=1, **options)
    assert (raised.type, str(raised.value)) == (foretold.type, str(foretold.value))


def test_a_run_that_goes_on_warns_again(photo_folder, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "source/all")
    first = tpufeed.shard(tmp_path / "source", tmp_path / "d", workers=1)
    (tmp_path / "d/manifest.json").unlink()  # as if it was killed just before
    again = tpufeed.shard(tmp_path / "source", tmp_path / "d", workers=1)
    assert again.earlier_images == again.images
    assert again.warnings == first.warnings
    assert any("all images are in one folder" in warning for warning in again.warnings)


def test_a_preview_of_what_stands_or_goes(source, undisturbed, tmp_path):
    shutil.copytree(undisturbed.url, tmp_path / "c")
    before = state_of(tmp_path)
    fingerprint = undisturbed.manifest.cache.fingerprint
    assert preview_warmup(source, tmp_path / "c", **OPTIONS).fingerprint == fingerprint
    assert preview_warmup(source, tmp_path / "c", size=48, overwrite=True).variants == 1
    assert state_of(tmp_path) == before
