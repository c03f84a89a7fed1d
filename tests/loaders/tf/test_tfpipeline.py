"""The graph pipeline against the one of tpufeed.images, within tf.data and beyond it."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tpufeed.errors import OptionError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    Custom,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
    VerticalFlip,
)
from tpufeed.images.decoding import decode
from tpufeed.images.pipeline import Pipeline
from tpufeed.loaders.tf.pipeline import GraphPipeline

SEED, EPOCH = -5, 3
# Mean difference in levels. TensorFlow's fast inverse DCT is 0.8 levels darker on average and up to 1.5 off; a reduced
# JPEG has another DCT, the same in both, and differs as the bilinear weights round.
JPEG, REDUCED = 2.0, 0.6
EVERY_OP = [
    RandomResizedCrop(48),
    HorizontalFlip(),
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    Grayscale(),
    GaussianBlur(),
    Rotate(10),
    RandAugment(1),
    VerticalFlip(),
    RandomCrop(40, padding=4),
    RandomErasing(value="random"),
    Resize(36),
    CenterCrop(32),
]


def graph(pipeline, encoded, epoch=EPOCH):
    """A dataset of decoded images; all of it in the graph."""

    @tf.autograph.experimental.do_not_convert
    def draw(number, image):
        return image, tuple(drawn[0] for drawn in pipeline.draw(tf.constant(epoch, tf.int64), number[None]))

    images = tf.data.Dataset.from_tensor_slices(encoded).enumerate().map(draw)
    return images.map(tf.autograph.experimental.do_not_convert(pipeline.decode))


def by_cpu(ops, encoded, epoch=EPOCH):
    pipeline = Pipeline(ops, SEED, fast=True)
    draws = pipeline.draw(epoch, np.arange(len(encoded)))
    return [pipeline.run_encoded(memoryview(d), [op[n] for op in draws]) for n, d in enumerate(encoded)]


def differences(dataset, expected):
    found = [image.numpy() for image in dataset]
    assert [image.shape for image in found] == [image.shape for image in expected]
    return [np.abs(one.astype(int) - other).mean() for one, other in zip(found, expected, strict=True)]


def jpeg(photo, **options):
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=90, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def encoded(photos):
    """JPEGs: the real ones as they are, and two more, one in 4:4:4 and one progressive."""
    pictures = [Image.open(io.BytesIO(photos[name])).convert("RGB") for name in ("chelsea.png", "coffee.png")]
    more = [jpeg(pictures[0], subsampling=0), jpeg(pictures[1], progressive=True)]
    return [photos["china.jpg"], photos["flower.jpg"], photos["rocket.jpg"], *more]


@pytest.mark.parametrize(
    ("ops", "tolerance"),
    [
        ([RandomResizedCrop(224), HorizontalFlip()], JPEG),
        ([RandomResizedCrop((90, 120), (0.9, 1.0)), VerticalFlip(), HorizontalFlip()], REDUCED),  # by 2
        ([RandomResizedCrop(60, (0.6, 1.0))], REDUCED),  # by 4
        ([RandomResizedCrop(30, (0.6, 1.0)), HorizontalFlip(), VerticalFlip()], REDUCED),  # by 8
        ([RandomResizedCrop(10, (0.6, 1.0))], REDUCED),  # by 8, and then by areas
        ([RandomCrop((300, 460), padding=30, fill=(200, 10, 90)), HorizontalFlip()], JPEG),
        ([RandomCrop(9, padding=300, fill=40)], JPEG),  # often beside the image
        ([HorizontalFlip(), RandomCrop(200), HorizontalFlip()], JPEG),
        ([Resize(256), CenterCrop(224)], JPEG),
        ([CenterCrop(300)], JPEG),
        ([CenterCrop(700)], JPEG),
        ([Resize((50, 60))], REDUCED),
    ],
    ids=str,
)
def test_pixels_of_photographs(encoded, ops, tolerance):
    pipeline = GraphPipeline(ops, SEED)
    dataset = graph(pipeline, encoded)
    assert dataset.element_spec == tf.TensorSpec(pipeline.output_shape, tf.uint8)
    assert max(differences(dataset, by_cpu(ops, encoded))) < tolerance
    if any(op.draws for op in ops):  # another epoch's would be noticed
        assert max(differences(dataset, by_cpu(ops, encoded, EPOCH + 1))) > 5 * tolerance


def test_a_reduced_window_begins_where_the_cpu_s_does():
    """On a ramp of 6 levels a pixel, half a pixel at the wrong place is 3 levels."""
    ramp = np.tile(np.abs(np.arange(480) % 84 - 42) * 6, (360, 1)).astype(np.uint8)
    data = jpeg(Image.fromarray(np.stack([ramp] * 3, 2)), subsampling=0)
    ops = [RandomResizedCrop(40, (0.2, 0.5))]
    assert max(differences(graph(GraphPipeline(ops, SEED), [data] * 8), by_cpu(ops, [data] * 8))) < REDUCED


def alpha_of(photo):
    image = photo.copy()
    image.putalpha(Image.linear_gradient("L").resize(photo.size))
    return image


@pytest.mark.parametrize("ops", [[CenterCrop(60)], [VerticalFlip(), CenterCrop(60)]], ids=str)
def test_formats_without_loss_are_exact(photos, ops):
    photo = Image.open(io.BytesIO(photos["chelsea.png"])).convert("RGB").resize((160, 100))
    animation = {"save_all": True, "append_images": [photo.rotate(90), photo.rotate(180)]}
    encoded = []
    for image_format, image, options in (
        *(("PNG", photo.convert(mode), {}) for mode in ("RGB", "L", "LA", "1")),
        ("PNG", alpha_of(photo), {}),
        ("PNG", photo.quantize(64), {"transparency": 3}),
        ("WEBP", photo, {"lossless": True}),
        ("WEBP", alpha_of(photo), {"lossless": True}),
        ("GIF", photo, animation),
        ("BMP", photo, {}),
    ):
        buffer = io.BytesIO()
        image.save(buffer, image_format, **options)
        encoded.append(buffer.getvalue())
    assert differences(graph(GraphPipeline(ops, SEED), encoded), by_cpu(ops, encoded)) == [0] * len(encoded)


@pytest.mark.parametrize("ops", [[CenterCrop(200)], [VerticalFlip(), CenterCrop(200)]], ids=str)
def test_odd_jpegs(photos, ops):
    """Grey and CMYK get three channels; an orientation stays unheeded, as by tpufeed.images.decoding.decode."""
    photo = Image.open(io.BytesIO(photos["chelsea.png"]))
    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = [jpeg(photo.convert("L")), jpeg(photo.convert("CMYK")), jpeg(photo.convert("RGB"), exif=exif)]
    assert max(differences(graph(GraphPipeline(ops, SEED), encoded), by_cpu(ops, encoded))) < JPEG


def test_raw_pixels(photos):
    whole = decode(photos["coffee.png"])
    pixels = np.stack([whole[n : n + 60, n : n + 80] for n in range(6)])
    ops = [RandomCrop(56, padding=2), HorizontalFlip(), HorizontalFlip(0.3), ColorJitter(brightness=0.5)]
    pipeline, cpu = GraphPipeline(ops, SEED, (60, 80, 3)), Pipeline(ops, SEED)
    draws = pipeline.draw(tf.constant(EPOCH, tf.int64), tf.range(6, dtype=tf.int64))
    assert [drawn.shape[1] for drawn in draws] == [2, 1, 1, 5]
    expected = cpu.draw(EPOCH, np.arange(6))
    run = tf.autograph.experimental.do_not_convert(pipeline.run)
    for number, found in enumerate(tf.data.Dataset.from_tensor_slices((pixels, draws)).map(run)):
        assert np.array_equal(found, cpu.run(pixels[number], [op[number] for op in expected]))


def test_every_op_in_a_serialised_graph(encoded):
    """What tf.data service and saving do with it: no state, no Python, no random numbers of TensorFlow's."""
    dataset = graph(GraphPipeline(EVERY_OP, SEED), encoded)
    assert dataset.element_spec.shape == (32, 32, 3)
    fail_on_state = 2  # ExternalStatePolicy.FAIL
    stored = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset._variant_tensor, external_state_policy=fail_on_state)
    data = stored.numpy()
    graph_def = tf.compat.v1.GraphDef.FromString(data)
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    ops = {node.op for node in nodes}
    assert {"DecodeAndCropJpeg", "ReverseV2", "RightShift"} <= ops
    assert not [op for op in ops if "PyFunc" in op or "Random" in op or "Var" in op]
    again = tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=data), dataset.element_spec)
    assert [image.numpy().tobytes() for image in again] == [image.numpy().tobytes() for image in dataset]
    # beyond exact ops, so only a glance: RandAugment's Equalize may turn a level of difference into many
    assert np.median(differences(again, by_cpu(EVERY_OP, encoded))) < 2 * JPEG


