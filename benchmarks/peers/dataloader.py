"""torch's DataLoader over a folder of images in ImageFolder's style, with worker processes.

A setting is DECODER-WORKERS. Windows are drawn as torchvision's transform draws them, without its tensors:
faster than the transform itself. Raw work is one memory-mapped array, read a sample at a time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers import BATCH, Source, labelled_files
from benchmarks.peers.pixels import PIXELS

SETTINGS = {"jpeg": "turbo-2", "small": "turbo-2", "presized": "turbo-2", "raw": "mmap-2"}

_EPOCHS_IN_ONE = 50  # what happens between epochs is no part of the figure


def batches(source: Source, setting: str) -> Iterator[Any]:
    kind, workers = setting.split("-")
    dataset = RawFile(source.files) if source.work == "raw" else ImageFolder(source.files, kind)
    epochs = torch.utils.data.RandomSampler(dataset, num_samples=_EPOCHS_IN_ONE * len(dataset))
    loader = torch.utils.data.DataLoader(
        dataset,
        BATCH,
        sampler=epochs,
        drop_last=True,
        num_workers=int(workers),
    )
    while True:
        yield from loader


class ImageFolder(torch.utils.data.Dataset):
    def __init__(self, folder: Path, decoder: str) -> None:
        self.samples = labelled_files(folder)
        self.pixels = PIXELS[decoder]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        file, label = self.samples[index]
        return self.pixels(file), label


class RawFile(torch.utils.data.Dataset):
    def __init__(self, folder: Path) -> None:
        self.images = np.load(folder / "images.npy", mmap_mode="r+")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index], int(self.labels[index])
