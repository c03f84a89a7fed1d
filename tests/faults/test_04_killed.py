"""Class 4, kill -9: what stands is whole or not there, and the same command goes on to the same bytes.

`tests/sharding/test_faults.py` kills `tpufeed shard`; here it is `cache warmup` and `adopt`.
"""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

import tpufeed
from tests.faults import remote
from tests.faults.remote import CHUNK_BYTES, epochs_of, names_of, objects, pairs
from tests.forked import CONTEXT
from tpufeed import cache
from tpufeed.dataset.reader import find_versions, open_dataset
from tpufeed.errors import DatasetNotFoundError

A_BATCH_BYTES = 4 * 3_300  # four records of 32 x 32 x 3 bytes, see remote.WARM
FLAGS = ["--size", 32, "--variants", 2, "--shard-size", "40KB", "--workers", 2]


@pytest.mark.all
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.long)])
def test_a_cache_that_is_killed_at_any_event_ends_with_the_same_bytes(
    rounds, dataset_url, cache_url, struck, run, bytes_of, tmp_path
):
    """At an event drawn from all that the files of a cache cause, in the launcher and in its workers."""
    match = rf"{tmp_path}/c"
    calm = struck(match)
    done = calm.run("cache", "warmup", dataset_url, tmp_path / "calm", *FLAGS)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "calm") == bytes_of(cache_url)
    rng = random.Random(rounds)
    with_shards = 0
    for number in range(rounds):
        folder = tmp_path / f"c{number}"
        nth = rng.randrange(1, calm.events * 9 // 10)
        killed = struck(match, nth)
        done = killed.run("cache", "warmup", dataset_url, folder, *FLAGS)
        assert killed.fired, f"round {number}: event {nth} of {calm.events} never came"
        assert done.returncode == -signal.SIGKILL
        with pytest.raises(DatasetNotFoundError):
            open_dataset(folder)
        with_shards += any(folder.glob("*.tfrecord"))
        print(f"round {number}: killed at event {nth} of {calm.events}, {len(list(folder.glob('*.tfrecord')))} shards")
        done = run("cache", "warmup", dataset_url, folder, *FLAGS[:-1], rng.choice([1, 3]))
        assert done.returncode == 0, done.stderr
        assert bytes_of(folder) == bytes_of(cache_url)
        assert not (folder / "_tpufeed/tmp").exists()
        shutil.rmtree(folder)
    assert with_shards


@pytest.mark.all
@pytest.mark.parametrize("name", ["train.index.npy", "manifest.json"])
def test_an_adoption_that_is_killed_leaves_no_dataset_and_is_repeated(name, dataset_url, struck, run, tmp_path):
    folder = tmp_path / "foreign"
    folder.mkdir()
    for shard in Path(dataset_url).glob("*.tfrecord"):
        shutil.copy(shard, folder)
    killed = struck(rf"^os.link {folder}/{name}$", 1)
    assert killed.run("adopt", folder).returncode == -signal.SIGKILL
    assert killed.fired
    assert not (folder / "manifest.json").exists()
    done = run("adopt", folder)
    assert done.returncode == 0, done.stderr
    assert tpufeed.verify(folder).records == tpufeed.verify(dataset_url).records
    assert not [path for path in folder.rglob("_tpufeed/**/*") if path.is_file()]


# A dataset that grows.


@pytest.fixture(scope="module")
def more(photo_folder, tmp_path_factory):
    """Fifteen more photographs, in three folders."""
    folder = tmp_path_factory.mktemp("more")
    for number, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))[:15]):
        target = folder / str(number % 3) / path.parent.name / f"more {path.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    return folder


@pytest.fixture(scope="module")
def growing(photo_folder, more, tmp_path_factory):
    """By work: the folder that it begins with, the words of its command, and how many samples it ends with."""
    folder = tmp_path_factory.mktemp("growing")
    start, small, cached = folder / "append", folder / "compact", folder / "warmup"
    tpufeed.shard(photo_folder, start, shard_bytes="60KB", splits="train=0.8,val=0.2", workers=1)
    tpufeed.shard(photo_folder, small, shard_bytes="900KB", splits="train=0.8,val=0.2", workers=1)
    for part in sorted(more.iterdir()):
        tpufeed.append(part, small, workers=1)
    cache.warmup(small, folder / "source", size=32, shard_bytes="40KB", workers=1)
    shutil.copytree(small, folder / "grown")
    shutil.copy(small / "_tpufeed/versions/3.json", folder / "grown/manifest.json")
    cache.warmup(folder / "grown", cached, size=32, shard_bytes="40KB", workers=1)
    return {
        "append": (start, ["append", more / "0"], 45),
        "compact": (small, ["compact"], 55),
        "warmup": (cached, ["cache", "warmup", small], 55),
    }


