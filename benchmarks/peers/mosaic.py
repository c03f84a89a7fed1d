"""MosaicML streaming over local MDS shards, as its documentation advises. A setting is DECODER-WORKERS.

The column is "jpeg", which gives a PIL image, or "bytes" for "turbo". No hash is verified, which is its default.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from benchmarks.peers import BATCH, SIZE, Source, labelled_files
from benchmarks.peers.pixels import crop_pil, pixels_turbo

SETTINGS = {"jpeg": "turbo-2", "small": "turbo-2", "presized": "turbo-2", "raw": "ndarray-2"}

_EPOCHS_IN_ONE = 50  # what happens between epochs is no part of the figure


def prepare(source: Source) -> None:
    if source.work == "raw":
        images, labels = (np.load(source.files / f"{name}.npy", mmap_mode="r") for name in ("images", "labels"))
        samples = zip(map(np.array, images), labels, strict=True)
        _write(source.folder / "ndarray", f"ndarray:uint8:{SIZE},{SIZE},3", samples)
        return
    photos = labelled_files(source.files)
    _write(source.folder / "pil", "jpeg", ((Image.open(file), label) for file, label in photos))
    _write(source.folder / "turbo", "bytes", ((file.read_bytes(), label) for file, label in photos))


def _write(folder: Path, column: str, samples: Any) -> None:
    with MDSWriter(out=str(folder), columns={"image": column, "label": "int"}) as writer:
        for image, label in samples:
            writer.write({"image": image, "label": int(label)})


def batches(source: Source, setting: str) -> Iterator[Any]:
    kind, workers = setting.split("-")
    clean_stale_shared_memory()  # a killed process leaves some, which stops the next
    folder = source.folder / kind
    samples = len(labelled_files(source.files)) if kind != "ndarray" else len(np.load(source.files / "labels.npy"))
    dataset = _Dataset(local=str(folder), shuffle=True, batch_size=BATCH, epoch_size=samples * _EPOCHS_IN_ONE)
    dataset.pixels = {"pil": crop_pil, "turbo": pixels_turbo, "ndarray": np.asarray}[kind]
    loader = DataLoader(dataset, BATCH, drop_last=True, num_workers=int(workers), persistent_workers=True)
    while True:
        yield from loader


class _Dataset(StreamingDataset):
    def __getitem__(self, at: int) -> tuple[np.ndarray, int]:
        sample = super().__getitem__(at)
        return self.pixels(sample["image"]), sample["label"]
