"""WebDataset as its documentation advises: tars, `batched` in the workers, WebLoader. A setting is DECODER-WORKERS.

"pil" decodes with its own `.decode("pil")`. Shards and a buffer of 1000 samples are shuffled. No checksum is verified.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import webdataset

from benchmarks.peers import BATCH, Source, labelled_files
from benchmarks.peers.pixels import crop_pil, pixels_turbo

SETTINGS = {"jpeg": "turbo-2", "small": "turbo-2", "presized": "turbo-2", "raw": "npy-2"}

_SHARDS = 16


def prepare(source: Source) -> None:
    if source.work == "raw":
        images, labels = (np.load(source.files / f"{name}.npy", mmap_mode="r") for name in ("images", "labels"))
        samples = [{"npy": image, "cls": int(label)} for image, label in zip(images, labels, strict=True)]
    else:
        samples = [{"jpg": file.read_bytes(), "cls": label} for file, label in labelled_files(source.files)]
    with webdataset.ShardWriter(f"{source.folder}/%06d.tar", maxcount=-(-len(samples) // _SHARDS), verbose=0) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"{number:08d}", **sample})


def batches(source: Source, setting: str) -> Iterator[Any]:
    kind, workers = setting.split("-")
    tars = sorted(map(str, source.folder.glob("*.tar")))
    dataset = webdataset.WebDataset(tars, resampled=True, shardshuffle=False).shuffle(1000)
    if kind == "turbo":
        dataset = dataset.to_tuple("jpg", "cls").map_tuple(pixels_turbo, int)
    elif kind == "pil":
        dataset = dataset.decode("pil").to_tuple("jpg", "cls").map_tuple(crop_pil, int)
    else:
        dataset = dataset.decode().to_tuple("npy", "cls")
    loader = webdataset.WebLoader(dataset.batched(BATCH), batch_size=None, num_workers=int(workers))
    yield from loader
