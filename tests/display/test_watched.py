"""What a person sees of calls and commands, at a terminal and in a notebook; and nothing where nobody watches."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import make_photos
from tests.frameworks import lazy

nbformat, NotebookClient = lazy("nbformat"), lazy("nbclient:NotebookClient")

BUILD = "import tpufeed; tpufeed.shard('photos', 'd', shard_bytes='100KB', workers=1{more})"
VERIFY = "import tpufeed; tpufeed.verify('d'{more})"


@pytest.fixture
def folder(once, tmp_path):
    """A folder with photographs, to run in."""
    (tmp_path / "photos").symlink_to(once(make_photos, 60))
    return tmp_path


def environment():
    """Neither a kernel's own variables, if the tests run in one, nor those of a terminal that is no terminal."""
    left_out = ("JPY_PARENT_PID", "MPLBACKEND", "FORCE_COLOR", "NO_COLOR")
    found = {name: value for name, value in os.environ.items() if name not in left_out}
    path = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), os.environ["PATH"]]))
    return {**found, "TERM": "xterm", "COLUMNS": "120", "PATH": path}


def at_terminal(program, folder, **variables):
    """What a terminal gets from a program on its stdout and stderr."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(
        command, cwd=folder, env=environment() | variables, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 1 << 16):
            seen += data
    except OSError:  # EIO: the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0, seen.decode()
    return seen.decode()


@pytest.mark.all
def test_a_terminal_sees_one_bar_for_each_call(folder):
    seen = at_terminal(f"{BUILD.format(more='')}; {VERIFY.format(more='')}", folder)
    lines = [line.rpartition("\r")[2] for line in seen.replace("\r\n", "\n").strip().split("\n")]
    assert [line.count("60/60 images") for line in lines if "sharding" in line] == [1], seen
    assert [line.count("60 records") for line in lines if "verifying" in line] == [1], seen
    assert "━" in seen


@pytest.mark.all
@pytest.mark.parametrize("more", [", progress=False", ", listener=print"])
def test_a_terminal_sees_no_bar_that_is_not_wanted(more, folder):
    seen = at_terminal(BUILD.format(more=more), folder)
    assert "sharding" not in seen
    assert ("BuildProgress" in seen) == ("listener" in more)
    assert "━" not in seen


@pytest.mark.all
def test_a_child_process_shows_no_bar_beside_its_parents(folder):
    program = (
        f"import multiprocessing as mp, tpufeed; {BUILD.format(more=', progress=False')}\n"
        "with mp.get_context('fork').Pool(2) as pool:\n    print(pool.map(tpufeed.verify, ['d', 'd']))"
    )
    seen = at_terminal(program, folder)
    assert seen.count("Verified(") == 2
    assert "verifying" not in seen


@pytest.mark.all
def test_a_pipe_gets_nothing(folder):
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(more="")], cwd=folder, env=environment(), capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.all
@pytest.mark.parametrize("command", ["tpufeed shard photos d --workers 1", None])
def test_the_terminal_of_a_kernel_gets_no_redraws(command, folder):
    program = (
        f"import subprocess; subprocess.run({command!r}.split(), check=True)" if command else BUILD.format(more="")
    )
    seen = at_terminal(program, folder, JPY_PARENT_PID="7")
    assert "\r" not in seen.replace("\r\n", "")
    assert "\x1b[?25l" not in seen  # the cursor stays
    assert ("dataset: " in seen) == (command is not None)


@pytest.mark.all
def test_a_notebook_keeps_one_bar_and_a_table(folder, monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "JPY_PARENT_PID", "MPLBACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", environment()["PATH"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    sources = [
        BUILD.format(more=""),
        VERIFY.format(more=", progress=False"),
        BUILD.format(more=""),  # complete already
        "!tpufeed shard photos other --workers 1 --shard-size 20KB",
        "import multiprocessing as mp\nwith mp.get_context('fork').Pool(1) as pool: "
        "print(pool.apply(tpufeed.verify, ('d',)))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    built, verified, again, command, child = ([*cell.outputs] for cell in notebook.cells)
    bar, result = built
    assert bar.output_type == "display_data"
    assert "60/60 images" in bar.data["text/html"]
    assert "sharding" in bar.data["text/plain"]
    assert result.data["text/plain"].startswith("BuildResult(url=")
    assert result.data["text/html"].startswith("<table>")
    (verified,) = verified
    assert verified.data["text/plain"].startswith("Verified(url=")
    assert [output.data["text/plain"][:11] for output in again] == ["", "BuildResult"]
    text = "".join(output.text for output in command)
    assert "dataset: " in text
    assert "\r" not in text.replace("\r\n", "\n")
    assert text.count("sharding") <= 1  # it would take 10 seconds
    assert {output.output_type for output in child} == {"stream"}  # no bar, but a line if it takes 10 seconds
