"""What goes to stdout and stderr: tables, errors, colours, closed pipes, encodings, and names with escape sequences."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tpufeed
from tests.cli.test_terminal import ESCAPE, TPUFEED, run_at_terminal
from tpufeed.cli import console
from tpufeed.cli.console import reports_errors

FORGED = "\x1b[2J\x1b]0;title\x07\rerror: forged\nline\u202e\x9b31m"  # clears, renames, overwrites, turns around


def shell(script, *arguments, **variables):
    command = ["bash", "-c", script, "bash", *map(str, arguments)]
    # As a user has it: buffered, so that errors show late, wherever the buffer is written.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {"TPUFEED": TPUFEED, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def forged(photo_folder, tmp_path_factory):
    """A dataset whose path, class and file names hold terminal sequences; and a source with a reject of such a name."""
    folder = tmp_path_factory.mktemp("forged")
    photos = folder / "photos" / FORGED.replace("/", "")
    photos.mkdir(parents=True)
    for number, photo in enumerate(sorted(photo_folder.glob("*/*.jpg"))[:12]):
        (photos / f"{number}{FORGED}.jpg").write_bytes(photo.read_bytes())
    (photos / f"bad{FORGED}.jpg").write_text("none")
    tpufeed.shard(folder / "photos", folder / f"d{FORGED}", workers=1)
    return folder


def test_names_never_reach_a_terminal_as_they_are(forged, run, tmp_path):
    dataset = forged / f"d{FORGED}"
    for words in (["info", dataset], ["verify", dataset], ["show", dataset, "--out", tmp_path / f"s{FORGED}.png"]):
        done = run(*words)
        assert done.returncode == 0
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.stdout + done.stderr)
        assert (r"\x1b[2J" in done.stdout) == (words[0] != "verify")
        assert "\nline" not in done.stdout
    done = run("shard", forged / "photos", tmp_path / "d", "--max-rejects", 0, "--workers", 1)
    assert done.returncode == 1
    assert re.fullmatch(r"error: [\x20-\x7e]*\\x1b\[2J[\x20-\x7e]*\n", done.stderr)
    for words in (["info", dataset, "--json"], ["shard", forged / "photos", dataset, "--log-json", "--seed", 5]):
        done = run(*words)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.stdout + done.stderr)
    assert json.loads(run("info", dataset, "--json").stdout)["url"] == str(dataset)


COMMANDS = [
    *(["info", "D"], ["info", "D", "--json"], ["verify", "D"], ["doctor", "D", "--seconds", "1"]),
    *(["shard", "PHOTOS", "D2", "--dry-run"], ["--help"], ["--version"]),
]
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}  # an error shows with the first write, not with the last flush
redirections = pytest.mark.parametrize(
    ("words", "variables"),
    [*((words, {}) for words in COMMANDS), (["info", "D"], UNBUFFERED), (["--version"], UNBUFFERED)],
    ids=lambda value: "-".join(value) if value else "buffered",
)


@pytest.fixture
def redirected(photo_folder, dataset_url, tmp_path):
    """Run a command whose stdout or stderr goes elsewhere."""
    places = {"D": dataset_url, "D2": tmp_path / "d2", "PHOTOS": photo_folder}
    return lambda words, where, variables: shell(
        f'"$TPUFEED" "$@" {where}; exit "${{PIPESTATUS[0]}}"', *(places.get(w, w) for w in words), **variables
    )


@pytest.mark.all
@redirections
def test_a_reader_that_has_enough(redirected, words, variables):
    """It closes the pipe before the command writes."""
    done = redirected(words, "| :", variables)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.all
def test_a_reader_that_has_enough_of_the_first_line(dataset_url):
    done = shell('"$TPUFEED" info "$1" | head -1 > /dev/null', dataset_url)
    assert done.stderr == ""


@pytest.mark.all
@redirections
def test_a_stdout_that_takes_nothing(redirected, words, variables):
    done = redirected(words, "> /dev/full", variables)
    assert done.returncode == 1
    assert done.stderr == f"error: stdout cannot be written to: {os.strerror(28)}\n"


@pytest.mark.all
def test_a_stdout_that_takes_nothing_is_an_event_of_a_log(photo_folder, tmp_path):
    done = shell('"$TPUFEED" shard "$1" "$2" --log-json --workers 1 > /dev/full', photo_folder, tmp_path / "d")
    assert done.returncode == 1
    *_, last = map(json.loads, done.stderr.splitlines())
    assert (last["event"], last["type"]) == ("error", "StoreError")


@pytest.mark.all
@pytest.mark.parametrize(("words", "code"), [(["info", "D"], 0), (["info", "D2"], 2), (["info", "--nonsense"], 2)])
def test_a_stderr_that_takes_nothing_leaves_the_exit_code(redirected, words, code):
    assert redirected(words, "2> /dev/full", {}).returncode == code


@pytest.mark.all
def test_streams_that_are_not_there(dataset_url):
    assert shell('"$TPUFEED" verify "$1" 2>&- >&-', dataset_url).returncode == 0


@pytest.mark.all
def test_streams_that_are_closed(run, photo_folder, tmp_path):
    """No file or socket takes their numbers, into which libraries would print."""
    assert run("shard", photo_folder, tmp_path / "open", "--shard-size", "60KB").returncode == 0
    script = '"$TPUFEED" shard "$1" "$2" --shard-size 60KB --workers 2 '
    assert shell(script + "<&- >&- 2>&-", photo_folder, tmp_path / "closed").returncode == 0
    files = [{path.name: path.read_bytes() for path in (tmp_path / n).glob("*.tfrecord")} for n in ("open", "closed")]
    assert files[0]
    assert files[0] == files[1]


@pytest.mark.all
@pytest.mark.parametrize("variables", [{"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_the_c_locale(variables, run, photo_folder, tmp_path):
    (tmp_path / "größe 猫").symlink_to(photo_folder)
    done = run("shard", photo_folder, tmp_path / "d-größe", "--dry-run", PYTHONIOENCODING="ascii", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    # In this locale the name is no text, so that no plan can hold it.
    done = run("shard", tmp_path / "größe 猫", tmp_path / "d-größe", PYTHONIOENCODING="ascii", **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not UTF-8. Rename it" in done.stderr
    code, seen = run_at_terminal("verify", tmp_path / "größe 猫", PYTHONIOENCODING="ascii", **variables)
    assert code == 2
    assert seen.isascii()
    assert re.search(r"^\r?error: .*gr(\\udc\w\w)+e .* holds no dataset.*\r\n", seen, re.MULTILINE)


@pytest.mark.all
def test_colours_are_for_terminals(dataset_url):
    bold = re.compile(r"\x1b\[[0-9;]*m")
    code, seen = run_at_terminal("info", dataset_url, escapes=True)
    assert code == 0
    assert bold.search(seen)
    done = shell('"$TPUFEED" info "$1"', dataset_url)
    assert "\x1b" not in done.stdout
    _, plain = run_at_terminal("info", dataset_url, escapes=True, TERM="dumb")
    assert "\x1b" not in plain
    _, uncoloured = run_at_terminal("info", dataset_url, escapes=True, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", uncoloured)
    done = shell('"$TPUFEED" info "$1"; "$TPUFEED" verify "$1"', dataset_url, FORCE_COLOR="1")
    assert bold.search(done.stdout)
    assert done.stderr == ""  # no live line in a log for all that


@pytest.mark.all
def test_a_narrow_terminal(photo_folder, tmp_path):
    words = ("shard", photo_folder, tmp_path / "d", "--shard-size", "60KB", "--workers", 1)
    code, seen = run_at_terminal(*words, COLUMNS="20")
    assert code == 0
    states = re.findall(r"sharding[^\r\n]*", seen)
    assert states
    assert "sharding 30/30" in states[-1]
    assert re.search(r"^train: images 30, variants 1, shards \d+", seen, re.MULTILINE)
    code, seen = run_at_terminal("info", tmp_path / "d", COLUMNS="20")
    assert re.search(r"^1: class cat, train 10, all 10", seen, re.MULTILINE)


@pytest.mark.all
def test_modules_that_are_commands(dataset_url):
    done = shell('"$1" -m tpufeed --version && "$1" -m tpufeed cache warmup --help', sys.executable)
    assert done.returncode == 0
    assert done.stdout.startswith(f"tpufeed {tpufeed.__version__}\n")
    assert "Usage: tpufeed cache warmup [OPTIONS]" in done.stdout
    assert Path(dataset_url).exists()


@pytest.mark.all
def test_a_class_name_beyond_the_terminals_encoding(run, photo_folder, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "photos")
    (tmp_path / "photos/cat").rename(tmp_path / "photos/größe")
    done = run("shard", tmp_path / "photos", tmp_path / "d-größe", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"d-gr\xf6\xdfe" in done.stdout


def test_a_limit_of_the_system_is_one_line(capsys):
    @reports_errors
    def command(error, log_json=False):
        raise error

    for error, said in (
        (RuntimeError("can't start new thread"), "error: the system has no room for one more thread. Use fewer"),
        (OSError(errno.EMFILE, "Too many open files"), "error: too many files are open. The limit is "),
    ):
        with pytest.raises(SystemExit) as end:
            command(error)
        captured = capsys.readouterr().err
        assert (end.value.code, captured.count("\n")) == (1, 1)
        assert captured.startswith(said)
        assert "`ulimit -" in captured
    with pytest.raises(RuntimeError, match="a bug"):
        command(RuntimeError("a bug"))


def test_errors_that_other_packages_log_are_not_shown():
    """gcsfs logs each request that fails, with its trace, before it raises what we report."""
    program = """
