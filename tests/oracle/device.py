"""Chains of device ops against numpy and Pillow, by the rules that docs/pixels.md and docs/api/images.md give.

Of tpufeed's ops come the parameters alone. Each op gets what the device made by the one before it, so that differences
do not add up; then the chain as one program is what its ops are one by one.
"""

import math
from itertools import permutations

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from tests.oracle.ops import draws, mixed, resized, window
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    CutMix,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    MixUp,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from tpufeed.images.device import DeviceOps
from tpufeed.stream.columns import DEVICE_NUMBERS
from tpufeed.stream.mixing import BatchOps, Mixing

CLASSES = 5
TRANSFORMS = ("identity", "translate_x", "translate_y", "brightness", "color", "contrast", "sharpness", "posterize")
TRANSFORMS += ("autocontrast", "solarize")
OPS = (
    Resize((17, 22)),
    Resize(9),
    CenterCrop((20, 13)),
    CenterCrop((40, 30)),
    RandomCrop(12),
    RandomCrop((30, 18), padding=3, fill=(9, 200, 77)),
    RandomResizedCrop(11),
    RandomResizedCrop((24, 19), scale=(0.2, 0.9), ratio=(0.4, 2.5)),
    HorizontalFlip(),
    VerticalFlip(0.4),
    Grayscale(0.5),
    ColorJitter(0.5),
    ColorJitter(contrast=(0.1, 2.0)),
    ColorJitter(saturation=(0.0, 1.9)),
    ColorJitter(hue=0.5),
    ColorJitter(0.5, 0.6, 0.7, 0.5),
    ColorJitter(contrast=(0.1, 2.0), hue=(0.1, 0.3)),
    GaussianBlur(0.5, (0.3, 1.1)),
    RandomErasing(0.7, value=(5, 250, 100)),
    RandAugment(2, 9, fill=44, transforms=TRANSFORMS[:-2]),
    RandAugment(1, 9, fill=44, transforms=TRANSFORMS),
    RandAugment(1, 30, fill=(1, 2, 3), transforms=TRANSFORMS),
)
# Levels of 255 by which an op may be off: Pillow cuts off where OpenCV rounds.
ROUNDED = ("Resize", "CenterCrop", "RandomResizedCrop", "Grayscale", "GaussianBlur")
MEAN = 0.5


def most_of(op):
    """Several changes of colours add up, and a hue has 256 steps: one step is up to 6 levels."""
    kind = type(op).__name__
    if kind == "RandAugment":
        return 2 * op.num_ops
    if kind == "ColorJitter":
        changes = sum(low != high for low, high in (op.brightness, op.contrast, op.saturation, op.hue))
        return 16 if changes > 1 else 4 if op.hue != (0, 0) else 1
    return int(kind in ROUNDED)


def levels(image):
    return np.clip(np.rint(image), 0, 255)


def by_pillow(image, change):
    return np.asarray(change(Image.fromarray(image.astype(np.uint8)))).astype(float)


def grey(image):
    return by_pillow(image, lambda each: each.convert("L").convert("RGB"))


def blended(image, other, factor):
    return levels(other + (image - other) * factor)


def brightened(image, factor):
    return levels(image * factor)


def contrasted(image, factor):
    return blended(image, math.floor(grey(image).mean() + 0.5), factor)


def saturated(image, factor):
    return blended(image, (image @ (0.299, 0.587, 0.114))[..., None], factor)


def turned(image, turns):
    """The hue turned; a pixel's largest and smallest level stay."""
    most, least = image.max(-1), image.min(-1)
    spread = np.maximum(most - least, 1)
    red, green, blue = (image[..., channel] for channel in range(3))
    sixths = np.where(
        most == red,
        (green - blue) / spread,
        np.where(most == green, 2 + (blue - red) / spread, 4 + (red - green) / spread),
    )
    places = [(offset + sixths + 6 * turns) % 6 for offset in (5, 3, 1)]
    shares = [np.clip(np.minimum(place, 4 - place), 0, 1) for place in places]
    return np.stack([most - (most - least) * share for share in shares], -1)


def jittered(op, image, u):
    order = list(permutations(range(4)))[int(u[4] * 24)]
    changes = (brightened, contrasted, saturated, lambda each, turns: turned(each, round(turns * 256) / 256))
    for number in order:
        low, high = (op.brightness, op.contrast, op.saturation, op.hue)[number]
        image = levels(changes[number](image, low + u[number] * (high - low)))
    return image


def kernel(sigma):
    reach = (round(sigma * 6 + 1) | 1) // 2
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def blurred(image, sigma):
    weights = kernel(sigma)
    reach = len(weights) // 2
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), "reflect")
    height, width = image.shape[:2]
    rows = sum(weight * padded[k : k + height] for k, weight in enumerate(weights))
    return levels(sum(weight * rows[:, k : k + width] for k, weight in enumerate(weights)))


def erased(op, image, u):
    height, width = image.shape[:2]
    for t in range(10):
        area = height * width * (op.scale[0] + u[1 + 2 * t] * (op.scale[1] - op.scale[0]))
        low, high = map(math.log, op.ratio)
        ratio = math.exp(low + u[2 + 2 * t] * (high - low))
        tall, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if tall < height and wide < width:
            top, left = int(u[21] * (height - tall + 1)), int(u[22] * (width - wide + 1))
            image = image.copy()
            image[top : top + tall, left : left + wide] = op.value
            return image
    return image


