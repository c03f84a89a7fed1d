"""scripts/try-images over folders, and what it says of violations."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.frameworks import load

ROOT = Path(__file__).parents[3]


def run(*options, path=ROOT):
    command = [sys.executable, ROOT / "scripts/try-images", *options]
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def folder(tmp_path):
    images = tmp_path / "images"
    (images / "more").mkdir(parents=True)
    picture = Image.radial_gradient("L").resize((90, 60))
    for name in ("a.png", "b.jpg", "more/c.tif", "more/d.gif", "more/e.webp", "f.bmp"):
        picture.save(images / name)
    (images / "cut.png").write_bytes((images / "a.png").read_bytes()[:500])
    (images / "notes.txt").write_text("no image")
    return images


def test_a_folder_is_counted_by_format_and_outcome(folder):
    done = run(folder, "--mutants", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "14 files" in done.stdout
    assert "png 1 kept" in done.stdout or "1 kept" in next(line for line in done.stdout.splitlines() if "png" in line)


def test_plug_ins_of_pillow_read_what_tpufeed_reads(tmp_path):
    picture = Image.radial_gradient("L").resize((90, 60)).convert("RGB")
    load("pillow_jxl")
    picture.save(tmp_path / "a.jxl")
    load("pillow_heif").from_pillow(picture).save(tmp_path / "b.heic")
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout


def test_a_violation_is_named_with_file_and_policy(folder):
    done = run(folder, "--only", "png", "--most-seconds", 0)
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if line.startswith("VIOLATION")]
    assert any("a.png" in line and "keep" in line and "expected 0 s" in line for line in lines)


def test_a_worker_that_dies_is_a_violation_and_the_rest_is_tried(folder, tmp_path):
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if '--worker' in sys.orig_argv:\n"
        "    import tpufeed.images.policy as policy\n"
        "    store = policy.store_image\n"
        "    policy.store_image = lambda data, p, name: os.abort() if 'b.jpg' in name else store(data, p, name)\n"
    )
    done = run(folder, path=f"{hook}:{ROOT}")
    assert done.returncode == 1, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("VIOLATION")]
    assert len(lines) == 1
    assert "b.jpg" in lines[0]
    assert "-6" in lines[0]
    assert "7 files" in done.stdout


def test_what_cannot_be_tried_says_so(tmp_path):
    assert run().returncode == 2
    missing = run(tmp_path / "missing")
    assert (missing.returncode, "is no folder" in missing.stderr) == (2, True)
    empty = run(tmp_path)
    assert (empty.returncode, "no images" in empty.stderr) == (1, True)
