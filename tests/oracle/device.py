"""Chains of device ops against numpy and Pillow, by the rules that docs/pixels.md and docs/api/images.md give.

An op's reference is in its test file; of tpufeed's ops come the parameters alone. Each op gets what the device made by
the one before it, so that differences do not add up; then the chain as one program is what its ops are one by one.
"""

from itertools import permutations

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.images.ops.every import files
from tests.oracle.ops import draws, mixed, resized, window
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    CutMix,
    HorizontalFlip,
    MixUp,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from tpufeed.images.device import DeviceOps
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.stream.columns import DEVICE_NUMBERS
from tpufeed.stream.mixing import BatchOps, Mixing

CLASSES = 5
# Levels of 255 by which an op may be off: Pillow cuts off where OpenCV rounds.
OPS = {
    Resize((17, 22)): 1,
    Resize(9): 1,
    CenterCrop((20, 13)): 1,
    CenterCrop((40, 30)): 1,
    RandomCrop(12): 0,
    RandomCrop((30, 18), padding=3, fill=(9, 200, 77)): 0,
    RandomResizedCrop(11): 1,
    RandomResizedCrop((24, 19), scale=(0.2, 0.9), ratio=(0.4, 2.5)): 1,
} | {op: most for file in files() for op, most in getattr(file, "CHAINED", {}).items()}
REFERENCES = {type(op): file.reference for file in files() for op in getattr(file, "CHAINED", {})}
MEAN = 0.5
FORMATS = (PixelFormat("uint8", 5), PixelFormat("uint16", 13), PixelFormat("float32", 2))
FORMATS += (PixelFormat(frames=3), PixelFormat("uint16", 2, frames=2))
# For images of these. A level of uint16 is 257 times finer, and sums have their errors: some more levels are right.
OF_FORMATS = {op: most for op, most in OPS.items() if type(op) in (Resize, CenterCrop, RandomResizedCrop)}
OF_FORMATS |= {RandomCrop((30, 18), padding=3, fill=9): 0, HorizontalFlip(): 0, VerticalFlip(0.4): 0}
OF_FORMATS |= {ColorJitter(0.5): 1, ColorJitter(contrast=(0.1, 2.0)): 1, ColorJitter(0.5, 0.6): 3}
FLOAT = 0.01  # of levels up to 255


def of_frames(images):
    """Clips as all their frames, one after the other."""
    return images.reshape(-1, *images.shape[-3:])


def levels(image, pixels=RGB8):
    return image if pixels.most is None else np.clip(np.rint(image), 0, pixels.most)


def jittered(op, image, u, pixels):
    """Brightness is a factor, and contrast a blend with the mean of each channel, in the order that is drawn."""
    orders = [order.index(0) < order.index(1) for order in permutations(range(4))]
    factors = [low + draw * (high - low) for (low, high), draw in zip((op.brightness, op.contrast), u[:2], strict=True)]
    for kind in (0, 1) if orders[int(u[4] * 24)] else (1, 0):
        middle = image.mean((0, 1)) if kind else 0
        image = levels(middle + (image - middle) * factors[kind], pixels) if factors[kind] != 1 else image
    return image


def cut(op, image, u, is_whole=True):
    (top, left, height, width), size = window(op, *image.shape[:2], u)
    result = np.empty((height, width, image.shape[2]))
    result[:] = getattr(op, "fill", 0)
    for y in range(height):
        for x in range(width):
            if 0 <= top + y < image.shape[0] and 0 <= left + x < image.shape[1]:
                result[y, x] = image[top + y, left + x]
    return resized(result, tuple(size), is_whole)


def changed(op, image, u, pixels=RGB8):
    """What an op makes of an image with the draws `u`."""
    if u and u[0] >= getattr(op, "p", 1):
        return image
    if pixels.frame != RGB8 and type(op) is ColorJitter:
        return jittered(op, image, u, pixels)
    if type(op) not in REFERENCES:
        return cut(op, image, u, pixels.most is not None)
    return REFERENCES[type(op)](op, image, u)


