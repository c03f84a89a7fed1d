"""A build that was killed, that runs twice, or whose destination or source has changed since."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import tpufeed
from tests.sharding.forging import PLAN, begun, forge
from tests.sharding.other_versions import OtherVersions
from tpufeed.builds.destination import Destination, Owner
from tpufeed.builds.plan import read_plan
from tpufeed.errors import DatasetExistsError, ManifestError, NoInputsError
from tpufeed.storage.local import LocalStore
from tpufeed.storage.store import read_span

OPTIONS = {"shard_bytes": "40KB", "workers": 1}


def shard_of(result, number):
    return [shard for split in result.manifest.splits.values() for shard in split.variants[0].shards][number].name


def reports(folder):
    return sorted((folder / "_tpufeed/reports").glob("*.json"))


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def identity(path):
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def test_what_is_done_is_not_done_again(build_options, photo_folder, unfinished, undisturbed, bytes_of):
    before = {path.name: identity(path) for path in unfinished.iterdir() if path.is_file()}
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **build_options)
    assert {name: identity(unfinished / name) for name in before} == before
    assert (result.images, result.earlier_images) == (90, 90)
    assert result.manifest == undisturbed.manifest
    assert bytes_of(unfinished) == bytes_of(undisturbed.url)


def test_a_finished_shard_without_a_report_is_accepted(build_options, photo_folder, unfinished, undisturbed, bytes_of):
    reports(unfinished)[1].unlink()
    shard = unfinished / shard_of(undisturbed, 1)
    before = identity(shard)
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **build_options)
    assert identity(shard) == before
    assert 0 < result.earlier_images < 90
    assert result.manifest == undisturbed.manifest
    assert reports(unfinished)[1].exists()


@pytest.mark.parametrize(("damage", "reported"), [("flipped", True), ("flipped", False), ("gone", True)])
def test_a_damaged_shard_is_made_anew(build_options, damage, reported, photo_folder, unfinished, undisturbed):
    shard = unfinished / shard_of(undisturbed, 2)
    if damage == "flipped":
        flip(shard, 1000)
    else:
        shard.unlink()
    if not reported:
        reports(unfinished)[2].unlink()
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **build_options)
    assert result.manifest == undisturbed.manifest
    assert tpufeed.verify(unfinished).records == 90
    assert (
        result.earlier_images == 90 - json.loads(reports(unfinished)[2].read_text())["shards"][0]["lengths"].__len__()
    )


@pytest.mark.parametrize("damage", ["empty", "no UTF-8", "other bytes"])
def test_a_damaged_report_is_made_anew(build_options, damage, photo_folder, unfinished, undisturbed):
    data = reports(unfinished)[1].read_bytes()
    changed = {
        "empty": b"",
        "no UTF-8": data.replace(b"train-00001", b"train-0000\xff"),
        "other bytes": data.replace(b'"crc32c":', b'"crc32c":1'),
    }[damage]
    assert changed != data
    reports(unfinished)[1].write_bytes(changed)
    assert tpufeed.shard(photo_folder, unfinished, workers=1, **build_options).manifest == undisturbed.manifest


@pytest.mark.all
def test_reports_of_a_build_whose_plan_is_gone_are_not_believed(
    build_options, photo_folder, unfinished, bytes_of, tmp_path
):
    """Its shards have other names: they are not of this build, and do not block it."""
    for name in ("_tpufeed/plan.jsonl", "train.index.npy", "val.index.npy"):
        (unfinished / name).unlink()
    options = {**build_options, "shard_bytes": "60KB"}
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **options)
    fresh = tpufeed.shard(photo_folder, tmp_path / "fresh", workers=1, **options)
    assert result.manifest.content_digest == fresh.manifest.content_digest
    assert tpufeed.verify(unfinished).records == 90


def test_a_source_that_is_refused_leaves_nothing_behind(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoInputsError):
        tpufeed.shard(tmp_path / "empty", tmp_path / "new/d", workers=1)
    assert not (tmp_path / "new").exists()
    (tmp_path / "d").mkdir()
    with pytest.raises(NoInputsError):
        tpufeed.shard(tmp_path / "empty", tmp_path / "d", workers=1)
    assert list((tmp_path / "d").iterdir()) == []  # what was there stays


@pytest.mark.all
def test_files_that_change_after_the_plan_are_rejects(build_options, photo_folder, tmp_path):
    source, folder = tmp_path / "photos", tmp_path / "d"
    shutil.copytree(photo_folder, source)
    tpufeed.shard(source, folder, workers=1, **build_options)
    for path in [path for path in folder.rglob("*") if path.is_file() and path.name != "plan.jsonl"]:
        path.unlink()
    grown, overwritten, deleted = sorted(source.glob("*/*.jpg"))[::40]
    with grown.open("ab") as file:
        file.write(b"more")
    overwritten.write_bytes(overwritten.read_bytes()[:-5] + b"xxxxx")
    deleted.unlink()
    shutil.copy(max(source.glob("*/*.jpg")), grown.with_name("added-later.jpg"))
    result = tpufeed.shard(source, folder, workers=1, **build_options)
    rejects = map(json.loads, (folder / "rejects.jsonl").read_text().splitlines())
    changed = {str(path.relative_to(source)) for path in (grown, overwritten, deleted)}
    assert {(each["path"], each["reason"]) for each in rejects} == {(path, "changed_during_build") for path in changed}
    assert result.manifest.rejects == {"changed_during_build": 3}
    assert tpufeed.verify(folder).records == 87


@pytest.fixture(scope="module")
def tables(photo_folder, tmp_path_factory):
    """A table of photographs elsewhere, with a column; not to be changed."""
    folder = tmp_path_factory.mktemp("tables")
    rows = [
        {"path": str(path), "label": path.parent.name, "note": path.name}
        for path in sorted(photo_folder.glob("*/*.jpg"))
    ]
    (folder / "table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "table.jsonl"


@pytest.mark.all
@pytest.mark.parametrize("kind", ["table", "folder with links"])
def test_it_continues_with_its_plan(kind, photo_folder, tables, bytes_of, tmp_path):
    source = tables
    if kind == "folder with links":
        source = tmp_path / "linked"
        source.mkdir()
        for folder in photo_folder.iterdir():
            (source / folder.name).symlink_to(folder)
    first = tpufeed.shard(source, tmp_path / "d", **OPTIONS)
    expected = bytes_of(tmp_path / "d")
    begun(tmp_path / "d")
    again = tpufeed.shard(source, tmp_path / "d", **OPTIONS)
    assert again.manifest.run_id == first.manifest.run_id
    assert bytes_of(tmp_path / "d") == expected


@pytest.mark.all
def test_a_build_is_of_its_source_as_it_was_planned(tables, bytes_of, tmp_path):
    tables = Path(shutil.copy(tables, tmp_path))
    tpufeed.shard(tables, tmp_path / "d", **OPTIONS)
    expected = bytes_of(tmp_path / "d")
    first, *rest = tables.read_text().splitlines()
    for rows in ([json.dumps({**json.loads(first), "path": "another.jpg"}), *rest, first], rest):
        tables.write_text("\n".join(rows))
        tpufeed.shard(tables, begun(tmp_path / "d"), **OPTIONS)
        assert bytes_of(tmp_path / "d") == expected
        with pytest.raises(DatasetExistsError, match=f"changed since: 90 inputs then, {len(rows)} now"):
            tpufeed.shard(tables, tmp_path / "d", **OPTIONS)


@pytest.mark.parametrize(
    "change",
    [
        lambda header, _: header.update(splits={"../train": 3}),
        lambda _, tasks: tasks[0].update(split="val"),
        lambda _, tasks: tasks[0].update(number=7),
        lambda _, tasks: tasks.pop(),
        lambda _, tasks: tasks.reverse(),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(change, unfinished, build_options, photo_folder):
    forge(unfinished, change)
    with pytest.raises(ManifestError, match=PLAN):
        tpufeed.shard(photo_folder, unfinished, workers=1, **build_options)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../secret.tfrecord"},
        {"lengths": ()},
        {"bytes": 1},
    ],
    ids=str,
)
def test_a_report_of_other_shards_is_not_believed(change, unfinished, build_options, photo_folder, undisturbed):
    """Its checksum is right. It is removed, and its task runs again."""
    store = LocalStore(str(unfinished))
    plan = read_plan(store)
    ref, run_id = plan.tasks[0], plan.header.run_id
    report = Destination(store).read_report(ref, run_id)
    shard = type(report.shards[0])(
        **{**{name: getattr(report.shards[0], name) for name in report.shards[0].__struct_fields__}, **change}
    )
    store.delete("_tpufeed/reports/000000.json")
    forged = type(report)(report.task, (shard,), report.class_counts, report.images, report.rejects)
    Destination(store, Owner(plan.header.run_id, "")).put_report(forged)
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **build_options)
    assert 0 < result.earlier_images < 90
    assert result.manifest.content_digest == undisturbed.manifest.content_digest


def test_a_name_that_no_store_has_is_a_reject_also_when_a_build_goes_on(small_jpegs):
    """Buckets take a//7.jpg, which is a slip."""
    files = OtherVersions()
    for number in range(6):
        files.pipe_file(f"/joined/photos/a/{number}.jpg", small_jpegs[number % 3])
    files.pipe_file("/joined/photos/a//7.jpg", small_jpegs[0])
    urls = "otherversions://joined/photos", "otherversions://joined/d"
    first = tpufeed.shard(*urls, workers=1)
    assert (first.images, first.rejects) == (6, 1)
    files.rm_file("/joined/d/manifest.json")
    again = tpufeed.shard(*urls, workers=1)
    assert (again.images, again.earlier_images, again.rejects) == (6, 6, 1)


def test_what_a_policy_refuses_is_not_read_twice(photo_folder, tmp_path, monkeypatch):
    source = tmp_path / "photos"
    shutil.copytree(photo_folder, source)
    for number, path in enumerate(sorted(source.rglob("*.jpg"))[:4]):
        Image.new("L", (64, 64), number).save(path)
    again = []
    monkeypatch.setattr(
        "tpufeed.sources.inputs.read_span", lambda store, span: again.append(span) or read_span(store, span)
    )
    tpufeed.shard(source, tmp_path / "d", workers=1, images=tpufeed.Images(greyscale="reject"), max_rejects=10)
    assert not again
    next(source.rglob("*.jpg")).write_bytes(b"no image")
    tpufeed.shard(source, tmp_path / "e", workers=1, images=tpufeed.Images(greyscale="reject"), max_rejects=10)
    assert len(again) >= 1
