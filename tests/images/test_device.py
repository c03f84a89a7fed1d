"""Ops on the device against the same ops on the host, with the same draws, in every framework."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frameworks import lazy
from tests.images.dct_reference import decode_planes, encode_planes
from tests.images.ops.every import gather
from tests.images.ops.test_rand_augment import ON_DEVICE
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
from tpufeed.images.coefficients import Coefficients, quality_tables
from tpufeed.images.device import DeviceOps, product_of_parts
from tpufeed.images.ops.color_jitter import shift_hue, shift_hue_on_device
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Window
from tpufeed.images.rng import uniforms
from tpufeed.stream.columns import DEVICE_NUMBERS
from tpufeed.stream.mixing import BatchOps

JAX = lazy("tpufeed.adapters.jax.arrays:ARRAYS")
TF = lazy("tpufeed.adapters.tf.arrays:ARRAYS")
TORCH = lazy("tpufeed.adapters.torch.arrays:ARRAYS")
TF_UPPER = lazy("tpufeed.adapters.tf.arrays:upper")
TORCH_UPPER = lazy("tpufeed.adapters.torch.arrays:upper")

jax = lazy("jax")
ml_dtypes = lazy("ml_dtypes")
jnp = lazy("jax.numpy")
tf = lazy("tensorflow")
torch = lazy("torch")
AxisType = lazy("jax.sharding:AxisType")
NamedSharding = lazy("jax.sharding:NamedSharding")
P = lazy("jax.sharding:PartitionSpec")

SIZE = (90, 100)


@dataclass(frozen=True)
class Zoom:
    """A window op of a user's: up to half the image, or three times as much around it."""

    fill: tuple[int, int, int] = (250, 9, 100)
    version: int = 1
    draws: int = 2

    def output_size(self, size):
        return (48, 64)

    def window(self, height, width, draws):
        share = 0.5 + 2.5 * draws[0]
        tall, wide = round(height * share), round(width * share)
        return Window(int((height - tall) * draws[1]), int((width - wide) * (1 - draws[1])), tall, wide, 48, 64)


def make_images(size, count=8, noise=6):
    """Smooth colours of the whole range, with a little noise; or noise alone."""
    random = np.random.default_rng(0)
    if noise is None:
        return random.integers(0, 256, (count, *size, 3), np.uint8)
    small = random.integers(0, 256, (count, 5, 6, 3), np.uint8)
    smooth = np.stack([cv2.resize(image, size[::-1], interpolation=cv2.INTER_CUBIC) for image in small])
    return np.clip(smooth + random.normal(0, noise, smooth.shape), 0, 255).astype(np.uint8)


def draw(ops, count, epoch=0):
    return [uniforms(7, epoch, np.arange(count), position, op.draws) for position, op in enumerate(ops)]


def on_host(ops, images, draws):
    pipeline = Pipeline(ops, 0)
    return np.stack([pipeline.run(image, [d[n].tolist() for d in draws]) for n, image in enumerate(images)])


def by_jax(ops, images, parameters):
    return np.asarray(jax.jit(lambda *given: ops.apply(*given, JAX))(images, parameters))


def by_torch(ops, images, parameters, arrays=TORCH):
    return ops.apply(torch.from_numpy(images), torch.from_numpy(parameters), arrays).numpy()


def by_tf(ops, images, parameters):
    return tf.function(lambda *given: ops.apply(*given, TF), jit_compile=True)(images, parameters).numpy()


COMPILERS = [
    pytest.param(by_jax, marks=pytest.mark.uses("jax")),
    pytest.param(by_tf, marks=pytest.mark.uses("tensorflow")),
]
FRAMEWORKS = {
    "jax": (JAX, lazy("jax.numpy:asarray")),
    "torch": (TORCH, lazy("torch:from_numpy")),
    "tensorflow": (TF, lazy("tensorflow:constant")),
}


