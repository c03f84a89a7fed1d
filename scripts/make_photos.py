#!/usr/bin/env python
"""Make a folder of JPEG photographs with one folder a class, for the demo, tests and benchmarks.

    scripts/make_photos.py OUT --count 2000

Each photograph is a window of a real one (scikit-image and scikit-learn ship a few in their wheels), at another scale,
mirrored or not, in another light and with the noise of a camera's sensor, so that sizes, entropy and decoding cost are
those of photographs and a model can learn the classes. The same arguments give the same pixels.
"""

import argparse
import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import simplejpeg

MARKER = ".photos.json"

# Class -> the photographs that it is cut from, as (package, path in its wheel).
SOURCES = {
    "astronaut": [("skimage", "data/astronaut.png")],
    "cat": [("skimage", "data/chelsea.png")],
    "coffee": [("skimage", "data/coffee.png")],
    "china": [("sklearn", "datasets/images/china.jpg")],
    "flower": [("sklearn", "datasets/images/flower.jpg")],
    "motorcycle": [("skimage", "data/motorcycle_left.png"), ("skimage", "data/motorcycle_right.png")],
    "rocket": [("skimage", "data/rocket.jpg")],
    "galaxies": [("skimage", "data/hubble_deep_field.jpg")],
    "tissue": [("skimage", "data/ihc.png")],
    "retina": [("skimage", "data/retina.jpg")],
}

_SMALLEST_WINDOW = 0.55  # of what fits into the source, so that little is enlarged to a blur
_NOISE_SIGMA = 5.5
_NOISE_SIDE = 1536


class PhotosError(Exception):
    """The folder cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides the pixels; stands in the marker file. Every third photo of a class is upright."""

    count: int
    height: int
    width: int
    seed: int
    classes: int
    quality: int
    version: int = 1


def make_photos(
    out: Path,
    count: int,
    size: tuple[int, int] = (375, 500),
    seed: int = 0,
    classes: int = 5,
    quality: int = 94,
) -> Path:
    """Fill `out` with `count` photos of `size` (height, width) in `classes` folders; reuses what is there already.

    Raises:
        PhotosError: `out` holds something else, or an option or a source photograph is not usable.
    """
    recipe = Recipe(count, *size, seed, classes, quality)
    if count < 1 or not 1 <= classes <= len(SOURCES) or min(size) < 16 or not 1 <= quality <= 100:
        raise PhotosError(f"not usable: {recipe}; there are at most {len(SOURCES)} classes")
    if _is_made(out, recipe):
        return out
    names = list(SOURCES)[:classes]
    for name in names:
        (out / name).mkdir(parents=True, exist_ok=True)
    make = partial(_make_photo, out, recipe, {name: _read_sources(name) for name in names}, _noise(seed))
    with ThreadPoolExecutor() as pool:
        list(pool.map(make, range(count)))
    (out / MARKER).write_text(json.dumps(asdict(recipe)) + "\n")
    return out


def _is_made(out: Path, recipe: Recipe) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    marker = out / MARKER
    if not marker.is_file():
        raise PhotosError(
            f"{out} is not an empty folder, nor one that an earlier run finished; remove it or take another"
        )
    found = json.loads(marker.read_text())
    if found != asdict(recipe):
        raise PhotosError(f"{out} holds other photos: {found}, not {asdict(recipe)}; remove it or take another folder")
    photos = sum(1 for _ in out.glob("*/*.jpg"))
    if photos != recipe.count:
        raise PhotosError(
            f"{out} should hold {recipe.count} photos and holds {photos}; remove it or take another folder"
        )
    return True


def _read_sources(name: str) -> list[np.ndarray]:
    return [_read_source(package, path) for package, path in SOURCES[name]]


def _read_source(package: str, path: str) -> np.ndarray:
    # find_spec does not import: scikit-image and scikit-learn take seconds to.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise PhotosError(f"{package} is not installed, which ships the photographs: pip install '.[photos]'")
    file = Path(spec.origin).parent / path
    image = cv2.imread(str(file), cv2.IMREAD_COLOR)
    if image is None:
        raise PhotosError(f"{file} is not there or does not decode; another release of {package}?")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _noise(seed: int) -> np.ndarray:
    """One large field of sensor noise, mostly grey; each photo takes a window of it, which is faster than drawing."""
    rng = np.random.default_rng((seed, 1))
    grey = rng.standard_normal((_NOISE_SIDE, _NOISE_SIDE, 1), np.float32)
    colour = rng.standard_normal((_NOISE_SIDE, _NOISE_SIDE, 3), np.float32)
    return (_NOISE_SIGMA * (0.9 * grey + 0.44 * colour)).round().astype(np.int16)


def _make_photo(
    out: Path, recipe: Recipe, sources: dict[str, list[np.ndarray]], noise: np.ndarray, number: int
) -> None:
    rng = np.random.default_rng((recipe.seed, 0, number))
    names = list(sources)
    name = names[number % len(names)]
    height, width = recipe.height, recipe.width
    if number // len(names) % 3 == 2:
        height, width = width, height
    source = sources[name][rng.integers(len(sources[name]))]
    image = cv2.resize(_window(source, height / width, rng), (width, height), interpolation=cv2.INTER_LANCZOS4)
    if rng.random() < 0.5:
        image = cv2.flip(image, 1)
    light = rng.uniform(0.88, 1.12) * rng.uniform(0.96, 1.04, 3)  # exposure and white balance
    rows = (rng.integers(_NOISE_SIDE) + np.arange(height)) % _NOISE_SIDE
    columns = (rng.integers(_NOISE_SIDE) + np.arange(width)) % _NOISE_SIDE
    pixels = image * light.astype(np.float32) + noise[rows[:, None], columns]
    pixels = np.ascontiguousarray(np.clip(pixels, 0, 255).astype(np.uint8))
    data = simplejpeg.encode_jpeg(pixels, recipe.quality, "RGB", "420")
    (out / name / f"{number:05d}.jpg").write_bytes(data)


def _window(source: np.ndarray, aspect: float, rng: np.random.Generator) -> np.ndarray:
    """A random window of `aspect` (height / width)."""
    most = min(source.shape[1], source.shape[0] / aspect)
    width = most * rng.uniform(_SMALLEST_WINDOW, 1.0)
    height = width * aspect
    top = int(rng.uniform(0, source.shape[0] - height))
    left = int(rng.uniform(0, source.shape[1] - width))
    return source[top : top + int(height), left : left + int(width)]


def _parse_size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(height), int(width)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--count", type=int, required=True, metavar="N")
    parser.add_argument("--size", type=_parse_size, default=(375, 500), metavar="WxH", help="default: 500x375")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--classes", type=int, default=5, help=f"1 to {len(SOURCES)}; default: 5")
    parser.add_argument("--quality", type=int, default=94, help="of the JPEGs; default: 94, about 90 KB a photo")
    args = parser.parse_args(argv)
    try:
        make_photos(args.out, args.count, args.size, args.seed, args.classes, args.quality)
    except PhotosError as error:
        print(f"make_photos: {error}", file=sys.stderr)
        return 2
    sizes = [path.stat().st_size for path in args.out.glob("*/*.jpg")]
    print(f"{len(sizes)} photos, {sum(sizes) / len(sizes) / 1e3:.1f} KB on average, in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
