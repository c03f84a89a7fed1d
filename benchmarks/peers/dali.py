"""NVIDIA DALI without a GPU, as its documentation advises: decoding and cropping in one op. A setting is THREADS.

Windows are its own, of the same rule. Raw work is a .npy file a sample.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from benchmarks.peers import BATCH, SCALE, SIZE, Source

SETTINGS = dict.fromkeys(("jpeg", "small", "presized", "raw"), "3")


def prepare(source: Source) -> None:
    if source.work == "raw":
        images, labels = (np.load(source.files / f"{name}.npy", mmap_mode="r") for name in ("images", "labels"))
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            np.save(source.folder / f"image-{number:06d}.npy", image)
            np.save(source.folder / f"label-{number:06d}.npy", label[None])


def batches(source: Source, setting: str) -> Iterator[Any]:
    make = _raw if source.work == "raw" else _photos
    pipeline = make(source, batch_size=BATCH, num_threads=int(setting), device_id=None, prefetch_queue_depth=2)
    pipeline.build()
    while True:
        images, labels = pipeline.run()
        # The pipeline takes its buffers back at the next run.
        yield np.array(images.as_tensor()), np.array(labels.as_tensor())[:, 0]


@pipeline_def
def _photos(source: Source) -> Any:
    photos, labels = fn.readers.file(file_root=str(source.files), random_shuffle=True, name="reader")
    images = fn.decoders.image_random_crop(photos, random_area=list(SCALE), random_aspect_ratio=[3 / 4, 4 / 3])
    images = fn.resize(images, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=False)
    return fn.flip(images, horizontal=fn.random.coin_flip()), labels


@pipeline_def
def _raw(source: Source) -> Any:
    order = {"file_root": str(source.folder), "random_shuffle": True, "seed": 0}
    images = fn.readers.numpy(file_filter="image-*.npy", **order)
    return images, fn.readers.numpy(file_filter="label-*.npy", **order)
