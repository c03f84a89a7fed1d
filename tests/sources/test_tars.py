"""WebDataset tars: the files of a sample share a key, and images are read in place."""

import gzip
import json
import re
import subprocess
import tarfile

import pytest

import tpufeed
from tests.sharding.outputs import rejects_of, samples_of
from tests.sharding.previews import preview_shard
from tests.sharding.written import encode_tar
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.memory import MemoryStore

FOLDER, LINK = tarfile.DIRTYPE.decode(), tarfile.SYMTYPE.decode()


@pytest.fixture
def make_tar(tmp_path):
    """`make_tar(members, name)`: a tar in the folder `tars`."""
    (tmp_path / "tars").mkdir()

    def make(members, name="a.tar", **options):
        path = tmp_path / "tars" / name
        path.write_bytes(members if isinstance(members, bytes) else encode_tar(members, **options))
        return path

    return make


@pytest.fixture
def sample(small_jpegs):
    """`sample(number)`: the members of one sample, labelled."""

    def make(number, **others):
        key = f"{number:06d}"
        parts = {"jpg": small_jpegs[number], "cls": f"{number % 3}\n".encode(), **others}
        return [(f"{key}.{extension}", data) for extension, data in parts.items() if data is not None]

    return make


def by_path(inputs):
    return {item.path: item for item in inputs}


def test_samples_become_records(make_tar, sample, small_jpegs, tmp_path):
    make_tar([*sample(0, txt="größe\n".encode(), json=b'{"x":1.5,"tags":["a","b"]}'), *sample(1)], "a.tar")
    make_tar(sample(2, json=b'{"x":2}'), "b.tar")
    result = tpufeed.shard(tmp_path / "tars", tmp_path / "d", workers=1)
    assert result.manifest.class_names == ("0", "1", "2")
    assert [(f.name, f.dtype, f.shape) for f in result.manifest.features[-3:]] == [
        ("txt", "string", None),
        ("x", "float32", None),
        ("tags", "string", None),
    ]
    found = samples_of(result.url)
    assert found.keys() == {"a.tar/000000.jpg", "a.tar/000001.jpg", "b.tar/000002.jpg"}
    for number, features in enumerate(found[name] for name in sorted(found)):
        assert features["image/encoded"] == [small_jpegs[number]]
        assert features["image/class/label"] == [number]
    assert found["a.tar/000000.jpg"]["txt"] == ["größe".encode()]
    assert found["a.tar/000000.jpg"]["tags"] == [b"a", b"b"]
    assert (found["b.tar/000002.jpg"]["x"], found["b.tar/000002.jpg"]["txt"]) == ([2.0], [])
    assert tpufeed.verify(result.url).records == 3


@pytest.mark.all
def test_many_tars_and_workers_make_the_same_bytes(make_tar, sample, bytes_of, tmp_path):
    for tar in range(5):
        make_tar([part for n in range(8) for part in sample(tar * 8 + n)], f"train-{tar:03d}.tar")
    one = tpufeed.shard(tmp_path / "tars/train-*.tar", tmp_path / "one", shards=4, workers=1)
    two = tpufeed.shard(tmp_path / "tars/train-*.tar", tmp_path / "two", shards=4, workers=2)
    assert one.images == 40
    assert bytes_of(one.url) == bytes_of(two.url)
    whole = tpufeed.shard(tmp_path / "tars", tmp_path / "whole", shards=4, workers=1)
    braces = tpufeed.shard(tmp_path / "tars/train-{000..004}.tar", tmp_path / "braces", shards=4, workers=1)
    assert bytes_of(one.url) == bytes_of(whole.url) == bytes_of(braces.url)


