"""tf.train.Example against TensorFlow's own protobuf, in both directions."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tfrecords import encode_features
from tpufeed.errors import RecordError
from tpufeed.tfrecord.example import Feature, decode_example, encode_varint, read_varint, to_signed

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def to_tensorflow(features):
    """The proto of the same features."""
    import tensorflow as tf

    example = tf.train.Example()
    for name, feature in features.items():
        proto = example.features.feature[name]
        if feature.kind is not None:
            getattr(proto, f"{feature.kind}_list").SetInParent()
            getattr(proto, f"{feature.kind}_list").value.extend(feature.values)
    return example


def from_tensorflow(example):
    """The features of a proto, floats by their bits."""
    found = {}
    for name, proto in example.features.feature.items():
        kind = proto.WhichOneof("kind")
        found[name] = Feature(None, ()) if kind is None else Feature(kind[:-5], list(getattr(proto, kind).value))
    return by_bits(found)


def by_bits(features):
    """Comparable: bytes instead of views, floats by their bits."""
    change = {"bytes": bytes, "float": lambda value: struct.pack("<f", value), "int64": int, None: None}
    return {name: (f.kind, [change[f.kind](value) for value in f.values]) for name, f in features.items()}


def test_bytes_of_an_example_never_change():
    features = {
        "a": Feature("int64", [1, -1]),
        "b": Feature("bytes", [b"x"]),
        "c": Feature("float", [1.0]),
        "d": Feature(None, ()),
    }
    assert encode_features(features).hex() == (
        "0a380a140a0161120f1a0d0a0b01ffffffffffffffffff010a0a0a016212050a030a01780a0d0a0163120812060a04"
        "0000803f0a050a01641200"
    )


@pytest.mark.uses("tensorflow")
def test_nan_keeps_its_bits():
    import tensorflow as tf

    bits = [0x7FC00000, 0xFFC00000, 0x7FC12345]
    values = [struct.unpack("<f", struct.pack("<I", b))[0] for b in bits]
    proto = tf.train.Example()
    proto.features.feature["f"].float_list.value.extend(values)
    for data in (encode_features({"f": Feature("float", values)}), proto.SerializeToString()):
        assert [struct.unpack("<I", struct.pack("<f", v))[0] for v in decode_example(data)["f"].values] == bits
        parsed = tf.io.parse_single_example(data, {"f": tf.io.FixedLenFeature([3], tf.float32)})["f"].numpy()
        assert parsed.view(np.uint32).tolist() == bits


def test_order_is_the_order_given():
    names = ["z", "a", "m", "b"]
    data = encode_features({name: Feature("int64", [1]) for name in names})
    assert list(decode_example(data)) == names
    assert encode_features(dict.fromkeys(names, Feature("int64", [1]))) == data


def test_bytes_values_are_views_of_the_payload():
    data = bytearray(encode_features({"b": Feature("bytes", [b"abc"])}))
    (value,) = decode_example(data)["b"].values
    data[data.index(b"abc")] = ord("X")
    assert bytes(value) == b"Xbc"


def test_values_of_numpy_are_taken():
    data = encode_features(
        {
            "i": Feature("int64", np.array([-1, 2**62])),
            "u": Feature("int64", np.array([7], np.uint8)),
            "f": Feature("float", np.array([0.5], np.float32)),
            "b": Feature("bytes", [np.arange(3, dtype=np.uint8), memoryview(b"xyz")[1:]]),
        }
    )
    assert by_bits(decode_example(data)) == {
        "i": ("int64", [-1, 2**62]),
        "u": ("int64", [7]),
        "f": ("float", [struct.pack("<f", 0.5)]),
        "b": ("bytes", [b"\0\1\2", b"yz"]),
    }


@pytest.mark.parametrize(
    "feature",
    [
        Feature("int64", [2**63]),
        Feature("int64", [-(2**63) - 1]),
        Feature("int64", [1.5]),
        Feature("int64", ["1"]),
        Feature("int64", [None]),
        Feature("bytes", ["text"]),
        Feature("bytes", [5]),  # bytes(5) would be five zeros
        Feature("bytes", [[1, 2]]),
        Feature("float", [1e39]),
        Feature("float", ["1"]),
        Feature("float", [None]),
    ],
    ids=lambda feature: f"{feature.kind} {feature.values}",
)
def test_a_value_that_its_kind_cannot_hold_is_an_error_that_names_the_feature(feature):
    with pytest.raises(RecordError, match="'height'.*" + feature.kind):
        encode_features({"height": feature})


def test_a_name_that_is_no_unicode_is_an_error():
    with pytest.raises(RecordError):
        encode_features({"\udcff": Feature("int64", [1])})


def field(number, wire, data):
    return encode_varint(number << 3 | wire) + (encode_varint(len(data)) + data if wire == 2 else data)


def entry(name, value):
    return field(1, 2, field(1, 2, field(1, 2, name) + field(2, 2, value)))


FOREIGN = {
    "unpacked integers": entry(b"i", field(3, 2, field(1, 0, b"\1") + field(1, 0, encode_varint(-2)))),
    "packed after unpacked": entry(b"i", field(3, 2, field(1, 0, b"\1") + field(1, 2, b"\2\3"))),
    "unpacked floats": entry(
        b"f", field(2, 2, field(1, 5, struct.pack("<f", 2.5)) + field(1, 5, struct.pack("<f", 3)))
    ),
    "value before name": field(1, 2, field(1, 2, field(2, 2, field(3, 2, field(1, 0, b"\5"))) + field(1, 2, b"i"))),
    "unknown fields": field(9, 0, b"\1") + entry(b"i", field(3, 2, field(1, 0, b"\1"))) + field(7, 1, bytes(8)),
    "unknown fields within": entry(b"i", field(9, 5, bytes(4)) + field(3, 2, field(2, 0, b"\1") + field(1, 0, b"\1"))),
    "a name twice": entry(b"i", field(3, 2, field(1, 0, b"\1"))) + entry(b"i", field(3, 2, field(1, 0, b"\2"))),
    "fixed64 for a message": field(1, 1, bytes(8)),
    "fixed64 for integers": entry(b"i", field(3, 2, field(1, 1, b"\1\2\3\4\5\6\7\0"))),
    "fixed32 for integers": entry(b"i", field(3, 2, field(1, 5, b"\1\2\3\4"))),
    "fixed64 for floats": entry(b"f", field(2, 2, field(1, 1, bytes(8)))),
    "fixed32 for bytes": entry(b"b", field(1, 2, field(1, 5, b"abcd"))),
    "fixed64 for a kind": entry(b"i", field(3, 1, bytes(8))),
    "a varint of ten bytes": entry(b"i", field(3, 2, field(1, 0, b"\xff" * 9 + b"\1"))),
    "padded varints": entry(b"i", field(3, 2, field(1, 0, b"\x81\x80\x80\0") + field(1, 2, b"\x82\x80\0"))),
}


@pytest.mark.uses("tensorflow")
@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN.keys())
def test_we_read_what_other_writers_may_write_as_protobuf_does(data):
    import tensorflow as tf

    assert by_bits(decode_example(data)) == from_tensorflow(tf.train.Example.FromString(data))


DAMAGED = {
    "text": b"not an example",
    "a length past the end": b"\x0a\x05abc",
    "a length of 2**63": b"\x0a" + b"\x80" * 9 + b"\x01",
    "a varint without end": b"\xff" * 20,
    "a varint cut off": b"\x0a\x80",
    "a group": b"\x0b\x0c",
    "half a float": entry(b"f", field(2, 2, field(1, 2, b"\0\0\0"))),
    "a name that is no utf-8": entry(b"\xff\xfe", b""),
    "half a packed integer": entry(b"i", field(3, 2, field(1, 2, b"\x80"))),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_no_example_is_a_record_error_that_says_where(data):
    with pytest.raises(RecordError, match=r"^shard 3, record 7: "):
        decode_example(data, "shard 3, record 7")


@pytest.mark.parametrize("value", [0, 1, 127, 128, 2**35, 2**63 - 1, -1, -(2**63)])
@pytest.mark.parametrize("width", [0, 5, 10])
def test_varints_round_trip_at_every_width(value, width):
    data = encode_varint(value, width)
    assert len(data) >= width
    assert read_varint(b"x" + data + b"y", 1) == (value % 2**64, 1 + len(data))
    assert to_signed(value % 2**64) == value


def test_varints_have_the_range_of_an_int64():
    for value in (INT64_MAX + 1, INT64_MIN - 1):
        with pytest.raises(OverflowError):
            encode_varint(value)


any_features = st.dictionaries(
    st.text(max_size=8),
    st.builds(Feature, st.just("bytes"), st.lists(st.binary(max_size=20), max_size=5))
    | st.builds(Feature, st.just("float"), st.lists(st.floats(width=32), max_size=5))
    | st.builds(Feature, st.just("int64"), st.lists(st.integers(INT64_MIN, INT64_MAX), max_size=5))
    | st.just(Feature(None, ())),
    max_size=5,
)


@pytest.mark.uses("tensorflow")
@settings(max_examples=150)
@given(any_features)
def test_any_features_cross_to_tensorflow_and_back(features):
    import tensorflow as tf

    ours = encode_features(features)
    assert by_bits(decode_example(ours)) == by_bits(features)
    assert from_tensorflow(tf.train.Example.FromString(ours)) == by_bits(features)
    assert by_bits(decode_example(to_tensorflow(features).SerializeToString())) == by_bits(features)
