"""Class 20: SIGINT and SIGTERM stop a build at any moment; the same command goes on from there.

SIGINT to `tpufeed shard` at a terminal: `tests/cli/test_terminal.py`.
"""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetNotFoundError

GOES_ON = "interrupted. Run the same command again to continue\n"
REPORT = r"^os.link .*/c/_tpufeed/reports/"


@pytest.fixture
def commands(photo_folder, dataset_url, tmp_path):
    options = ["--workers", 2]
    return {
        "shard": ["shard", photo_folder, tmp_path / "c", "--shard-size", "30KB", *options],
        "warmup": ["cache", "warmup", dataset_url, tmp_path / "c", "--size", 32, "--shard-size", "20KB", *options],
    }


@pytest.mark.all
@pytest.mark.parametrize(
    ("command", "number"), [("shard", signal.SIGTERM), ("warmup", signal.SIGINT)], ids=["shard", "warmup"]
)
def test_the_same_command_goes_on(command, number, commands, struck, run, tmp_path):
    """A stop is clean: one line and the exit code of the signal."""
    folder = tmp_path / "c"
    stopped = struck(REPORT, 3, number)
    done = stopped.run(*commands[command])
    assert stopped.fired
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", GOES_ON)
    with pytest.raises(DatasetNotFoundError):
        open_dataset(folder)
    done = run(*commands[command])
    assert done.returncode == 0, done.stderr
    assert "done by an earlier run" in done.stdout
    assert not (folder / "_tpufeed/tmp").exists()


@pytest.mark.all
def test_a_stop_leaves_nothing_temporary(commands, struck, tmp_path):
    """Workers are in the middle of a shard; the launcher has none of its own."""
    stopped = struck(r"^open .*/c/_tpufeed/tmp/.*/shard-0$", 3, signal.SIGINT)
    assert stopped.run(*commands["shard"]).returncode == 128 + signal.SIGINT
    assert stopped.fired
    assert not (tmp_path / "c/_tpufeed/tmp").exists()


@pytest.mark.all
def test_the_first_process_of_a_container_can_be_stopped(commands, struck):
    """To it the kernel delivers no signal that it does not handle."""
    container = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
    try:
        subprocess.run([*container, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no namespaces here")
    stopped = struck(REPORT, 3, signal.SIGTERM)
    stopped.replace_in_hook("os.killpg(os.getpgrp(), 15)", "os.kill(1, 15)")
    done = stopped.run(*commands["shard"], under=container)
    assert stopped.fired
    assert (done.returncode, done.stdout, done.stderr) == (143, "", GOES_ON)


@pytest.mark.all
def test_two_signals_in_a_row_are_one(commands, struck):
    """As `timeout` sends them: to the process, then to its group."""
    stopped = struck(REPORT, 3, signal.SIGTERM)
    once = "os.killpg(os.getpgrp(), 15)"
    stopped.replace_in_hook(once, f"signal.signal(15, signal.SIG_IGN); {once}; {once}")
    done = stopped.run(*commands["shard"])
    assert (done.returncode, done.stdout, done.stderr) == (143, "", GOES_ON)


@pytest.mark.all
@pytest.mark.parametrize(
    ("words", "event"),
    [
        (["verify", "DATASET"], r"^open .*\.tfrecord$"),
        (["adopt", "COPY"], r"^open .*\.tfrecord$"),
        (["shard", "PHOTOS", "c", "--dry-run"], r"^open .*\.jpg$"),
    ],
    ids=["verify", "adopt", "dry run"],
)
def test_what_starts_over_does_not_promise_to_go_on(words, event, photo_folder, dataset_url, struck, tmp_path):
    (tmp_path / "copy").mkdir()
    for shard in Path(dataset_url).glob("*.tfrecord"):
        shutil.copy(shard, tmp_path / "copy")
    places = {"DATASET": dataset_url, "PHOTOS": photo_folder, "COPY": tmp_path / "copy"}
    places["c"] = tmp_path / "c"
    stopped = struck(event, 1, signal.SIGTERM)
    done = stopped.run(*(places.get(word, word) for word in words))
    assert stopped.fired
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "interrupted\n")
    assert {path.name for path in tmp_path.iterdir()} <= {"copy", "hook-0", "hook-1"}
    assert not list(tmp_path.glob("copy/manifest.json"))
