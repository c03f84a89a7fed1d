"""LitData over local chunks of `optimize`, as its documentation advises. A setting is DECODER-WORKERS.

"pil" and "turbo" are of JPEG bytes in the chunks; "tensor" is its own JPEG serializer, which decodes with torchvision,
and then crops and resizes with torch.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
from PIL import Image

from benchmarks.peers import BATCH, SIZE, Source, labelled_files
from benchmarks.peers.pixels import PIXELS, random_window

SETTINGS = {"jpeg": "turbo-2", "small": "turbo-2", "presized": "turbo-2", "raw": "array-2"}


def prepare(source: Source) -> None:
    if source.work == "raw":
        count = len(np.load(source.files / "labels.npy"))
        _optimize(_RawSample(source.files), range(count), source.folder / "array")
        return
    photos = labelled_files(source.files)
    _optimize(_image_sample, photos, source.folder / "tensor")
    _optimize(_bytes_sample, photos, source.folder / "bytes")


def _optimize(sample: Any, inputs: Any, folder: Path) -> None:
    litdata.optimize(sample, list(inputs), str(folder), chunk_bytes="64MB", num_workers=1)


def _image_sample(photo: tuple[Path, int]) -> tuple[Any, int]:
    return Image.open(photo[0]), photo[1]


def _bytes_sample(photo: tuple[Path, int]) -> tuple[bytes, int]:
    return photo[0].read_bytes(), photo[1]


class _RawSample:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, index: int) -> tuple[np.ndarray, int]:
        images, labels = (np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in ("images", "labels"))
        return np.array(images[index]), int(labels[index])


def batches(source: Source, setting: str) -> Iterator[Any]:
    kind, workers = setting.split("-")
    chunks = source.folder / (kind if kind in ("tensor", "array") else "bytes")
    pixels = {"tensor": _crop_tensor, "array": np.asarray, **PIXELS}[kind]
    dataset = litdata.StreamingDataset(str(chunks), shuffle=True, drop_last=True, transform=partial(_transform, pixels))
    # One epoch without end: what happens between epochs is no part of the figure.
    endless = litdata.ParallelStreamingDataset([dataset], length=float("inf"), transform=_only)
    loader = litdata.StreamingDataLoader(
        endless, batch_size=BATCH, num_workers=int(workers), drop_last=True, persistent_workers=True
    )
    while True:
        yield from loader


def _only(samples: tuple[Any, ...]) -> Any:
    return samples[0]


def _transform(pixels: Any, sample: tuple[Any, int]) -> tuple[Any, int]:
    return pixels(sample[0]), sample[1]


def _crop_tensor(image: torch.Tensor) -> torch.Tensor:
    top, left, height, width = random_window(*image.shape[1:])
    cut = image[:, top : top + height, left : left + width]
    cut = torch.nn.functional.interpolate(cut[None], (SIZE, SIZE), mode="bilinear", antialias=True)[0]
    return (cut.flip(-1) if random.random() < 0.5 else cut).permute(1, 2, 0).contiguous()