@pytest.mark.parametrize("place", ["memory", "local"])
def test_tars_elsewhere(place, make_tar, sample, bytes_of, tmp_path):
    path = make_tar([part for n in range(8) for part in sample(n)])
    url = f"memory://{tmp_path.name}" if place == "memory" else f"local://{tmp_path}/remote"
    (MemoryStore(url) if place == "memory" else FsspecStore(url)).put("a.tar", path.read_bytes())
    here = tpufeed.shard(path, tmp_path / "here", workers=1)
    for source in (f"{url}/a.tar", url, f"{url}/*.tar"):
        there = tpufeed.shard(source, tmp_path / "there", workers=1, overwrite=True)
        assert bytes_of(here.url) == bytes_of(there.url)


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_names_of_all_kinds(tar_format, make_tar, small_jpegs, tmp_path):
    names = ["folder/a.jpg", "folder/a b.JPG", "größe/猫.png", "new\nline.jpg", "../up.jpg", "/abs.jpg", "[x].jpg"]
    if tar_format != tarfile.USTAR_FORMAT:
        names += ["x" * 150 + ".jpg", "deep/" * 60 + "y" * 120 + ".jpg"]
    names.append("a.0.jpg")
    make_tar([(name, small_jpegs[n]) for n, name in enumerate(names)], tar_format=tar_format)
    found = samples_of(tpufeed.shard(tmp_path / "tars/a.tar", tmp_path / "d", workers=1).url)
    assert len(found) == len(names)
    for number, name in enumerate(names):
        stem, extension = name.rsplit(".", 1)
        assert found[f"a.tar/{stem}.{extension.lower()}"]["image/encoded"] == [small_jpegs[number]]


def test_what_is_no_part_of_a_sample_is_counted(make_tar, sample, take):
    members = [
        ("folder", FOLDER),
        ("README", b"no extension"),
        (".hidden.jpg", b"x"),
        ("__MACOSX/000000.jpg", b"x"),
        ("@eaDir/000000.jpg/SYNOPHOTO_THUMB_M.jpg", b"x"),
        ("000000.jpg.link", LINK),
        *sample(0, npy=b"unknown"),
    ]
    inventory, inputs = take(make_tar(members))
    assert list(by_path(inputs)) == ["a.tar/000000.jpg"]
    assert inventory.listed.ignored_files == {"": 2, ".jpg": 2, ".link": 1, ".npy": 1}  # a folder is not counted


def test_a_folder_of_tars_may_hold_what_others_put_there(make_tar, sample, take):
    folder = make_tar(sample(0)).parent
    (folder / "@eaDir/a.tar").mkdir(parents=True)
    (folder / "@eaDir/a.tar/SYNOINDEX.jpg").write_bytes(b"x")
    (folder / ".Trash/b").mkdir(parents=True)
    (folder / ".Trash/b/c.tar").write_bytes(b"x")
    _, inputs = take(folder)
    assert list(by_path(inputs)) == ["a.tar/000000.jpg"]


def test_a_sample_without_an_image_is_rejected(make_tar, sample, tmp_path):
    result = tpufeed.shard(
        make_tar([*sample(0), *sample(1, jpg=None, txt=b"x"), *sample(2)]), tmp_path / "d", workers=1
    )
    assert result.images == 2
    ((path, (reason, message)),) = rejects_of(result.url).items()
    assert (path, reason) == ("a.tar/000001", "unreadable")
    assert "cls, txt" in message


def test_two_images_a_sample(make_tar, sample, small_jpegs, take):
    path = make_tar(sample(0, png=small_jpegs[5]))
    with pytest.raises(OptionError, match="--image jpg"):
        take(path)
    for image in ("png", ".PNG"):
        _, (item,) = take(path, image=image)
        assert (item.path, item.bytes) == ("a.tar/000000.png", len(small_jpegs[5]))


def test_keys_with_dots_are_to_be_renamed(make_tar, small_jpegs, take):
    names = ("im.v0.jpg", "im.v0.cls", "im.v1.jpg", "im.v1.cls")
    path = make_tar([(name, small_jpegs[0] if name.endswith("jpg") else b"1") for name in names])
    with pytest.raises(OptionError, match=r"im_v0\.jpg"):
        take(path)
    (warning,) = take(make_tar([("im.v0.jpg", small_jpegs[0]), ("im.v0.cls", b"1")]))[0].listed.warnings
    assert ".cls" in warning
    assert "rename" in warning


def test_images_with_longer_extensions(make_tar, small_jpegs, take):
    path = make_tar([("0.left.jpg", small_jpegs[0]), ("0.right.jpg", small_jpegs[1]), ("0.cls", b"1")])
    _, (item,) = take(path, image="right.jpg")
    assert item.path == "a.tar/0.right.jpg"


