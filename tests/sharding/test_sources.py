import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tpufeed.errors import NoInputsError, SourceError

NOBODY = 65534


@contextmanager
def without_roots_rights():
    """Permission bits do not bite for root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def by_name(inputs):
    return {item.path: item.label for item in inputs}


def test_class_folders(tree, take):
    listing, inputs = take(tree("dog/2.PNG", "dog/1.jpg", "cat/1.jpeg", "ant/x.webp"))
    assert listing.classes.names == ("ant", "cat", "dog")
    assert by_name(inputs) == {"ant/x.webp": 0, "cat/1.jpeg": 1, "dog/1.jpg": 2, "dog/2.PNG": 2}
    assert listing.ignored_files == {}


def test_inputs_carry_what_identifies_them(tree, take):
    folder = tree("cat/1.jpg")
    _, (item,) = take(folder)
    stat = (folder / "cat/1.jpg").stat()
    assert (item.bytes, item.version) == (stat.st_size, str(stat.st_mtime_ns))


def test_images_beside_class_folders_are_refused(tree, take):
    with pytest.raises(SourceError, match=r"images lie beside the class folders \(stray.*\); move them"):
        take(tree("cat/1.jpg", "stray1.jpg", "stray2.jpg"))


def test_files_without_an_images_name_are_counted(tree, take):
    listing, inputs = take(tree("cat/1.jpg", "cat/notes.txt", "labels.csv", "cat/noextension", "cat/archive.jpg.zip"))
    assert list(by_name(inputs)) == ["cat/1.jpg"]
    assert listing.ignored_files == {".txt": 1, ".csv": 1, "": 1, ".zip": 1}


def test_what_is_there_in_place_of_images_is_said(tree, take):
    with pytest.raises(NoInputsError, match=r"no images found among 3 files \(2 \.txt, 1 other\); expected names"):
        take(tree("a.txt", "b/c.TXT", "d/.hidden"))


def test_tfrecords_in_place_of_images_are_for_adopt(tree, take):
    folder = tree("train/00-224x224-7.tfrec", "readme.md")
    with pytest.raises(NoInputsError, match=rf"\(1 \.md, 1 \.tfrec\)\. .*by: tpufeed adopt {folder} --to DATASET$"):
        take(folder)
    with pytest.raises(SourceError, match=rf"is a TFRecord file\. .*by: tpufeed adopt {folder}/train --to DATASET$"):
        take(folder / "train/00-224x224-7.tfrec")


@pytest.mark.parametrize(
    "leaving",
    [
        ".stray.jpg",
        "cat/._1.jpg",
        "cat/.ipynb_checkpoints/1.jpg",
        "__MACOSX/1.jpg",
        "__MACOSX/cat/._1.jpg",
        "@eaDir/1.jpg",
        "cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg",
        ".AppleDouble/1.jpg",
        "#recycle/cow/1.jpg",
        "$RECYCLE.BIN/1.jpg",
        "lost+found/1.jpg",
        ".@__thumb/1.jpg",
    ],
)
def test_other_programs_leavings_are_no_images_and_no_classes(leaving, tree, take):
    listing, inputs = take(tree("cat/1.jpg", "dog/1.jpg", leaving))
    assert by_name(inputs) == {"cat/1.jpg": 0, "dog/1.jpg": 1}
    assert (listing.classes.names, sum(listing.ignored_files.values())) == (("cat", "dog"), 1)


def test_a_class_may_be_called_nearly_so(tree, take):
    assert take(tree("my__MACOSX/1.jpg", "a.b/1.jpg"))[0].classes.names == ("a.b", "my__MACOSX")


def test_deeper_folders_belong_to_the_class_above_them(tree, take):
    _, inputs = take(tree("cat/2023/may/1.jpg", "cat/1.jpg", "dog/x/1.jpg"))
    assert by_name(inputs) == {"cat/1.jpg": 0, "cat/2023/may/1.jpg": 0, "dog/x/1.jpg": 1}


def test_empty_folders_are_no_classes(tree, take):
    folder = tree("cat/1.jpg")
    (folder / "dog").mkdir()
    assert take(folder)[0].classes.names == ("cat",)


@pytest.mark.parametrize(
    "name", ["größe", "猫 und 🐈", "new\nline", " space ", "a'b\"c", "%20", "[x]", "-dash", "a=b,c"]
)
def test_names_of_all_kinds(name, tree, take):
    listing, inputs = take(tree(f"{name}/{name}.jpg"))
    assert listing.classes.names == (name,)
    assert by_name(inputs) == {f"{name}/{name}.jpg": 0}


@pytest.mark.parametrize("name", ["cat/b\udcffd.jpg", "c\udcfft/1.jpg"])
def test_a_name_that_is_not_utf8_is_refused_by_name(name, tree, take):
    folder = tree("cat/1.jpg", name)
    with pytest.raises(SourceError, match=r"\\udcff.* is not UTF-8; rename it") as raised:
        take(folder)
    str(raised.value).encode()  # it can be printed


def test_a_name_that_is_not_utf8_does_not_matter_where_it_is_no_images(tree, take):
    assert take(tree("cat/1.jpg", "cat/b\udcffd.txt"))[0].ignored_files == {".txt": 1}


@pytest.mark.parametrize(
    "names", [[], ["readme.txt", "cat/x.txt"], [".hidden/1.jpg"]], ids=["empty", "texts", "hidden"]
)
def test_a_folder_without_images(names, tree, tmp_path, take):
    (tmp_path / "source").mkdir()
    with pytest.raises(NoInputsError, match=rf"no images found among {len(names)} files.*; .*\.jpg.*photos/cat/1\.jpg"):
        take(tree(*names))


def test_a_missing_source(tmp_path, take):
    with pytest.raises(SourceError, match="nowhere does not exist"):
        take(tmp_path / "nowhere")


def test_a_file_as_source(tree, take):
    with pytest.raises(SourceError, match=r"1\.jpg is a file; expected a folder of images, a table \(\.csv"):
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


def test_a_source_in_memory_without_objects(tmp_path, take):
    with pytest.raises(NoInputsError, match="among 0 files"):
        take(f"memory://{tmp_path.name}-empty")
