"""Class folders, folders of splits, folders without labels, and what else is in them."""

import json
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

import tpufeed
from tests.sharding.previews import preview_shard
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.memory import MemoryStore


def by_name(inputs):
    return {item.path: item.label for item in inputs}


def test_class_folders(tree, take):
    listing, inputs = take(tree("dog/2.PNG", "dog/1.jpg", "cat/1.jpeg", "ant/x.webp"))
    assert listing.classes.names == ("ant", "cat", "dog")
    assert by_name(inputs) == {"ant/x.webp": 0, "cat/1.jpeg": 1, "dog/1.jpg": 2, "dog/2.PNG": 2}
    assert listing.listed.ignored_files == {}


def test_inputs_carry_what_identifies_them(tree, take):
    folder = tree("cat/1.jpg")
    _, (item,) = take(folder)
    stat = (folder / "cat/1.jpg").stat()
    assert (item.bytes, item.version) == (stat.st_size, str(stat.st_mtime_ns))


def test_images_beside_class_folders_are_refused(tree, take):
    with pytest.raises(SourceError, match="stray"):
        take(tree("cat/1.jpg", "stray1.jpg", "stray2.jpg"))


def test_files_without_an_images_name_are_counted(tree, take):
    listing, inputs = take(tree("cat/1.jpg", "cat/notes.txt", "labels.csv", "cat/noextension", "cat/archive.jpg.zip"))
    assert list(by_name(inputs)) == ["cat/1.jpg"]
    assert listing.listed.ignored_files == {".txt": 1, ".csv": 1, "": 1, ".zip": 1}


def test_files_that_may_annotate_the_images_are_named(tree, take):
    names = ["boxes/1.xml", "labels.csv", "@eaDir/x.json", "README.txt"]
    listing, _ = take(tree("cat/1.jpg", *names))
    (said,) = (each for each in listing.listed.warnings if "not read" in each)
    assert {name for name in names if name in said} == {"boxes/1.xml", "labels.csv"}


def test_what_is_there_in_place_of_images_is_said(tree, take):
    with pytest.raises(NoInputsError, match=r"2 \.txt"):
        take(tree("a.txt", "b/c.TXT", "d/.hidden"))


def test_tfrecords_in_place_of_images_are_for_adopt(tree, take):
    folder = tree("train/00-224x224-7.tfrec", "readme.md")
    with pytest.raises(NoInputsError, match=f"tpufeed adopt {folder} --to"):
        take(folder)
    with pytest.raises(SourceError, match=f"tpufeed adopt {folder}/train --to"):
        take(folder / "train/00-224x224-7.tfrec")


LEAVINGS = [
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
]


def test_files_of_other_programs_are_no_images_and_no_classes(tree, take):
    listing, inputs = take(tree("cat/1.jpg", "dog/1.jpg", *LEAVINGS))
    assert by_name(inputs) == {"cat/1.jpg": 0, "dog/1.jpg": 1}
    assert (listing.classes.names, sum(listing.listed.ignored_files.values())) == (("cat", "dog"), len(LEAVINGS))


def test_a_class_may_be_called_nearly_so(tree, take):
    assert take(tree("my__MACOSX/1.jpg", "a.b/1.jpg"))[0].classes.names == ("a.b", "my__MACOSX")


def test_deeper_folders_belong_to_the_class_above_them(tree, take):
    _, inputs = take(tree("cat/2023/may/1.jpg", "cat/1.jpg", "dog/x/1.jpg"))
    assert by_name(inputs) == {"cat/1.jpg": 0, "cat/2023/may/1.jpg": 0, "dog/x/1.jpg": 1}


def test_empty_folders_are_no_classes(tree, take):
    folder = tree("cat/1.jpg")
    (folder / "dog").mkdir()
    assert take(folder)[0].classes.names == ("cat",)


def test_names_of_all_kinds(tree, take):
    names = ["größe", "猫 und 🐈", "new\nline", " space ", "a'b\"c", "%20", "[x]", "-dash", "a=b,c"]
    listing, inputs = take(tree(*(f"{name}/{name}.jpg" for name in names)))
    assert listing.classes.names == tuple(sorted(names))
    assert by_name(inputs) == {f"{name}/{name}.jpg": place for place, name in enumerate(sorted(names))}


@pytest.mark.parametrize("name", ["cat/b\udcffd.jpg", "c\udcfft/1.jpg"])
def test_a_name_that_is_not_utf8_is_refused_by_name(name, tree, take):
    folder = tree("cat/1.jpg", name)
    with pytest.raises(SourceError, match=r"\\udcff") as raised:
        take(folder)
    str(raised.value).encode()  # it can be printed


