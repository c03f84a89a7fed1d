"""Records that are sound TFRecords, and not what the manifest's schema, classes or variants say."""

import shutil
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpufeed
from tests.tfrecords import encode_features
from tpufeed import adopt, verify
from tpufeed.dataset.manifest import decode_manifest
from tpufeed.dataset.reader import open_dataset
from tpufeed.dataset.record_check import RecordCheck, parse_picks
from tpufeed.errors import OptionError, RecordError
from tpufeed.images.policy import encode
from tpufeed.images.tensors import encode_npy
from tpufeed.tfrecord.example import Feature, decode_example, encode_entries
from tpufeed.tfrecord.layout import FixedLayout

sys.path.insert(0, str(Path(__file__).parent))

from damaging import Forger, damages_of, edit_manifest

LABEL, TEXT, NAME, HEIGHT = "image/class/label", "image/class/text", "image/filename", "image/height"
IMAGE = "image/encoded"


@pytest.fixture
def cache_copy(cache_url, tmp_path):
    return Path(shutil.copytree(cache_url, tmp_path / "cache"))


def ints(*values):
    return Feature("int64", values)


def texts(*values):
    return Feature("bytes", values)


CHANGES = {
    "a label beyond the classes": ({LABEL: ints(3)}, "label 3, and there are 3 classes, 0 to 2"),
    "a label below zero": ({LABEL: ints(-1)}, "label -1, and there are 3 classes, 0 to 2"),
    "two labels": ({LABEL: ints(1, 1)}, f"feature '{LABEL}' has 2 values, not 1"),
    "a label of another kind": ({LABEL: texts(b"1")}, f"feature '{LABEL}' holds bytes, not int64"),
    "a feature without a value": ({HEIGHT: ints()}, f"feature '{HEIGHT}' has 0 values, not 1"),
    "text that is not UTF-8": ({TEXT: texts(b"\xff\xfe")}, f"feature '{TEXT}' is not valid UTF-8"),
    "a name that is missing": ({NAME: None}, f"feature '{NAME}' is missing"),
    "a feature too many": ({"mood": ints(1)}, "feature 'mood' is not in the manifest's schema"),
    "no image": ({IMAGE: None}, f"feature '{IMAGE}' is missing"),
    "two images": ({IMAGE: texts(b"x", b"y")}, f"feature '{IMAGE}' has 2 values, not 1"),
    "floats for a name": ({NAME: Feature("float", (1.0,))}, f"feature '{NAME}' holds float, not string"),
}


def forged_payloads(payload, changes):
    """Yield the record with other features: as another tool writes it, and in the fixed layout if that can hold it."""
    features = {
        key: Feature(f.kind, [bytes(v) if isinstance(v, memoryview) else v for v in f.values])
        for key, f in decode_example(payload).items()
    }
    features = {key: value for key, value in (features | changes).items() if value is not None}
    yield encode_features(features)
    keys = [LABEL, HEIGHT, "image/width", "image/channels"]
    if IMAGE not in changes and all(features[key].kind == "int64" and len(features[key].values) == 1 for key in keys):
        image = features.pop(IMAGE).values[0]
        values = [features.pop(key).values[0] for key in keys]
        prefix, suffix = FixedLayout(IMAGE, keys).encode(len(image), values, encode_entries(features))
        yield prefix + image + suffix


NOT_FIXED = ("two labels", "a label of another kind", "a feature without a value", "no image", "two images")


@pytest.mark.parametrize(
    ("change", "layout"), [(change, n) for change in CHANGES for n in (0, 1) if n == 0 or change not in NOT_FIXED]
)
def test_a_forged_record(change, layout, copy):
    """Number 0 is as another tool writes it, number 1 in the fixed layout, if that can hold it."""
    changes, message = CHANGES[change]
    forger = Forger(copy)
    payloads = list(forged_payloads(forger.payload(2, 1), changes))
    place = forger.replace(2, 1, payloads[layout])
    damages = [damage for damage in damages_of(copy) if damage.shard != "manifest.json"]
    (damage,) = damages
    assert (damage.shard, damage.record, damage.byte) == place
    assert message in damage.message


def test_several_things_wrong_with_one_record_are_one_line(copy):
    forger = Forger(copy)
    (payload, *_) = forged_payloads(forger.payload(0, 0), {LABEL: ints(), NAME: None, "mood": ints(1)})
    forger.replace(0, 0, payload)
    (damage,) = damages_of(copy)
    assert damage.message.count(";") == 2