def most_apart(ops, images, run, epoch=0):
    draws = draw(ops, len(images), epoch)
    made = DeviceOps(ops, images.shape[1:3])
    parameters = made.parameters(draws)
    assert (parameters.dtype, parameters.shape) == (np.float32, (len(images), made.width))
    expected, found = on_host(ops, images, draws), run(made, images, parameters)
    assert found.dtype == np.uint8
    assert found.shape == expected.shape == (len(images), *made.out_size, 3)
    return np.abs(found.astype(int) - expected).max(initial=0)


CASES = {str(case.op): ([case.op], case.device) for case in gather("CASES") if case.device is not None} | {
    "a window op of a user's": ([Zoom()], 1),
    "flips": ([HorizontalFlip(), VerticalFlip(0.3)], 0),
    "nothing random": ([CenterCrop(64), Resize(32)], 1),
    # A level before a shift of the hue may be a step of hue, and 6 levels, after it.
    "chain": (
        [RandomResizedCrop(64), HorizontalFlip(), ColorJitter(0.4, 0.4, 0.4), Grayscale(0.1), RandomErasing()],
        4,
    ),
}


# torch runs at once what the others compile for half a second, so it has the single transforms, and noise alone.
COMPILED = [case for case, (ops, _) in CASES.items() if not isinstance(ops[0], RandAugment)]
RANDAUGMENT = tuple(name for name in ON_DEVICE if name != "identity")


@pytest.mark.first_cases(18)
@pytest.mark.uses("torch")
@pytest.mark.parametrize("noise", [6, None])
@pytest.mark.parametrize("case", CASES)
def test_the_device_gives_the_host_s_pixels(case, noise):
    ops, levels = CASES[case]
    assert most_apart(ops, make_images(SIZE, noise=noise), by_torch) <= levels


@pytest.mark.all
@pytest.mark.parametrize("run", COMPILERS)
@pytest.mark.parametrize("case", COMPILED)
def test_compiled_ops_give_the_host_s_pixels(case, run):
    ops, levels = CASES[case]
    assert most_apart(ops, make_images(SIZE), run) <= levels


@pytest.mark.all
@pytest.mark.parametrize("run", COMPILERS)
def test_compiled_transforms_give_the_host_s_pixels(run):
    assert most_apart([RandAugment(1, 9, fill=9, transforms=RANDAUGMENT)], make_images(SIZE, 32), run) <= 1


@pytest.mark.uses("torch")
def test_a_chain_with_hue_is_equal_but_for_a_few_pixels():
    ops = [RandomResizedCrop(64), HorizontalFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1), GaussianBlur(0.5)]
    images, made = make_images(SIZE, 32), DeviceOps(ops, SIZE)
    draws = draw(ops, 32)
    apart = np.abs(on_host(ops, images, draws) - by_torch(made, images, made.parameters(draws)).astype(int))
    assert apart.mean() < 0.3
    assert (apart > 2).mean() < 0.01


sides = st.integers(1, 40)
sizes = st.tuples(sides, sides)
fills = st.integers(0, 255) | st.tuples(*[st.integers(0, 255)] * 3)
windows = st.one_of(
    st.builds(RandomCrop, sizes, padding=st.integers(0, 30), fill=fills),
    st.builds(RandomResizedCrop, sizes, scale=st.sampled_from([(0.08, 1.0), (0.001, 0.1), (1.0, 1.0)])),
    st.builds(Resize, sides | sizes),
    st.builds(CenterCrop, sizes),
    st.builds(Zoom, st.tuples(*[st.integers(0, 255)] * 3)),
)


@pytest.mark.uses("torch")
@given(windows, sizes, st.integers(0, 9))
def test_windows_of_any_size_are_at_most_a_level_off(op, size, epoch):
    apart = most_apart([op], make_images(size, 5, None), by_torch, epoch)
    assert apart <= (0 if isinstance(op, RandomCrop) else 1)