def test_a_name_that_is_not_utf8_does_not_matter_where_it_is_no_images(tree, take):
    assert take(tree("cat/1.jpg", "cat/b\udcffd.txt"))[0].listed.ignored_files == {".txt": 1}


@pytest.mark.parametrize(
    "names", [[], ["readme.txt", "cat/x.txt"], [".hidden/1.jpg"]], ids=["empty", "texts", "hidden"]
)
def test_a_folder_without_images(names, tree, tmp_path, take):
    (tmp_path / "source").mkdir()
    with pytest.raises(NoInputsError, match=f"{len(names)} files"):
        take(tree(*names))


def test_images_without_an_ending_are_for_a_table(tree, tmp_path, take):
    with pytest.raises(NoInputsError, match="A table may name images without an ending"):
        take(tree("series/IM0001", "series/IM0002"))


def test_a_source_in_memory_without_objects(tmp_path, take):
    with pytest.raises(NoInputsError, match="0 files"):
        take(f"memory://{tmp_path.name}-empty")


SPLIT_TREE = ("train/cat/1.jpg", "train/dog/2.jpg", "train/dog/x/3.jpg", "val/cat/4.jpg", "test/dog/5.jpg")


def splits_of(inventory):
    return {split: {item.path: item.label for item, _ in inventory.iter_inputs(split)} for split in inventory.splits}


def test_folders_called_train_and_val_are_splits(tree, take):
    inventory, _ = take(tree(*SPLIT_TREE))
    assert inventory.classes.names == ("cat", "dog")
    assert splits_of(inventory) == {
        "test": {"test/dog/5.jpg": 1},
        "train": {"train/cat/1.jpg": 0, "train/dog/2.jpg": 1, "train/dog/x/3.jpg": 1},
        "val": {"val/cat/4.jpg": 0},
    }


@pytest.mark.parametrize(
    "names",
    [
        ("train", "test"),
        ("training", "validation"),
        ("train",),
        ("TRAIN", "VAL", "TEST"),
        ("training_set", "test_set"),
        ("train2017", "val2017"),
    ],
    ids=str,
)
def test_what_splits_are_called(names, tree, take):
    inventory, _ = take(tree(*(f"{name}/cat/1.jpg" for name in names)))
    assert inventory.splits == tuple(sorted(names))


@pytest.mark.parametrize("names", [("train", "bus"), ("val", "test"), ("test",)], ids=str)
def test_other_names_are_classes(names, tree, take):
    inventory, _ = take(tree(*(f"{name}/1.jpg" for name in names)))
    assert (inventory.splits, inventory.classes.names) == (("train",), tuple(sorted(names)))


def test_a_folder_without_images_beside_the_splits_does_not_matter(tree, take):
    inventory, _ = take(tree(*SPLIT_TREE, "annotations/x/y.md", "docs/.thumbs/1.jpg"))
    assert (inventory.splits, inventory.classes.names, inventory.listed.warnings) == (
        ("test", "train", "val"),
        ("cat", "dog"),
        (),
    )


def test_a_folder_of_images_beside_the_splits_makes_classes_and_a_warning(tree, take):
    inventory, _ = take(tree(*SPLIT_TREE, "extra/cat/6.jpg"))
    assert inventory.classes.names == ("extra", "test", "train", "val")
    (warning,) = inventory.listed.warnings
    assert "test, train, val" in warning
    assert "--split-by folder" in warning


@pytest.mark.parametrize(
    ("names", "mentioned"),
    [
        (("val/1.jpg", "test/2.jpg"), "test, val"),
        (("asl_train/a/1.jpg", "asl_test/a/1.jpg"), "asl_test, asl_train"),
        (("train/1.jpg", "valley/2.jpg"), None),
        (("train station/1.jpg", "train/2.jpg", "boat/1.jpg"), None),
    ],
    ids=str,
)
def test_classes_that_are_called_like_splits(names, mentioned, tree, take):
    warnings = take(tree(*names))[0].listed.warnings
    assert len(warnings) == (mentioned is not None)
    assert mentioned is None or mentioned in warnings[0]
    assert take(tree(*names), label="none")[0].listed.warnings == ()


def test_one_folder_around_the_classes(tree, take):
    folder = tree("flowers/rose/1.jpg", "flowers/tulip/x/2.jpg", "LICENSE.txt")
    (warning,) = take(folder)[0].listed.warnings
    assert "(rose, tulip)" in warning
    assert f"shard {folder}/flowers" in warning
    assert "--label none" in warning
    assert take(folder / "flowers")[0].listed.warnings == take(folder, label="none")[0].listed.warnings == ()


