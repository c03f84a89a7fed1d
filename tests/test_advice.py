"""What messages advise can be done: each command in tpufeed's source is filled in and run, and each option exists.

Messages write commands by `errors.advised`, which quotes their words. What a message advises where it is said is tested
beside that message; the doctor's proposals are run in tests/oracle/test_figures.py.
"""

import ast
import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

import tpufeed
from tests.cli.conftest import run_here
from tests.tfrecords import encode_features, encode_record
from tpufeed.cli.app import app
from tpufeed.tfrecord.example import Feature

ROOT = Path(tpufeed.__file__).parent
FILLED = "{}"  # what the message fills in
# Options of other programs: Beam and its runners, Ray, docker, tar, uv; and variables of the report's style.
FOREIGN = re.compile(
    r"--(runner|streaming|direct|sdk|requirements|setup|extra|environment|num-cpus|head|address|privileged|help"
    r"|hard-dereference|python|page|card|ink|faint|grid|line|band|wait|sync|compute|chosen|good|fair|bad|sort)"
)


def commands_of(group, prefix=""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{name} ")
        else:
            yield prefix + name, command


COMMANDS = dict(commands_of(get_command(app)))
FLAGS = {option for command in COMMANDS.values() for each in command.params for option in each.opts}
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.rglob("*.py"))}


def texts_of(tree):
    """Its texts but docstrings, with `FILLED` for what f-strings fill in."""
    nodes = list(ast.walk(tree))
    inner = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else FILLED for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
            yield node.value


def advised_in(tree):
    """The words of each command that it writes by `advised`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "advised":
            verb, *words = (part.value if isinstance(part, ast.Constant) else FILLED for part in node.args)
            if verb == FILLED:  # tests/cli/test_start.py runs these
                continue
            ops = any(isinstance(part, ast.Starred) for part in node.args)  # those of a cache
            yield verb, (*words[:-1], "--op", "Resize(9)", "--op", "CenterCrop(9)") if ops else tuple(words)


# Few are parsed here: each process does so, when it collects the tests.
ADVISED = sorted({each for text in SOURCES.values() if "advised(" in text for each in advised_in(ast.parse(text))})


@pytest.fixture(scope="module")
def trees():
    return {name: ast.parse(text) for name, text in SOURCES.items()}


@pytest.fixture
def place(tmp_path):
    """A folder "my data" with photos, a dataset of two versions, and TFRecords of another tool."""
    folder = tmp_path / "my data"
    for number in range(4):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 12, 3), number, np.uint8)).save(path)
    tpufeed.shard(folder / "photos", folder / "dataset", workers=1)
    (folder / "records").mkdir()
    record = encode_features({"image": Feature("bytes", [path.read_bytes()])})
    (folder / "records/train.tfrecord").write_bytes(encode_record(record))
    return folder


@pytest.mark.parametrize(("verb", "words"), ADVISED, ids=str)
def test_an_advised_command_runs(verb, words, place, monkeypatch):
    monkeypatch.chdir(place)
    names = {"adopt": ["records"], "shard": ["photos", "new"], "append": ["photos", "dataset"], "doctor": ["photos"]}
    places, filled = iter(names.get(verb, ["dataset", "new"])), list[str]()
    for option, word in itertools.pairwise(["", *words]):
        if option.startswith("--"):
            filled.append({"N": "1", "DATASET": "new"}.get(word, word))
        else:
            filled.append(word if word.startswith("--") else str(place / next(places)))
    done = run_here(*verb.split(), *filled, *(["--seconds", "1", "--op", "CenterCrop(8)"] if verb == "doctor" else []))
    assert done.returncode == 0, done.stderr


def test_no_command_is_written_by_hand(trees):
    written = re.compile(rf"tpufeed (?:{'|'.join(COMMANDS)}) (?:{re.escape(FILLED)}|[A-Z]{{2}}|['\"/]|--)")
    own = "measure/alternatives.py"
    found = [(name, text) for name, tree in trees.items() for text in texts_of(tree) if written.search(text)]
    assert [each for each in found if each[0] != own and not each[0].startswith("cli/")] == []


def test_options_that_messages_name_exist(trees):
    flags = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
    named = {(flag, name) for name, tree in trees.items() for text in texts_of(tree) for flag in flags.findall(text)}
    assert {each for each in named if each[0] not in FLAGS and not FOREIGN.fullmatch(each[0])} == set()


def test_keywords_that_messages_name_exist(trees):
    known = {"auto_scale_loss", "ignore_data_skip", "minibatch", "row_group_size", "multiprocessing_context", "style"}
    for node in itertools.chain.from_iterable(map(ast.walk, trees.values())):
        if isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            known.add(node.target.id)
    written = re.compile(r"(?<![\w?&;{.-])([a-z_]{3,})=(?=[\[('\"\w{])")
    texts = ((name, text) for name, tree in trees.items() for text in texts_of(tree))
    texts = (
        (name, text) for name, text in texts if " " in text and not re.search(r"PRAGMA|charset|boundary|<svg", text)
    )
    named = {(word, name) for name, text in texts for word in written.findall(text) if name != "measure/report.py"}
    assert {each for each in named if each[0] not in known} == set()


def test_words_are_quoted_for_a_shell(place):
    shutil.rmtree(place / "dataset")
    done = run_here("verify", place / "dataset")
    assert f"tpufeed shard PHOTOS '{place / 'dataset'}'" in done.stderr
