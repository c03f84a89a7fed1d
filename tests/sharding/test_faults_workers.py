"""Workers that die or have no memory, and inputs of which too many cannot be taken."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetNotFoundError, TaskError

SHARD = r"(train|val)-\d{5}-of-\d{5}\.tfrecord"


def identities(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(folder).glob("*.tfrecord")}


@pytest.fixture
def victim(flawed_folder):
    """A photograph at which workers die."""
    return f"^{max(flawed_folder.glob('cat/*.jpg'))}$"


def no_dataset(folder):
    with pytest.raises(DatasetNotFoundError):
        open_dataset(folder)
    return True


@pytest.mark.all
@pytest.mark.parametrize("deaths", [2, pytest.param(1, marks=pytest.mark.long)])
def test_a_worker_that_is_killed_costs_nothing(deaths, victim, command, is_whole, tmp_path):
    """SIGKILL is what the OOM killer sends."""
    shot = command()
    for _ in range(deaths):
        shot.order("open", victim, "kill_self()", place="worker")
    done = shot.run(tmp_path / "d", "--workers", 2)
    assert [shot.fired(death) for death in range(deaths)] == [1] * deaths
    assert done.returncode == 0, done.stderr
    assert is_whole(tmp_path / "d")


@pytest.mark.all
def test_a_task_at_which_every_worker_is_killed(victim, command, is_whole, tmp_path):
    shot = command()
    shot.order("open", victim, "kill_self()", 0, "worker")
    done = shot.run(tmp_path / "d", "--workers", 2)
    assert shot.fired() == 3
    assert (done.returncode, done.stdout) == (1, "")
    *warnings, error = done.stderr.splitlines()
    assert re.fullmatch(rf"error: {SHARD}: .*SIGKILL.*", error)
    assert len(warnings) == 2
    assert all(re.fullmatch(rf"warning: {SHARD}: .*SIGKILL. Another one starts over.*", each) for each in warnings)
    assert no_dataset(tmp_path / "d")
    done = command().run_here(tmp_path / "d")
    assert done.returncode == 0, done.stderr
    assert is_whole(tmp_path / "d")


@pytest.mark.all
@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.long)])
def test_no_memory_is_said(workers, victim, command, tmp_path):
    starved = command()
    starved.order("open", victim, "raise MemoryError", 0)
    done = starved.run(tmp_path / "d", "--workers", workers)
    assert starved.fired() == 1
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"error: {SHARD}: .*memory.*\n", done.stderr)
    assert no_dataset(tmp_path / "d")


def test_a_bug_of_ours_is_no_reject(tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("a bug")

    (tmp_path / "photos").mkdir()
    for name, depth in (("a", np.uint8), ("b", np.uint16)):
        Image.fromarray(np.zeros((16, 16), depth)).save(tmp_path / f"photos/{name}.png")
    monkeypatch.setattr("tpufeed.images.decoding.to_8_bits", fail)
    with pytest.raises(TaskError, match="a bug"):
        tpufeed.shard(tmp_path / "photos", tmp_path / "d", workers=1, max_rejects=100)
    assert not (tmp_path / "d/manifest.json").exists()


def test_more_rejects_than_the_budget_allows(command, expected, is_whole, tmp_path):
    """The same command with a larger budget continues: finished shards stay the very files."""
    folder = tmp_path / "d"
    done = command().run_here(folder, "--max-rejects", 2)
    assert (done.returncode, done.stdout) == (1, "")
    lines = (folder / "rejects.jsonl").read_text().splitlines()
    assert 3 <= len(lines) <= 4
    reasons = {json.loads(line)["reason"] for line in lines}
    said = re.fullmatch(
        rf"error: (\d) of 90 .*?\((.*?)\).* first: (\S+): .*{folder}/rejects\.jsonl .*--max-rejects.*\n", done.stderr
    )
    assert int(said[1]) == len(lines)
    assert set(re.findall(r"\d (\w+)", said[2])) == reasons
    assert said[3] == json.loads(lines[0])["path"]
    assert set(lines) <= set(expected["rejects.jsonl"].decode().splitlines())
    assert no_dataset(folder)
    reported = {shard["name"] for path in folder.glob("_tpufeed/reports/*") for shard in shards_of(path)}
    before = {name: identity for name, identity in identities(folder).items() if name in reported}
    assert before
    again = command().run_here(folder, "--max-rejects", 2)
    assert again.returncode == 1
    assert "of 90 inputs" in again.stderr
    done = command().run_here(folder, "--max-rejects", "5%", "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert {name: identity for name, identity in identities(folder).items() if name in before} == before
    assert "rejected: 4 images" in done.stdout
    assert is_whole(folder)


def shards_of(report):
    return json.loads(report.read_bytes())["shards"]