def test_one_class(tree, take):
    (warning,) = take(tree("images/1.jpg"))[0].listed.warnings
    assert "one folder, images" in warning
    assert "--label none" in warning
    assert take(tree("images/1.jpg"), classes=["images", "others"])[0].listed.warnings == ()


@pytest.mark.all
def test_warnings_of_folders_reach_result_and_preview(photo_folder, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "source/all")
    previewed = preview_shard(tmp_path / "source", tmp_path / "d").warnings
    warnings = tpufeed.shard(tmp_path / "source", tmp_path / "d", workers=1).warnings
    assert previewed == warnings
    assert f"shard {tmp_path}/source/all; " in warnings[0]


def test_files_and_hidden_folders_beside_the_splits_do_not_matter(tree, take):
    inventory, _ = take(tree(*SPLIT_TREE, "readme.txt", ".git/x", "__MACOSX/train/1.jpg", "train/cat/.x.jpg"))
    assert inventory.splits == ("test", "train", "val")
    assert sum(inventory.listed.ignored_files.values()) == 4


def test_any_folders_can_be_splits(tree, take):
    inventory, _ = take(tree("fold0/cat/1.jpg", "fold1/cat/2.jpg"), split_by="folder")
    assert (inventory.splits, inventory.classes.names) == (("fold0", "fold1"), ("cat",))


def test_a_folder_that_cannot_be_a_splits_name(tree, take):
    with pytest.raises(OptionError, match="'a b'"):
        take(tree("train/cat/1.jpg", "a b/cat/1.jpg"), split_by="folder")


def test_splits_without_classes(tree, take):
    inventory, inputs = take(tree("train/1.jpg", "train/2.jpg", "val/3.jpg"))
    assert (inventory.splits, inventory.classes.names, inventory.labelled) == (("train", "val"), (), False)
    assert {item.label for item in inputs} == {-1}


def test_a_test_folder_without_labels_is_no_silent_class(tree, take):
    folder = tree("train/cat/1.jpg", "train/dog/2.jpg", "test/3.jpg", "test/4.jpg")
    with pytest.raises(SourceError, match="--label none"):
        take(folder)
    assert take(folder, label="none")[0].splits == ("test", "train")


def test_an_image_beside_the_split_folders(tree, take):
    with pytest.raises(SourceError, match=r"stray\.jpg"):
        take(tree(*SPLIT_TREE, "stray.jpg"))


def test_shares_would_make_classes_of_splits(tree, take):
    with pytest.raises(OptionError, match="`splits`"):
        take(tree(*SPLIT_TREE), splits="train=0.5,val=0.5")
    inventory, inputs = take(tree(*SPLIT_TREE), splits="a=0.5,b=0.5", label="none")
    assert (inventory.splits, len(inputs)) == (("a", "b"), 5)
    assert take(tree(*SPLIT_TREE).joinpath("train"), splits="a=0.5,b=0.5")[0].classes.names == ("cat", "dog")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": "path"}, "--image"),
        ({"label": "kind"}, "'kind'"),
        ({"split_by": "fold"}, "'fold'"),
    ],
)
def test_options_of_other_sources(options, message, tree, take):
    with pytest.raises(OptionError, match=message):
        take(tree("cat/1.jpg"), **options)


def test_given_classes(tree, take):
    inventory, inputs = take(
        tree("cat/1.jpg", "dog/2.jpg", "0/3.jpg", "eel/4.jpg"), classes=["dog", "eel", "fox", "cat"]
    )
    assert inventory.classes.names == ("dog", "eel", "fox", "cat")
    found = {item.path: (item.label, item.problem and item.problem[0]) for item in inputs}
    assert found == {
        "cat/1.jpg": (3, None),
        "dog/2.jpg": (0, None),
        "0/3.jpg": (-1, "bad_label"),  # a folder's name is no number
        "eel/4.jpg": (1, None),
    }


@pytest.fixture
def odd_links(small_jpegs, tmp_path):
    """Links out of the tree, to nothing and in a circle."""
    folder, outside = tmp_path / "source", tmp_path / "outside"
    (folder / "cat").mkdir(parents=True)
    (outside / "dog").mkdir(parents=True)
    (folder / "cat/1.jpg").write_bytes(small_jpegs[0])
    (outside / "2.jpg").write_bytes(small_jpegs[1])
    (outside / "dog/3.jpg").write_bytes(small_jpegs[2])
    (folder / "cat/out.jpg").symlink_to(outside / "2.jpg")
    (folder / "cat/broken.jpg").symlink_to("nowhere.jpg")
    (folder / "cat/circle").symlink_to(folder, target_is_directory=True)
    (folder / "cat/itself.jpg").symlink_to("itself.jpg")
    (folder / "dog").symlink_to(outside / "dog", target_is_directory=True)
    return folder