def test_records_of_another_tool_are_sound(copy):
    """The same features in another order, without fixed places."""
    forger = Forger(copy)
    for number, record in ((0, 0), (1, 1), (3, 0)):
        (payload, *_) = forged_payloads(forger.payload(number, record), {})
        forger.replace(number, record, payload)
    assert verify(copy, decode="all").records == 40


def test_an_adopted_dataset_says_which_features_it_leaves_out(copy):
    forger = Forger(copy)
    (payload, *_) = forged_payloads(forger.payload(0, 0), {"mood": ints(1), "image/channels": ints(4)})
    forger.replace(0, 0, payload)
    edit_manifest(copy, lambda manifest: manifest["options"].update(command="adopt", left_out=["mood"]))
    assert verify(copy, decode="all").records == 40
    edit_manifest(copy, lambda manifest: manifest["options"].update(left_out=["taste"]))
    (damage,) = damages_of(copy)
    assert "feature 'mood' is not in the manifest's schema" in damage.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ymax": []}, "have 1, 1, 1, 0 values"),
        ({"xmin": [float("nan")]}, "holds a value that is not finite"),
        ({"ymin": 3}, "does not hold float"),
    ],
)
def test_boxes_of_four_lists(changes, message, copy, write_tfrecords, tmp_path):
    """As TensorFlow's Object Detection API has them."""
    image = bytes(next(open_dataset(copy).iter_examples("train"))[IMAGE].values[0])
    sides = {"xmin": [0.25], "ymin": [0.0], "xmax": [1.0], "ymax": [0.5]}
    records = [
        {"image/encoded": image} | {f"image/object/bbox/{name}": values for name, values in (sides | each).items()}
        for each in ({name: [] for name in sides}, {}, changes)
    ]
    write_tfrecords(tmp_path / "t/train.tfrecord", records)
    adopt(tmp_path / "t")
    (damage,) = damages_of(tmp_path / "t")
    assert (damage.shard, damage.record) == ("train.tfrecord", 2)
    assert message in damage.message


@given(st.data())
def test_the_quick_verdict_is_the_parsers(dataset_url, data):
    """Whatever bytes of a payload are others: what passes by its places passes when parsed, with one label."""
    dataset = open_dataset(dataset_url)
    check = RecordCheck(dataset.manifest)
    sound = dataset.reader("train").read(0, 1)
    payload = bytearray(sound)
    start = check.check(sound).image
    behind = len(start) + 58
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, 70), st.integers(behind - 20, len(payload) - 1)))
        payload[at] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.sampled_from([len(payload), len(payload) - 1, 40, 3, 0]))]
    try:
        sample = check.check(memoryview(payload))
    except RecordError:
        return
    parsed = decode_example(payload)
    assert [sample.label] == parsed[LABEL].values
    assert set(parsed) == {feature.key for feature in dataset.manifest.features}


@pytest.mark.parametrize("at", [1, 7, 30, 36, 41], ids=["features", "entry", "feature", "list", "image"])
def test_lengths_around_the_image_that_lie(at, copy):
    """A loader reads past them; another parser would not get through."""
    forger = Forger(copy)
    payload = bytearray(forger.payload(1, 0))
    payload[at] ^= 1
    place = forger.replace(1, 0, payload)
    damages = [damage for damage in damages_of(copy) if damage.shard != "manifest.json"]
    assert [(damage.shard, damage.record, damage.byte) for damage in damages] == [place]


def test_a_label_of_another_class_shows_in_the_counts(copy):
    forger = Forger(copy)
    label = decode_example(forger.payload(0, 0))[LABEL].values[0]
    other = (label + 1) % 3
    name = open_dataset(copy).manifest.class_names[other].encode()
    (_, payload) = forged_payloads(forger.payload(0, 0), {LABEL: ints(other), TEXT: texts(name)})
    forger.replace(0, 0, payload)
    (damage,) = damages_of(copy)
    assert damage.shard == "manifest.json"
    assert damage.message.startswith("class_counts: split 'train' has")


@pytest.mark.parametrize("layout", [0, 1], ids=["parsed", "usual"])
def test_a_label_whose_text_names_another_class(layout, copy):
    forger = Forger(copy)
    features = decode_example(forger.payload(0, 0))
    payload = list(forged_payloads(forger.payload(0, 0), {LABEL: ints((features[LABEL].values[0] + 1) % 3)}))[layout]
    place = forger.replace(0, 0, payload)
    damage, *_ = (damage for damage in damages_of(copy) if damage.shard != "manifest.json")
    assert (damage.shard, damage.record, damage.byte) == place
    assert bytes(features[TEXT].values[0]).decode() in damage.message