@pytest.mark.uses("torch")
@given(sizes, st.floats(0.1, 3), st.floats(0, 3), st.integers(0, 9))
def test_blurs_of_any_size_are_at_most_three_levels_off_or_refused(size, low, more, epoch):
    op = GaussianBlur(0.8, (low, low + more))
    if round(6 * (low + more) + 1) // 2 >= min(size):
        with pytest.raises(OptionError, match="GaussianBlur"):
            DeviceOps([op], size)
    else:
        assert most_apart([op], make_images(size, 5, None), by_torch, epoch) <= 3


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.uses(name)) for name in FRAMEWORKS])
def test_every_color_has_the_host_s_hue(name):
    arrays, make = FRAMEWORKS[name]
    levels = np.array([*range(0, 256, 7), 1, 2, 127, 128, 254, 255], np.uint8)
    colors = np.array(list(product(levels, repeat=3)), np.uint8).reshape(1, 43, -1, 3)
    planes = np.ascontiguousarray(colors.transpose(3, 0, 1, 2), np.float32)
    for steps in (0, 1, 42, 43, 100, 128, 213, 255):
        amount = make(np.full((1, 1, 1), steps, np.float32))
        found = np.asarray(arrays.stack(shift_hue_on_device([make(plane) for plane in planes], amount, arrays)))
        np.testing.assert_array_equal(found[0], shift_hue(colors[0], steps, None))


@pytest.mark.uses("torch")
@pytest.mark.parametrize("op", [RandomResizedCrop(70), RandomResizedCrop(30), Zoom(), Resize(64), RandomCrop(80, 9, 9)])
def test_windows_by_products_of_bfloat16_are_at_most_two_levels_off(op):
    """As a TPU multiplies unless it is told otherwise: both factors rounded, sums in float32."""

    def product(*factors):
        return torch.matmul(*(factor.bfloat16().float() for factor in factors))

    from tpufeed.adapters.torch.arrays import ARRAYS

    rounded = replace(ARRAYS, product=product)
    apart = most_apart([op], make_images(SIZE, noise=None), lambda *given: by_torch(*given, rounded))
    assert apart <= (0 if isinstance(op, RandomCrop) else 2)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.uses(name)) for name in ("torch", "tensorflow")])
def test_products_of_bfloat16_keep_all_bits_if_their_parts_are_multiplied(name):
    """Of uint16 and of float32, as torch_xla and TensorFlow multiply on a TPU."""
    from_numpy, upper = {"torch": (torch.from_numpy, TORCH_UPPER), "tensorflow": (tf.constant, TF_UPPER)}[name]

    def product(x, y):
        return x.astype(ml_dtypes.bfloat16).astype(np.float32) @ y.astype(ml_dtypes.bfloat16).astype(np.float32)

    random = np.random.default_rng(0)
    weights = random.dirichlet(np.ones(30), 40).astype(np.float32)
    for values in (random.integers(0, 65536, (30, 20)), random.normal(0, 1e30, (30, 20)), np.full((30, 20), -3.4e38)):
        pixels = values.astype(np.float32)
        exact = weights.astype(float) @ pixels
        found = product_of_parts(product, lambda x: upper(from_numpy(x)).numpy(), weights, pixels)
        most = np.abs(weights).astype(float) @ np.abs(pixels)
        assert np.abs((found - exact) / most).max() < 1e-6
        assert not np.abs((product(weights, pixels) - exact) / most).max() < 1e-4  # infinite of the last


@pytest.mark.all
@pytest.mark.uses("jax")
@pytest.mark.parametrize("coded", [False, True])
def test_rows_stay_on_their_devices(coded):
    ops = [RandomResizedCrop(30), HorizontalFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1), GaussianBlur(0.5), RandomErasing()]
    images, made = make_images(SIZE, 16), DeviceOps(ops, SIZE)
    if coded:
        coefficients, images, _ = make_coded(count=16)
        ops = ops[:2]
        made = DeviceOps(ops, CODED_SIZE, coefficients)
    parameters = made.parameters(draw(ops, 16))
    expected = by_jax(made, images, parameters)
    for axes in (AxisType.Auto, AxisType.Explicit):
        rows = NamedSharding(jax.make_mesh((8,), ("data",), axis_types=(axes,)), P("data"))
        given = [jax.device_put(value, rows) for value in (images, parameters)]
        program = jax.jit(lambda *given: made.apply(*given, JAX)).lower(*given).compile()
        found = program(*given)
        assert found.sharding.is_equivalent_to(rows, 4)
        exchanges = "all-gather", "all-reduce", "all-to-all", "permute"
        assert not any(f"{exchange}(" in program.as_text() for exchange in exchanges)
        np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.uses("torch_xla")