def pictures(random, count, height, width):
    """Smooth colours with noise, flat images, and images of a single channel."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    bends = random.uniform(-300, 300, (count, 3, 2))
    base = random.uniform(0, 255, (count, 3))
    smooth = base[:, None, None] + np.einsum("bcd,dyx->byxc", bends, np.stack([y, x]))
    smooth += random.normal(0, random.choice([0, 4, 40]), smooth.shape)
    smooth[0, ..., 1:] = 0
    smooth[1] = 77
    return levels(smooth).astype(np.uint8)


def drawn_of(ops, count, chain_seed, epoch):
    return [
        [draws(chain_seed, epoch, 3 * sample + 1, place, op.draws) for sample in range(count)]
        for place, op in enumerate(ops)
    ]


def formatted(images, pixels):
    """Such pictures in another pixel format. The frames of a clip are those of several."""
    if pixels.frames:
        turned = [formatted(np.roll(images, turn, 0), pixels.frame) for turn in range(pixels.frames)]
        return np.stack(turned, 1)
    if pixels == RGB8:
        return images
    channels = np.concatenate([np.roll(images, turn, 0) for turn in range(5)], -1)[..., : pixels.channels]
    return {"uint8": channels, "uint16": channels * np.uint16(257), "float32": channels / np.float32(3)}[pixels.dtype]


def compare(ops, mixing, images, chain_seed, epoch, run, pixels=RGB8):
    """Check a chain on a batch; `run(ops, columns, numbers)` gives the columns that change."""
    count = len(images)
    all_draws = drawn_of([*ops, *mixing], count, chain_seed, epoch)
    arrays, current = [np.array(each).reshape(count, -1) for each in all_draws], images
    for place, op in enumerate(ops):
        alone = BatchOps(DeviceOps([op], current.shape[-3:-1], pixels=pixels.frame), None, pixels)
        found = run(alone, {"image": current}, alone.parameters([arrays[place]]))["image"]
        each_frame = zip(of_frames(current), np.repeat(all_draws[place], pixels.frames or 1, 0), strict=True)
        wanted = np.stack([changed(op, each.astype(float), u.tolist(), pixels) for each, u in each_frame])
        wanted = wanted.reshape(*current.shape[:-3], *wanted.shape[1:])
        assert found.shape == wanted.shape, (op, found.shape, wanted.shape)
        off = np.abs(found.astype(float) - wanted)
        assert found.dtype == pixels.dtype
        tolerance = OPS[op] if pixels.frame == RGB8 else OF_FORMATS[op] if pixels.most else FLOAT
        assert off.max() <= tolerance, (op, off.max())
        assert off.mean() <= MEAN, (op, off.mean())
        current = found
    whole = DeviceOps(ops, images.shape[-3:-1], pixels=pixels.frame)
    size, labels = whole.out_size, np.arange(count) % (CLASSES + 1) - 1  # -1 is no class
    again = current[..., [0, 1, 1]].astype(np.uint8)  # further images are 8-bit RGB
    masks = {"mask": again[..., 0].copy(), "again": 255 - again}
    masks = masks if all(type(op) is CutMix for op in mixing) else {"again": masks["again"]}
    mixes = (
        Mixing(mixing, size, CLASSES, ["again"], [name for name in masks if name == "mask"], pixels) if mixing else None
    )
    batch = BatchOps(whole, mixes, pixels)
    found = run(batch, {"image": images, "label": labels, **masks}, batch.parameters(arrays))
    hot = (labels[:, None] == np.arange(CLASSES)).astype(float)
    wanted = {"image": current.astype(float)} | {name: mask.astype(float) for name, mask in masks.items()}
    wanted["label"] = hot
    for place, op in enumerate(mixing, len(ops)):
        wanted = mixed(op, wanted, all_draws[place], ("label",) if pixels.most else ("label", "image"))
    most = sum(type(op) is MixUp for op in mixing)
    assert found.keys() == (wanted.keys() if mixing else {"image"})
    for name, column in found.items():
        off = np.abs(column.astype(float) - wanted[name]).max()
        tolerance = 1e-3 if name == "label" else FLOAT if name == "image" and pixels.most is None else most
        assert off <= tolerance, (mixing, name, off)


def by_torch(ops, columns, numbers):
    """Run ops by torch, without a compiler."""
    import torch

    from tpufeed.adapters.torch.arrays import ARRAYS

    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    made = ops.run(tensors | {DEVICE_NUMBERS: torch.from_numpy(numbers)}, ARRAYS)
    return {name: column.numpy() for name, column in made.items()}


def check_often(number, times, run):
    """So many random chains with the seed `number`."""

    @seed(number)
    @settings(max_examples=times, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def chains(data):
        pick = lambda *choices: data.draw(st.sampled_from(choices))  # noqa: E731
        pixels = pick(RGB8, RGB8, *FORMATS)
        ops = [pick(*(OPS if pixels.frame == RGB8 else OF_FORMATS)) for _ in range(pick(1, 1, 2, 3))]
        alphas = {"alpha": pick(0.5, 1.0, 2.0), "p": pick(1.0, 0.5)}
        mixing = pick([], [MixUp(**alphas)], [CutMix(**alphas)], [CutMix(**alphas)] * 2, [MixUp(), CutMix(**alphas)])
        mixing = [] if pixels.frames else mixing
        size = pick((30, 41), (41, 30), (26, 26))
        random = np.random.default_rng(pick(*range(20)))
        images = formatted(pictures(random, 4, *size), pixels)
        compare(ops, mixing, images, pick(0, 7, -3, 1 << 40), pick(0, 5), run, pixels)

    chains()
