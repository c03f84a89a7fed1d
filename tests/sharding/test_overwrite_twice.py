"""Two builds in one place, one of them with --overwrite, stepped against each other at every call to the store."""

import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tpufeed
from tests.gcs_server import GcsServer
from tests.sharding.other_versions import OtherVersions
from tpufeed.cli.app import app
from tpufeed.errors import BuildError, DuplicateWriterError
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.local import LocalStore
from tpufeed.storage.store import open_store

OPTIONS = {"workers": 1, "shard_bytes": "40KB"}
CALLS = ("put", "put_file", "delete")


class Killed(BaseException):
    """Passes each `except Exception`."""


class Steps:
    """Counts the calls that change a store, in the thread that is watched; at one of them something happens."""

    def __init__(self, monkeypatch, kind):
        self.thread, self.count, self.at, self.do = None, 0, 0, lambda: None
        self.kinds = []
        for name in CALLS:
            monkeypatch.setattr(kind, name, self._wrap(getattr(kind, name)))

    def _wrap(self, call):
        def step(store, *args, **kwargs):
            if threading.current_thread() is self.thread:
                self.count += 1
                self.kinds.append((call.__name__.removesuffix("_file"), re.sub(r"[0-9a-f]{6,}|\d+", "#", args[0])))
                if self.count == self.at:
                    self.thread = None
                    self.do()
                    self.thread = threading.current_thread()
            return call(store, *args, **kwargs)

        return step

    def run(self, build, at=0, do=lambda: None):
        """`build`, with `do` just before its change number `at`; the result or what it raised, and all changes."""
        self.thread, self.count, self.at, self.do = threading.current_thread(), 0, at, do
        self.kinds = []
        try:
            return build(), self.count
        except (BuildError, DuplicateWriterError, Killed) as error:
            return error, self.count
        finally:
            self.thread = None

    def moments(self, build, every):
        """The steps of `build`: all of them, or the last of each kind of call and object."""
        _, changes = self.run(build)
        return range(1, changes + 1) if every else sorted({kind: at for at, kind in enumerate(self.kinds, 1)}.values())


# In ordinary runs a step of each kind, in the long ones every step.
each_step = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["kinds", "all"])


def kill():
    raise Killed


@pytest.fixture(scope="module")
def few(photo_folder, tmp_path_factory):
    """A source that makes two shards."""
    folder = tmp_path_factory.mktemp("few") / "photos"
    for path in sorted(photo_folder.glob("*/*.jpg"))[::15]:
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        os.link(path, folder / path.parent.name / path.name)
    return folder


@pytest.fixture
def place(where, tmp_path, monkeypatch):
    """`(steps, fresh)`: `fresh()` is the URL of an empty place each time."""
    kind, numbers = {"local": LocalStore, "gs": GcsStore}[where], iter(range(1000))
    if where == "local":
        yield Steps(monkeypatch, kind), lambda: str(tmp_path / f"d{next(numbers)}")
        return
    with GcsServer(md5=False) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        yield Steps(monkeypatch, kind), lambda: f"gs://bucket/d{next(numbers)}"


def copy(source, url):
    """Put the objects of one place into another; return the URL of that."""
    there, here = open_store(source), open_store(url)
    for info in there.iter_objects():
        here.put(info.name, there.read(info.name))
    return url


def is_clean(url, images):
    """Check that the dataset is whole and of its plan, and that there is nothing else but reports."""
    store = tpufeed.open_dataset(url).store
    manifest, names = json.loads(store.read("manifest.json")), {info.name for info in store.iter_objects()}
    files = {file["name"] for s in manifest["splits"].values() for v in s["variants"] for file in v["shards"]}
    assert json.loads(store.read("_tpufeed/plan.jsonl").splitlines()[0])["run_id"] == manifest["run_id"]
    assert {name for name in names if name.endswith(".tfrecord")} == files
    assert not [name for name in names if "removals" in name or "probe" in name]
    assert tpufeed.verify(url).records == images
    return True


@pytest.mark.all
@each_step
@pytest.mark.parametrize(("where", "other"), [("local", "the same"), ("gs", "other options")])
def test_a_build_that_is_overwritten_at_any_step_publishes_nothing_and_breaks_nothing(other, every, few, place):
    """The first is at work, and the second runs from its start to its end within one of the first one's steps."""
    steps, fresh = place
    seed = 0 if other == "the same" else 1

    def first(url):
        return lambda: tpufeed.shard(few, url, overwrite=True, **OPTIONS)

    def second(url):
        return lambda: tpufeed.shard(few, url, overwrite=True, seed=seed, **OPTIONS)

    moments = steps.moments(first(fresh()), every)
    lost = 0
    for at in moments:
        url = fresh()
        result, _ = steps.run(first(url), at, second(url))
        if isinstance(result, BuildError):
            assert "another run with --overwrite has replaced this build. Nothing of it was published" in str(result)
            lost += 1
        else:
            assert isinstance(result, DuplicateWriterError) == (seed == 1), (at, result)
        assert tpufeed.open_dataset(url).manifest.options["seed"] == seed
        assert is_clean(url, 6), at
    assert lost > len(moments) // 2