def test_two_files_of_one_extension(make_tar, sample, take):
    with pytest.raises(SourceError, match=r"byte \d+: .*\.JPG"):
        take(make_tar([*sample(0), ("000000.JPG", b"x")]))


def test_the_same_key_in_two_tars_is_two_samples(make_tar, sample, take, tmp_path):
    for name in ("a.tar", "b.tar"):
        make_tar(sample(0), name)
    assert len(take(tmp_path / "tars")[1]) == 2


@pytest.mark.parametrize(
    ("options", "classes", "labels"),
    [
        ({}, ("0", "1", "2"), [0, 1]),
        ({"label": "kind"}, ("cat", "dog"), [1, 0]),
        ({"label": "txt"}, ("one", "two"), [0, 1]),
        ({"label": "none"}, (), [-1, -1]),
        ({"label": "kind", "classes": ["fox", "cat", "dog"]}, ("fox", "cat", "dog"), [2, 1]),
    ],
)
def test_where_labels_come_from(options, classes, labels, make_tar, sample, take):
    members = [
        *sample(0, json=b'{"kind":"dog"}', txt=b"one"),
        *sample(1, json=b'{"kind":"cat"}', txt=b"two"),
        *sample(2, cls=b"2", json=b'{"kind":"cat"}', txt=b"one"),
    ]
    inventory, inputs = take(make_tar(members), **options)
    assert inventory.classes.names == classes
    found = by_path(inputs)
    assert [found[f"a.tar/00000{n}.jpg"].label for n in range(2)] == labels


@pytest.mark.parametrize("json_first", [True, False])
def test_cls_and_json_may_say_the_same_but_no_other_label(json_first, make_tar, sample, small_jpegs, take):
    def tar(said):
        parts = [("0.cls", b"2"), ("0.json", json.dumps({"cls": said, "x": 1}).encode())]
        return make_tar([*(parts[::-1] if json_first else parts), ("0.jpg", small_jpegs[0])])

    for same in (2, 2.0, "2 ", None):
        inventory, (item,) = take(tar(same))
        assert (inventory.classes.names, item.label) == (("0", "1", "2"), 2)
        assert [spec.name for spec in inventory.schema] == ["x"]
    with pytest.raises(SourceError, match="'2', '7'"):
        take(tar(7))


@pytest.mark.parametrize("name", ["image", "sample", "mask", "label"])
def test_names_that_loaders_own_are_no_keys(name, make_tar, sample, take):
    path = make_tar(sample(0, json=json.dumps({name: "1"}).encode()))
    with pytest.raises(SourceError, match=f"'{name}'"):
        take(path)
    if name == "label":
        assert take(path, label="label")[0].classes.names == ("0", "1")
        assert [spec.name for spec in take(path, label="none")[0].schema] == ["cls", "label"]


@pytest.mark.parametrize(
    ("others", "way"),
    [
        ({"json": b'{"kind":"dog","y":1}'}, "--label KEY, one of kind, y"),
        ({"txt": b"a dog"}, "--label KEY, one of txt"),
        ({}, "Unpack it"),
    ],
)
def test_tars_without_labels_are_warned_of(others, way, make_tar, sample, take, tmp_path):
    path = make_tar([(f"dog/{name}", data) for name, data in sample(0, cls=None, **others)])
    (warning,) = take(path)[0].listed.warnings
    assert way in warning
    assert "--label none" in warning
    assert take(path, label="none")[0].listed.warnings == ()
    assert preview_shard(path, tmp_path / "d").warnings[0] == warning
    assert tpufeed.shard(path, tmp_path / "d", workers=1).warnings[0] == warning


@pytest.mark.parametrize("tar_format", ["gnu", "posix"])
def test_a_sparse_file_is_refused(tar_format, sample, small_jpegs, take, tmp_path):
    (tmp_path / "files").mkdir()
    for name, data in sample(0):
        (tmp_path / "files" / name).write_bytes(data)
    with (tmp_path / "files/000001.bmp").open("wb") as file:  # an image with a hole
        file.write(b"BM")
        file.truncate(1 << 20)
        file.seek(0, 2)
        file.write(b"end")
    names = sorted(path.name for path in (tmp_path / "files").iterdir())
    subprocess.run(
        ["tar", "-S", f"--format={tar_format}", "-cf", "../s.tar", *names], cwd=tmp_path / "files", check=True
    )
    with pytest.raises(SourceError, match=r"byte \d+: 000001\.bmp"):
        take(tmp_path / "s.tar")


