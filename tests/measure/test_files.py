"""Files for people: whole or not at all, and refused before the work."""

import errno
import os
from pathlib import Path

import pytest

from tpufeed.errors import OptionError, StoreError
from tpufeed.measure.files import check_output, write_file


def test_a_file_replaces_what_was_there_with_the_rights_of_any_other(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    path.write_text("old")
    write_file(path, b"new")
    umask = os.umask(0)
    os.umask(umask)
    assert [found.name for found in tmp_path.iterdir()] == ["out.html"]
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o666 & ~umask)


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.html"
    path.write_text("old")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=r"out\.html: "):
        write_file(path, b"new")
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == {"out.html": "old"}
    with pytest.raises(StoreError, match=r"^/proc/"):
        write_file(Path("/proc/out.html"), b"new")


def test_names_of_any_length_that_a_folder_holds(tmp_path: Path) -> None:
    path = tmp_path / ("猫" * 80 + ".html")  # 245 bytes
    write_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_where_no_file_can_go(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "out.pdf", "must end in .png"),
        (tmp_path / "none" / "out.png", "no folder .*none"),
    ):
        with pytest.raises(OptionError, match=said):
            check_output(path, (".png", ".jpg"), "it must end in .png or .jpg")
    with pytest.raises(OptionError, match="is a folder"):
        check_output(tmp_path)
    check_output(tmp_path / "out")