def test_one_program_serves_every_batch_under_torch_xla():
    script = Path(__file__).parents[1] / "adapters/xla/xla_device_ops.py"
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"},
    )
    assert done.returncode == 0, done.stderr
    most_apart, compiled, on_the_host = done.stdout.split(maxsplit=2)
    assert int(most_apart) <= 1
    assert (int(compiled), on_the_host) == (2, "[]\n")  # of pixels, and of coefficients


# A level before it is solarized or posterized may be many after it.
@pytest.mark.all
@pytest.mark.uses("torch")
def test_a_chain_of_random_transforms_is_equal_but_for_a_few_pixels():
    ops = [RandAugment(3, 12, fill=(1, 2, 3), transforms=sorted(RANDAUGMENT))]
    images, made = make_images(SIZE, 64), DeviceOps(ops, SIZE)
    draws = draw(ops, 64)
    apart = np.abs(on_host(ops, images, draws) - by_torch(made, images, made.parameters(draws)).astype(int))
    assert (apart > 2).mean() < 0.01
    assert apart.mean() < 0.1


CODED_SIZE = (80, 112)
CODED = {
    "whole": [],
    "cut": [CenterCrop(64)],
    "cut and mirrored": [CenterCrop((64, 40)), HorizontalFlip()],
    "crop": [RandomResizedCrop(64), HorizontalFlip(), VerticalFlip()],
    "resize": [Resize((30, 50))],
    "padded": [RandomCrop(80, 9, (0, 9, 250))],
    "beyond": [Zoom()],
    "colors first": [ColorJitter(0.2, 0.2, 0.2), RandomResizedCrop(64)],
    "mirrored first": [HorizontalFlip(), CenterCrop(40)],
}


def make_coded(sampling="420", noise=6, quality=90, count=8):
    """Coefficients of images, as a batch holds them, and their pixels."""
    coefficients = Coefficients(CODED_SIZE, sampling, quality_tables(quality))
    images = make_images(CODED_SIZE, count, noise)[..., : 1 if sampling == "grey" else 3]
    values = np.stack([encode_planes(image, coefficients) for image in images])
    decoded = np.stack([decode_planes(each, coefficients) for each in values])
    return coefficients, values, np.ascontiguousarray(np.broadcast_to(decoded, (count, *CODED_SIZE, 3)))


def coded_apart(ops, run, sampling="420", noise=6, quality=90):
    """Return how far pixels are from those of images that are decoded whole, each level."""
    coefficients, values, pixels = make_coded(sampling, noise, quality)
    made, draws = DeviceOps(ops, CODED_SIZE, coefficients), draw(ops, len(pixels))
    parameters = made.parameters(draws) if ops else np.empty((len(pixels), 0), np.float32)
    return np.abs(run(made, values, parameters).astype(int) - (on_host(ops, pixels, draws) if ops else pixels))


@pytest.mark.uses("torch")
@pytest.mark.parametrize("sampling", ["420", "444", "grey"])
@pytest.mark.parametrize("case", CODED)
def test_coefficients_are_decoded_as_on_the_host(case, sampling):
    """Where levels leave 0 to 255 a host clips them before it resizes."""
    apart = coded_apart(CODED[case], by_torch, sampling)
    assert apart.max() <= (6 if case in ("crop", "resize", "beyond", "colors first") else 1)
    assert apart.mean() < 0.3


@pytest.mark.all
@pytest.mark.parametrize("run", COMPILERS)
@pytest.mark.parametrize("case", ["whole", "crop", "beyond"])
def test_compiled_programs_decode_coefficients(case, run):
    apart = coded_apart(CODED[case], run)
    assert apart.max() <= 6
    assert apart.mean() < 0.3


