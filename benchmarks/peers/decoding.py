"""Decoding alone, the ceiling: simplejpeg on whole photos in memory, a thread a core.

Nothing is cropped, and one batch is handed over again and again. A setting is the number of threads.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import simplejpeg

from benchmarks.peers import BATCH, SIZE, Source, labelled_files

SETTINGS = {"jpeg": "2", "small": "2", "presized": "2"}

_PART = BATCH // 4


def batches(source: Source, setting: str) -> Iterator[Any]:
    photos = [file.read_bytes() for file, _ in labelled_files(source.files)]
    endless = itertools.cycle(photos)
    batch = np.random.default_rng(0).integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8), np.arange(BATCH)
    threads = int(setting)
    with ThreadPoolExecutor(threads) as pool:
        due: deque[Future[None]] = deque()
        while True:
            while len(due) < 4 * threads:
                due.append(pool.submit(_decode, list(itertools.islice(endless, _PART))))
            for _ in range(BATCH // _PART):
                due.popleft().result()
            yield batch


def _decode(photos: list[bytes]) -> None:
    for photo in photos:
        simplejpeg.decode_jpeg(photo)
