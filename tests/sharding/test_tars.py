"""WebDataset tars: the files of a sample share a key, and images are read in place."""

import gzip
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

import tpufeed
from tests.sharding.previews import preview_shard
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.memory import MemoryStore

FOLDER, LINK = tarfile.DIRTYPE.decode(), tarfile.SYMTYPE.decode()


def encode_tar(members, tar_format=tarfile.PAX_FORMAT):
    """A tar of (name, bytes or type) pairs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, bytes):
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            else:
                info.type, info.linkname = data.encode(), "x"
                tar.addfile(info)
    return buffer.getvalue()


@pytest.fixture
def make_tar(tmp_path):
    """`make_tar(members, name)`: a tar in a folder of its own."""
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


def samples_of(url):
    found = {}
    dataset = open_dataset(url)
    for split in dataset.manifest.splits:
        for features in dataset.iter_examples(split):
            values = {
                name: [bytes(value) if isinstance(value, memoryview) else value for value in feature.values]
                for name, feature in features.items()
            }
            found[values.pop("image/filename")[0].decode()] = values
    return found


def rejects_of(url):
    lines = map(json.loads, Path(url, "rejects.jsonl").read_text().splitlines())
    return {line["path"]: (line["reason"], line["message"]) for line in lines}


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


def test_many_tars_and_workers_make_the_same_bytes(make_tar, sample, bytes_of, tmp_path):
    for tar in range(5):
        make_tar([part for n in range(8) for part in sample(tar * 8 + n)], f"train-{tar:03d}.tar")
    one = tpufeed.shard(tmp_path / "tars/train-*.tar", tmp_path / "one", shards=4, workers=1)
    three = tpufeed.shard(tmp_path / "tars/train-*.tar", tmp_path / "three", shards=4, workers=3)
    assert one.images == 40
    assert bytes_of(one.url) == bytes_of(three.url)
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
    assert inventory.ignored_files == {"": 2, ".jpg": 2, ".link": 1, ".npy": 1}  # a folder is none


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
    assert rejects_of(result.url) == {
        "a.tar/000001": ("unreadable", "the sample has no image, only cls, txt"),
    }


def test_two_images_a_sample(make_tar, sample, small_jpegs, take):
    path = make_tar(sample(0, png=small_jpegs[5]))
    with pytest.raises(OptionError, match=r"'000000' has 2 images \(jpg, png\); choose one: --image jpg"):
        take(path)
    for image in ("png", ".PNG"):
        _, (item,) = take(path, image=image)
        assert (item.path, item.bytes) == ("a.tar/000000.png", len(small_jpegs[5]))


def test_keys_with_dots_are_to_be_renamed(make_tar, small_jpegs, take):
    names = ("im.v0.jpg", "im.v0.cls", "im.v1.jpg", "im.v1.cls")
    path = make_tar([(name, small_jpegs[0] if name.endswith("jpg") else b"1") for name in names])
    with pytest.raises(
        OptionError, match=r"2 images \(v0\.jpg, v1\.jpg\); rename .*, like im\.v0\.jpg to im_v0\.jpg; else"
    ):
        take(path)
    (warning,) = take(make_tar([("im.v0.jpg", small_jpegs[0]), ("im.v0.cls", b"1")]))[0].warnings
    assert warning.startswith("no labels: no sample has a .cls; a key ends at the first dot of a name, so rename files")


def test_images_with_longer_extensions(make_tar, small_jpegs, take):
    path = make_tar([("0.left.jpg", small_jpegs[0]), ("0.right.jpg", small_jpegs[1]), ("0.cls", b"1")])
    _, (item,) = take(path, image="right.jpg")
    assert item.path == "a.tar/0.right.jpg"


def test_two_files_of_one_extension(make_tar, sample, take):
    with pytest.raises(SourceError, match=r"a\.tar, byte \d+: the sample '000000' has two files \.JPG"):
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
    message = (
        r"a\.tar, sample '0': its \.cls and the key 'cls' of its \.json contradict each other: '2', '7'; leave one"
    )
    with pytest.raises(SourceError, match=message):
        take(tar(7))


@pytest.mark.parametrize("name", ["image", "sample", "mask", "label"])
def test_names_that_loaders_own_are_no_keys(name, make_tar, sample, take):
    path = make_tar(sample(0, json=json.dumps({name: "1"}).encode()))
    with pytest.raises(SourceError, match=rf"sample '000000': its \.json has a key '{name}', .*_column"):
        take(path)
    if name == "label":
        assert take(path, label="label")[0].classes.names == ("0", "1")
        assert [spec.name for spec in take(path, label="none")[0].schema] == ["cls", "label"]


@pytest.mark.parametrize(
    ("others", "way"),
    [
        ({"json": b'{"kind":"dog","y":1}'}, "give --label KEY, one of kind, y"),
        ({"txt": b"a dog"}, "give --label KEY, one of txt"),
        ({}, "folders in a tar do not become classes; unpack it to use them"),
    ],
)
def test_tars_without_labels_are_warned_of(others, way, make_tar, sample, take, tmp_path):
    path = make_tar([(f"dog/{name}", data) for name, data in sample(0, cls=None, **others)])
    warning = f"no labels: no sample has a .cls; {way}, or pass --label none"
    assert take(path)[0].warnings == (warning,)
    assert take(path, label="none")[0].warnings == ()
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
    with pytest.raises(SourceError, match=r"s\.tar, byte \d+: 000001\.bmp is stored without its holes \(sparse\)"):
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
    with pytest.raises(SourceError, match=rf"s\.tar, byte \d+: {second} is stored as a hard link to {first}, .*deref"):
        take(tmp_path / "s.tar")
    subprocess.run(["tar", "--hard-dereference", "-cf", "../s.tar", *names], cwd=tmp_path / "files", check=True)
    assert take(tmp_path / "s.tar")[0].count == 2


def test_tars_of_several_splits_are_warned_of(make_tar, sample, take, tmp_path):
    for number, name in enumerate(("flowers-train-0.tar", "flowers-train-1.tar", "flowers-val-0.tar")):
        make_tar(sample(number), name)
    (warning,) = take(tmp_path / "tars")[0].warnings
    assert warning.startswith("tars have names of splits (train, val), but all become train: shard the tars of")
    assert take(tmp_path / "tars", splits="a=0.5,b=0.5")[0].warnings == ()
    assert take(tmp_path / "tars/flowers-train-*.tar")[0].warnings == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "kind"}, "no sample has a label in 'kind'"),
        ({"split_by": "folder"}, "tars are split by shares"),
        ({"split_by": "json"}, "tars are split by shares"),
    ],
)
def test_options_that_lead_nowhere(options, message, make_tar, sample, take):
    with pytest.raises(OptionError, match=message):
        take(make_tar(sample(0)), **options)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"json": b"[1,2]"}, r"sample '000000': its \.json does not hold an object"),
        ({"json": b"{"}, r"its \.json is not readable"),
        ({"json": b"[" * 100_000}, r"sample '000000': its \.json is not readable"),
        ({"txt": b"\xff"}, r"its \.txt is not readable: 'utf-8'"),
        ({"txt": bytes(2 << 20)}, r"its \.txt has 2097152 bytes; at most 1048576"),
        ({"json": b'{"image/encoded":1}'}, "a column is called 'image/encoded'"),
        ({"json": b'{"":1}'}, "a column is called ''"),
        ({"json": b'{"cls":{"a":1}}', "cls": None}, r"sample '000000': \{'a': 1\} is not a label"),
        ({"json": b'{"x":"\\ud800"}'}, "is not UTF-8"),
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
    with pytest.raises(SourceError, match=r"a\.tar, byte \d+: .*(cut short|not a sound tar)"):
        take(make_tar(data.ljust(whole, b"\0")[:stop]))


def test_a_tar_needs_the_mark_of_its_end_and_no_more(make_tar, sample, take):
    data = encode_tar(sample(0))
    end = len(data.rstrip(b"\0")) + -len(data.rstrip(b"\0")) % 512
    assert len(take(make_tar(data[: end + 512]))[1]) == 1
    assert len(take(make_tar(data + bytes(5 << 20)))[1]) == 1
    with pytest.raises(SourceError, match=rf"byte {end}: the mark of a tar's end is missing"):
        take(make_tar(data[:end]))


def test_tars_end_to_end_lose_no_samples_silently(make_tar, sample, take):
    with pytest.raises(SourceError, match="something follows the tar's end; of concatenated tars only the first"):
        take(make_tar(encode_tar(sample(0)) + encode_tar(sample(1))))


@pytest.mark.parametrize("position", [0, 148, 124, 257])
def test_a_damaged_header(position, make_tar, sample, take):
    data = bytearray(encode_tar([*sample(0), *sample(1)]))
    second = data.index(b"000001.jpg")
    data[second + position] ^= 0x55
    with pytest.raises(SourceError, match=r"a\.tar, byte \d+: not a sound tar: "):
        take(make_tar(bytes(data)))


def test_a_negative_size_ends_nowhere(make_tar, sample, take):
    data = bytearray(encode_tar([*sample(0), *sample(1)], tarfile.GNU_FORMAT))
    header = tarfile.TarInfo("000001.jpg")
    header.size = -1024
    second = data.index(b"000001.jpg")
    data[second : second + 512] = header.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(SourceError, match=r"a\.tar, byte \d+: not a sound tar"):
        take(make_tar(bytes(data)))


@pytest.mark.parametrize("data", [b"", b"x", b"no tar at all" * 1000, gzip.compress(b"x" * 5000)], ids=len)
def test_what_is_no_tar(data, make_tar, take):
    with pytest.raises(SourceError, match=r"a\.tar, byte \d+: not a sound tar"):
        take(make_tar(data))


@pytest.mark.parametrize("members", [[], [("folder", FOLDER)], [("README", b"x")]], ids=["none", "folder", "file"])
def test_a_tar_without_samples(members, make_tar, take):
    with pytest.raises(NoInputsError, match=r"no samples in these tars; expected files like 000123\.jpg"):
        take(make_tar(members))


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("a.tar.gz", SourceError, "is compressed, so its parts cannot be read in place"),
        ("a.tgz", SourceError, "is compressed"),
        ("b.tar", SourceError, r"b\.tar does not exist"),
        ("{0..3}.tar", SourceError, r"2 files are missing: 1\.tar, 3\.tar"),
        ("{3..0}.tar", NoInputsError, "no file matches"),
        ("x-*.tar", NoInputsError, r"no file matches x-\*\.tar"),
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
    with pytest.raises(SourceError, match="is compressed") as caught:
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
    with pytest.raises(tpufeed.errors.BuildError, match=r"none of the 6 images could be taken.*was listed"):
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