def grown_files(folder):
    """Shards and indexes of all versions, by their names."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.name.endswith((".tfrecord", ".npy", "rejects.jsonl", "digests.bin"))
    }


@pytest.mark.all
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("work", ["append", "compact", "warmup"])
def test_a_dataset_that_is_killed_as_it_grows_is_always_one_whole_version(work, rounds, growing, struck, run, tmp_path):
    start, words, samples = growing[work]
    words = list(map(str, words))
    further = ["--workers", 2] if work != "warmup" else [*("--size", 32, "--shard-size", "40KB"), "--workers", 2]
    before, first = open_dataset(start), sum(split.records for split in open_dataset(start).manifest.splits.values())

    def begin(name):
        folder = tmp_path / name
        shutil.copytree(start, folder)
        return folder

    match = rf"{tmp_path}/g(?!.*/tpufeed_put_[^/]*$)"  # workers that tidy a folder at once list it more or less often
    calm, folder = struck(match), begin("gcalm")
    done = calm.run(*words, folder, *further)
    assert done.returncode == 0, done.stderr
    expected = grown_files(folder)
    assert tpufeed.verify(folder).records == samples
    rng = random.Random(rounds)
    unpublished = 0
    for number in range(rounds):
        folder = begin(f"g{number}")
        nth = rng.randrange(1, calm.events)
        killed = struck(match, nth)
        done = killed.run(*words, folder, *further)
        assert killed.fired, f"round {number}: event {nth} of {calm.events} never came"
        assert done.returncode == -signal.SIGKILL
        stands = open_dataset(folder)
        print(f"round {number}: killed at event {nth} of {calm.events}, version {stands.number} stands")
        assert tpufeed.verify(folder).records == (first if stands.number == before.number else samples)
        unpublished += stands.number == before.number
        done = run(*words, folder, *further[:-1], rng.choice([1, 3]))
        assert done.returncode == 0, done.stderr
        assert open_dataset(folder).number == before.number + 1
        assert grown_files(folder) == expected
        assert tpufeed.verify(folder).records == samples
        assert open_dataset(folder, version=before.number).content_digest == before.content_digest
        shutil.rmtree(folder)
    assert unpublished


@pytest.mark.all
@pytest.mark.parametrize(
    "event",
    [
        r"^os.link .*/part-[0-9]*/manifest.json$",
        r"^os.link .*/g/train-version-[0-9]*.index.npy$",
        r"^os.link .*/g/val-version-[0-9]*.index.npy$",
        r"^os.link .*/g/_tpufeed/versions/[0-9]*.json$",
        r"^os.rename .*/g/manifest.json$",
    ],
)
@pytest.mark.parametrize("work", ["append", "compact"])
def test_killed_as_a_version_is_published_the_one_before_stands(work, event, growing, struck, run, tmp_path):
    start, words, samples = growing[work]
    folder, words = tmp_path / "g", list(map(str, words))
    shutil.copytree(start, folder)
    before = open_dataset(start)
    killed = struck(event, 1)
    assert killed.run(*words, folder, "--workers", 1).returncode == -signal.SIGKILL
    assert killed.fired
    assert open_dataset(folder).content_digest == before.content_digest
    tpufeed.verify(folder)
    assert run(*words, folder, "--workers", 1).returncode == 0
    assert open_dataset(folder).number == before.number + 1
    assert tpufeed.verify(folder).records == samples


@pytest.mark.all
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.long)])
def test_a_prune_that_is_killed_leaves_no_version_that_is_not_whole(rounds, growing, struck, run, tmp_path):
    start, _, samples = growing["compact"]
    shutil.copytree(start, tmp_path / "start")
    assert run("compact", tmp_path / "start", "--workers", 1).returncode == 0

    def begin(name):
        return Path(shutil.copytree(tmp_path / "start", tmp_path / name))

    calm, folder = struck(rf"{tmp_path}/p"), begin("pcalm")
    assert calm.run("prune", folder).returncode == 0
    expected = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    rng = random.Random(rounds)
    for number in range(rounds):
        folder = begin(f"p{number}")
        nth = rng.randrange(1, calm.events + 1)
        killed = struck(rf"{tmp_path}/p", nth)
        assert killed.run("prune", folder).returncode == -signal.SIGKILL
        assert killed.fired
        newest = open_dataset(folder)
        kept = find_versions(newest.store, newest)
        print(f"round {number}: killed at event {nth} of {calm.events}, versions {kept} stand")
        for version in kept:
            assert tpufeed.verify(folder, version=version).records in (40, 45, 50, samples)
        assert run("prune", folder).returncode == 0
        assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == expected
        assert tpufeed.verify(folder).records == samples


@pytest.mark.all
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("work", ["append", "compact"])
def test_a_dataset_in_a_bucket_is_one_whole_version_too(work, rounds, growing, server, upload, spawn, run):
    """Killed at a request that is drawn; one worker, in the process that is killed."""

    def stored(folder):
        names = [name for name in server.names("bucket") if name.startswith(f"{folder}/")]
        wanted = [name for name in names if name.endswith((".tfrecord", ".npy"))]
        return {name.removeprefix(f"{folder}/"): server.get("bucket", name) for name in wanted}

    start, words, samples = growing[work]
    words = list(map(str, words))
    before = open_dataset(start)
    url = upload(start, "calm")
    server.clear_log()
    assert run(*words, url, "--workers", 1).returncode == 0
    requests = len(server.log)
    assert tpufeed.verify(url).records == samples
    expected = stored("calm")
    rng = random.Random(rounds)
    for number in range(rounds):
        url, at = upload(start, f"b{number}"), rng.randrange(1, requests * 8 // 10)
        server.configure(latency_ms=10)
        server.clear_log()
        process = spawn(remote.run_command, server.environment(), [*words, url, "--workers", "1"])
        kill(process, lambda at=at: len(server.log) >= at)
        server.configure(latency_ms=0)
        stands = open_dataset(url)
        print(f"round {number}: killed at request {at} of {requests}, version {stands.number} stands")
        assert tpufeed.verify(url).records in (sum(split.records for split in before.manifest.splits.values()), samples)
        assert run(*words, url, "--workers", 1).returncode == 0
        assert open_dataset(url).number == before.number + 1
        assert stored(f"b{number}") == expected
        assert tpufeed.verify(url).records == samples
    if work == "compact":
        records = [len(example) for example in open_dataset(url).iter_examples("train")]
        assert tpufeed.prune(url).kept == (before.number + 1,)
        assert [len(example) for example in open_dataset(url).iter_examples("train")] == records
        assert tpufeed.verify(url).records == samples


# In the middle of what goes over a network. Which request it is, is drawn; the server's log says when it is under way.


@pytest.fixture(scope="module")
def spawn():
    """`spawn(function, *arguments)`: the function in a process of its own, that has all modules already."""

    def go(function, *arguments):
        process = CONTEXT.Process(target=function, args=arguments, daemon=True)
        process.start()
        return process

    return go


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill(process, until):
    """Kill it as soon as `until()`."""
    deadline = time.monotonic() + 60
    while not until():
        assert process.is_alive(), "it was done before it was to be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.fixture(scope="session")
def large(running_server, kept):
    """What a cache whose shards take some chunks has to be."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in running_server.environment().items():
            patch.setenv(key, value)
        cache.warmup(f"{kept}/dataset", f"{kept}/large", **remote.LARGE)
    return objects(running_server, "kept/large")