def test_a_hard_link_is_refused(sample, take, tmp_path):
    (tmp_path / "files").mkdir()
    for name, data in (*sample(0), *sample(1)):
        (tmp_path / "files" / name).write_bytes(data)
    first, second = (next(name for name, _ in sample(n) if name.endswith(".jpg")) for n in (0, 1))
    (tmp_path / "files" / second).unlink()
    (tmp_path / "files" / second).hardlink_to(tmp_path / "files" / first)
    names = sorted(path.name for path in (tmp_path / "files").iterdir())
    subprocess.run(["tar", "-cf", "../s.tar", *names], cwd=tmp_path / "files", check=True)
    with pytest.raises(SourceError, match=rf"byte \d+: {second}"):
        take(tmp_path / "s.tar")
    subprocess.run(["tar", "--hard-dereference", "-cf", "../s.tar", *names], cwd=tmp_path / "files", check=True)
    assert take(tmp_path / "s.tar")[0].count == 2


def test_tars_of_several_splits_are_warned_of(make_tar, sample, take, tmp_path):
    for number, name in enumerate(("flowers-train-0.tar", "flowers-train-1.tar", "flowers-val-0.tar")):
        make_tar(sample(number), name)
    (warning,) = take(tmp_path / "tars")[0].listed.warnings
    assert "(train, val)" in warning
    assert take(tmp_path / "tars", splits="a=0.5,b=0.5")[0].listed.warnings == ()
    assert take(tmp_path / "tars/flowers-train-*.tar")[0].listed.warnings == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "kind"}, "'kind'"),
        ({"split_by": "folder"}, "shares"),
        ({"split_by": "json"}, "shares"),
    ],
)
def test_options_that_lead_nowhere(options, message, make_tar, sample, take):
    with pytest.raises(OptionError, match=message):
        take(make_tar(sample(0)), **options)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"json": b"[1,2]"}, r"\.json"),
        ({"json": b"{"}, r"\.json"),
        ({"json": b"[" * 100_000}, r"\.json"),
        ({"txt": b"\xff"}, r"\.txt"),
        ({"txt": bytes(2 << 20)}, "2097152 bytes"),
        ({"json": b'{"image/encoded":1}'}, "'image/encoded'"),
        ({"json": b'{"":1}'}, "''"),
        ({"json": b'{"cls":{"a":1}}', "cls": None}, r"\{'a': 1\}"),
        ({"json": b'{"x":"\\ud800"}'}, "UTF-8"),
    ],
    ids=["list", "cut", "deep", "text", "large", "reserved", "no name", "labels", "surrogate"],
)
def test_parts_that_cannot_be_read(part, message, make_tar, sample, take):
    with pytest.raises(SourceError, match=message) as raised:
        take(make_tar(sample(0, **part)))
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("cut", range(0, 10, 3))
def test_a_tar_that_was_cut_short(cut, make_tar, sample, take):
    data = encode_tar([part for n in range(4) for part in sample(n)]).rstrip(b"\0")
    whole = len(data) + -len(data) % 512  # without the mark of its end
    stop = whole * cut // 9 if cut % 2 else whole * cut // 9 // 512 * 512
    with pytest.raises(SourceError, match=r"a\.tar, byte \d+"):
        take(make_tar(data.ljust(whole, b"\0")[:stop]))


def test_a_tar_needs_the_mark_of_its_end_and_no_more(make_tar, sample, take):
    data = encode_tar(sample(0))
    end = len(data.rstrip(b"\0")) + -len(data.rstrip(b"\0")) % 512
    assert len(take(make_tar(data[: end + 512]))[1]) == 1
    assert len(take(make_tar(data + bytes(5 << 20)))[1]) == 1
    with pytest.raises(SourceError, match=f"byte {end}"):
        take(make_tar(data[:end]))


