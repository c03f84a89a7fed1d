"""Which keys are taken for what, and what becomes of the other features and of the classes."""

import itertools

import tpufeed
from tpufeed.dataset import schema
from tpufeed.images import CenterCrop, Resize

OPS = [Resize(64), CenterCrop(48)]


def test_flags_and_classes_override(photos, write_tfrecords, tmp_path):
    (photo,) = itertools.islice(photos.values(), 1)
    record = {
        "photo": photo,
        "thumb": photo,
        "species": 1,
        "order": 2,
        "name": b"cat",
        "where": b"a/b.jpg",
        "image": b"x",
    }
    write_tfrecords(tmp_path / "a/x.tfrec", [record])
    names = tmp_path / "names.txt"
    names.write_text("dog\ncat\n\n")
    keys = {"image_key": "photo", "label_key": "species", "text_key": "name", "filename_key": "where"}
    for classes in (names, str(names), ["dog", "cat"]):
        manifest = tpufeed.adopt(tmp_path / "a", f"memory:/{tmp_path}/{classes!r}", **keys, classes=classes).manifest
        assert manifest.class_names == ("dog", "cat")
    assert {spec.name: spec.key for spec in manifest.features} == {
        schema.ENCODED: "photo",
        schema.LABEL: "species",
        schema.FILENAME: "where",
        schema.TEXT: "name",
        **{name: name for name in ("thumb", "order", "image")},
    }
    result = tpufeed.adopt(
        tmp_path / "a", tmp_path / "b", **{**keys, "text_key": "none", "filename_key": "none", "label_key": "none"}
    )
    assert result.manifest.features[0].name == schema.ENCODED
    assert not {schema.LABEL, schema.TEXT, schema.FILENAME} & {spec.name for spec in result.manifest.features}


def test_features_that_vary(photos, write_tfrecords, tmp_path):
    (photo,) = itertools.islice(photos.values(), 1)
    records = [
        {"image": photo, "label": 0, "tags": [b"a", b"b"], "score": 0.5, "note": b"\xff", "odd": 1, "some": 3, "h": []},
        {"image": photo, "label": 4, "tags": [], "score": 1.5, "note": b"", "odd": b"one", "image/class/label": 7},
    ]
    write_tfrecords(tmp_path / "x.tfrecord", records)
    result = tpufeed.adopt(tmp_path, label_key="label")
    assert {spec.name: (spec.dtype, spec.shape) for spec in result.manifest.features} == {
        schema.ENCODED: ("bytes", ()),
        schema.LABEL: ("int64", ()),
        "tags": ("string", None),
        "score": ("float32", ()),
        "note": ("bytes", ()),
        "some": ("int64", None),
    }
    assert set(result.listed.left_out) == {"odd", "image/class/label", "h"}
    assert set(result.manifest.options["left_out"]) == set(result.listed.left_out)
    assert tpufeed.verify(tmp_path).records == 2
    assert result.manifest.splits["train"].class_counts == (1, 0, 0, 0, 1)
    with tpufeed.Loader(tmp_path, batch_size=2, ops=OPS, shuffle=False, columns=["score", "image"]) as loader:
        assert next(iter(loader))[0].tolist() == [0.5, 1.5]


def test_texts_that_do_not_tell_the_classes(photos, write_tfrecords, tmp_path):
    (photo,) = itertools.islice(photos.values(), 1)
    key, synset = "image/class/text", "image/class/synset"
    both = [{"image": photo, "label": n, key: b"crane", synset: f"n{n}".encode()} for n in (0, 2)]
    write_tfrecords(tmp_path / "a/x.tfrecord", both)
    assert tpufeed.adopt(tmp_path / "a").manifest.class_names == ("n0", "1", "n2")
    write_tfrecords(tmp_path / "b/x.tfrecord", [{"image": photo, "label": 1, key: text} for text in (b"a", b"b")])
    assert tpufeed.adopt(tmp_path / "b").manifest.class_names == ("0", "1")
    write_tfrecords(tmp_path / "c/x.tfrecord", [{"image": photo, "label": 1, key: b"0"}])  # the name of 0 without one
    assert tpufeed.adopt(tmp_path / "c").manifest.class_names == ("0", "1")
