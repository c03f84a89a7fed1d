"""Functions of the user's as ops: run in every worker; what is wrong with one is said before anything is written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import run_here
from tpufeed.cache import warmup
from tpufeed.dataset.reader import open_dataset
from tpufeed.engines.processes import ProcessEngine
from tpufeed.errors import OpError, OptionError, TaskError
from tpufeed.images import CenterCrop, Custom
from tpufeed.images.decoding import decode
from tpufeed.images.ops import custom

SIDE = 32
CROP = f"CenterCrop({SIDE})"
MODULE = Path(__file__).with_name("augmentations.py")
COMMANDS = {
    "tpufeed": [str(Path(sys.executable).with_name("tpufeed")), "cache", "warmup"],
    "module": [sys.executable, "-m", "tpufeed.cache", "warmup"],
}


@pytest.fixture
def here(tmp_path):
    """A folder with my_ops.py in it."""
    shutil.copy(MODULE, tmp_path / "my_ops.py")
    return tmp_path


@pytest.fixture
def importable(here, monkeypatch):
    """The same folder, from which this process imports as well."""
    monkeypatch.syspath_prepend(str(here))
    yield here
    sys.modules.pop("my_ops", None)
    custom._find_once.cache_clear()


def run(command, folder, *arguments):
    """Run the command in a new process, which finds the user's module only in the current folder."""
    done = subprocess.run(
        [*COMMANDS[command], *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.all
def test_workers_import_it_from_the_current_folder(source, importable, monkeypatch, bytes_of):
    flags = ("--op", CROP, "--op", "my_ops:heavy@2", "--variants", 2, "--shard-size", "40KB")
    for command in COMMANDS:
        done = run(command, importable, source, command, *flags, "--workers", 2)
        assert done.returncode == 0, done.stderr
        (_, op) = open_dataset(importable / command).manifest.cache.ops
        assert op == {"op": "Custom", "version": "2", "target": "my_ops:heavy"}
    monkeypatch.chdir(importable)
    assert run_here("cache", "warmup", source, "one", *flags, "--workers", 1).returncode == 0
    assert bytes_of("tpufeed") == bytes_of("module") == bytes_of("one")
    assert "complete already" in run_here("cache", "warmup", source, "one", *flags).stdout
    other = run_here("cache", "warmup", source, "one", "--op", CROP, "--op", "my_ops:heavy@3", *flags[4:])
    assert other.returncode == 2
    assert 'version of Custom (ops, number 2) is "2" there and "3" here' in other.stderr


BAD = {
    "my_ops:raises": (1, r"'my_ops:raises'.* KeyError"),
    "my_ops:smaller": (1, r"'my_ops:smaller'.*\(31, 32, 3\)"),
    "my_ops:floats": (1, "'my_ops:floats'.* float64"),
    "my_ops:mirrored": (1, "'my_ops:mirrored'.*np.ascontiguousarray"),
    "my_ops:unseeded": (1, "'my_ops:unseeded'.* deterministic"),
    "my_ops:counting": (1, "'my_ops:counting'.* deterministic"),
    "my_ops:missing": (2, "missing in .*my_ops"),
    "no_such_module:heavy": (
        2,
        "no_such_module:heavy.*PYTHONPATH",
    ),
    "lambda image, rng: image": (2, r"op 'lambda image, rng: image': "),
}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("target", BAD)
def test_what_is_wrong_is_said_at_the_probe(target, source, importable, monkeypatch):
    """In this process, as nothing gets as far as a worker; it names the op, the sample and the way out."""
    monkeypatch.chdir(importable)
    code, message = BAD[target]
    before = sorted(importable.iterdir())
    done = run_here("cache", "warmup", source, "c", "--op", CROP, "--op", target, "--workers", "2")
    assert done.returncode == code, done.stderr
    assert re.search(message, done.stderr), done.stderr
    if code == 1:
        assert re.search(r"error: (cat|coffee|astronaut)/\d+\.(jpg|png) \(sample \d+\): ", done.stderr), done.stderr
    assert [path for path in sorted(importable.iterdir()) if path.name != "__pycache__"] == before


def test_none_can_be_a_final_op(source, here, monkeypatch):
    """A loader would import what a manifest names."""
    monkeypatch.chdir(here)
    for flags in ((), ("--dry-run",)):
        done = run_here("cache", "warmup", source, "c", "--op", CROP, "--live", "my_ops:heavy@2", *flags)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(r"error: .*'my_ops:heavy'.* pass all live ops to each loader: ops=\[.*\]\n", done.stderr)
    assert not (here / "c").exists()


def test_a_lambda_or_a_local_function_is_refused_as_it_is_given():
    for function in (lambda image, _rng: image, np.random.default_rng().random):
        with pytest.raises(OptionError, match="module"):
            Custom(function)


def test_one_of_main_is_refused(source, tmp_path):
    """A process that continues the build has another `__main__`."""
    with pytest.raises(OptionError, match="__main__:heavy"):
        warmup(source, tmp_path / "c", ops=[CenterCrop(32), Custom("__main__:heavy")], workers=1)
    assert not (tmp_path / "c").exists()


@pytest.mark.all
def test_one_that_fails_late_is_an_error_that_names_op_and_sample(source, importable):
    images = [image for split in ("train", "val") for image in middles(source, split)]
    probed, others = images[:16], images[16:]
    limit = max(pixels.mean() for _, pixels in probed)
    bright = [name for name, pixels in others if pixels.mean() > limit]
    assert bright
    (importable / "my_ops.py").write_text(MODULE.read_text().replace("LIMIT = 1000", f"LIMIT = {float(limit)!r}"))
    options = {"ops": [CenterCrop(SIDE), Custom("my_ops:late")], "shard_bytes": "40KB", "engine": ProcessEngine(2)}
    with pytest.raises(TaskError) as caught:
        warmup(source, importable / "c", **options)
    said = str(caught.value)
    found = re.search(
        r"-v0-\d+-of-\d+\.tfrecord: (\S+) \(sample \d+\): .*'my_ops:late'.* raised ValueError: too bright", said
    )
    assert found, said
    assert found[1] in bright
    assert not (importable / "c/manifest.json").exists()
    (importable / "my_ops.py").write_text(MODULE.read_text())
    assert warmup(source, importable / "c", **options).images == len(
        images
    )  # once it is mended, the same call continues


def middles(url, split):
    dataset = open_dataset(url)
    for found in dataset.iter_examples(split):
        pixels = decode(found["image/encoded"].values[0])
        top, left = (pixels.shape[0] - SIDE) // 2, (pixels.shape[1] - SIDE) // 2
        yield bytes(found["image/filename"].values[0]).decode(), pixels[top : top + SIDE, left : left + SIDE]


def test_a_failed_probe_keeps_what_stands(source, importable):
    done = warmup(source, importable / "c", size=SIDE, workers=1)
    before = {path: path.stat().st_mtime_ns for path in Path(done.url).rglob("*") if path.is_file()}
    with pytest.raises(OpError):
        warmup(source, done.url, ops=[CenterCrop(SIDE), Custom("my_ops:raises")], workers=1, overwrite=True)
    assert {path: path.stat().st_mtime_ns for path in Path(done.url).rglob("*") if path.is_file()} == before