@pytest.mark.all
@each_step
@pytest.mark.parametrize(("where", "again"), [("gs", "with --overwrite"), ("local", "without")])
def test_an_overwrite_that_is_killed_at_any_step_goes_on(again, every, few, place):
    steps, fresh = place

    def build(url, **more):
        return lambda: tpufeed.shard(few, url, overwrite=True, **OPTIONS, **more)

    old = fresh()
    build(old, seed=1)()
    moments = steps.moments(build(copy(old, fresh())), every)
    taken = 0
    for at in moments:
        url = copy(old, fresh())
        result, _ = steps.run(build(url), at, kill)
        assert isinstance(result, Killed)
        try:
            done = tpufeed.shard(few, url, overwrite=again != "without", **OPTIONS)
        except DuplicateWriterError:
            assert again == "without"
            assert tpufeed.open_dataset(url).manifest.options["seed"] == 1
            assert tpufeed.verify(url).records == 6, "the old dataset is whole until the place is taken"
            continue
        taken += 1
        assert done.manifest.options["seed"] == 0
        assert is_clean(url, 6), at
    assert taken > len(moments) // 2


@pytest.mark.all
@each_step
@pytest.mark.parametrize("where", ["local", pytest.param("gs", marks=pytest.mark.long)])
def test_one_of_two_overwrites_is_killed_while_the_other_is_at_work(every, few, place):
    """There is never a manifest over shards that are gone; the killed command can be repeated."""
    steps, fresh = place

    def build(url, seed):
        return lambda: tpufeed.shard(few, url, overwrite=True, seed=seed, **OPTIONS)

    old = fresh()
    build(old, 1)()
    moments = steps.moments(build(copy(old, fresh()), 0), every)
    kills = []
    for at in moments:
        url = copy(old, fresh())

        def rival(url=url, at=at):
            steps.thread, steps.count, steps.at, steps.do = threading.current_thread(), 0, at, kill
            try:
                build(url, 0)()
            except Killed:
                kills.append(at)
            finally:
                steps.thread, steps.at = None, 0

        result, _ = steps.run(build(url, 2), 5, rival)
        if not isinstance(result, Exception):
            assert tpufeed.verify(url).records == 6
        build(url, 0)()
        assert is_clean(url, 6), at
    assert len(kills) > len(moments) // 2


@pytest.mark.parametrize("words", [["shard"], ["cache", "warmup", "--size", "32"]], ids=["shard", "warmup"])
def test_with_fsync_all_files_are_on_the_disk_before_the_manifest(words, few, tmp_path, monkeypatch):
    source = few
    if words != ["shard"]:
        source = tpufeed.shard(few, tmp_path / "source", workers=1).url
    synced, fsync, link = set(), os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.add(os.fstat(fd).st_ino), fsync(fd))[1])
    lacking = []

    def note(src, dst, **more):
        if Path(dst).name == "manifest.json":
            files = [*(tmp_path / "d").glob("*.*"), *(tmp_path / "d/_tpufeed").rglob("*.json*"), Path(src)]
            lacking.extend(path.name for path in files if path.stat().st_ino not in synced)
            assert {path.suffix for path in files} >= {".tfrecord", ".npy"}
            lacking.append("manifest")
        link(src, dst, **more)

    monkeypatch.setattr(os, "link", note)
    done = CliRunner().invoke(app, [*words, str(source), str(tmp_path / "d"), "--fsync", "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert lacking == ["manifest"]


def test_files_follow_the_umask(few, tmp_path):
    before = os.umask(0o027)
    try:
        tpufeed.shard(few, tmp_path / "d", **OPTIONS)
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "d").glob("*.*")} == {"0o640"}


@pytest.mark.parametrize("name", ["train-00000-of-00002.tfrecord", "train.index.npy"])
def test_a_manifest_over_empty_files_is_not_complete(name, few, tmp_path):
    """A power cut leaves such files if they were never written to the disk."""
    tpufeed.shard(few, tmp_path / "d", **OPTIONS)
    path = tmp_path / "d" / name
    stored = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(tpufeed.errors.DatasetDamagedError, match=rf"{name}.*tpufeed shard .* \(makes {name}\)"):
        tpufeed.verify(tmp_path / "d")
    tpufeed.shard(few, tmp_path / "d", **OPTIONS)
    assert path.read_bytes() == stored


@pytest.mark.all
def test_who_loses_to_another_overwrite_is_told_so(few, tmp_path, monkeypatch):
    steps = Steps(monkeypatch, LocalStore)

    def build(seed):
        return tpufeed.shard(few, tmp_path / "d", overwrite=True, seed=seed, **OPTIONS)

    build(1)
    _, changes = steps.run(lambda: build(2))
    for at in range(1, changes, 3):
        error, _ = steps.run(lambda: build(2), at, lambda: build(3))
        assert isinstance(error, BuildError), at
        assert "another run with --overwrite" in str(error)
        assert "say --overwrite" not in str(error)
        assert tpufeed.open_dataset(tmp_path / "d").manifest.options["seed"] == 3
        assert tpufeed.verify(tmp_path / "d").records == 6


@pytest.mark.parametrize("versions", ["quoted", "bare", "none"])
def test_overwrite_where_versions_follow_from_the_content_or_are_none(versions, few, tmp_path, monkeypatch):
    monkeypatch.setattr(OtherVersions, "versions", versions)
    broken = tmp_path / "photos"
    shutil.copytree(few, broken)
    next(broken.rglob("*.jpg")).write_bytes(b"no image")
    url = f"otherversions://{versions}/d"
    for _ in range(2):
        built = tpufeed.shard(broken, url, overwrite=True, **OPTIONS)
        assert (built.images, built.earlier_images, built.rejects) == (5, 0, 1)
        store = open_store(url)
        assert {info.name for info in store.iter_objects()} >= {"manifest.json", "rejects.jsonl", "train.index.npy"}
        assert tpufeed.verify(url).records == 5
        assert tpufeed.shard(broken, url, **OPTIONS).earlier_images == 5
