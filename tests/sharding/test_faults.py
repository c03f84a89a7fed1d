"""`tpufeed shard` killed at any moment, and run twice at once: it ends with the bytes of an undisturbed build."""

import os
import random
import re
import secrets
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

import tpufeed
from tpufeed.builds.destination import Destination
from tpufeed.builds.plan import read_plan
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetNotFoundError, ManifestError
from tpufeed.storage.store import open_store

SEED = None  # or the one that a failure has printed
KILL = "kill_group()"

MOMENTS = {
    "before the plan's middle": ("open", "/plan$", "kill_at_encoding(9)"),
    "as the plan stands": ("os.remove", "/plan$", KILL),
    "within a shard": ("open", r"\.jpg$", KILL, 40),
    "before the manifest stands": ("os.link", "/manifest.json$", KILL),
}
MORE_MOMENTS = {
    "between shard and report": ("os.link", "/reports/", KILL, 7),
    "as a report stands": ("os.remove", "/object$", KILL, 7),
    "between the indexes": ("os.link", "/val.index.npy$", KILL),
    "before the plan stands": ("os.link", "/plan.jsonl$", KILL),
    "before the plan's first line": ("open", "/plan$", "kill_at_encoding(0)"),
    "before a shard stands": ("os.link", r"\.tfrecord$", KILL, 7),
    "before the rejects": ("os.link", "/rejects.jsonl$", KILL),
}


def standing(folder, pattern):
    return len(list(folder.glob(pattern)))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("moment", [*MOMENTS, *(pytest.param(name, marks=pytest.mark.long) for name in MORE_MOMENTS)])