def test_tars_end_to_end_lose_no_samples_silently(make_tar, sample, take):
    with pytest.raises(SourceError, match="concatenated"):
        take(make_tar(encode_tar(sample(0)) + encode_tar(sample(1))))


@pytest.mark.parametrize("position", [0, 148, 124, 257])
def test_a_damaged_header(position, make_tar, sample, take):
    data = bytearray(encode_tar([*sample(0), *sample(1)]))
    second = data.index(b"000001.jpg")
    data[second + position] ^= 0x55
    with pytest.raises(SourceError, match=r"a\.tar, byte \d+"):
        take(make_tar(bytes(data)))


def test_a_negative_size_ends_nowhere(make_tar, sample, take):
    data = bytearray(encode_tar([*sample(0), *sample(1)], tarfile.GNU_FORMAT))
    header = tarfile.TarInfo("000001.jpg")
    header.size = -1024
    second = data.index(b"000001.jpg")
    data[second : second + 512] = header.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(SourceError, match=r"a\.tar, byte \d+"):
        take(make_tar(bytes(data)))


@pytest.mark.parametrize("data", [b"", b"x", b"no tar at all" * 1000, gzip.compress(b"x" * 5000)], ids=len)
def test_what_is_no_tar(data, make_tar, take):
    with pytest.raises(SourceError, match=r"a\.tar, byte \d+"):
        take(make_tar(data))


@pytest.mark.parametrize("members", [[], [("folder", FOLDER)], [("README", b"x")]], ids=["none", "folder", "file"])
def test_a_tar_without_samples(members, make_tar, take):
    with pytest.raises(NoInputsError, match="000123"):
        take(make_tar(members))


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("a.tar.gz", SourceError, r"a\.tar\.gz"),
        ("a.tgz", SourceError, r"a\.tgz"),
        ("b.tar", SourceError, r"b\.tar"),
        ("{0..3}.tar", SourceError, "2 files"),
        ("{3..0}.tar", NoInputsError, r"\{3\.\.0\}"),
        ("x-*.tar", NoInputsError, r"x-\*\.tar"),
    ],
)
def test_tars_that_are_not_there(pattern, error, message, make_tar, sample, take):
    make_tar(sample(0), "0.tar")
    folder = make_tar(sample(0), "2.tar").parent
    with pytest.raises(error, match=message):
        take(folder / pattern)


@pytest.mark.parametrize(
    ("name", "taken"), [("a.tar", "unpacked/a.tar"), ("a.tar.gz", "tars/a.tar"), ("a.tgz", "tars/a.tar")]
)
def test_the_command_that_an_error_gives_unpacks_a_tar(name, taken, make_tar, sample, take, tmp_path):
    path = make_tar(gzip.compress(encode_tar(sample(0))), name)
    with pytest.raises(SourceError, match=name) as caught:
        take(path)
    command = re.search(r"(mkdir .*|gunzip [^)]*)", str(caught.value))[1]
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert len(take(tmp_path / taken)[1]) == 1


def test_a_tar_that_changes_after_the_plan(make_tar, sample, monkeypatch, tmp_path):
    path = make_tar([part for n in range(6) for part in sample(n)])
    tpufeed.shard(path, tmp_path / "d", workers=1)
    for file in [file for file in (tmp_path / "d").rglob("*") if file.is_file() and file.name != "plan.jsonl"]:
        file.unlink()
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    with pytest.raises(tpufeed.errors.BuildError, match="6 images"):
        tpufeed.shard(path, tmp_path / "d", workers=1)


def test_labels_and_shares_keep_their_places_when_tars_are_added(make_tar, sample, take, tmp_path):
    def dealt():
        inventory, _ = take(tmp_path / "tars", splits="a=0.5,b=0.5")
        return {item.path: split for split in inventory.splits for item, _ in inventory.iter_inputs(split)}

    make_tar([part for n in range(9) for part in sample(n)], "a.tar")
    before = dealt()
    make_tar([part for n in range(9) for part in sample(n)], "b.tar")
    assert set(before.values()) == {"a", "b"}
    assert before.items() <= dealt().items()
