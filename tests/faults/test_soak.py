"""The soak: short here, an hour with --long; and that it would find a leak, and a batch that is another."""

import json
import subprocess
from itertools import islice

import pytest

import tpufeed
from benchmarks import soak
from benchmarks.entry import command_of


@pytest.mark.all
@pytest.mark.parametrize("seconds", [10, pytest.param(3600, marks=[pytest.mark.long, pytest.mark.timeout(4500)])])
def test_batches_are_those_of_a_quiet_run_and_nothing_grows(seconds):
    command = command_of("soak", "--seconds", seconds, *(["--fault-seconds", 2] if seconds < 60 else []))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "{" in done.stdout, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])
    # A short run is all warm-up, in which memory grows.
    wrong = found["wrong"] if seconds > 60 else [each for each in found["wrong"] if "grew" not in each]
    assert not wrong, done.stderr
    assert found["batches"]
    assert found["killed_feeds"]
    assert found["killed_workers"]


def test_growth_is_found():
    flat = [{"memory_mb": 100 + second % 5, "descriptors": 40, "threads": 5} for second in range(100)]
    assert soak.find_growth(flat) == []
    leaking = [{**each, "memory_mb": 100 + 0.5 * second} for second, each in enumerate(flat)]
    assert soak.find_growth(leaking) == [("memory_mb", 123.7, 148.7)]
    leaking = [{**each, "descriptors": 40 + second // 10} for second, each in enumerate(flat)]
    assert [name for name, *_ in soak.find_growth(leaking)] == ["descriptors"]


@pytest.mark.all
def test_a_batch_that_is_another_is_found(cache_url, monkeypatch):
    monkeypatch.setitem(soak.OPTIONS, "batch_size", 4)
    with tpufeed.Loader(cache_url, "train", processes=1, **soak.OPTIONS) as loader:
        crcs = [soak.crc_of(*batch) for batch in islice(loader, 6)]
    assert soak.compare(cache_url, crcs) == []
    assert soak.compare(cache_url, [*crcs[:2], *crcs[3:], crcs[2]]) == ["batch 2 and 3 more of 6 differ"]