def moved(image, down, right, fill):
    result = np.empty_like(image)
    result[:] = fill
    height, width = image.shape[:2]
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                result[y, x] = image[y - down, x - right]
    return result


def augmented(op, image, u):
    for number in range(op.num_ops):
        name = op.transforms[int(u[2 * number] * len(op.transforms))]
        sign = 1 if u[2 * number + 1] < 0.5 else -1
        factor = 1 + 0.9 * sign * op.magnitude / 30
        steps = [150 * side * op.magnitude // (331 * 30) * sign for side in image.shape[:2]]
        image = {
            "identity": lambda each: each,
            "translate_x": lambda each, steps=steps: moved(each, 0, steps[1], op.fill),
            "translate_y": lambda each, steps=steps: moved(each, steps[0], 0, op.fill),
            "brightness": lambda each, factor=factor: brightened(each, factor),
            "color": lambda each, factor=factor: saturated(each, factor),
            "contrast": lambda each, factor=factor: contrasted(each, factor),
            "sharpness": lambda each, factor=factor: by_pillow(
                each, lambda one: ImageEnhance.Sharpness(one).enhance(factor)
            ),
            "posterize": lambda each: by_pillow(
                each, lambda one: ImageOps.posterize(one, 8 - round(op.magnitude / 7.5))
            ),
            "solarize": lambda each: by_pillow(each, lambda one: ImageOps.solarize(one, 255 - 8.5 * op.magnitude)),
            "autocontrast": lambda each: by_pillow(each, ImageOps.autocontrast),
        }[name](image)
    return image


def cut(op, image, u):
    (top, left, height, width), size = window(op, *image.shape[:2], u)
    result = np.empty((height, width, 3))
    result[:] = getattr(op, "fill", 0)
    for y in range(height):
        for x in range(width):
            if 0 <= top + y < image.shape[0] and 0 <= left + x < image.shape[1]:
                result[y, x] = image[top + y, left + x]
    return resized(result, tuple(size))


def changed(op, image, u):
    """What an op makes of an image with the draws `u`."""
    kind = type(op).__name__
    if kind in ("HorizontalFlip", "VerticalFlip", "Grayscale", "GaussianBlur", "RandomErasing") and u[0] >= op.p:
        return image
    return {
        "ColorJitter": lambda: jittered(op, image, u),
        "RandAugment": lambda: augmented(op, image, u),
        "GaussianBlur": lambda: blurred(image, op.sigma[0] + u[1] * (op.sigma[1] - op.sigma[0])),
        "RandomErasing": lambda: erased(op, image, u),
        "HorizontalFlip": lambda: image[:, ::-1],
        "VerticalFlip": lambda: image[::-1],
        "Grayscale": lambda: grey(image),
    }.get(kind, lambda: cut(op, image, u))()


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


def compare(ops, mixing, images, chain_seed, epoch, run):
    """Check a chain on a batch; `run(ops, columns, numbers)` gives the columns that change."""
    count = len(images)
    all_draws = drawn_of([*ops, *mixing], count, chain_seed, epoch)
    arrays, current = [np.array(each).reshape(count, -1) for each in all_draws], images
    for place, op in enumerate(ops):
        alone = BatchOps(DeviceOps([op], current.shape[1:3]), None)
        found = run(alone, {"image": current}, alone.parameters([arrays[place]]))["image"]
        wanted = np.stack(
            [changed(op, each.astype(float), u) for each, u in zip(current, all_draws[place], strict=True)]
        )
        assert found.shape == wanted.shape, (op, found.shape, wanted.shape)
        off = np.abs(found.astype(float) - wanted)
        assert off.max() <= most_of(op), (op, off.max())
        assert off.mean() <= MEAN, (op, off.mean())
        current = found
    whole = DeviceOps(ops, images.shape[1:3])
    size, labels = whole.out_size, np.arange(count) % (CLASSES + 1) - 1  # -1 is no class
    masks = {"mask": current[..., 0].copy(), "again": 255 - current}
    masks = masks if all(type(op) is CutMix for op in mixing) else {"again": masks["again"]}
    mixes = Mixing(mixing, size, CLASSES, ["again"], [name for name in masks if name == "mask"]) if mixing else None
    batch = BatchOps(whole, mixes)
    found = run(batch, {"image": images, "label": labels, **masks}, batch.parameters(arrays))
    hot = (labels[:, None] == np.arange(CLASSES)).astype(float)
    wanted = {"image": current.astype(float)} | {name: mask.astype(float) for name, mask in masks.items()}
    wanted["label"] = hot
    for place, op in enumerate(mixing, len(ops)):
        wanted = mixed(op, wanted, all_draws[place])
    most = sum(type(op) is MixUp for op in mixing)
    assert found.keys() == (wanted.keys() if mixing else {"image"})
    for name, column in found.items():
        off = np.abs(column.astype(float) - wanted[name]).max()
        assert off <= (1e-3 if name == "label" else most), (mixing, name, off)


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
        ops = [pick(*OPS) for _ in range(pick(1, 1, 2, 3))]
        alphas = {"alpha": pick(0.5, 1.0, 2.0), "p": pick(1.0, 0.5)}
        mixing = pick([], [MixUp(**alphas)], [CutMix(**alphas)], [CutMix(**alphas)] * 2, [MixUp(), CutMix(**alphas)])
        size = pick((30, 41), (41, 30), (26, 26))
        random = np.random.default_rng(pick(*range(20)))
        images = pictures(random, 4, *size)
        compare(ops, mixing, images, pick(0, 7, -3, 1 << 40), pick(0, 5), run)

    chains()
