import hashlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import simplejpeg

SCRIPTS = Path(__file__).parents[3] / "scripts"
SCRIPT = SCRIPTS / "make_photos.py"


@pytest.fixture
def photos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("skimage")
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import make_photos

    return make_photos


def digest(folder: Path) -> str:
    names = sorted(path for path in folder.rglob("*") if path.is_file())
    parts = [str(path.relative_to(folder)).encode() + path.read_bytes() for path in names]
    return hashlib.blake2b(b"".join(parts)).hexdigest()


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_folder_a_class_with_upright_ones_among_them(photos: ModuleType, tmp_path: Path) -> None:
    photos.make_photos(tmp_path / "out", 30, size=(90, 120), classes=3)
    files = sorted((tmp_path / "out").glob("*/*.jpg"))
    assert len(files) == 30
    assert {path.parent.name for path in files} == {"astronaut", "cat", "coffee"}
    sizes = [simplejpeg.decode_jpeg(path.read_bytes()).shape for path in files]
    assert set(sizes) == {(90, 120, 3), (120, 90, 3)}
    for name in ("astronaut", "cat", "coffee"):
        upright = [path for path, size in zip(files, sizes, strict=True) if size[0] == 120 and path.parent.name == name]
        assert len(upright) == 3


def test_photos_are_of_the_size_of_photos_and_differ(photos: ModuleType, tmp_path: Path) -> None:
    photos.make_photos(tmp_path, 60)
    data = [path.read_bytes() for path in tmp_path.glob("*/*.jpg")]
    assert len(set(data)) == 60
    assert 80_000 < np.mean([len(one) for one in data]) < 100_000


def test_the_seed_decides_the_bytes(photos: ModuleType, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        photos.make_photos(tmp_path / name, 12, size=(60, 80), seed=seed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_a_finished_folder_of_the_same_photos_is_used_again(photos: ModuleType, tmp_path: Path) -> None:
    photos.make_photos(tmp_path, 6, size=(60, 80))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    photos.make_photos(tmp_path, 6, size=(60, 80))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_every_class_has_its_source(photos: ModuleType, tmp_path: Path) -> None:
    photos.make_photos(tmp_path, 20, size=(60, 80), classes=len(photos.SOURCES))
    assert {path.name for path in tmp_path.iterdir()} == {*photos.SOURCES, photos.MARKER}


def test_the_command_makes_photos_and_refuses_what_it_did_not_make(tmp_path: Path) -> None:
    pytest.importorskip("skimage")
    pytest.importorskip("sklearn")
    out = tmp_path / "photos"
    made = run(out, "--count", 5, "--size", "80x60")
    assert made.returncode == 0
    assert made.stdout.startswith("5 photos, ")
    assert run(out, "--count", 5, "--size", "80x60").returncode == 0

    other = run(out, "--count", 6, "--size", "80x60")
    assert other.returncode == 2
    assert "holds other photos" in other.stderr

    next(out.glob("*/*.jpg")).unlink()
    short = run(out, "--count", 5, "--size", "80x60")
    assert short.returncode == 2
    assert "should hold 5 photos and holds 4" in short.stderr

    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    letters = run(tmp_path / "letters", "--count", 5)
    assert letters.returncode == 2
    assert "not an empty folder" in letters.stderr
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]


@pytest.mark.parametrize("args", [["--count", 0], ["--count", 5, "--classes", 99], ["--count", 5, "--size", "big"]])
def test_the_command_refuses_what_cannot_be(tmp_path: Path, args: list[object]) -> None:
    assert run(tmp_path / "out", *args).returncode == 2
    assert not (tmp_path / "out").exists()
