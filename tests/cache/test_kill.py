"""`tpufeed cache warmup` killed at random moments, and twice at once: it ends with the bytes of an undisturbed run."""

import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tpufeed
from tpufeed.cache import warmup
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetNotFoundError

TPUFEED = [str(Path(sys.executable).with_name("tpufeed")), "cache", "warmup"]
SEED = None  # or the one that a failure has printed
OPTIONS = {
    "raw": {"size": 64, "variants": 3, "shard_bytes": "40KB"},
    "jpeg": {"size": 64, "variants": 2, "shard_bytes": "10KB", "encode": "jpeg"},
}


def flags_of(options):
    names = {"shard_bytes": "--shard-size"}
    return [word for name, value in options.items() for word in (names.get(name, f"--{name}"), str(value))]


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory):
    """What an undisturbed run makes of the dataset, by its encoding."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return {kind: warmup(source, folder / kind, workers=1, **options) for kind, options in OPTIONS.items()}


def start(source, folder, options, workers=2):
    return subprocess.Popen(
        [*TPUFEED, str(source), str(folder), *flags_of(options), "--workers", str(workers)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def count_files(folder):
    """Count files, also while they come and go."""
    return sum(len(names) for _, _, names in os.walk(folder))


def kill(process, folder, files, whole_group):
    """Send SIGKILL once there are `files` files; return true if that was before the end."""
    while process.poll() is None and count_files(folder) < files:
        time.sleep(0.001)
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.stderr.close()
    return process.wait() == -signal.SIGKILL and not (folder / "manifest.json").exists()


@pytest.mark.all
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_killed_at_random_moments_it_goes_on_with_any_number_of_workers(
    rounds, source, undisturbed, bytes_of, tmp_path
):
    seed = secrets.randbelow(2**32) if SEED is None else SEED
    print(f"seed {seed}")
    rng = random.Random(seed)
    kills = 0
    for number in range(rounds):
        kind = list(OPTIONS)[number % 2]
        whole = undisturbed[kind]
        options, folder = OPTIONS[kind], tmp_path / f"{number}"
        files = count_files(whole.url)
        for attempt in range(10):
            at, whole_group = rng.randrange(1, files * 3 // 4), rng.random() < 0.7
            fired = kill(start(source, folder, options), folder, at, whole_group)
            print(
                f"round {number}, {kind}, attempt {attempt}: killed at {at} of {files} files, {whole_group=}: {fired}"
            )
            if fired:
                break
            shutil.rmtree(folder)
        kills += fired
        if rng.random() < 0.3:  # and once more
            process = start(source, folder, options, workers=rng.choice([1, 3]))
            time.sleep(rng.uniform(0.5, 1.2))
            os.killpg(process.pid, signal.SIGKILL)
            process.stderr.close()
            process.wait()
        if not (folder / "manifest.json").exists():
            with pytest.raises(DatasetNotFoundError):
                open_dataset(folder)
        done = warmup(source, folder, workers=rng.choice([1, 3]), **options)
        assert bytes_of(folder) == bytes_of(whole.url)
        assert done.manifest.content_digest == whole.manifest.content_digest
        assert done.manifest.cache == whole.manifest.cache
        assert tpufeed.verify(folder).records == whole.images
        assert names_in(folder) == names_in(whole.url)
    assert kills == rounds


def names_in(folder):
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*")}


@pytest.mark.all
def test_twice_at_once(source, undisturbed, bytes_of, tmp_path):
    whole = undisturbed["raw"]
    processes = [start(source, tmp_path / "c", OPTIONS["raw"], workers) for workers in (1, 2)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert bytes_of(tmp_path / "c") == bytes_of(whole.url)
    assert names_in(tmp_path / "c") == names_in(whole.url)