def test_a_saved_function(encoded, tmp_path):
    pipeline = GraphPipeline([RandomResizedCrop(48), HorizontalFlip()], SEED)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.int64)])
    def load(data, sample):
        return pipeline.decode(data, [drawn[0] for drawn in pipeline.draw(tf.constant(EPOCH, tf.int64), sample[None])])

    module = tf.Module()
    module.load = load
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    expected = [image.numpy() for image in graph(pipeline, encoded)]
    for number, data in enumerate(encoded):
        assert np.array_equal(loaded.load(data, np.int64(number)), expected[number])


def test_damage_is_an_error(encoded):
    pipeline = GraphPipeline([CenterCrop(300)], SEED)
    decode_one = tf.function(lambda data: pipeline.decode(data, []), autograph=False)
    assert decode_one(encoded[0]).shape == (300, 300, 3)
    for data in (encoded[0][: len(encoded[0]) // 2], b"", b"no image"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            decode_one(data)


def test_a_size_that_was_not_promised(encoded):
    pipeline = GraphPipeline([HorizontalFlip()], SEED, stored_size=(427, 640))
    found = list(graph(pipeline, encoded[:2]))  # of that size
    assert [image.shape for image in found] == [(427, 640, 3)] * 2
    message = "the image has 640x427 pixels.*where 600x400 were promised, and no op resizes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(graph(GraphPipeline([HorizontalFlip()], SEED, stored_size=(400, 600)), encoded[:1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"256x256 pixels.*384x256 were promised"):
        list(graph(GraphPipeline([Resize(256)], SEED, stored_size=(400, 600)), [jpeg(Image.new("RGB", (300, 300)))]))


def test_custom_has_no_graph():
    with pytest.raises(OptionError, match=r"Custom\(.*'module:function'.*leave out direct=True, or the op"):
        GraphPipeline([CenterCrop(8), Custom("module:function")], SEED)


def test_images_that_differ_in_size():
    with pytest.raises(OptionError, match=r"images may differ in size.*RandomResizedCrop\(size=224\)"):
        GraphPipeline([HorizontalFlip()], SEED)
    with pytest.raises(OptionError, match=r"ops are tpufeed\.images\.RandomResizedCrop"):
        GraphPipeline(["RandomCrop"], SEED)
