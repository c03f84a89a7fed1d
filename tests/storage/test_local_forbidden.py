"""Paths below a folder that may not be searched: each call says so, and not that there is nothing."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

import tpufeed
from tpufeed.cache import warmup
from tpufeed.errors import TpufeedError
from tpufeed.measure.files import check_output
from tpufeed.measure.xplane import read_profile
from tpufeed.storage.local import LocalStore

NOBODY = 65534


@pytest.fixture(params=["of this Python", "of Python 3.14"])
def locked(request, monkeypatch):
    """A folder whose owner has locked it. Since 3.14 pathlib sees nothing there, and raises nothing."""
    if request.param == "of Python 3.14":
        monkeypatch.setattr(Path, "exists", os.path.exists)
        monkeypatch.setattr(Path, "is_dir", os.path.isdir)
        monkeypatch.setattr(Path, "is_file", os.path.isfile)
    outer = Path(tempfile.mkdtemp())  # pytest's own folders are locked to others as a whole
    inner = outer / "locked"
    (inner / "photos/cat").mkdir(parents=True)
    outer.chmod(0o777)
    inner.chmod(0)
    root = os.geteuid() == 0
    if root:  # permission bits do not bite for root
        os.seteuid(NOBODY)
    try:
        yield inner
    finally:
        if root:
            os.seteuid(0)
        inner.chmod(0o755)
        shutil.rmtree(outer)


CALLS = {
    "shard a folder": lambda locked: tpufeed.shard(locked / "photos", locked.parent / "d", workers=1),
    "shard the folder itself": lambda locked: tpufeed.shard(locked, locked.parent / "d", workers=1),
    "shard a table": lambda locked: tpufeed.shard(locked / "table.csv", locked.parent / "d", workers=1),
    "shard tars": lambda locked: tpufeed.shard(f"{locked}/x-*.tar", locked.parent / "d", workers=1),
    "shard a zip": lambda locked: tpufeed.shard(locked / "x.zip", locked.parent / "d", workers=1),
    "adopt": lambda locked: tpufeed.adopt(locked / "d"),
    "open": lambda locked: tpufeed.open_dataset(locked / "d"),
    "warm up": lambda locked: warmup(locked / "d", locked.parent / "c", size=32, workers=1),
    "a page": lambda locked: check_output(locked / "page.html"),
    "a profile": lambda locked: read_profile(locked / "logs"),
    "the folder of profiles itself": read_profile,
    "list": lambda locked: list(LocalStore(str(locked / "d")).iter_objects()),
    "list folders": lambda locked: list(LocalStore(str(locked / "d")).iter_folders()),
    "free": lambda locked: LocalStore(str(locked / "d")).free_bytes(),
    "put": lambda locked: LocalStore(str(locked / "d")).put("a", b"1"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_what_may_not_be_looked_at_is_not_said_to_be_missing(locked, call):
    with pytest.raises(TpufeedError, match="locked"):
        call(locked)
