"""Folders that a stranger has prepared; `python -m tests.hostile` goes on where this ends."""

import json
import os
import random
import shutil

import pytest

import tpufeed
from tests.hostile.machine import SERIAL, forged_step, link_steps, look, make_bases, picture, put, take_step, unread
from tpufeed.errors import LinkError, TpufeedError

SEED, LINK_STEPS, FORGED_STEPS = 39, 70, 90

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return make_bases(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def grown(bases, tmp_path):
    """A copy of the dataset that has grown."""
    return shutil.copytree(bases.of("grown"), tmp_path / "dataset")


def test_this_machine_sees_what_is_read(bases):
    """Else the next two tests would hold whatever is read."""
    path = bases.outside / "thesis/chapter.txt"
    os.utime(path, ns=(1, path.stat().st_mtime_ns))
    path.read_bytes()
    if path.stat().st_atime_ns == 1:
        pytest.skip("this file system keeps no times of access")
    with pytest.raises(AssertionError, match="read outside"), unread(bases.outside, may_read=False):
        path.read_bytes()
    with pytest.raises(AssertionError, match="was changed"), unread(bases.outside, may_read=False):
        put(bases.outside / "new", "x")
    (bases.outside / "new").unlink()


@pytest.mark.all
def test_links_in_any_place_lead_nowhere(bases):
    for step in random.Random(SEED).sample(link_steps(bases), LINK_STEPS):
        try:
            take_step(step, bases)
        except Exception as error:
            error.add_note(str(step))
            raise


@pytest.mark.all
def test_forged_files_end_in_an_error_or_do_no_harm(bases):
    draw = random.Random(SEED)
    for _ in range(FORGED_STEPS):
        step = forged_step(bases, draw)
        try:
            take_step(step, bases)
        except Exception as error:
            error.add_note(str(step))
            raise


# Examples that a person can read


def test_a_dataset_may_be_a_link_itself(bases, grown, tmp_path):
    (tmp_path / "link").symlink_to(grown)
    assert tpufeed.append(bases.source("third"), tmp_path / "link", **SERIAL).manifest.number == 3
    tpufeed.compact(tmp_path / "link", **SERIAL)
    assert tpufeed.prune(tmp_path / "link").removed
    assert tpufeed.verify(tmp_path / "link").records


@pytest.mark.parametrize("command", ["append", "compact", "prune", "overwrite", "adopt"])
def test_folders_beside_temporary_ones_stay(command, bases, grown, tmp_path):
    """`_tpufeed/tmp` is a link to a folder of somebody, or holds folders of somebody."""
    victim = tmp_path / "victim"
    put(victim / "thesis/chapter.txt", "years of work")
    before = look(victim)
    if command == "adopt":
        (grown / "manifest.json").unlink()
        shutil.rmtree(grown / "part-00002")
    (grown / "_tpufeed/tmp").symlink_to(victim)
    commands = {
        "append": lambda: tpufeed.append(bases.source("third"), grown, **SERIAL),
        "compact": lambda: tpufeed.compact(grown, **SERIAL),
        "prune": lambda: tpufeed.prune(grown),
        "overwrite": lambda: tpufeed.shard(bases.source("other"), grown, overwrite=True, **SERIAL),
        "adopt": lambda: tpufeed.adopt(grown),
    }
    with pytest.raises(LinkError, match="_tpufeed/tmp"):
        commands[command]()
    assert look(victim) == before
    (grown / "_tpufeed/tmp").unlink()
    put(grown / "_tpufeed/tmp/thesis/chapter.txt", "years of work")
    commands[command]()
    assert (grown / "_tpufeed/tmp/thesis/chapter.txt").read_text() == "years of work"


def test_a_part_is_not_put_through_a_link(bases, grown, tmp_path):
    (tmp_path / "victim").mkdir()
    (grown / "part-00003").symlink_to(tmp_path / "victim")
    with pytest.raises(LinkError, match="part-00003"):
        tpufeed.append(bases.source("third"), grown, **SERIAL)
    assert not any((tmp_path / "victim").iterdir())
    assert tpufeed.verify(grown).records


@pytest.mark.parametrize("name", ["train-00000-of-00001.tfrecord", "train-version-2.index.npy", "manifest.json"])
def test_a_shard_that_is_a_link_is_not_read(name, bases, grown, tmp_path):
    """Also where it leads to the very bytes: who gives a dataset could lead to any file of ours."""
    shutil.move(grown / name, tmp_path / name)
    (grown / name).symlink_to(tmp_path / name)
    with pytest.raises(TpufeedError, match=f"{name} is a symbolic link"):
        tpufeed.verify(grown)
    with pytest.raises(LinkError, match=name):
        list(tpufeed.open_dataset(grown).iter_examples("train"))
    (grown / name).unlink()
    os.link(tmp_path / name, grown / name)  # a hard link is a file
    assert tpufeed.verify(grown).records


@pytest.mark.parametrize(
    "name", ["notes.txt", "manifest.json", "_tpufeed/plan.jsonl", "part-00009/thesis.txt", "part-00002/rejects.jsonl"]
)
def test_prune_removes_no_file_that_is_no_shard_or_index(name, grown, tmp_path):
    put(grown / "notes.txt", "mine")
    put(tmp_path / "outside/thesis.txt", "years of work")
    (grown / "part-00009").symlink_to(tmp_path / "outside")
    before = look(grown / name) if (grown / name).is_file() else None
    path = grown / "_tpufeed/versions/1.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"]["variants"][0]["index"]["name"] = name
    path.write_text(json.dumps(manifest))
    assert tpufeed.prune(grown).removed == (1,)
    assert before is None or look(grown / name) == before
    assert (tmp_path / "outside/thesis.txt").read_text() == "years of work"
    assert tpufeed.verify(grown).records


