"""What every op keeps to: a case and a row, memory, size, draws, and pixels that only change with the version."""

import platform
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.images.float_resizing import bilinear
from tests.images.ops.every import LARGEST, gather
from tpufeed.errors import ImageError
from tpufeed.images import (
    ColorJitter,
    Custom,
    HorizontalFlip,
    RandAugment,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
)
from tpufeed.images.affine import warp
from tpufeed.images.ops import EVERY, OPS
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.rng import generator, noise, uniforms

unit = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.5, LARGEST])
sides = st.sampled_from([1, 2, 3]) | st.integers(1, 40)

CASES = gather("CASES")
PIXEL_OPS = [case.op for case in CASES if case.crc is not None and hasattr(case.op, "apply")]
pixel_ops = pytest.mark.parametrize("op", PIXEL_OPS, ids=str)


@pytest.fixture(autouse=True)
def _custom_ops(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])


def picture(height, width):
    """A smooth image with a little noise."""
    y, x = np.mgrid[:height, :width]
    smooth = np.stack([3 * x, 4 * y, 2 * x + 2 * y], -1) % 256
    return ((3 * smooth + noise(0.25, smooth.size).reshape(smooth.shape)) // 4).astype(np.uint8)


def strided(height, width, seed):
    """Noise in memory of which every second row and column is the image's; read-only."""
    image = np.random.default_rng(seed).integers(0, 256, (2 * height, width + 5, 3), np.uint8)[::2, 2:-3]
    image.flags.writeable = False
    return image


def test_each_op_of_one_image_has_a_case_and_a_row_of_the_page():
    assert {type(case.op) for case in CASES if case.crc is not None} == set(OPS.values())
    page = (Path(__file__).parents[3] / "docs/api/images.md").read_text()
    assert sorted(re.findall(r"^::: tpufeed\.images\.(\w+)$", page, re.MULTILINE)) == [*EVERY]


@pytest.mark.parametrize("case", [case for case in CASES if case.crc is not None], ids=lambda case: str(case.op))
def test_pixels_of_a_version_never_change(case):
    op, crc = case.op, case.crc
    assert op.version in (1, "1")
    pipeline, found, resizes = Pipeline([op], 0), 0, isinstance(op, Resize | RandomResizedCrop)
    is_arm = platform.machine() == "aarch64"  # where OpenCV cuts off what it rounds elsewhere
    for sample in range(8):
        draws = [drawn[0] for drawn in pipeline.draw(3, np.array([sample]))]
        pixels = pipeline.run(picture(61, 83), draws)
        if resizes:  # on each processor, so that pixels of two are at most 1 level apart
            apart = np.abs(pixels - bilinear(picture(61, 83), op.window(61, 83, draws[0])))
            assert apart.max() < (1.1 if is_arm else 1)
        found = zlib.crc32(np.ascontiguousarray(pixels), found)
    if not is_arm or not (resizes or any(getattr(op, "hue", ()))):
        assert f"{found:08x}" == f"{crc:08x}"


@pytest.mark.first_cases(7)
@settings(max_examples=12)
@given(sides, sides, st.integers(0, 99), st.data())
@pixel_ops
def test_memory_and_strides_change_nothing(op, height, width, seed, data):
    image = strided(height, width, seed)
    before = image.copy()
    draws = data.draw(st.lists(unit, min_size=op.draws, max_size=op.draws))
    expected = op.apply(image, draws, None)
    assert expected.dtype == np.uint8
    assert expected.shape == image.shape
    assert op.output_size((height, width)) == (height, width)
    assert op.output_size(None) is None
    batch = np.full((3, height, width, 3), 99, np.uint8)
    assert op.apply(image, draws, batch[1]).base is batch
    assert np.array_equal(batch[1], expected)
    assert (batch[[0, 2]] == 99).all()
    own = before.copy()
    assert op.apply(own, draws, own) is own
    assert np.array_equal(own, expected)
    assert np.array_equal(Pipeline([op], 0).run(image, [draws]), before if op.skips(draws) else expected)
    assert np.array_equal(image, before)
    if op.skips(draws):
        assert getattr(op, "p", 1) < 1 or np.array_equal(expected, before)


@pixel_ops
def test_the_smallest_images_come_through(op):
    for shape in ((1, 1, 3), (1, 300, 3), (300, 1, 3), (2, 2, 3), (3, 1, 3)):
        for level in (0, 255):
            for draw in (0.0, 0.5, LARGEST):
                image = np.full(shape, level, np.uint8)
                assert op.apply(image, [draw] * op.draws, np.empty_like(image)).shape == shape


@pixel_ops
def test_threads_give_the_same_pixels(op):
    images = [picture(50 + number, 70) for number in range(4)]
    jobs = [(images[number % 4], drawn) for number, drawn in enumerate(uniforms(1, 0, np.arange(40), 0, op.draws))]
    alone = [op.apply(image, drawn.tolist(), None) for image, drawn in jobs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: op.apply(job[0], job[1].tolist(), np.empty_like(job[0])), jobs))
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def test_ops_happen_with_their_probability():
    draws = uniforms(0, 0, np.arange(2500), 0, 30).tolist()
    for op in PIXEL_OPS:
        for p in (0.0, 0.1, 0.5, 1.0) if hasattr(op, "p") else ():
            made = replace(op, p=p)
            assert abs(sum(not made.skips(drawn) for drawn in draws) / 2500 - p) < 0.04, made
            assert p > 0 or made.skips([0.0] * 30)
            assert p < 1 or not made.skips([LARGEST] * 30)


