"""Ops by the letter of docs/pixels.md, on pixels, masks, boxes and points; of tpufeed come the parameters alone."""

import io
import math

import numpy as np
from PIL import Image

from tpufeed.images.coefficients import to_jpeg

WORD = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
DRAWS = {"RandomCrop": 2, "RandomResizedCrop": 22, "HorizontalFlip": 1, "VerticalFlip": 1, "MixUp": 2, "CutMix": 4}
DRAWS["Choose"] = 1


def mix(z):
    z &= WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return z ^ z >> 31


def draws(seed, epoch, sample, place, count):
    key = mix((mix((mix((seed & WORD) + STEP) ^ (epoch & WORD)) + STEP) ^ place) + STEP)
    row = mix(sample * STEP + key)
    return [(mix(row + (number + 1) * STEP) >> 11) / 2**53 for number in range(count)]


def pair(size):
    return (size, size) if isinstance(size, int) else tuple(size)


def window(op, height, width, u):
    """(top, left, height, width) of what is cut out, and the size that it is brought to; None for other ops."""
    kind = type(op).__name__
    if kind == "Resize":
        size = pair(op.size)
        if isinstance(op.size, int):
            short = min(height, width)
            size = tuple(max(op.size, round(side * (op.size / short))) for side in (height, width))
        return (0, 0, height, width), size
    if kind == "CenterCrop":
        size = pair(op.size)
        k = min(1.0, height / size[0], width / size[1])
        cut = max(1, round(size[0] * k)), max(1, round(size[1] * k))
        return ((height - cut[0]) // 2, (width - cut[1]) // 2, *cut), size
    if kind == "RandomCrop":
        size, starts = pair(op.size), []
        for side, cut, drawn in zip((height, width), size, u, strict=True):
            low, high = sorted((-op.padding, side + op.padding - cut))
            starts.append(low + math.floor(drawn * (high - low + 1)))
        return (*starts, *size), size
    if kind == "RandomResizedCrop":
        for t in range(10):
            area = height * width * (op.scale[0] + u[2 * t] * (op.scale[1] - op.scale[0]))
            low, high = map(math.log, op.ratio)
            ratio = math.exp(low + u[2 * t + 1] * (high - low))
            cut = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < cut[0] <= height and 0 < cut[1] <= width:
                top, left = math.floor(u[20] * (height - cut[0] + 1)), math.floor(u[21] * (width - cut[1] + 1))
                return (top, left, *cut), pair(op.size)
        cut = min(height, round(width / op.ratio[0])), min(width, round(height * op.ratio[1]))
        return ((height - cut[0]) // 2, (width - cut[1]) // 2, *cut), pair(op.size)
    return None


def weights(before, after):
    """How much each of `before` pixels gives to each of `after`: bilinear, or by areas if both sides halve."""
    table = np.zeros((after, before))
    for new in range(after):
        place = (new + 0.5) * before / after - 0.5
        low = math.floor(place)
        for old, share in ((low, 1 - (place - low)), (low + 1, place - low)):
            table[new, min(max(old, 0), before - 1)] += share
    return table


def areas(before, after):
    table = np.zeros((after, before))
    for new in range(after):
        start, stop = new * before / after, (new + 1) * before / after
        for old in range(before):
            table[new, old] = max(0.0, min(stop, old + 1) - max(start, old)) / (stop - start)
    return table


def resized(image, size, is_whole=True):
    """An image of this size. `is_whole`: its levels are whole numbers."""
    if image.shape[:2] == size:
        return image
    halves = image.shape[0] >= 2 * size[0] and image.shape[1] >= 2 * size[1]
    rows, columns = ((areas if halves else weights)(*sides) for sides in zip(image.shape[:2], size, strict=True))
    found = np.einsum("yr,rcn,xc->yxn", rows, image, columns)
    return np.rint(found) if is_whole else found


def decoded(data, halved=False):
    """The pixels of a file; of a JPEG also at half its size."""
    if data.startswith(b"\x93NUMPY"):
        return np.load(io.BytesIO(data)).astype(float)
    if data.startswith(b"\x89DCT"):
        data = to_jpeg(data)
    image = Image.open(io.BytesIO(data))
    if halved:
        image.draft("RGB", tuple(side // 2 for side in image.size))
    return np.asarray(image.convert("RGB")).astype(float)


def reduced(jpeg, top, left, height, width, size):
    """A window of a JPEG that shrinks by 2 to 4 on both sides: bilinear in the JPEG that is decoded at half size."""
    image, tables = decoded(jpeg, halved=True), []
    for start, length, side, after in zip((top, left), (height, width), image.shape[:2], size, strict=True):
        table = np.zeros((after, side))
        for new in range(after):
            place = np.rint(((start + (new + 0.5) * length / after) / 2 - 0.5) * 32) / 32
            place = min(max(place, 0), side - 1)
            low = math.floor(place)
            table[new, low] += 1 - (place - low)
            table[new, min(low + 1, side - 1)] += place - low
        tables.append(table)
    return np.rint(np.einsum("yr,rcn,xc->yxn", tables[0], image, tables[1]))


def halves(ops, shape, seed, epoch, sample):
    """Whether the first op cuts a window that shrinks by two or more on both sides."""
    kind = type(ops[0]).__name__ if ops else ""
    found = window(ops[0], *shape, draws(seed, epoch, sample, 0, DRAWS.get(kind, 0))) if ops else None
    return found is not None and all(side >= 2 * new for side, new in zip(found[0][2:], found[1], strict=True))


def beta(u, alpha):
    """Where the distribution function of Beta(alpha, alpha) is u."""
    return {
        0.5: lambda: math.sin(math.pi * u / 2) ** 2,
        1.0: lambda: u,
        2.0: lambda: 0.5 - math.sin(math.asin(1 - 2 * u) / 3),
    }[alpha]()


def mixed(op, columns, all_draws, floats=("label",)):
    """What a mixing op makes of the columns of a batch: image, further images, masks, and labels as shares.

    `floats` are the columns whose numbers are not whole.
    """
    found = {name: column.copy() for name, column in columns.items()}
    height, width = columns["image"].shape[1:3]
    for row, u in enumerate(all_draws):
        other, applied = row ^ 1, u[0] < op.p
        if type(op).__name__ == "MixUp":
            share = beta(u[1], op.alpha) if applied else 1.0
            for name in columns:
                blend = columns[name][row] * share + columns[name][other] * (1 - share)
                found[name][row] = blend if name in floats else np.rint(blend)
            continue
        reach = [math.floor(0.5 * math.sqrt(1 - beta(u[1], op.alpha)) * side) for side in (height, width)]
        middle = math.floor(u[2] * height), math.floor(u[3] * width)
        (top, bottom), (left, right) = (
            (max(at - half, 0), min(at + half, side))
            for at, half, side in zip(middle, reach, (height, width), strict=True)
        )
        if applied and top < bottom and left < right:
            share = 1 - (bottom - top) * (right - left) / (height * width)
            for name in columns:
                if name == "label":
                    found[name][row] = columns[name][row] * share + columns[name][other] * (1 - share)
                else:
                    found[name][row, top:bottom, left:right] = columns[name][other, top:bottom, left:right]
    return found


def tokenised(sample, generator):
    """The length of each word of a text, as a user's function makes tokens of it."""
    return sample | {"captions": [len(word) for word in sample["captions"].split()]}


class Moved:
    """A sample after its ops: pixels, and for each axis where they lie in the stored image.

    `jpeg` are the bytes of the image, where it is decoded at half its size. `is_whole`: levels are whole numbers.

    Attributes:
        pixels: float, whatever their type.
        axes: for y and x (scale, start, least, most): place p of the result is p * scale + start of the image, of which
            the part from least to most is visible.
        mirrored: whether left and right are swapped, counting both axes.
    """

    def __init__(self, pixels, ops, seed, epoch, sample, jpeg=None, is_whole=True):
        self.pixels = pixels
        self.axes = [(1.0, 0.0, 0.0, float(side)) for side in pixels.shape[:2]]
        self.mirrored = False
        self.resizes = 0
        for place, op in enumerate(ops):
            kind = type(op).__name__
            u = draws(seed, epoch, sample, place, DRAWS.get(kind, 0))
            if kind in ("HorizontalFlip", "VerticalFlip"):
                if u[0] < op.p:
                    axis = int(kind == "HorizontalFlip")
                    self.step(axis, -1.0, self.pixels.shape[axis], self.pixels.shape[axis])
                    self.pixels = np.flip(self.pixels, axis)
                    self.mirrored = not self.mirrored
                continue
            if kind in ("Choose", "Custom"):
                continue
            (top, left, height, width), size = window(op, *self.pixels.shape[:2], u)
            for axis, (start, length) in enumerate(((top, height), (left, width))):
                self.step(axis, length / size[axis], start, size[axis])
            cut = np.empty((height, width, self.pixels.shape[2]))
            cut[:] = getattr(op, "fill", 0)
            for y in range(height):
                for x in range(width):
                    if 0 <= top + y < self.pixels.shape[0] and 0 <= left + x < self.pixels.shape[1]:
                        cut[y, x] = self.pixels[top + y, left + x]
            self.resizes += (height, width) != tuple(size)
            if jpeg and place == 0:
                self.pixels = reduced(jpeg, top, left, height, width, size)
            else:
                self.pixels = resized(cut, tuple(size), is_whole)

    def step(self, axis, scale, start, size):
        before, at, least, most = self.axes[axis]
        ends = sorted((start * before + at, (size * scale + start) * before + at))
        self.axes[axis] = before * scale, start * before + at, max(least, ends[0]), min(most, ends[1])

    @property
    def is_visible(self):
        return all(least < most for _, _, least, most in self.axes)

    def window(self):
        (_, _, top, bottom), (_, _, left, right) = self.axes
        return (top, left, bottom - top, right - left) if self.is_visible else (0.0, 0.0, 0.0, 0.0)

    def mask(self, stored, fill):
        found = np.full(self.pixels.shape[:2], fill)
        for y, x in np.ndindex(found.shape):
            places = [
                (number + 0.5) * scale + start for number, (scale, start, _, _) in zip((y, x), self.axes, strict=True)
            ]
            if self.is_visible and all(
                axis[2] <= place <= axis[3] for place, axis in zip(places, self.axes, strict=True)
            ):
                found[y, x] = stored[tuple(min(int(p), side - 1) for p, side in zip(places, stored.shape, strict=True))]
        return found

    def boxes(self, boxes, min_visibility):
        """The boxes that are left, and their numbers."""
        found, kept = [], []
        for number, (left, top, right, bottom) in enumerate(boxes):
            sides, shown, area = [], 1.0, (right - left) * (bottom - top)
            for (low, high), (scale, start, least, most) in zip(((top, bottom), (left, right)), self.axes, strict=True):
                low, high = min(max(low, least), most), min(max(high, least), most)  # noqa: PLW2901
                shown *= high - low
                sides.append(sorted(((low - start) / scale, (high - start) / scale)))
            if self.is_visible and shown > 1e-9 and shown >= min_visibility * area * (1 - 1e-9):
                kept.append(number)
                found.append([sides[1][0], sides[0][0], sides[1][1], sides[0][1]])
        return found, kept

    def points(self, points):
        """Points (x, y[, visibility]) as the result has them, and whether each is visible."""
        found, seen = [], []
        for x, y, *visibility in points:
            inside = self.is_visible and all(
                least - 1e-6 <= value <= most + 1e-6
                for value, (_, _, least, most) in zip((y, x), self.axes, strict=True)
            )
            inside = inside and all(visibility)
            moved = [
                (value - start) / scale for value, (scale, start, _, _) in zip((x, y), self.axes[::-1], strict=True)
            ]
            found.append([*moved, *(value if inside else 0 for value in visibility)])
            seen.append(inside)
        return found, seen
