"""Which kind of source a URL is, and the errors for URLs that are not sources."""

import os
import shutil
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.oracle.sources import KINDS
from tpufeed.errors import NoInputsError, SourceError, UnknownSchemeError
from tpufeed.sources import kinds
from tpufeed.sources.coco import CocoSource
from tpufeed.sources.columnar import ColumnarSource
from tpufeed.sources.imagefolder import ImageFolderSource
from tpufeed.sources.table import TableSource
from tpufeed.sources.tars import TarSource
from tpufeed.sources.voc import VocSource
from tpufeed.sources.yolo import YoloSource
from tpufeed.storage.local import LocalStore

NOBODY = 65534


@contextmanager
def without_roots_rights():
    """Become another user: root may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_missing_source(tmp_path, take):
    with pytest.raises(SourceError, match="nowhere"):
        take(tmp_path / "nowhere")


def test_a_file_as_source(tree, take):
    with pytest.raises(SourceError, match=r"1\.jpg"):
        take(tree("cat/1.jpg") / "cat/1.jpg")


@pytest.mark.parametrize("locked", ["source", "source/cat"])
def test_a_folder_that_may_not_be_read(locked, take):
    outer = Path(tempfile.mkdtemp())  # pytest's own folders are locked to others as a whole
    try:
        (outer / "source/cat").mkdir(parents=True)
        (outer / "source/cat/1.jpg").touch()
        outer.chmod(0o755)
        (outer / locked).chmod(0)
        with without_roots_rights(), pytest.raises(SourceError, match="Permission denied"):
            take(outer / "source")
        with without_roots_rights(), pytest.raises(SourceError, match="Permission denied"):
            take(outer / "source/cat")
    finally:
        (outer / locked).chmod(0o755)
        shutil.rmtree(outer)


def test_a_folder_called_like_a_file_is_a_folder(tree, take, tmp_path):
    for name in ("photos.zip", "photos.csv", "photos.tar"):
        shutil.copytree(tree("cat/1.jpg"), tmp_path / name)
        assert [item.path for item in take(tmp_path / name)[1]] == ["cat/1.jpg"]


def test_no_images_in_folders_of_tars(tree, take):
    with pytest.raises(NoInputsError, match="2 files"):
        take(tree("train/0.tar", "val/0.tar"))


def test_kinds_look_at_one_listing_of_a_folder(tree, take, monkeypatch):
    folder, calls = tree("cat/1.jpg", "dog/2.jpg"), Counter()

    def count(name):
        whole = getattr(LocalStore, name)

        def counted(*args):
            calls[name] += 1
            yield from whole(*args)

        monkeypatch.setattr(LocalStore, name, counted)

    count("iter_folders")
    count("iter_objects")
    assert take(folder)[0].count == 2
    assert calls == {"iter_folders": 1, "iter_objects": 1}


def test_a_source_that_nothing_opens(take):
    with pytest.raises(UnknownSchemeError, match="foo://"):
        take("foo://bucket/table.csv")


def test_the_oracle_builds_from_each_kind():
    known = {
        "yolo": YoloSource,
        "voc": VocSource,
        "tars": TarSource,
        "parquet": ColumnarSource,
        "csv": TableSource,
        "imagefolder": ImageFolderSource,
        "coco": CocoSource,
    }
    assert set(kinds._KINDS) == set(known.values())
    assert known.keys() <= set(KINDS)
