"""Ops in a row: encoded against decoded pixels, memory, threads."""

import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

import tpufeed.images.windows
from tpufeed.errors import ImageError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
)
from tpufeed.images.decoding import decode
from tpufeed.images.pipeline import Pipeline, run_views
from tpufeed.images.protocols import Window
from tpufeed.images.rng import uniforms

PIPELINES = {
    "train": [RandomResizedCrop(224), HorizontalFlip()],
    "small": [RandomResizedCrop(32), HorizontalFlip()],
    "evaluate": [Resize(256), CenterCrop(224)],
    "one window": [Resize((50, 70))],
    "flip first": [HorizontalFlip(), RandomResizedCrop((64, 48))],
    "flip alone": [HorizontalFlip()],
    "always": [HorizontalFlip(1.0), HorizontalFlip(1.0)],
    "never": [HorizontalFlip(0.0)],
    "nothing": [],
    "windows in a row": [Resize(300), RandomResizedCrop(128), HorizontalFlip(), CenterCrop(100), Resize(64)],
    "crop": [RandomCrop(200, padding=8), HorizontalFlip()],
    "crop beyond": [RandomCrop((700, 300), fill=(1, 2, 3))],
    "crop behind": [RandomResizedCrop(60), RandomCrop(64, 4, 99), RandomErasing(value="random")],
    "erase alone": [RandomErasing()],
    "colours": [
        RandomResizedCrop(50),
        ColorJitter(0.4, 0.4, 0.4, 0.1),
        GaussianBlur(0.5),
        RandAugment(),
        RandomErasing(),
    ],
    "before a window": [ColorJitter(0.4), RandAugment(1), Rotate(20, p=0.5), Resize((40, 50))],
}

pipelines = pytest.mark.parametrize("ops", PIPELINES.values(), ids=PIPELINES)


def drawn_for(pipeline, round_, sample):
    return [drawn[0] for drawn in pipeline.draw(round_, np.array([sample], np.int64))]


def difference(one, other):
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


def reference(ops, pixels, draws):
    """The ops one after another, as they say."""
    for op, drawn in zip(ops, draws, strict=True):
        if isinstance(op, HorizontalFlip):
            pixels = pixels if drawn[0] >= op.p else pixels[:, ::-1]
        elif hasattr(op, "apply"):
            pixels = pixels if op.skips(drawn) else op.apply(pixels.copy(), drawn, None)
        else:
            window = op.window(*pixels.shape[:2], drawn)
            if isinstance(op, RandomCrop):  # as far beyond the image as any window here
                pixels = np.stack(
                    [np.pad(pixels[..., c], 700, constant_values=np.broadcast_to(op.fill, 3)[c]) for c in range(3)], -1
                )
                window = window._replace(top=window.top + 700, left=window.left + 700)
            cut = pixels[window.top : window.top + window.height, window.left : window.left + window.width]
            pixels = np.asarray(Pipeline([Resize((window.out_height, window.out_width))], 0).run(cut, [()]))
    return pixels


@pipelines
def test_pixels_are_those_of_the_ops_one_after_another(photos, ops):
    pixels = decode(photos["astronaut.png"])
    pipeline = Pipeline(ops, 7)
    for sample in range(6):
        draws = drawn_for(pipeline, 0, sample)
        assert np.array_equal(pipeline.run(pixels, draws), reference(ops, pixels, draws))


@pipelines
def test_out_holds_what_comes_without_it_and_inputs_stay(photos, ops):
    pipeline = Pipeline(ops, 3)
    data = photos["china.jpg"]
    pixels = decode(data)
    before = pixels.copy()
    pixels.flags.writeable = False
    for sample in range(4):
        draws = drawn_for(pipeline, 1, sample)
        for run in (
            lambda out, d=draws: pipeline.run(pixels, d, out),
            lambda out, d=draws: pipeline.run_stored(data, None, d, out),
        ):
            expected = run(None)
            batch = np.full((3, *expected.shape), 99, np.uint8)
            assert np.shares_memory(run(batch[1]), batch)
            assert np.array_equal(batch[1], expected)
            assert (batch[0] == 99).all()
            assert (batch[2] == 99).all()
    assert np.array_equal(pixels, before)


@pytest.mark.first_cases(8)
@pipelines
def test_output_size_is_the_size_that_comes_out(photos, ops):
    pipeline = Pipeline(ops, 0)
    for name in ("china.jpg", "astronaut.png", "camera.png"):
        pixels = decode(photos[name])
        size = pipeline.output_size(pixels.shape[:2])
        for sample in range(2):
            draws = drawn_for(pipeline, 0, sample)
            assert pipeline.run(pixels, draws).shape == (*size, 3)
            assert pipeline.run_stored(photos[name], None, draws).shape == (*size, 3)


