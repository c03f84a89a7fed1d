"""Class 17: no name in a source, a manifest or a plan makes anything be written or removed outside the destination."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from crc32c import crc32c

import tpufeed
from tpufeed import cache
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import TpufeedError

EVIL = [
    "../evil",
    "a/../../evil",
    "..",
    "/tmp/tpufeed-evil",
    "a\\..\\evil",
    "evil\n",
    "~/evil",
    "\x1b[2Jevil",
    "$(touch evil)",
]


def everything_below(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in Path(folder).rglob("*")}


@pytest.fixture
def fenced(tmp_path):
    """`fenced(work)` runs it; all that is new or changed below tmp_path is below `inside/d`."""
    (tmp_path / "inside").mkdir()

    def go(work):
        before = everything_below(tmp_path)
        try:
            result = work(tmp_path / "inside/d")
        except TpufeedError as error:
            result = error
        after = {
            path: data for path, data in everything_below(tmp_path).items() if tmp_path / "inside/d" not in path.parents
        }
        after.pop(tmp_path / "inside/d", None)
        assert after == before
        assert not Path("/tmp/tpufeed-evil").exists()
        return result

    return go


def test_members_of_tars(photo_folder, fenced, tmp_path):
    """Links and devices among them; the names come back as text and as nothing else."""
    names = [name for name in EVIL if name not in ("..", "a\\..\\evil")]  # their keys end at the first dot
    photo = min(photo_folder.glob("*/*.jpg")).read_bytes()
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for number, name in enumerate(names):
            for extension, data in (("jpg", photo), ("cls", b"../label\0" if number else b"x")):
                member = tarfile.TarInfo(f"{name}{number}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        for kind, target in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.CHRTYPE, "")):
            member = tarfile.TarInfo(f"link{kind!r}.jpg")
            member.type, member.linkname = kind, target
            tar.addfile(member)
    result = fenced(lambda folder: tpufeed.shard(tmp_path / "x.tar", folder, workers=1))
    assert (result.images, sum(result.listed.ignored_files.values())) == (len(names), 2)
    stored = [bytes(e["image/filename"].values[0]).decode() for e in open_dataset(result.url).iter_examples("train")]
    assert sorted(stored) == sorted(f"x.tar/{name}{number}.jpg" for number, name in enumerate(names))


@pytest.mark.parametrize("column", ["label", "split", "caption"])
def test_values_of_tables(column, photo_folder, fenced, tmp_path):
    rows = [
        {"path": str(photo), "label": "a", "caption": "a", column: value}
        for photo, value in zip(sorted(photo_folder.glob("*/*.jpg")), EVIL, strict=False)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"split_by": "split"} if column == "split" else {}
    result = fenced(lambda folder: tpufeed.shard(tmp_path / "t.jsonl", folder, workers=1, **options))
    if column == "split":
        assert isinstance(result, TpufeedError)
        assert "a split is named by letters" in str(result)
    else:
        assert result.images == len(EVIL)
        if column == "label":
            assert set(result.manifest.class_names) == set(EVIL)


@pytest.mark.parametrize("name", ["../evil", "/tmp/tpufeed-evil", "evil\0"])
@pytest.mark.parametrize("place", ["shard", "index", "split"])
def test_names_in_manifests(place, name, copy, fenced):
    """Read, verified, warmed a cache of, and overwritten."""
    manifest = json.loads((copy / "manifest.json").read_text())
    variant = manifest["splits"]["train"]["variants"][0]
    if place == "split":
        manifest["splits"] = {name: manifest["splits"]["train"]}
    else:
        (variant["shards"][0] if place == "shard" else variant["index"])["name"] = name
    (copy / "manifest.json").write_text(json.dumps(manifest))

    def read(folder):
        return [len(e) for e in open_dataset(copy).iter_examples(name if place == "split" else "train")]

    def warm(folder):
        return cache.warmup(copy, folder, size=16, workers=1)

    if place == "split":  # a word for readers, no file of its own
        assert len(fenced(read)) == 40
    else:
        assert isinstance(fenced(read), TpufeedError)
        assert isinstance(fenced(lambda _: tpufeed.verify(copy)), TpufeedError)
    assert isinstance(fenced(warm), TpufeedError)


def test_names_in_plans_that_are_to_be_overwritten(photo_folder, copy, tmp_path):
    """A plan names what --overwrite removes: nothing outside, even if its CRC is right."""
    plan = copy / "_tpufeed/plan.jsonl"
    lines = plan.read_bytes().replace(b'"train"', b'"../victim"').splitlines(keepends=True)[:-1]
    plan.write_bytes(b"".join(lines) + b'{"crc32c":%d}\n' % crc32c(b"".join(lines)))
    (copy / "manifest.json").unlink()
    victims = [tmp_path / f"victim-{n:05d}-of-{len(lines) - 1:05d}.tfrecord" for n in range(len(lines) - 1)]
    for victim in [*victims, tmp_path / "victim.index.npy"]:
        victim.write_bytes(b"mine")
    try:
        tpufeed.shard(photo_folder, copy, overwrite=True, workers=1)
    except TpufeedError as error:
        print(error)
    assert all(victim.read_bytes() == b"mine" for victim in [*victims, tmp_path / "victim.index.npy"])