import logging
from tpufeed.cli.console import reports_errors
from tpufeed.errors import StoreError

@reports_errors
def command():
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("gcsfs").exception("a request failed")
    logging.getLogger("tpufeed.builds.destination").warning("replacing it")
    raise StoreError("gs://bucket: no network")

command()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("warning: replacing it\nerror: gs://bucket: no network\n")
    assert "a request failed" not in done.stderr


TABLE_COLUMNS = ("fed from", "img/s", "idle %")
ROWS = [("EMULATED größe猫, numpy", "7,500", "0.4"), ("EMULATED größe猫, naive", "310", "95.9")]
STAGES = [("storage", "135,626", "page cache, 1.5 GB/s, all of it"), ("ops", "n/a", "")]


@pytest.fixture
def show(monkeypatch, capsys):
    """`show(width, ...)`: the lines that a terminal of so many columns gets; of a pipe for None."""

    def show(width, *arguments, **options):
        monkeypatch.setenv("COLUMNS", str(width or 20))
        monkeypatch.setattr(console, "is_terminal", lambda _: width is not None)
        console.print_table("EMULATED device", *arguments, **options)
        return [line.rstrip() for line in ESCAPE.sub("", capsys.readouterr().out).splitlines() if line.strip()]

    return show


@pytest.mark.parametrize("width", [None, 60])
def test_a_row_is_a_line_of_the_table(show, width):
    title, names, rule, *rows = show(width, TABLE_COLUMNS, ROWS)
    assert (title, names.split()) == ("EMULATED device", ["fed", "from", "img/s", "idle", "%"])
    assert set(rule.strip()) == {"─"}
    assert [row.split() for row in rows] == [[*row[0].split(), *row[1:]] for row in ROWS]


def test_where_it_does_not_fit_nothing_is_cut_off(show):
    assert show(40, TABLE_COLUMNS, ROWS) == [
        "EMULATED device",
        "EMULATED größe猫, numpy: img/s 7,500, idle % 0.4",
        "EMULATED größe猫, naive: img/s 310, idle % 95.9",
    ]


def test_prose_is_folded_while_there_is_room(show):
    columns = ("stage", "img/s", "what")
    folded = show(56, columns, [("storage", "135,626", "page cache " * 6), *STAGES], prose=True)
    assert len(folded) > 6
    assert show(30, columns, STAGES, prose=True) == [
        "EMULATED device",
        "storage: img/s 135,626, page cache, 1.5 GB/s, all of it",
        "ops: img/s n/a",
    ]