@pipelines
def test_encoded_is_decoded_and_run_where_nothing_is_reduced(photos, ops):
    pipeline = Pipeline(ops, 11)
    data = photos["chelsea.png"]  # PNG is never reduced
    pixels = decode(data)
    for sample in range(4):
        draws = drawn_for(pipeline, 0, sample)
        assert np.array_equal(pipeline.run_stored(data, None, draws), pipeline.run(pixels, draws))


def test_a_jpeg_s_window_that_is_not_shrunk_by_two_is_cut_exactly(photos):
    pipeline, pixels = Pipeline([RandomResizedCrop(300), HorizontalFlip()], 1), decode(photos["china.jpg"])
    for sample in range(12):
        draws = drawn_for(pipeline, 0, sample)
        assert np.array_equal(pipeline.run_stored(photos["china.jpg"], None, draws), pipeline.run(pixels, draws))


def test_a_window_beyond_the_image_may_be_resized(photos):
    class Shrunk:
        version, draws, fill = 1, 0, (50, 60, 70)

        def output_size(self, size):
            return 40, 30

        def window(self, height, width, draws):
            return Window(-height, -width, 4 * height, 2 * width, 40, 30)

    pipeline = Pipeline([Shrunk()], 0)
    for out in (None, np.empty((40, 30, 3), np.uint8)):
        found = pipeline.run(decode(photos["astronaut.png"]), [()], out)
        assert (found[:10] == (50, 60, 70)).all()
        assert (found[:, :15] == (50, 60, 70)).all()
        assert (found[10:20, 15:] != (50, 60, 70)).mean() > 0.9
        assert (found[20:] == (50, 60, 70)).all()


@pytest.mark.parametrize("size", [16, 40, 100, 150])
def test_a_reduced_jpeg_is_close_to_the_whole_one(photos, size):
    """Not the same: what is left to shrink is below two and bilinear."""
    close, far = [], []
    for name in ("china.jpg", "flower.jpg", "rocket.jpg"):
        pipeline, pixels = Pipeline([RandomResizedCrop(size, scale=(0.5, 1.0))], 1), decode(photos[name])
        windows = [pipeline.run(pixels, drawn_for(pipeline, 0, sample)) for sample in range(10)]
        for sample, whole in enumerate(windows):
            encoded = pipeline.run_stored(photos[name], None, drawn_for(pipeline, 0, sample))
            if not np.array_equal(encoded, whole):
                close.append(difference(encoded, whole))
                far.append(difference(encoded, windows[sample - 1]))
    assert len(close) >= 5
    assert np.mean(close) < 7
    assert max(close) < 15
    assert np.mean(far) > 3 * np.mean(close)


def test_a_buffer_is_used_and_changes_nothing(photos):
    pipeline = Pipeline([RandomResizedCrop(64), HorizontalFlip()], 1)
    memory, asked = np.empty(1 << 21, np.uint8), []

    def buffer(size):
        asked.append(size)
        return memory

    for sample in range(10):
        draws = drawn_for(pipeline, 0, sample)
        out = np.empty((64, 64, 3), np.uint8)
        pipeline.run_stored(photos["china.jpg"], None, draws, out, buffer)
        assert np.array_equal(out, pipeline.run_stored(photos["china.jpg"], None, draws))
    assert len(asked) == 10


def test_draws_are_those_of_seed_round_sample_and_position():
    pipeline = Pipeline([Resize(5), RandomResizedCrop(4), HorizontalFlip()], 17)
    samples = np.array([5, 0, 2**40], np.int64)
    draws = pipeline.draw(9, samples)
    assert draws[0] == [(), (), ()]
    assert draws[1] == uniforms(17, 9, samples, 1, 22).tolist()
    assert draws[2] == uniforms(17, 9, samples, 2, 1).tolist()


@pytest.mark.parametrize("name", ["train", "colours"])
def test_any_number_of_threads_gives_the_same_pixels(photos, name):
    pipeline = Pipeline(PIPELINES[name], 5)
    names = ["china.jpg", "flower.jpg", "chelsea.png", "rocket.jpg"]
    jobs = [(photos[names[sample % 4]], None, drawn_for(pipeline, 0, sample)) for sample in range(24)]
    alone = [pipeline.run_stored(*job) for job in jobs]
    order = random.Random(0).sample(range(24), 24)
    with ThreadPoolExecutor(8) as pool:
        together = dict(zip(order, pool.map(lambda i: pipeline.run_stored(*jobs[i]), order), strict=True))
    assert all(np.array_equal(alone[i], together[i]) for i in range(24))


