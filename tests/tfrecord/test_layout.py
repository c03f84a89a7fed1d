"""The fixed layout: image at a constant offset, and still a tf.train.Example to everyone else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tfrecords import encode_features
from tpufeed.errors import RecordError
from tpufeed.tfrecord.example import Feature, decode_example, encode_entries, encode_varint
from tpufeed.tfrecord.layout import FixedLayout

IMAGE, LABEL, HEIGHT = "image/encoded", "image/class/label", "image/height"
LAYOUT = FixedLayout(IMAGE, (LABEL, HEIGHT))
REST = {"image/format": Feature("bytes", [b"jpeg"]), "weights": Feature("float", [0.5, 2.0]), "none": Feature(None, ())}

int64s = st.integers(-(2**63), 2**63 - 1)


def payload_of(layout, image, ints, rest=REST):
    prefix, suffix = layout.encode(len(image), ints, encode_entries(rest))
    return prefix + image + suffix


def decoded(layout, payload):
    image, ints = layout.decode(memoryview(payload))
    return bytes(image), ints


@pytest.mark.uses("tensorflow")
@pytest.mark.parametrize("size", [0, 127, 128, 20_000, 3_000_000])
@pytest.mark.parametrize("ints", [(0, 1), (-1, 127), (-(2**63), 2**63 - 1), (2**32, -128)], ids=str)
def test_image_stands_at_a_constant_offset_in_a_valid_example(size, ints):
    import tensorflow as tf

    image = np.random.default_rng(size).bytes(size)
    payload = payload_of(LAYOUT, image, ints)
    assert LAYOUT.image_offset == 32 + len(IMAGE)
    assert payload[LAYOUT.image_offset :][:size] == image
    assert decoded(LAYOUT, payload) == (image, ints)
    example = tf.train.Example.FromString(payload)
    assert example.features.feature[IMAGE].bytes_list.value[0] == image
    assert example.features.feature[LABEL].int64_list.value == [ints[0]]
    assert example.features.feature[HEIGHT].int64_list.value == [ints[1]]
    assert example.features.feature["image/format"].bytes_list.value == [b"jpeg"]
    assert example.features.feature["weights"].float_list.value == [0.5, 2.0]
    assert decode_example(payload)[HEIGHT] == Feature("int64", [ints[1]])


@pytest.mark.uses("tensorflow")
@pytest.mark.parametrize("key", ["i", "größe", "k" * 127, "k" * 128, "k" * 20_000])
def test_names_of_any_length(key):
    import tensorflow as tf

    layout = FixedLayout(key, (f"{key}/label",))
    payload = payload_of(layout, b"pixels", (-5,))
    assert payload[layout.image_offset :].startswith(b"pixels")
    assert decoded(layout, payload) == (b"pixels", (-5,))
    assert tf.train.Example.FromString(payload).features.feature[f"{key}/label"].int64_list.value == [-5]


def test_bytes_of_a_payload_never_change():
    payload = payload_of(FixedLayout("i", ("l",)), b"pix", (-2,), {"t": Feature("bytes", [b"jpeg"])})
    assert payload.hex() == (
        "0ac2808080000a98808080000a0169128f808080000a89808080000a83808080007069780a130a016c120e1a0c0a0a"
        "feffffffffffffffff010a0d0a017412080a060a046a706567"
    )


@pytest.mark.uses("tensorflow")
def test_tensorflow_parses_padded_varints_alone_and_in_batches():
    import tensorflow as tf

    spec = {
        IMAGE: tf.io.FixedLenFeature([], tf.string),
        LABEL: tf.io.FixedLenFeature([], tf.int64),
        HEIGHT: tf.io.FixedLenFeature([], tf.int64),
        "weights": tf.io.FixedLenFeature([2], tf.float32),
    }
    images = [b"", b"x", b"y" * 300, b"z" * 70_000]
    labels = [0, -1, 2**63 - 1, -(2**63)]
    payloads = [payload_of(LAYOUT, image, (label, 17)) for image, label in zip(images, labels, strict=True)]
    for payload, image, label in zip(payloads, images, labels, strict=True):
        parsed = tf.io.parse_single_example(payload, spec)
        assert (parsed[IMAGE].numpy(), int(parsed[LABEL]), int(parsed[HEIGHT])) == (image, label, 17)
    batch = tf.io.parse_example(payloads, spec)
    assert batch[IMAGE].numpy().tolist() == images
    assert batch[LABEL].numpy().tolist() == labels
    assert batch["weights"].numpy().tolist() == [[0.5, 2.0]] * 4


def test_the_image_is_a_view_of_the_payload():
    payload = np.frombuffer(payload_of(LAYOUT, b"pixels", (1, 2)), np.uint8).copy()
    for data in (payload, np.frombuffer(reordered(bytes(payload)), np.uint8)):
        image, _ = LAYOUT.decode(memoryview(data))
        assert np.shares_memory(np.frombuffer(image, np.uint8), data)


def reordered(payload):
    """The same example as another tool would write it: features reversed, no padding."""
    return encode_features(dict(reversed(decode_example(payload).items())))


def test_a_list_of_ten_values_is_not_taken_for_a_padded_one():
    layout = FixedLayout(IMAGE, (LABEL,))
    prefix, suffix = layout.encode(1, (5,), b"")
    ten = suffix[:-10] + bytes(range(10))
    payload = prefix + b"x" + ten
    assert decode_example(payload)[LABEL] == Feature("int64", list(range(10)))
    with pytest.raises(RecordError, match="10 values"):
        layout.decode(memoryview(payload))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({LABEL: Feature("int64", [1]), HEIGHT: Feature("int64", [1])}, "'image/encoded' is missing"),
        ({IMAGE: Feature("bytes", [b"x"]), HEIGHT: Feature("int64", [1])}, "label' is missing.*'image/height'"),
        (
            {IMAGE: Feature("bytes", []), LABEL: Feature("int64", [1]), HEIGHT: Feature("int64", [1])},
            "has 0 values instead of one",
        ),
        (
            {IMAGE: Feature("bytes", [b"x", b"y"]), LABEL: Feature("int64", [1]), HEIGHT: Feature("int64", [1])},
            "has 2 values",
        ),
        (
            {IMAGE: Feature("int64", [1]), LABEL: Feature("int64", [1]), HEIGHT: Feature("int64", [1])},
            "should be bytes",
        ),
        (
            {IMAGE: Feature("bytes", [b"x"]), LABEL: Feature("float", [1.0]), HEIGHT: Feature("int64", [1])},
            "then int64",
        ),
        ({IMAGE: Feature(None, ()), LABEL: Feature("int64", [1]), HEIGHT: Feature("int64", [1])}, "has 0 values"),
    ],
)
def test_a_record_without_its_features_is_an_error_that_names_them(features, message):
    with pytest.raises(RecordError, match=f"^here: .*{message}"):
        LAYOUT.decode(memoryview(encode_features(features)), "here")


@pytest.mark.parametrize("ints", [(2**63, 0), (0, -(2**63) - 1), (1.5, 0), (None, 0)], ids=str)
def test_integers_out_of_range_are_an_error(ints):
    with pytest.raises(RecordError, match="image/height"):
        LAYOUT.encode(1, ints, {})


@pytest.mark.uses("tensorflow")
@given(
    st.binary(max_size=300), st.tuples(int64s, int64s), st.dictionaries(st.text("abc", max_size=3), st.lists(int64s))
)
def test_round_trip(image, ints, rest):
    import tensorflow as tf

    payload = payload_of(LAYOUT, image, ints, {name: Feature("int64", values) for name, values in rest.items()})
    assert decoded(LAYOUT, payload) == (image, ints)
    again = tf.train.Example.FromString(payload).SerializeToString(deterministic=True)
    for foreign in (reordered(payload), again):
        assert decoded(LAYOUT, foreign) == (image, ints)
    assert decoded(FixedLayout(IMAGE, ()), payload_of(FixedLayout(IMAGE, ()), image, (), {})) == (image, ())


@given(st.lists(st.tuples(int64s, int64s), min_size=1, max_size=5), st.data())
def test_integers_of_many_payloads_are_those_of_each(rows, data):
    payloads = [memoryview(payload_of(LAYOUT, b"pixel", ints)) for ints in rows]
    assert LAYOUT.decode_ints(payloads, 5).tolist() == [list(ints) for ints in rows]
    assert LAYOUT.decode_ints(payloads, 4) is None
    assert LAYOUT.decode_ints([*payloads, memoryview(reordered(payloads[0]))], 5) is None
    damaged = bytearray(payloads[-1])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged
    found = LAYOUT.decode_ints([*payloads[:-1], memoryview(damaged)], 5)
    if found is not None:
        image, ints = LAYOUT.decode(memoryview(damaged))
        assert (len(image), list(ints)) == (5, found[-1].tolist())


@pytest.mark.parametrize(
    "length", [b"\x80" * 5, b"\xff" * 5, b"\xff\xff\xff\xff\x7f", encode_varint(4, 5), b"\3\0\0\0\0"]
)
def test_a_damaged_length_of_the_image_is_a_sample_or_a_record_error(length):
    layout = FixedLayout("i", ("l",))
    payload = bytearray(payload_of(layout, b"pix", (7,), {}))
    payload[layout.image_offset - 5 : layout.image_offset] = length
    for damaged in (payload, payload[: layout.image_offset], payload[:-10] + b"\x80" * 10):
        try:
            image, (label,) = layout.decode(memoryview(damaged))
        except RecordError:
            continue
        assert isinstance(image, memoryview)
        assert -(2**63) <= label < 2**63