def test_killed_at_a_moment(moment, command, is_whole, tmp_path):
    folder = tmp_path / "d"
    killed = command()
    killed.order(*{**MOMENTS, **MORE_MOMENTS}[moment])
    killed.run_killed(folder, "--workers", 2)
    with pytest.raises(DatasetNotFoundError):
        open_dataset(folder)
    assert standing(folder, "_tpufeed/plan.jsonl") == (not moment.startswith("before the plan"))
    assert bool(standing(folder, "_tpufeed/tmp/*/plan")) == ("the plan" in moment)
    if "report" in moment or "rejects" in moment:
        assert standing(folder, "*.tfrecord") >= standing(folder, "_tpufeed/reports/*") > 0
    planning = moment.startswith("before the plan's")
    assert list(killed.temporary.iterdir()) or not planning
    done = command().run_here(folder, "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert is_whole(folder)
    assert not (planning and list(killed.temporary.iterdir()))


@pytest.mark.all
def test_killed_as_the_manifest_stands(command, is_whole, tmp_path):
    """The dataset exists. A second name of the manifest is left, which --overwrite removes."""
    folder = tmp_path / "d"
    killed = command()
    killed.order("os.remove", "/object$", f"Path({str(folder)!r}, 'manifest.json').exists() and kill_group()", nth=0)
    process = killed.start(folder, "--workers", 1)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert tpufeed.verify(folder).records == 86
    (left,) = folder.glob("_tpufeed/tmp/*/*")
    assert left.samefile(folder / "manifest.json")
    done = command().run_here(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "complete already" in done.stdout
    assert command().run_here(folder, "--overwrite").returncode == 0
    assert is_whole(folder)


def kill_by_time(process, rng):
    """Kill from outside, sometimes the launcher alone: its workers then end by themselves."""
    time.sleep(rng.uniform(0.3, 1.0))
    with suppress(ProcessLookupError):  # the build has ended
        process.kill() if rng.random() < 0.3 else os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.all
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=pytest.mark.long)])
def test_killed_at_random_moments(rounds, command, is_whole, tmp_path):
    """Each round is killed once at an event drawn from all that a build causes, then up to twice more."""
    seed = secrets.randbelow(2**32) if SEED is None else SEED
    rng = random.Random(seed)
    calm = command()
    calm.order("", f"^{re.escape(str(tmp_path))}/calm|[.]jpg$", "pass", nth=0)
    assert calm.run(tmp_path / "calm", "--workers", 2).returncode == 0
    assert is_whole(tmp_path / "calm")
    print(f"seed {seed}: a build that nothing disturbs causes {calm.fired()} events")
    kills = with_shards = 0
    for number in range(rounds):
        folder = tmp_path / f"d{number}"
        for kill in range(rng.choice([1, 1, 2])):
            killed = command()
            nth = rng.randrange(1, calm.fired() * 9 // 10)
            if kill == 0 or rng.random() < 0.5:
                killed.order("", f"^{re.escape(str(folder))}|[.]jpg$", KILL, nth)
            process = killed.start(folder, "--workers", 2)
            if killed.orders:
                process.communicate()
                assert killed.fired() or kill, "it was done before it was to be killed"
            else:
                kill_by_time(process, rng)
            is_killed = process.returncode == -signal.SIGKILL and not (folder / "manifest.json").exists()
            kills += is_killed
            with_shards += is_killed and standing(folder, "*.tfrecord") > 0
            print(f"round {number}: {nth if killed.orders else 'time'}, {is_killed}, {standing(folder, '*.tfrecord')}")
        done = command().run_here(folder, "--workers", rng.choice([1, 3]))
        assert done.returncode == 0, done.stderr
        assert is_whole(folder)
        shutil.rmtree(folder)
    print(f"killed {kills} times before the manifest stood, {with_shards} times with shards")
    assert kills >= rounds
    assert with_shards >= rounds // 2


@pytest.mark.all
@pytest.mark.parametrize(
    "start",
    [
        pytest.param("nothing", marks=pytest.mark.long),
        pytest.param("a build that was killed", marks=pytest.mark.long),
        "a shard that both make at once",
    ],
)
def test_the_same_command_twice_at_once(start, command, expected, is_whole, tmp_path):
    folder = tmp_path / "d"
    names = ["plan.jsonl", "train.index.npy", "rejects.jsonl", "manifest.json"]
    if start == "a build that was killed":
        killed = command()
        killed.order("os.link", "/reports/", KILL, nth=15)
        killed.run_killed(folder)
        names.remove("plan.jsonl")
    elif start != "nothing":
        names += [min(name for name in expected if name.endswith(".tfrecord")), "000000.json"]
    twins = command()
    for name in names:
        twins.order("os.link", f"/{name}$", f"meet({name!r})", nth=0)
    processes = [twins.start(folder, "--workers", workers) for workers in (1, 2)]
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert [twins.count(f"{name}.met") for name in names] == [2] * len(names)
    assert is_whole(folder)


@pytest.fixture(scope="session")
def older(flawed_folder, tmp_path_factory):
    """A dataset of other options; not to be changed."""
    return tpufeed.shard(flawed_folder, tmp_path_factory.mktemp("older") / "d", shard_bytes="50KB", seed=5, workers=1)


REMOVALS = [
    ("os.remove", "/d/manifest.json$", KILL),
    ("os.remove", r"/d/.*\.tfrecord$", KILL, 9),
]
MORE_REMOVALS = [
    ("os.rename", "/plan.jsonl$", KILL),
    ("os.remove", r"/d/.*\.tfrecord$", KILL, 1),
    ("os.remove", "/reports/", KILL, 5),
    ("os.remove", r"/removals-.*$", KILL),
    ("os.link", r"\.tfrecord$", KILL, 5),
    ("os.link", "/manifest.json$", KILL),
]


@pytest.mark.all
@pytest.mark.parametrize(
    "order", [*REMOVALS, *(pytest.param(order, marks=pytest.mark.long) for order in MORE_REMOVALS)], ids=str
)
def test_overwrite_that_is_killed(order, command, older, is_whole, tmp_path):
    """There is never a manifest that names missing files."""
    folder = tmp_path / "d"
    shutil.copytree(older.url, folder)
    killed = command()
    killed.order(*order)
    killed.order("os.link|os.remove", f"^{folder}/", f"check_manifest({str(folder)!r})", 0)
    killed.run_killed(folder, "--overwrite", "--workers", 1)
    killed_first = order[:2] in {("os.remove", "/d/manifest.json$"), ("os.rename", "/plan.jsonl$")}
    assert (folder / "manifest.json").exists() == killed_first
    if killed_first:
        assert tpufeed.verify(folder).records == older.images
    assert killed.fired(1) >= 1 or killed_first
    assert killed.count("violations") == 0
    done = command().run_here(folder, "--overwrite", "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert is_whole(folder)


def identities(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(folder).glob("*.tfrecord")}


@pytest.mark.all
def test_after_a_kill_nothing_is_trusted_that_is_damaged(command, is_whole, tmp_path):
    folder = tmp_path / "d"
    killed = command()
    killed.order("os.link", "/reports/", KILL, nth=15)
    killed.run_killed(folder, "--workers", 1)
    shards, reports = sorted(folder.glob("*.tfrecord")), sorted(folder.glob("_tpufeed/reports/*"))
    names = {shard.name for shard in shards}
    assert (len(shards), len(reports)) == (15, 14)
    flipped = bytearray(shards[3].read_bytes())
    flipped[len(flipped) // 2] ^= 16
    shards[3].write_bytes(flipped)
    os.truncate(shards[5], shards[5].stat().st_size - 1)
    shards[7].unlink()
    counts = reports[9].read_bytes()
    reports[9].write_bytes(counts.replace(b'"class_counts":[', b'"class_counts":[1'))
    assert reports[9].read_bytes() != counts
    before = identities(folder)
    done = command().run_here(folder, "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert is_whole(folder)
    after = identities(folder)
    anew = {name for name in after if name in names and before.get(name) != after[name]}
    assert anew == {shards[3].name, shards[5].name, shards[7].name}  # that of report 9 is found to be the same
    assert reports[9].read_bytes() == counts
    assert tpufeed.verify(folder).records


def flip_each(path, step):
    """Flip one bit of the file, at one place after another."""
    data = path.read_bytes()
    for position in range(0, len(data), step):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        yield position
    path.write_bytes(data)


def test_a_flipped_bit_in_the_plan_is_found(unfinished):
    """It might give an image another label."""
    store = open_store(unfinished)
    for position in flip_each(unfinished / "_tpufeed/plan.jsonl", 37):
        with pytest.raises(ManifestError):
            pytest.fail(f"byte {position}: {read_plan(store).header}")
    assert len(read_plan(store).tasks) == standing(unfinished, "_tpufeed/reports/*")


def test_a_flipped_bit_in_a_report_is_found(unfinished):
    store = open_store(unfinished)
    plan = read_plan(store)
    ref, run_id = plan.tasks[2], plan.header.run_id
    report = Destination(store).read_report(ref, run_id)
    for position in flip_each(unfinished / "_tpufeed/reports/000002.json", 1):
        assert Destination(store).read_report(ref, run_id) in (None, report), position
    assert Destination(store).read_report(ref, run_id) == report
