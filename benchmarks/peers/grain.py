"""Grain over ArrayRecord, as its documentation advises. A setting is DECODER-THREADS.

Files are written with group_size:1, as advised for random access. A record is the label in 8 bytes, then the JPEG or
the pixels. Shuffling is global. Worker processes (mp_prefetch) were slower than threads on 2 cores.
"""

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.peers import BATCH, SIZE, Source, labelled_files
from benchmarks.peers.pixels import PIXELS

SETTINGS = {"jpeg": "turbo-2", "small": "turbo-2", "presized": "turbo-2", "raw": "raw-2"}

_FILES = 16


def prepare(source: Source) -> None:
    if source.work == "raw":
        images, labels = (np.load(source.files / f"{name}.npy", mmap_mode="r") for name in ("images", "labels"))
        samples = [(image.tobytes(), label) for image, label in zip(images, labels, strict=True)]
    else:
        samples = [(file.read_bytes(), label) for file, label in labelled_files(source.files)]
    for number in range(_FILES):
        writer = ArrayRecordWriter(str(source.folder / f"{number:05d}.array_record"), "group_size:1,uncompressed")
        for data, label in samples[number::_FILES]:
            writer.write(int(label).to_bytes(8, "little") + data)
        writer.close()


def batches(source: Source, setting: str) -> Iterator[Any]:
    decoder, threads = setting.split("-")
    pixels = PIXELS.get(decoder, _pixels_raw)

    def sample(record: bytes) -> tuple[np.ndarray, int]:
        return pixels(record[8:]), int.from_bytes(record[:8], "little")

    records = grain.sources.ArrayRecordDataSource(sorted(map(str, source.folder.glob("*.array_record"))))
    return feed(grain.MapDataset.source(records).map(sample), int(threads))


def feed(samples: Any, threads: int) -> Iterator[Any]:
    """Batches of a grain.MapDataset, shuffled, for ever; the reading threads stack them, which is faster here."""
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4)
    return iter(samples.seed(0).shuffle().repeat().batch(BATCH, drop_remainder=True).to_iter_dataset(options))


def _pixels_raw(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).reshape(SIZE, SIZE, 3)