@pytest.mark.uses("torch")
@pytest.mark.parametrize("quality", [50, 75, 90, 92])
def test_crops_of_noise_differ_most(quality):
    """The worst case: every other level of the whole image is clipped, and a device clips the sums alone."""
    assert coded_apart([], by_torch, noise=None, quality=quality).max() <= 1
    apart = coded_apart([RandomResizedCrop(64)], by_torch, noise=None, quality=quality)
    assert apart.max() <= 64
    assert apart.mean() < 0.6


@pytest.mark.all
@pytest.mark.uses("jax")
@pytest.mark.parametrize("case", ["crop", "cut"])
def test_a_kernel_decodes_coefficients(case):
    from tpufeed.adapters.jax.kernel import run

    def in_kernel(ops, values, parameters):
        return np.asarray(jax.jit(lambda *given: run(ops, *given, interpret=True))(values, parameters))

    apart = coded_apart(CODED[case], in_kernel)
    assert apart.max() <= 6
    assert apart.mean() < 0.3


OUTSIDE = [
    RandAugment(),
    RandAugment(1, transforms=("rotate",)),
    Rotate(10.0),
    Custom("tests.images.custom_ops:shade"),
    RandomErasing(value="random"),
    HorizontalFlip,
]


@pytest.mark.parametrize("op", OUTSIDE)
def test_an_op_that_cannot_run_there_is_named(op):
    name = op.__name__ if isinstance(op, type) else type(op).__name__
    with pytest.raises(OptionError, match=rf"device_ops: {name} .*put it in ops"):
        DeviceOps([HorizontalFlip(), op], SIZE)


def test_an_op_that_changes_nothing_needs_no_numbers():
    made = DeviceOps([ColorJitter(hue=0.001), CenterCrop(20), Resize(40)], SIZE)
    assert (made.width, made.out_size) == (0, (40, 40))
    assert made.parameters(draw([ColorJitter(), CenterCrop(20), Resize(40)], 5)).shape == (5, 0)


@pytest.mark.all
@pytest.mark.uses("jax")
@pytest.mark.parametrize(
    ("ops", "levels"),
    [
        ([RandomCrop(24, 3, 9), HorizontalFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1), VerticalFlip(), Grayscale(0.3)], 0),
        ([RandomResizedCrop((24, 20)), HorizontalFlip(), RandAugment(2, transforms=("sharpness", "translate_x"))], 2),
    ],
)
def test_a_kernel_gives_the_pixels_that_xla_gives(ops, levels):
    """As JAX interprets it. In the kernel each image goes its own way."""
    from tpufeed.adapters.jax.kernel import run

    images, made = make_images((30, 36), 32), DeviceOps(ops, (30, 36))
    parameters = made.parameters(draw(ops, 32))
    found = jax.jit(lambda *given: run(made, *given, interpret=True))(images, parameters)
    assert np.abs(np.asarray(found).astype(int) - by_jax(made, images, parameters)).max() <= levels


@pytest.mark.all
@pytest.mark.uses("jax")
@pytest.mark.parametrize("coded", [False, True])
def test_kernels_run_on_all_devices_also_within_another_mesh(coded, monkeypatch):
    from tpufeed.adapters.jax import kernel, sharding

    coefficients, values, _ = make_coded()
    size, coefficients = (CODED_SIZE, coefficients) if coded else ((24, 20), None)
    ops = BatchOps(DeviceOps([RandomCrop(16), HorizontalFlip()], size, coefficients), None)
    columns = {
        "image": values if coded else make_images(size, 8),
        DEVICE_NUMBERS: ops.parameters(draw([RandomCrop(16), HorizontalFlip()], 8)),
    }
    rows = NamedSharding(jax.make_mesh((4, 2), ("rows", "copies")), P("rows"))
    wanted = np.asarray(sharding.compile_ops(rows)(ops, columns)["image"])
    monkeypatch.setattr(sharding, "_PLATFORM", "cpu")
    interpreted = replace(kernel.ON_TPU, kernel=lambda *given: kernel.run(*given, interpret=True))
    monkeypatch.setattr(kernel, "ON_TPU", interpreted)
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        found = sharding.compile_ops(rows)(ops, columns)["image"]
    assert found.sharding.is_equivalent_to(rows, 4)
    assert np.abs(np.asarray(found).astype(int) - wanted).max() <= int(coded)
