"""The contract of engines: a class of tests that each engine's tests inherit, with a fixture `engine`.

Tasks are those of `engine_tasks`, by their full name, so that workers need only the repository on their path.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import tpufeed
from tpufeed import cache
from tpufeed.engines.choice import SerialEngine
from tpufeed.engines.engine import Done, Job, Progress
from tpufeed.errors import TaskError

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240  # a shared machine may stall for a minute
TASKS = "tests.engines.engine_tasks"
SHARD = {"shard_bytes": "30KB", "splits": "train=0.8,val=0.2"}
WARM = {"size": 32, "variants": 2, "shard_bytes": "40KB"}


@dataclass(frozen=True)
class NamedTask:
    name: str


def job(function, context):
    return Job(f"{TASKS}:{function}", str(context))


def total(events):
    progress = [event for event in events if isinstance(event, Progress)]
    return tuple(sum(column) for column in zip(*progress, strict=True))


def done(events):
    return sorted(event.number for event in events if isinstance(event, Done))


def bytes_of(folder):
    """Return the files that must be equal, by name: shards, indexes and rejects."""
    names = (".tfrecord", ".npy", "rejects.jsonl")
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name.endswith(names)}


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def is_running(pid):
    """Return false for a zombie: its new parent has yet to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def processes():
    """Yield the id of each process, the id of its parent, and whether it may be our child."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:  # gone in between
            continue
        yield int(folder.name), int(fields[1]), b"tpufeed.processes.child_main" in command or fields[0] == "Z"


def pids(folder):
    """Return the process ids that tasks of `run_for_ever` have written down."""
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


@dataclass(frozen=True)
class Built:
    """40 photographs of 5 kB, two of them broken; a dataset and a cache of them, made in this process."""

    photos: Path
    dataset: Path
    cache: Path


def build_serially(folder):
    """Make what the fixture `built` returns."""
    from tests.conftest import make_photos  # here, as workers that import this file have no repository

    photos, dataset, warm = folder / "photos", folder / "dataset", folder / "cache"
    make_photos(photos, 40, "96x72", 2)
    for photo in sorted(photos.rglob("*.jpg"))[7:9]:
        photo.write_bytes(photo.read_bytes()[:2000])
    tpufeed.shard(photos, dataset, engine=SerialEngine(), **SHARD)
    cache.warmup(dataset, warm, engine=SerialEngine(), **WARM)
    return Built(photos, dataset, warm)


class EngineContract:
    """Subclasses have a fixture `engine`."""

    def test_each_task_is_done_once_and_progress_adds_up(self, engine, tmp_path):
        tasks = list(range(7))
        events = list(engine.run(job("note", tmp_path), tasks))
        assert done(events) == tasks
        assert total(events) == (3 * 7, 15 * sum(tasks), 7)
        traces = {path.name: path.read_text().splitlines() for path in tmp_path.iterdir()}
        assert sorted(traces) == [f"task-{task}" for task in tasks]
        assert all(len(lines) == 1 for lines in traces.values())

    def test_no_tasks_are_no_events(self, engine, tmp_path):
        assert [event for event in engine.run(job("note", tmp_path), []) if isinstance(event, Done)] == []

    def test_a_failing_task_is_named_with_its_message(self, engine, tmp_path):
        with pytest.raises(TaskError, match=r"^3: .*fire"):
            list(engine.run(job("refuse_third", tmp_path), range(6)))

    def test_a_bug_in_a_task_is_shown_whole_and_the_task_called_by_its_name(self, engine, tmp_path):
        with pytest.raises(TaskError, match=r"(?s)^train-7: .*in divide_by_zero"):
            list(engine.run(job("divide_by_zero", tmp_path), [NamedTask("train-7")]))

    def test_leaving_early_leaves_tasks_undone(self, engine, tmp_path):
        events = engine.run(job("note_slowly", tmp_path), range(500))
        while not list(tmp_path.glob("task-*")):
            next(events)
        events.close()
        begun = len(list(tmp_path.glob("task-*")))
        assert 1 <= begun < 500
        assert list(SerialEngine().run(job("note", tmp_path), [])) == []
        assert len(list(tmp_path.glob("task-*"))) == begun

    def test_shard_makes_the_same_bytes(self, engine, built, tmp_path):
        heard = []
        result = tpufeed.shard(built.photos, tmp_path / "d", engine=engine, listener=heard.append, **SHARD)
        assert bytes_of(tmp_path / "d") == bytes_of(built.dataset)
        assert result.manifest.content_digest == tpufeed.open_dataset(built.dataset).content_digest
        assert (heard[-1].images, heard[-1].rejects) == (38, 2)

    def test_a_poisoned_task_fails_the_build_and_another_engine_goes_on(self, engine, built, tmp_path):
        source = tmp_path / "dataset"
        source.mkdir()
        for path in built.dataset.iterdir():
            if path.is_file():
                (source / path.name).write_bytes(path.read_bytes())
        poisoned = sorted(source.glob("train-*.tfrecord"))[-1]
        sound = poisoned.read_bytes()
        poisoned.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
        with pytest.raises(TaskError, match=f"^train-v0-.*{poisoned.name}"):
            cache.warmup(source, tmp_path / "c", engine=engine, **WARM)
        assert not (tmp_path / "c/manifest.json").exists()
        poisoned.write_bytes(sound)
        cache.warmup(source, tmp_path / "c", engine=SerialEngine(), **WARM)
        assert bytes_of(tmp_path / "c") == bytes_of(built.cache)

    def test_warmup_goes_on_where_another_engine_was_stopped(self, engine, built, tmp_path):
        class Stop(Exception):
            pass

        def stop(progress):
            if progress.images >= 40:  # of 76
                raise Stop

        with pytest.raises(Stop):
            cache.warmup(built.dataset, tmp_path / "c", engine=SerialEngine(), listener=stop, **WARM)
        before = len(list((tmp_path / "c/_tpufeed/reports").iterdir()))
        result = cache.warmup(built.dataset, tmp_path / "c", engine=engine, **WARM)
        assert before
        assert 0 < result.earlier_images < result.images == 76
        assert bytes_of(tmp_path / "c") == bytes_of(built.cache)