def test_overwrite_removes_no_file_that_a_forged_note_names(bases, grown):
    put(grown / "notes.txt", "mine")
    put(grown / "_tpufeed/removals-0123456789abcdef.json", json.dumps({"notes.txt": "", "part-00002/x": ""}))
    manifest = json.loads((grown / "manifest.json").read_text())
    manifest["splits"]["train"]["variants"][0]["index"]["name"] = "notes.txt"
    put(grown / "manifest.json", json.dumps(manifest))
    tpufeed.shard(bases.source("other"), grown, overwrite=True, **SERIAL)
    assert (grown / "notes.txt").read_text() == "mine"
    assert tpufeed.verify(grown).records == 4


def test_a_folder_of_images_is_read_through_links(bases, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a").symlink_to(bases.source("other") / "a")
    (tmp_path / "photos/b").mkdir()
    (tmp_path / "photos/b/1.png").symlink_to(bases.source("first") / "b/1.png")
    assert tpufeed.shard(tmp_path / "photos", tmp_path / "dataset", **SERIAL).images == 3


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text + "\n",
        lambda text: "\ufeff" + text.replace("\n", "\r\n"),
        lambda text: '{"path": 1}\n' + text,
        lambda text: text[: len(text) // 2],
        lambda _: "[" * 100_000,
    ],
    ids=["an empty line", "a BOM and CRLF", "other types", "cut", "nested deeply"],
)
def test_an_edited_list_of_rejects_stops_no_append(edit, bases, grown, tmp_path):
    path = grown / "rejects.jsonl"
    path.write_text(edit(path.read_text()))
    put(tmp_path / "more/a/double.png", picture(2))
    put(tmp_path / "more/b/50.png", picture(50))
    assert tpufeed.append(tmp_path / "more", grown, **SERIAL).manifest.number == 3
    assert tpufeed.append(bases.source("third"), grown, **SERIAL).manifest.number == 4
    assert tpufeed.verify(grown).records
