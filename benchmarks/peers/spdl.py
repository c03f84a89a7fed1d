"""SPDL's pipeline of threads, as its documentation advises: a batch a task. A setting is DECODER-THREADS.

"ffmpeg" is its own decoding, one FFmpeg filter graph an image, which crops to even pixels; "turbo" runs simplejpeg and
cv2 in its threads.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import spdl.io
from spdl.pipeline import PipelineBuilder

from benchmarks.peers import BATCH, SIZE, Source, labelled_files
from benchmarks.peers.pixels import pixels_turbo, random_window

SETTINGS = {"jpeg": "turbo-3", "small": "turbo-3", "presized": "turbo-3", "raw": "npy-3"}

Batch = list[tuple[Path, int]]


def prepare(source: Source) -> None:
    if source.work == "raw":
        for number, image in enumerate(np.load(source.files / "images.npy", mmap_mode="r")):
            np.save(source.folder / f"{number:06d}.npy", image)


def batches(source: Source, setting: str) -> Iterator[Any]:
    kind, threads = setting.split("-")
    if source.work == "raw":
        labels = np.load(source.files / "labels.npy").tolist()
        samples = list(zip(sorted(source.folder.glob("*.npy")), labels, strict=True))
    else:
        samples = labelled_files(source.files)
    task = {"ffmpeg": _decode_ffmpeg, "turbo": _decode_turbo, "npy": _read}[kind]
    builder = PipelineBuilder().add_source(_endless(samples)).pipe(task, concurrency=int(threads))
    pipeline = builder.add_sink(2).build(num_threads=int(threads))
    with pipeline.auto_stop():
        yield from pipeline


def _endless(samples: Batch) -> Iterator[Batch]:
    for epoch in itertools.count():
        order = np.random.default_rng(epoch).permutation(len(samples))
        for start in range(0, len(samples) - BATCH + 1, BATCH):
            yield [samples[number] for number in order[start : start + BATCH]]


def _decode_ffmpeg(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    frames = []
    for file, _ in batch:
        packets = spdl.io.demux_image(str(file))
        top, left, height, width = random_window(packets.height, packets.width)
        flip = "hflip," if random.random() < 0.5 else ""
        crop = f"crop={width}:{height}:{left}:{top},scale={SIZE}:{SIZE}:flags=bilinear,{flip}format=pix_fmts=rgb24"
        frames.append(spdl.io.decode_packets(packets, filter_desc=crop))
    return spdl.io.to_numpy(spdl.io.convert_frames(frames)), _labels(batch)


def _decode_turbo(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([pixels_turbo(file) for file, _ in batch]), _labels(batch)


def _read(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([spdl.io.load_npy(file.read_bytes()) for file, _ in batch]), _labels(batch)


def _labels(batch: Batch) -> np.ndarray:
    return np.array([label for _, label in batch])