def test_links_are_followed_or_rejected(odd_links, tmp_path):
    result = tpufeed.shard(odd_links, tmp_path / "d", workers=1)
    assert (result.images, result.manifest.class_names) == (3, ("cat", "dog"))
    rejects = [json.loads(line) for line in (tmp_path / "d/rejects.jsonl").read_text().splitlines()]
    assert {line["path"] for line in rejects} == {"cat/broken.jpg", "cat/itself.jpg"}
    assert all("link" in line["message"] for line in rejects)


@pytest.mark.parametrize("scheme", ["memory", "local"])
def test_split_folders_elsewhere(scheme, small_jpegs, bytes_of, tmp_path):
    url = f"memory://{tmp_path.name}" if scheme == "memory" else f"local://{tmp_path}/remote"
    for store in (MemoryStore(url) if scheme == "memory" else FsspecStore(url),):
        for number, name in enumerate(SPLIT_TREE):
            store.put(name, small_jpegs[number])
            (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "local" / name).write_bytes(small_jpegs[number])
    there = tpufeed.shard(url, tmp_path / "there", workers=1)
    here = tpufeed.shard(tmp_path / "local", tmp_path / "here", workers=1)
    assert list(there.manifest.splits) == ["test", "train", "val"]
    assert bytes_of(there.url) == bytes_of(here.url)


def test_a_zip_is_read_through_fsspec(small_jpegs, tmp_path):
    for number in range(4):
        path = tmp_path / "source" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(small_jpegs[number])
    archive = Path(shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "source"))
    with pytest.raises(SourceError, match=r"photos\.zip") as caught:
        tpufeed.shard(archive, tmp_path / "d", workers=1)
    unpack, url = re.search(r"\((unzip .*)\), or shard (\S+),", str(caught.value)).groups()
    for number, source in enumerate((url, f"zip::file://{archive}")):
        result = tpufeed.shard(source, tmp_path / f"d{number}", workers=1)
        assert (result.images, result.manifest.class_names) == (4, ("a", "b"))
    assert unpack == f"unzip {archive} -d {tmp_path / 'photos'}"  # Info-ZIP's, which not each machine has


def test_a_table_or_a_tar_in_a_zip_is_a_source(small_jpegs, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(2):
            (tmp_path / f"{number}.jpg").write_bytes(small_jpegs[number])
            tar.add(tmp_path / f"{number}.jpg", f"{number}.jpg")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.write(tmp_path / "a.tar", "tars/a.tar")
        for number in range(4):
            archive.writestr(f"in/{number}.jpg", small_jpegs[number])
        archive.writestr(
            "labels.csv", "path,label\n" + "".join(f"in/{number}.jpg,{number % 2}\n" for number in range(4))
        )
    table = tpufeed.shard(f"zip://labels.csv::{tmp_path}/x.zip", tmp_path / "table", workers=1)
    assert (table.images, table.manifest.class_names) == (4, ("0", "1"))
    assert tpufeed.shard(f"zip://tars/a.tar::{tmp_path}/x.zip", tmp_path / "tar", label="none", workers=1).images == 2


def test_the_advice_on_one_folder_in_a_zip_leads_to_its_classes(small_jpegs, tmp_path):
    for number in range(4):
        path = tmp_path / "source/photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(small_jpegs[number])
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "source")
    (said,) = tpufeed.shard(f"zip::{archive}", tmp_path / "one", workers=1).warnings
    url = re.search(r" shard (\S+);", said)[1]
    assert tpufeed.shard(url, tmp_path / "d", workers=1).manifest.class_names == ("a", "b")


def test_only_a_dataset_is_said_to_be_one(small_jpegs, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app/manifest.json").write_text('{"name": "My app", "icons": []}')
    with pytest.raises(NoInputsError, match="Expected names that end in") as caught:
        tpufeed.shard(tmp_path / "app", tmp_path / "d", workers=1)
    assert "cache warmup" not in str(caught.value)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/0.jpg").write_bytes(small_jpegs[0])
    tpufeed.shard(tmp_path / "photos", tmp_path / "my flowers", workers=1)
    with pytest.raises(NoInputsError, match=f"tpufeed cache warmup '{tmp_path}/my flowers' CACHE"):
        tpufeed.shard(tmp_path / "my flowers", tmp_path / "d", workers=1)
    (tmp_path / "my flowers/manifest.json").unlink()
    with pytest.raises(NoInputsError, match=r"unfinished build of a dataset\. Run its command again"):
        tpufeed.shard(tmp_path / "my flowers", tmp_path / "d", workers=1)
