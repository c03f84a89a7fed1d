"""What all loaders measured start from, made once: the samples as datasets of tpufeed, and as files for the others."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

import tpufeed
from benchmarks.peers import SIZE, Source, other_form
from scripts.make_photos import make_photos
from tpufeed.images import CenterCrop, Resize
from tpufeed.tfrecord.example import decode_example

PRESIZE_PX = 256


def make_sources(folder: Path, count: int) -> dict[str, Source]:
    """The source of each kind of work; what an earlier run made in `folder` is taken as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("photos", "shards", "plain", "presized", "presized-plain", "cache", "presized-files", "raw-files")
    photos, shards, plain, presized, presized_plain, cache, presized_files, raw_files = (
        folder / f"{name}-{count}" for name in names
    )
    make_photos(photos, count)
    if not (shards / "manifest.json").exists():
        tpufeed.shard(photos, shards, images=tpufeed.Images(check="header"))
    if not (presized / "manifest.json").exists():
        tpufeed.shard(photos, presized, images=tpufeed.Images(presize=PRESIZE_PX))
    for dataset, presize in ((shards, None), (presized, PRESIZE_PX)):
        if not (other_form(dataset, "dct") / "manifest.json").exists():
            images = tpufeed.Images(presize=presize, encode="dct")
            tpufeed.shard(photos, other_form(dataset, "dct"), images=images)
    if not (other_form(presized, "device") / "manifest.json").exists():
        whole = [Resize(PRESIZE_PX), CenterCrop(PRESIZE_PX)]
        tpufeed.cache.warmup(presized, other_form(presized, "device"), ops=whole, encode="dct")
    if not (cache / "manifest.json").exists():
        tpufeed.cache.warmup(shards, cache)
    if not presized_files.exists():
        _export_photos(presized, presized_files)
    for files, dataset in ((photos, plain), (presized_files, presized_plain)):
        if not (dataset / "manifest.json").exists():
            tpufeed.shard(files, dataset, images=tpufeed.Images(check="header", encode="exact"))
    if not raw_files.exists():
        _export_pixels(cache, raw_files)
    found = {
        "jpeg": (shards, photos, plain),
        "small": (shards, photos, plain),
        "presized": (presized, presized_files, presized_plain),
        "raw": (cache, raw_files, cache),
    }
    own = folder / f"peers-{count}"
    return {work: Source(work, dataset, files, own, plain) for work, (dataset, files, plain) in found.items()}


def _export_photos(dataset: Path, folder: Path) -> None:
    """The JPEGs of a dataset in a folder a class, encoded once more: without restart markers, which slow decoders."""
    unfinished = _start(folder)
    opened = tpufeed.open_dataset(str(dataset))
    for payload in opened.reader("train").iter_payloads(0, _samples(opened)):
        features = decode_example(payload)
        text, name = (str(features[key].values[0], "utf-8") for key in ("image/class/text", "image/filename"))
        (unfinished / text).mkdir(exist_ok=True)
        pixels = simplejpeg.decode_jpeg(features["image/encoded"].values[0])
        (unfinished / text / Path(name).name).write_bytes(simplejpeg.encode_jpeg(pixels, 90, "RGB", "420"))
    unfinished.rename(folder)


def _export_pixels(dataset: Path, folder: Path) -> None:
    unfinished = _start(folder)
    opened = tpufeed.open_dataset(str(dataset))
    count = _samples(opened)
    shape = count, SIZE, SIZE, 3
    images = np.lib.format.open_memmap(unfinished / "images.npy", "w+", np.uint8, shape)
    labels = np.empty(count, np.int64)
    for number, payload in enumerate(opened.reader("train").iter_payloads(0, count)):
        features = decode_example(payload)
        images[number] = np.frombuffer(features["image/tensor"].values[0], np.uint8).reshape(shape[1:])
        labels[number] = features["image/class/label"].values[0]
    images.flush()
    np.save(unfinished / "labels.npy", labels)
    unfinished.rename(folder)


def _samples(dataset: Any) -> int:
    return sum(shard.records for shard in dataset.split("train").variants[0].shards)


def _start(folder: Path) -> Path:
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    return unfinished
