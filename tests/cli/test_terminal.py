"""What a person at a terminal sees: progress, and what becomes of Ctrl-C."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tpufeed
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetNotFoundError

TPUFEED = str(Path(sys.executable).with_name("tpufeed"))
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_at_terminal(*arguments, escapes=False, **variables):
    """Return `(exit code, what the terminal got)` without colours, each state of the progress line in its own part."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "160", "TERM": "xterm", **variables}
    process = subprocess.Popen(
        [TPUFEED, *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 1 << 16):
            seen += data
    except OSError:  # EIO is how Linux says that nobody holds the other end any more
        pass
    os.close(ours)
    return process.wait(), seen.decode() if escapes else ESCAPE.sub("", seen.decode())


def processes_of(session):
    """Ids of the processes of a session that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # gone in between
            continue
        if int(its_session) == session and state not in "ZX":
            found.append(int(folder.name))
    return found


@pytest.mark.all
def test_progress_with_rate_and_time_left_on_a_terminal(large_folder, tmp_path):
    code, seen = run_at_terminal("shard", large_folder, tmp_path / "d", "--shard-size", "100KB", "--workers", 2)
    assert code == 0, seen
    assert "Traceback" not in seen
    states = re.findall(r"sharding .*?([\d,]+)/300 images ([\d,]+) img/s ([\d,]+) MB/s .*?ETA ([-\d:]+)", seen)
    done = [int(state[0]) for state in states]
    assert done == sorted(done)
    assert done[-1] == 300
    assert int(states[-1][1].replace(",", "")) > 0
    assert re.fullmatch(r"\d:\d\d:\d\d", states[-1][3])
    assert "dataset: " in seen


@pytest.mark.all
def test_progress_counts_what_an_earlier_run_has_done(large_folder, tmp_path):
    (tmp_path / "photos").symlink_to(large_folder)
    tpufeed.shard(tmp_path / "photos", tmp_path / "d", shard_bytes="100KB", workers=1)
    (tmp_path / "d/manifest.json").unlink()
    victims = sorted((tmp_path / "d/_tpufeed/reports").glob("*.json"))[::2]
    missing = sum(len(json.loads(report.read_text())["shards"][0]["lengths"]) for report in victims)
    for report in victims:
        report.unlink()
    code, seen = run_at_terminal("shard", tmp_path / "photos", tmp_path / "d", "--shard-size", "100KB")
    assert code == 0, seen
    earlier = 300 - missing
    assert min(map(int, re.findall(r"(\d+)/300 images", seen))) >= earlier > 100
    assert f"done by an earlier run: {earlier} images" in seen
    assert f"wrote {missing} images" in seen


@pytest.mark.all
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_with_one_line_or_event_and_the_same_command_goes_on(workers, run, large_folder, tmp_path):
    """SIGINT goes to the whole group, as a terminal sends it."""
    for attempt in range(10):
        folder = tmp_path / f"{attempt}"
        command = ["shard", str(large_folder), str(folder), "--shard-size", "25KB", "--workers", str(workers)]
        command += ["--json", "--log-json"] if workers == 2 else []
        process = subprocess.Popen(
            [TPUFEED, *command], start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while process.poll() is None and len(list(folder.glob("_tpufeed/reports/*"))) < 5:
            time.sleep(0.002)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()
        if not (folder / "manifest.json").exists():
            break
        print(f"attempt {attempt}: done before it was interrupted")
    else:
        pytest.fail("it was always done before it was interrupted")
    message = "interrupted. Run the same command again to continue"
    if workers == 2:
        assert json.loads(said[1].splitlines()[-1]) == {"event": "interrupted", "message": message}
        said = said[0], f"{message}\n"
    assert (process.returncode, *said) == (130, "", f"{message}\n")
    assert processes_of(process.pid) == []
    with pytest.raises(DatasetNotFoundError):
        open_dataset(folder)
    done = run(*command)
    assert done.returncode == 0, done.stderr
    if workers == 2:
        report, first = json.loads(done.stdout), json.loads(done.stderr.splitlines()[0])
        assert report["earlier_images"] == first["earlier_images"] == first["images"] > 0
    else:
        assert "done by an earlier run" in done.stdout
    assert tpufeed.verify(folder).records == 300
    assert not (folder / "_tpufeed/tmp").exists()


@pytest.mark.parametrize(
    ("number", "module"),
    [(signal.SIGINT, "numpy"), (signal.SIGTERM, "typer")],
    ids=["SIGINT by a command", "SIGTERM by all"],
)
def test_ctrl_c_while_modules_are_imported(number, module, large_folder, tmp_path):
    """Half of the time that a short command takes."""
    (tmp_path / "sitecustomize.py").write_text(f"""
import pathlib, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            pathlib.Path({str(tmp_path)!r}, "importing").touch()
            time.sleep(60)

sys.meta_path.insert(0, Finder())
""")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [TPUFEED, "shard", str(large_folder), str(tmp_path / "d")],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (tmp_path / "importing").exists():
        time.sleep(0.01)
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert (stdout, process.returncode) == ("", 128 + number)
    assert re.fullmatch(r"interrupted.*\n", stderr)