def test_class_names_in_another_order(copy):
    """As an append of another list of classes once left them: the labels of all records mean other classes."""
    edit_manifest(copy, lambda manifest: manifest["class_names"].reverse())
    edit_manifest(copy, lambda manifest: [one["class_counts"].reverse() for one in manifest["splits"].values()])
    damages = [damage for damage in damages_of(copy) if damage.shard != "manifest.json"]
    manifest = open_dataset(copy).manifest
    assert len(damages) == sum(count for split in manifest.splits.values() for count in split.class_counts[::2])


def test_class_names_of_a_cache_in_another_order(cache_copy):
    edit_manifest(cache_copy, lambda manifest: manifest["class_names"].reverse())
    assert all(TEXT in damage.message for damage in damages_of(cache_copy) if damage.shard != "manifest.json")


@pytest.mark.parametrize("variant", [0, 1])
def test_variants_that_disagree_on_a_label(variant, cache_copy):
    """The one whose bytes are not the manifest's is told, by record."""
    # Texts of an adopted source may be other words than the names of classes: nothing is compared with them.
    edit_manifest(cache_copy, lambda manifest: manifest.update(class_names=["one", "two", "three"]))
    forger = Forger(cache_copy, "val", variant)
    payload = bytearray(forger.payload(0, 3))
    label = decode_example(payload)[LABEL].values[0]
    at = payload.index(LABEL.encode()) + len(LABEL) + 6
    assert payload[at] & 0x7F == label
    payload[at] = 0x80 | (label + 1) % 3
    place = forger.replace(0, 3, payload, fix_crc=False)
    damage, *others = (damage for damage in damages_of(cache_copy) if damage.shard != "manifest.json")
    assert (damage.shard, damage.record, damage.byte) == place
    assert damage.message.startswith(f"label {(label + 1) % 3}; val-v{1 - variant}-")
    assert not others
    assert [f"variant {variant}" in d.message for d in damages_of(cache_copy) if d.shard == "manifest.json"] == [True]


def test_a_tensor_of_another_size(cache_copy):
    def taller(manifest):
        manifest["features"][0]["shape"] = [33, 32, 3]

    edit_manifest(cache_copy, taller)
    damages = damages_of(cache_copy)
    assert len(damages) == 80
    assert "the image has 3072 bytes, but a tensor of (33, 32, 3) takes 3168" in damages[0].message


def undecodable(forger, number, record):
    """A record whose JPEG has noise in its scan and is sound otherwise."""
    payload = bytearray(forger.payload(number, record))
    start = len(payload) // 2
    payload[start : start + 400] = np.random.default_rng(3).bytes(400)
    return forger.replace(number, record, payload)


def test_an_image_that_does_not_decode(copy):
    forger = Forger(copy)
    places = [undecodable(forger, 0, 1), undecodable(forger, 4, 0)]
    assert verify(copy).records == 40
    damages = damages_of(copy, decode="all")
    assert [(damage.shard, damage.record, damage.byte) for damage in damages] == places
    assert all("the image does not decode" in damage.message for damage in damages)


@pytest.mark.parametrize("change", ["png", "channels"])
def test_an_image_of_another_format(change, tmp_path):
    (tmp_path / "raw").mkdir()
    array, png = np.zeros((9, 8, 3), np.uint16), encode(np.zeros((9, 8, 3), np.uint8), "png", 90)
    np.save(tmp_path / "raw/x.npy", array)
    keep = tpufeed.Images(pixels="keep")
    tpufeed.shard(tmp_path / "raw", tmp_path / "set", images=keep, label="none", workers=1, progress=False)
    assert verify(tmp_path / "set", decode="all").decoded == 1
    forger = Forger(tmp_path / "set")
    image, channels = (png, 3) if change == "png" else (encode_npy(array[..., :2]), 2)
    (payload, *_) = forged_payloads(forger.payload(0, 0), {IMAGE: texts(image), "image/channels": ints(channels)})
    place = forger.replace(0, 0, payload)
    assert verify(tmp_path / "set").records == 1
    (damage,) = damages_of(tmp_path / "set", decode="all")
    assert (damage.shard, damage.record, damage.byte) == place
    assert "not uint16 of 3 channels" in damage.message


