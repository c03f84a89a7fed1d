"""A plan that another run has put at the destination: its inputs are the source's, or none of them is read."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from PIL import Image

import tpufeed
from tests.sharding.forging import PLAN, begun, forge
from tests.sharding.other_versions import OtherVersions
from tests.sharding.previews import preview_shard, preview_warmup
from tpufeed import cache
from tpufeed.builds.commit import put_report, read_report
from tpufeed.builds.plan import read_plan
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import ManifestError
from tpufeed.storage.local import LocalStore
from tpufeed.storage.store import read_span

OPTIONS = {"shard_bytes": "40KB", "workers": 1}


def of_input(**values):
    """Change fields of the first input of the first task."""

    def change(header, tasks):
        tasks[0]["inputs"][0].update(values)

    return change


@pytest.fixture
def secret(photo_folder, tmp_path):
    """A photograph that nobody has named."""
    (tmp_path / "private").mkdir()
    return Path(shutil.copy(min(photo_folder.glob("*/*.jpg")), tmp_path / "private/secret.jpg"))


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """`begin(source, folder)` puts the plan of a build of `source` into `folder`, and nothing else."""
    plans = {}

    def put(source, folder):
        if source not in plans:
            built = tmp_path_factory.mktemp("begun") / "d"
            tpufeed.shard(source, built, **OPTIONS)
            plans[source] = (built / PLAN).read_bytes()
        (folder / PLAN).parent.mkdir(parents=True)
        (folder / PLAN).write_bytes(plans[source])
        return folder

    return put


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


@pytest.fixture(scope="module")
def tar(photo_folder, tmp_path_factory):
    """Two tars, and a photograph beside their folder; the URL names the first."""
    folder = tmp_path_factory.mktemp("joined")
    (folder / "private").mkdir()
    shutil.copy(min(photo_folder.glob("*/*.jpg")), folder / "private/secret.jpg")
    (folder / "tars").mkdir()
    for name in ("a-0.tar", "b-0.tar"):
        with tarfile.open(folder / "tars" / name, "w") as file:
            for number, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))[:20]):
                for extension, data in (("jpg", path.read_bytes()), ("cls", b"%d" % (number % 3))):
                    member = tarfile.TarInfo(f"{number}.{extension}")
                    member.size = len(data)
                    file.addfile(member, io.BytesIO(data))
    return folder / "tars/a-{0..0}.tar"


def named(secret, way):
    size, version = secret.stat().st_size, str(secret.stat().st_mtime_ns)
    identity = {"bytes": size, "version": version}
    return {
        "absolute": {"file": str(secret), **identity},
        "http": {"file": "http://127.0.0.1:1/secret.jpg"},
        "upwards within": {"path": "a/../../private/secret.jpg", **identity},
        "its path absolute": {"path": str(secret), **identity},
        "a part of it": {"file": str(secret), "offset": 1, **identity},
    }[way]


each_way = pytest.mark.parametrize(
    "way",
    ["absolute", "http", "upwards within", "its path absolute", "a part of it"],
)


def refused(source, folder, match="task ", **options):
    """Check that build and preview refuse the plan and leave nothing else there."""
    with pytest.raises(ManifestError, match=match) as caught:
        tpufeed.shard(source, folder, **OPTIONS, **options)
    assert str(folder / PLAN) in str(caught.value)
    with pytest.raises(ManifestError, match=match):
        preview_shard(source, folder, **OPTIONS, **options)
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["plan.jsonl"]


@each_way
def test_a_plan_of_a_folder_names_nothing_else(way, begin, photo_folder, secret, tmp_path):
    forge(begin(photo_folder, tmp_path / "d"), of_input(**named(secret, way)))
    refused(photo_folder, tmp_path / "d")


@each_way
def test_a_plan_of_a_table_names_nothing_else(way, begin, tables, secret, tmp_path):
    change = named(secret, way)
    change = {"file": change["path"], **change} if "path" in change else change
    forge(begin(tables, tmp_path / "d"), of_input(**change))
    refused(tables, tmp_path / "d")


@pytest.mark.parametrize(
    "file", ["b-0.tar", "../private/secret.jpg", "a-0.tar/../b-0.tar", "sub/a-0.tar", "", "a-1.tar"]
)
def test_a_plan_of_tars_names_no_other(file, begin, tar, tmp_path):
    forge(begin(tar, tmp_path / "d"), of_input(file=file))
    refused(tar, tmp_path / "d")


@pytest.mark.parametrize("name", ["notes.txt", ".hidden.jpg", "a//b.jpg", "./a.jpg"])
def test_what_no_listing_gives_is_no_image_of_a_folder(name, begin, photo_folder, tmp_path):
    forge(begin(photo_folder, tmp_path / "d"), of_input(path=name))
    refused(photo_folder, tmp_path / "d")


@pytest.mark.all
@pytest.mark.parametrize("kind", ["table", "folder of tars", "folder with links"])
def test_an_honest_plan_is_gone_on_with(kind, photo_folder, tables, tar, bytes_of, tmp_path):
    source = {"table": tables, "folder of tars": tar.parent}.get(kind)
    if source is None:
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
def test_a_table_may_have_got_more_rows(tables, bytes_of, tmp_path):
    tables = Path(shutil.copy(tables, tmp_path))
    tpufeed.shard(tables, tmp_path / "d", **OPTIONS)
    expected = bytes_of(tmp_path / "d")
    begun(tmp_path / "d")
    first, *rest = tables.read_text().splitlines()
    tables.write_text("\n".join([json.dumps({**json.loads(first), "path": "another.jpg"}), *rest, first]))
    tpufeed.shard(tables, tmp_path / "d", **OPTIONS)
    assert bytes_of(tmp_path / "d") == expected
    begun(tmp_path / "d")
    tables.write_text("\n".join(rest))
    refused(tables, tmp_path / "d")


def set_header(**values):
    return lambda header, _: header.update(values)


def set_task(at=0, **values):
    return lambda _, tasks: tasks[at].update(values)


@pytest.mark.parametrize(
    "change",
    [
        set_header(base="/"),
        set_header(splits={"../train": 3}),
        set_header(variants=2),
        set_header(images=1),
        set_header(features=[{"name": "image/encoded", "dtype": "bytes"}]),
        set_task(split="../train"),
        set_task(split="val"),
        set_task(number=7),
        set_task(number=1, shard=0),
        set_task(inputs=[]),
        of_input(label=99),
        of_input(bytes=1 << 62),
        of_input(columns=[["x"]]),
        lambda _, tasks: tasks.pop(),
        lambda _, tasks: tasks.reverse(),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(change, begin, photo_folder, tmp_path):
    forge(begin(photo_folder, tmp_path / "d"), change)
    refused(photo_folder, tmp_path / "d", match=PLAN)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("of", ["images", "dataset"])
def test_a_plan_of_a_cache_is_of_its_source(of, photo_folder, tmp_path):
    source = photo_folder
    if of == "dataset":
        source = tmp_path / "dataset"
        tpufeed.shard(photo_folder, source, **OPTIONS)
    options = {"size": 32, "variants": 2, "shard_bytes": "100KB", "workers": 1}
    cache.warmup(source, tmp_path / "c", **options)
    begun(tmp_path / "c")
    honest = (tmp_path / "c" / PLAN).read_bytes()
    for change in (
        set_header(variants=1),
        set_header(input_digest="0" * 32, class_names=["x"]),
        set_task(first=1),
        set_task(stop=1 << 40),
        set_task(inputs=[["/etc/passwd.jpg", 1, "1", 0]]),
        set_header(splits={"../train": 2}),
        set_header(base="/"),
    ):
        forge(tmp_path / "c", change)
        for work in (cache.warmup, preview_warmup):
            with pytest.raises(ManifestError, match=PLAN):
                work(source, tmp_path / "c", **options)
        (tmp_path / "c" / PLAN).write_bytes(honest)
    assert cache.warmup(source, tmp_path / "c", **options).rejects == 0


def test_a_cache_whose_plan_is_of_another_source(photo_folder, secret, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "one", **OPTIONS)
    tpufeed.shard(secret.parent, tmp_path / "other", **OPTIONS)
    options = {"size": 32, "workers": 1}
    cache.warmup(tmp_path / "other", tmp_path / "c", **options)
    begun(tmp_path / "c")
    digest = open_dataset(tmp_path / "one").content_digest

    def change(header, _):
        header.update(source=str(tmp_path / "one"), options={**header["options"], "source_digest": digest})

    forge(tmp_path / "c", change)
    with pytest.raises(ManifestError, match=PLAN):
        cache.warmup(tmp_path / "one", tmp_path / "c", **options)


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
    report = read_report(store, ref, run_id)
    shard = type(report.shards[0])(
        **{**{name: getattr(report.shards[0], name) for name in report.shards[0].__struct_fields__}, **change}
    )
    store.delete("_tpufeed/reports/000000.json")
    forged = type(report)(report.task, (shard,), report.class_counts, report.images, report.rejects)
    put_report(store, forged, plan.owner)
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
    tpufeed.shard(source, tmp_path / "d", workers=1, policy={"greyscale": "reject"}, max_rejects=10)
    assert not again
    next(source.rglob("*.jpg")).write_bytes(b"no image")
    tpufeed.shard(source, tmp_path / "e", workers=1, policy={"greyscale": "reject"}, max_rejects=10)
    assert len(again) >= 1