rounds_of_kills = pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.long)])


@pytest.mark.all
@pytest.mark.timeout(1800)
@rounds_of_kills
def test_killed_within_an_upload_there_is_no_object(rounds, server, kept, large, spawn):
    """The upload that was begun is never finished; the next run puts the shard by another one."""
    rng = random.Random(rounds)
    chunks = {name: -(-len(data) // CHUNK_BYTES) for name, data in large.items() if name.endswith(".tfrecord")}
    assert min(chunks.values()) > 2
    for number in range(rounds):
        folder, name = f"u{number}", rng.choice(sorted(chunks))
        chunk = rng.randrange(1, chunks[name] + 1)
        after = rng.choice([0, 1, CHUNK_BYTES // 3, CHUNK_BYTES - 1])
        before = server.unfinished_uploads()
        server.clear_log()
        server.fault("reset_midway", operation="chunk", name=f"{folder}/{name}", calls=(chunk,), after_bytes=after)
        process = spawn(remote.warm_in_chunks, server.environment(), f"{kept}/dataset", f"gs://bucket/{folder}")
        kill(process, lambda: server.requests(fault="reset_midway"))
        print(f"round {number}: killed within chunk {chunk} of {chunks[name]} of {name}")
        assert len(server.requests(operation="chunk", name=f"{folder}/{name}")) == chunk
        assert server.unfinished_uploads() == before + 1
        assert name not in names_of(server, folder)
        assert "manifest.json" not in names_of(server, folder)
        assert objects(server, folder).items() < large.items()
        cache.warmup(f"{kept}/dataset", f"gs://bucket/{folder}", **remote.LARGE)
        assert objects(server, folder) == large
        assert names_of(server, folder) == names_of(server, "kept/large")
        assert server.unfinished_uploads() == before + 1


@pytest.mark.all
@pytest.mark.timeout(1800)
@rounds_of_kills
def test_killed_at_a_random_request_shard_leaves_whole_objects_and_goes_on(rounds, server, kept, spawn, real_command):
    """The command: in the first round, and in all of 50, with two workers that are killed with it."""
    rng = random.Random(rounds)
    calm = len(names_of(server, "kept/dataset")) + 8 * 4  # requests, at the least: puts, and four more for each shard
    with_shards = 0
    for number in range(rounds):
        folder, at = f"w{number}", rng.randrange(1, calm)
        words = ["shard", f"{kept}/photos", f"gs://bucket/{folder}", "--shard-size", "30KB", "--workers"]
        server.configure(latency_ms=10)  # else the log is looked at too seldom
        server.clear_log()
        if number == 0 or rounds == 50:
            group = real_command(*words, 2)
            kill_group(group, lambda at=at: len(server.log) >= at)
        else:
            process = spawn(remote.run_command, server.environment(), [*words, "1"])
            kill(process, lambda at=at: len(server.log) >= at)
        server.configure(latency_ms=0)
        standing = objects(server, folder)
        with_shards += bool(standing)
        print(f"round {number}: killed at request {at}, {len(standing)} objects")
        assert "manifest.json" not in names_of(server, folder)
        assert standing.items() < objects(server, "kept/dataset").items()
        tpufeed.shard(f"{kept}/photos", f"gs://bucket/{folder}", shard_bytes="30KB", workers=1)
        assert objects(server, folder) == objects(server, "kept/dataset")
        assert names_of(server, folder) == names_of(server, "kept/dataset")
    assert with_shards


def kill_group(command, until):
    while not until():
        assert command.poll() is None, command.communicate()
        time.sleep(0.005)
    os.killpg(command.pid, signal.SIGKILL)
    command.communicate()
    assert command.returncode == -signal.SIGKILL


@pytest.mark.all
@pytest.mark.timeout(1800)
@rounds_of_kills
def test_killed_while_shards_are_copied_the_next_process_takes_over(rounds, server, kept, cache_url, spawn, tmp_path):
    """What was fetched stays, and what was not is fetched anew; no part is taken for a copy."""
    rng = random.Random(rounds)
    expected = epochs_of(cache_url, 2)
    files = objects(server, "kept/cache")
    shards = [name for name in files if name.endswith(".tfrecord")]

    def fetches(**patterns):
        """Reads of whole objects, which make local copies."""
        found = server.requests(operation="read", **patterns)
        return [
            name
            for record in found
            if record.range == f"bytes=0-{len(files.get(name := record.name.rpartition('/')[2], b'')) - 1}"
        ]

    rounds_cut, all_files = 0, len(shards) + 2  # and two indexes
    for number in range(rounds):
        folder, name = tmp_path / f"s{number}", rng.choice(sorted(shards))
        # Behind what a batch asks for: those that are waited for read the shard by ranges.
        after = rng.randrange(A_BATCH_BYTES, len(files[name]))
        server.clear_log()
        server.clear_faults()
        server.fault("truncate", operation="read", name=f"*/{name}", calls=None, after_bytes=after)
        process = spawn(remote.read_copied, server.environment(), f"{kept}/cache", str(folder))
        kill(
            process, lambda copies=folder: fetches(fault="truncate") or len(list(copies.glob("*/*.shard"))) == all_files
        )
        server.clear_faults()
        if not fetches(fault="truncate"):
            continue  # on a busy machine batches may have asked for all of the shard before, piece by piece
        rounds_cut += 1
        (copies,) = folder.iterdir()
        assert list(copies.glob("*.part"))
        copied = len(list(copies.glob("*.shard")))
        print(f"round {number}: killed after {after} bytes of {name}, {copied} copies")
        server.clear_log()
        options = {"columns": ["sample", "image"], "batch_size": 4, "local_dir": folder}
        with tpufeed.Loader(f"{kept}/cache", **options) as loader:
            assert [[pairs(*batch) for batch in loader] for _ in range(2)] == expected
            wait_for(lambda copies=copies: len(list(copies.glob("*.shard"))) == all_files)
        assert not list(copies.glob("*.part"))
        assert len(set(fetches())) == len(fetches()) == all_files - copied
    assert rounds_cut > rounds / 2
