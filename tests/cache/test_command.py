"""`tpufeed cache warmup` and `python -m tpufeed.cache warmup`, killed and in other processes; the fingerprint."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tpufeed
from tpufeed.cache import warmup
from tpufeed.cache.plan import CacheOptions
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetNotFoundError
from tpufeed.images.ops import HorizontalFlip, RandomResizedCrop

TPUFEED = [str(Path(sys.executable).with_name("tpufeed")), "cache", "warmup"]
MODULE = [sys.executable, "-m", "tpufeed.cache", "warmup"]
FLAGS = ["--size", "64", "--variants", "3", "--shard-size", "40KB"]
OPTIONS = {"size": 64, "variants": 3, "shard_bytes": "40KB"}
DIGEST = "0123456789abcdef0123456789abcdef"


def run(command, *arguments, **environment):
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory):
    return warmup(source, tmp_path_factory.mktemp("command") / "cache", workers=1, **OPTIONS)


def start_and_kill(source, folder, reports, whole_group):
    """SIGKILL once so many reports are there; the fault has fired where it returns True."""
    process = subprocess.Popen(
        [*TPUFEED, source, str(folder), *FLAGS, "--workers", "2"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and len(list(folder.glob("_tpufeed/reports/*.json"))) < reports:
        time.sleep(0.001)
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    killed = process.wait() == -signal.SIGKILL and (folder / "_tpufeed/plan.jsonl").exists()
    return killed and not (folder / "manifest.json").exists()


@pytest.mark.parametrize("seed", [21, 22])
def test_killed_anywhere_and_run_again_it_ends_with_the_same_bytes(seed, source, undisturbed, bytes_of, tmp_path):
    rng = random.Random(seed)
    tasks = len(list(Path(undisturbed.url).glob("_tpufeed/reports/*.json")))
    for attempt in range(20):
        folder, reports, whole_group = tmp_path / f"{attempt}", rng.randrange(1, tasks), rng.random() < 0.5
        print(f"seed {seed}, attempt {attempt}: killed at {reports} of {tasks} reports, {whole_group=}")
        if start_and_kill(source, folder, reports, whole_group):
            break
    else:
        pytest.fail("no build was killed before its end")
    with pytest.raises(DatasetNotFoundError):
        open_dataset(folder)
    done = run(TPUFEED, source, folder, *FLAGS)
    assert done.returncode == 0, done.stderr
    assert "done by an earlier run" in done.stdout
    assert bytes_of(folder) == bytes_of(undisturbed.url)
    assert open_dataset(folder).content_digest == undisturbed.manifest.content_digest
    assert tpufeed.verify(folder).records == 3 * 60
    assert not (folder / "_tpufeed/tmp").exists()


def test_both_commands_do_the_same(source, undisturbed, bytes_of, tmp_path):
    for number, command in enumerate((TPUFEED, MODULE)):
        done = run(command, source, tmp_path / f"{number}", *FLAGS)
        assert done.returncode == 0, done.stderr
        assert all(line.startswith("warning: split ") for line in done.stderr.splitlines())
        assert re.search(r"^ *train +[0-9]+ +3 ", done.stdout, re.MULTILINE)
        assert bytes_of(tmp_path / f"{number}") == bytes_of(undisturbed.url)
    again = run(MODULE, source, tmp_path / "1", *FLAGS)
    assert (again.returncode, again.stdout) == (0, f"{tmp_path}/1 is complete already: nothing to do\n")


def test_both_commands_take_the_same_options():
    helps = [run(command, "--help", COLUMNS="100") for command in (TPUFEED, MODULE)]
    assert [done.returncode for done in helps] == [0, 0]
    assert helps[0].stdout == helps[1].stdout
    assert "--variants" in helps[0].stdout
    assert "cache warmup [OPTIONS]" in helps[0].stdout


def test_flags_and_arguments_make_the_same_cache(source, tmp_path):
    done = run(TPUFEED, source, tmp_path / "cli", "--size", 24, "--encode", "jpeg", "--seed", 9, "--workers", 2)
    assert done.returncode == 0, done.stderr
    built = warmup(source, tmp_path / "api", size=24, encode="jpeg", seed=9, workers=1)
    assert open_dataset(tmp_path / "cli").content_digest == built.manifest.content_digest
    assert open_dataset(tmp_path / "cli").manifest.cache.fingerprint == built.manifest.cache.fingerprint


@pytest.mark.parametrize(
    ("options", "fingerprint"),
    [
        (CacheOptions((RandomResizedCrop(size=224), HorizontalFlip())), "56c244d085b0135c01393d8545315885"),
        (
            CacheOptions((RandomResizedCrop(size=224), HorizontalFlip()), 4, "jpeg", 7, 64 * 10**6),
            "9b7635e0e9c35ae14ca134785b42302d",
        ),
    ],
)
def test_fingerprints_are_those_of_the_first_release(options, fingerprint):
    """Literals: where they change, every cache that users have is orphaned."""
    assert options.fingerprint(DIGEST) == fingerprint


def test_everything_that_changes_bytes_changes_the_fingerprint():
    crop, flip = RandomResizedCrop(size=224), HorizontalFlip()
    different = [
        CacheOptions((crop, flip)),
        CacheOptions((flip, crop)),
        CacheOptions((crop,)),
        CacheOptions((RandomResizedCrop(size=225), flip)),
        CacheOptions((RandomResizedCrop(size=224, scale=(0.09, 1.0)), flip)),
        CacheOptions((crop, HorizontalFlip(0.25))),
        CacheOptions((crop, flip), variants=2),
        CacheOptions((crop, flip), encode="jpeg"),
        CacheOptions((crop, flip), encode="jpeg", quality=91),
        CacheOptions((crop, flip), seed=1),
        CacheOptions((crop, flip), shard_bytes=10**6),
    ]
    found = [options.fingerprint(DIGEST) for options in different]
    assert len({*found, different[0].fingerprint("f" * 32)}) == len(different) + 1
    assert CacheOptions((crop, flip), quality=91).fingerprint(DIGEST) == found[0]  # raw pixels know no quality


def test_a_fingerprint_is_the_same_in_every_process():
    program = (
        "from tpufeed.cache.plan import CacheOptions\n"
        "from tpufeed.images.ops import HorizontalFlip, RandomResizedCrop\n"
        f"print(CacheOptions((RandomResizedCrop(size=224), HorizontalFlip())).fingerprint({DIGEST!r}))"
    )
    found = [run([sys.executable], "-c", program, PYTHONHASHSEED=seed).stdout.strip() for seed in ("0", "1", "4711")]
    expected = CacheOptions((RandomResizedCrop(size=224), HorizontalFlip())).fingerprint(DIGEST)
    assert found == [expected] * 3