@pytest.mark.parametrize("key", [HEIGHT, "image/width", "image/channels"])
def test_an_image_of_another_size_than_its_record_says(key, copy):
    forger = Forger(copy)
    (_, payload) = forged_payloads(forger.payload(1, 1), {key: ints(7)})
    place = forger.replace(1, 1, payload)
    assert verify(copy).records == 40
    (damage,) = damages_of(copy, decode="100%")
    assert (damage.shard, damage.record, damage.byte) == place
    assert damage.message.startswith(f"{key} is 7, but the image has ")


def test_a_share_is_the_same_each_time(dataset_url):
    picks = parse_picks("20%")
    chosen = [record for record in range(20_000) if picks("train-00000-of-00002.tfrecord", record)]
    assert 3700 < len(chosen) < 4300
    assert chosen == [record for record in range(20_000) if parse_picks("20%")("train-00000-of-00002.tfrecord", record)]
    assert chosen != [record for record in range(20_000) if picks("train-00001-of-00002.tfrecord", record)]
    assert verify(dataset_url, decode="50%").decoded == verify(dataset_url, decode="50%").decoded < 40


@pytest.mark.parametrize("share", ["", "some", "5", "0%", "101%", "-1%", "nan%", "inf%", "%", True, 5, 1.0])
def test_what_is_no_share(share, dataset_url):
    with pytest.raises(OptionError, match="decode"):
        verify(dataset_url, decode=share)


def test_features_of_every_kind(dataset_url):
    """Scalars by their places, lists by the parser, both with the same verdict."""
    manifest = msgspec.to_builtins(open_dataset(dataset_url).manifest)
    manifest["features"] = [
        {"name": IMAGE, "dtype": "bytes", "shape": []},
        {"name": "score", "dtype": "float32", "shape": []},
        {"name": "id", "dtype": "int64", "shape": []},
        {"name": "boxes", "dtype": "float32", "shape": [2, 2]},
        {"name": "tags", "dtype": "string", "shape": None},
    ]
    check = RecordCheck(decode_manifest(msgspec.json.encode(manifest), "here"))
    sound = {
        "score": Feature("float", (0.5,)),
        "id": ints(-(2**63)),
        "boxes": Feature("float", (1.0, 2.0, 3.0, 4.0)),
        "tags": texts("größe".encode(), b""),
    }
    layout = FixedLayout(IMAGE, [])

    def run(**changes):
        features = {key: value for key, value in {**sound, **changes}.items() if value is not None}
        prefix, suffix = layout.encode(3, [], encode_entries(features))
        return check.check(memoryview(prefix + b"abc" + suffix))

    assert bytes(run().image) == b"abc"
    assert run(tags=texts())
    assert run(tags=None)
    for changes, message in (
        ({"boxes": Feature("float", (1.0,))}, "has 1 values, not 4"),
        ({"boxes": None}, "'boxes' is missing"),
        ({"id": None}, "'id' is missing"),
        ({"tags": texts(b"fine", b"\xc3")}, "'tags' is not valid UTF-8"),
        ({"tags": ints(1)}, "holds int64, not string"),
    ):
        with pytest.raises(RecordError, match=message):
            run(**changes)


def test_the_place_of_a_scalar_takes_any_value(dataset_url):
    manifest = msgspec.to_builtins(open_dataset(dataset_url).manifest)
    manifest["features"] = [
        {"name": IMAGE, "dtype": "bytes", "shape": []},
        {"name": "name", "dtype": "string", "shape": []},
        {"name": "id", "dtype": "int64", "shape": []},
        {"name": "score", "dtype": "float32", "shape": []},
    ]
    check = RecordCheck(decode_manifest(msgspec.json.encode(manifest), "here"))
    layout = FixedLayout(IMAGE, [])
    for size in (0, 1, 90, 110, 127, 128, 300, 20_000):
        for number in (0, 127, 128, 1 << 40, -1):
            features = {"name": texts(b"n" * size), "id": ints(number), "score": Feature("float", (1.5,))}
            prefix, suffix = layout.encode(size, [], encode_entries(features))
            assert len(check.check(memoryview(prefix + b"i" * size + suffix)).image) == size
            for cut in (1, 5, 20):
                with pytest.raises(RecordError):
                    check.check(memoryview(prefix + b"i" * size + suffix[:-cut]))