@pytest.mark.parametrize(
    "op",
    [
        ColorJitter(),
        ColorJitter((1, 1), (1, 1), (1, 1), (0, 0)),
        ColorJitter(hue=0.001),  # less than half a step of the wheel
        ColorJitter(hue=(0.0, 0.0)),
        Rotate(0),
        Rotate((0, 0)),
        RandAugment(0),
        HorizontalFlip(0),
        RandomErasing(0),
        Custom("custom_ops:same"),
        Custom("custom_ops:view"),
    ],
    ids=str,
)
def test_neutral_parameters_leave_the_image(op):
    image = picture(30, 20)
    for draw in (0.0, 0.5, LARGEST):
        draws = [draw] * op.draws
        assert np.array_equal(Pipeline([op], 0).run(image, [draws]), image)
        if not isinstance(op, HorizontalFlip | RandomErasing):
            assert np.array_equal(op.apply(image, draws, np.empty_like(image)), image)
    assert isinstance(op, Custom) or op.skips([0.0] * op.draws)


def test_images_too_large_for_a_map_of_16_bits_are_rejected():
    for shape in ((1, 24_001, 3), (24_001, 1, 3)):
        with pytest.raises(ImageError, match=r"24001.*pixels: .*Resize") as caught:
            Rotate(9).apply(np.zeros(shape, np.uint8), [0.0, 0.9], None)
        assert caught.value.reason == "too_large"
    wide = np.full((1, 24_000, 3), 200, np.uint8)
    assert np.array_equal(Rotate(180.0).apply(wide, [0.0, 0.0], None), wide)
    assert not warp(wide, ((1, 0, -30_000), (0, 1, 0)), 0, None).any()


def test_noise_is_uniform_and_its_bytes_never_change():
    assert noise(0.5, 10).tolist() == noise(0.5, 99)[:10].tolist()
    assert zlib.crc32(noise(0.5, 1001)) == 0x725C4BBE
    levels = noise(0.1, 100_000)
    assert abs(levels.mean() - 127.5) < 1
    counts = np.bincount(levels, minlength=256)
    assert (((counts - 390.625) ** 2) / 390.625).sum() < 360  # chi-square, 255 degrees of freedom
    assert abs(np.corrcoef(levels, noise(0.1 + 2**-53, 100_000))[0, 1]) < 0.02
    assert noise(0.3, 0).shape == (0,)


def test_a_generator_is_philox_with_the_draws_for_a_key():
    key = 0xFFFFFFFF_40000000 << 64 | 0x80000000_00000001
    expected = np.random.Generator(np.random.Philox(key=key)).integers(0, 2**63, 5)
    assert generator([0.5, 2**-32, LARGEST, 0.25]).integers(0, 2**63, 5).tolist() == expected.tolist()
    assert generator([0.1, 0.2, 0.3, 0.4]).integers(0, 2**63) == 4193031694256945314