def test_every_variant_of_one_decoding_is_close_to_its_own(photos):
    pipeline = Pipeline([RandomResizedCrop(48), HorizontalFlip()], 2)
    draws = [drawn_for(pipeline, variant, 4) for variant in range(4)]
    outs = [np.empty((48, 48, 3), np.uint8) for _ in draws]
    results = run_views([pipeline] * len(draws), photos["china.jpg"], draws, outs)
    for result, out, drawn in zip(results, outs, draws, strict=True):
        assert result is out
        assert difference(out, pipeline.run_stored(photos["china.jpg"], None, drawn)) < 15
    assert not np.array_equal(outs[0], outs[1])


@pytest.mark.parametrize(
    "op", [None, HorizontalFlip(1), HorizontalFlip(0), ColorJitter(0.4), RandomErasing(1)], ids=str
)
def test_an_image_of_another_size_than_was_promised_is_an_image_error(photos, op):
    pipeline = Pipeline([] if op is None else [op], 0)
    for shape in ((64, 48, 3), (1, 1, 3), (640, 427, 3)):
        out = np.full(shape, 7, np.uint8)
        with pytest.raises(ImageError, match="640x427"):
            pipeline.run_stored(photos["china.jpg"], None, drawn_for(pipeline, 0, 0), out)
        assert (out == 7).all()


def test_damage_is_an_image_error(photos):
    for ops in PIPELINES.values():
        pipeline = Pipeline(ops, 0)
        for data in (photos["china.jpg"][:50_000], photos["chelsea.png"][:50_000], b"", b"text"):
            with pytest.raises(ImageError):
                pipeline.run_stored(data, None, drawn_for(pipeline, 0, 0))


THIN = {
    "middle": [Resize(64), CenterCrop(48)],
    "padded": [Resize(64), RandomCrop(48, padding=9, fill=3)],
    "resized": [Resize(64), RandomResizedCrop(32)],
    "beyond": [Resize(64), RandomCrop((300, 90), fill=7)],
    "turned after": [Resize(64), CenterCrop((64, 30)), HorizontalFlip(1.0)],
    "turned before": [HorizontalFlip(1.0), Resize(64), CenterCrop((64, 30))],
}


@pytest.mark.parametrize("ops", THIN.values(), ids=THIN)
@pytest.mark.parametrize("size", [(3, 400), (400, 5), (30, 900)])
def test_what_is_cut_out_of_a_thin_image_is_what_would_be_cut_of_all_of_it(monkeypatch, ops, size):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    pipeline = Pipeline(ops, 0)
    for sample in range(3):
        drawn = drawn_for(pipeline, 0, sample)
        expected = pipeline.run(pixels, drawn)
        with monkeypatch.context() as context:
            context.setattr(tpufeed.images.windows, "MOST_ENLARGED_PIXELS", 1000)
            found = pipeline.run(pixels, drawn, np.empty_like(expected))
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected).max() <= 2


@pytest.mark.parametrize("size", [(1, 5000), (60_000, 1), (2, 60_000)])
def test_a_thin_image_takes_no_more_memory_than_its_crop(encoded, size):
    data = encoded(Image.new("RGB", size[::-1], (1, 2, 3)), "PNG")
    pipeline = Pipeline([Resize(256), CenterCrop(224)], 0)
    tracemalloc.start()
    try:
        found = pipeline.run_stored(memoryview(data), None, [(), ()])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.shape == (224, 224, 3)
    assert (found == (1, 2, 3)).all()
    assert peak < 20_000_000  # numpy's and OpenCV's
    squeezed = Pipeline([Resize(256), Resize((20, 30))], 0).run_stored(memoryview(data), None, [(), ()])
    assert (squeezed == (1, 2, 3)).all()


@pytest.mark.parametrize("ops", [[Resize(256)], [Resize(256), HorizontalFlip(1.0), CenterCrop(224)]], ids=str)
def test_a_thin_image_that_is_needed_whole_is_refused(ops):
    pipeline = Pipeline(ops, 0)
    drawn = drawn_for(pipeline, 0, 0)
    with pytest.raises(ImageError) as caught:
        pipeline.run(np.zeros((1, 5000, 3), np.uint8), drawn)
    assert caught.value.reason == "too_large"
    if len(ops) == 1:
        with pytest.raises(ImageError):
            pipeline.geometry(1, 5000, drawn)
    else:
        assert pipeline.geometry(1, 5000, drawn).size == (224, 224)
