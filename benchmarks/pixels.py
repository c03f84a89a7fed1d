"""How far a loader's pixels are from a full-precision reference, and from what torchvision, tf.image and Pillow give.

    python benchmarks/run.py pixels [--photos 60] [--save]

JPEGs (quality 94, halved colours) of 500x375 and 3000x2000; of each, random-resized crops to 224. The same windows for
all. Two references in float64 (tests/images/float_resizing.py), both from the JPEG decoded in full with interpolated
colours and the accurate transform: "bilinear" between the four pixels around, as by tf.image and OpenCV, and
"antialiased", where the triangle grows with the shrinking, as by Pillow. For a window that is decoded at 1/2, 1/4 or
1/8, bilinear is between the means of so many pixels. Figures are mean absolute differences in levels of 255.
torchvision is measured if it is there, as it is for .peers/spdl/bin/python (scripts/setup-peers spdl).
"""

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import simplejpeg
from PIL import Image

from benchmarks.entry import make_parser
from benchmarks.harness import describe, figure, flatten, machine, print_table, write_result
from scripts.make_photos import make_photos
from tests.images.float_resizing import antialiased, bilinear, bilinear_reduced
from tpufeed.images import RandomResizedCrop
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Draws, Window
from tpufeed.images.windows import reduction

OP = RandomResizedCrop(224)
SIZES = {"500x375": (375, 500), "3000x2000": (2000, 3000)}
CROPS = 3  # of each photo
LARGE_SHARE = 0.25  # of the photos


class Crop(NamedTuple):
    """A window of a photo, as JPEG and as pixels, and the random numbers that it follows from."""

    data: bytes
    image: np.ndarray
    window: Window
    draws: Draws

    @property
    def pixels(self) -> np.ndarray:
        """The window cut out."""
        return _cut(self.image, self.window)


Way = Callable[[Crop], np.ndarray]


def main(arguments: list[str]) -> None:
    parser = make_parser("pixels", __doc__, photos=60)
    args = parser.parse_args(arguments)
    others, versions = find_others()
    result: dict[str, Any] = {"photos": args.photos, "crops": CROPS, "versions_of_others": versions, "sizes": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            count = args.photos if min(size) < 1000 else int(args.photos * LARGE_SHARE)
            photos = make_photos(Path(folder) / name, count, size, classes=10)
            result["sizes"][name] = measure([path.read_bytes() for path in sorted(photos.rglob("*.jpg"))], others)
    for name, rows in result["sizes"].items():
        show(name, rows)
    print(describe(machine()), versions)
    if args.save:
        sizes = result.pop("sizes")
        print(write_result(args.save, result, flatten(sizes, "size", "way")))


def measure(photos: list[bytes], others: dict[str, Way]) -> dict[str, Any]:
    """Differences by way and by how far the decoder reduced; "of image" are those of the image that is furthest off."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    ways = {"a loader": _by_pipeline(True), "without fast colours": _by_pipeline(False), **others}
    for crop in _crops(photos):
        image, window = crop.image, crop.window
        factor = reduction(window.height, window.width, window.out_height, window.out_width)
        smooth = antialiased(image, window)
        exact = bilinear(image, window) if factor == 1 else bilinear_reduced(image, factor, window)
        loaded = ways["a loader"](crop)
        for name, way in ways.items():
            pixels = way(crop)
            row = found[f"{name}, 1/{factor}" if name == "a loader" else name]
            for against, reference in (("bilinear", exact), ("antialiased", smooth), ("a loader", loaded)):
                row[against].append(float(np.abs(pixels.astype(np.float64) - reference).mean()))
    return {
        name: {
            "images": len(row["bilinear"]),
            **{key: {"mean": float(np.mean(values)), "of image": max(values)} for key, values in row.items()},
        }
        for name, row in sorted(found.items())
    }


def _crops(photos: list[bytes]) -> Iterator[Crop]:
    for number, data in enumerate(photos):
        image = simplejpeg.decode_jpeg(data)
        for draws in Pipeline([OP], 0).draw(0, np.arange(CROPS * number, CROPS * (number + 1)))[0]:
            yield Crop(data, image, OP.window(image.shape[0], image.shape[1], draws), draws)


def _by_pipeline(fast: bool) -> Way:
    pipeline = Pipeline([OP], 0, fast)
    return lambda crop: pipeline.run_stored(memoryview(crop.data), None, [crop.draws])


def find_others() -> tuple[dict[str, Way], dict[str, str]]:
    """Everything else that crops and resizes, where it is installed."""
    import tensorflow as tf

    def by_tensorflow(antialias: bool, **decoding: Any) -> Way:
        def run(crop: Crop) -> np.ndarray:
            cut = _cut(tf.io.decode_jpeg(crop.data, 3, **decoding), crop.window)
            return tf.image.resize(cut, crop.window[4:], "bilinear", antialias=antialias).numpy()

        return run

    def by_pillow(crop: Crop) -> np.ndarray:
        size = crop.window.out_width, crop.window.out_height
        return np.asarray(Image.fromarray(crop.pixels).resize(size, Image.Resampling.BILINEAR))

    accurate = {"dct_method": "INTEGER_ACCURATE", "fancy_upscaling": True}
    others: dict[str, Way] = {
        "tf.image, accurate decoding": by_tensorflow(False, **accurate),
        "tf.image, accurate decoding, antialias": by_tensorflow(True, **accurate),
        "tf.image": by_tensorflow(False),
        "Pillow": by_pillow,
    }
    versions = {"tensorflow": tf.__version__}
    try:
        import torchvision
    except ImportError:
        return others, {**versions, "torchvision": "n/a"}
    return {**others, **_by_torchvision()}, {**versions, "torchvision": torchvision.__version__}


def _by_torchvision() -> dict[str, Way]:
    import torch
    from torchvision.transforms.v2 import functional

    def by_torchvision(antialias: bool) -> Way:
        def run(crop: Crop) -> np.ndarray:
            tensor = torch.from_numpy(np.ascontiguousarray(crop.pixels)).permute(2, 0, 1)
            return functional.resize(tensor, list(crop.window[4:]), antialias=antialias).permute(1, 2, 0).numpy()

        return run

    return {"torchvision, antialias=False": by_torchvision(False), "torchvision": by_torchvision(True)}


def _cut(image: Any, window: Window) -> Any:
    return image[window.top : window.top + window.height, window.left : window.left + window.width]


def show(name: str, rows: dict[str, Any]) -> None:
    columns = ["", "images", *(f"to {against}" for against in ("bilinear", "antialiased", "a loader"))]
    cells = [
        [way, str(row["images"]),
         *(f"{figure(row[key]['mean'], 2)} ({figure(row[key]['of image'], 2)})"
           for key in ("bilinear", "antialiased", "a loader"))]
        for way, row in rows.items()
    ]  # fmt: skip
    print_table(f"{name}: mean, and the image that is furthest off", columns, cells)
