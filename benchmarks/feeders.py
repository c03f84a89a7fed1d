"""How people feed a TPU without tpufeed, written the way they write it. Each is what a benchmark is compared with.

All give `(image, label)` batches; all but the guide's cut a random resized window to 224 pixels and flip every other
one, as ImageNet training does.
"""

import multiprocessing
import random
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tpufeed.measure.naive import random_crop
from tpufeed.processes.limits import available_cores

SIZE = 224
_BATCHES_AHEAD = 2  # for each process, as torch's DataLoader has by default


class PilFolder:
    """A class folder read file by file in one thread with Pillow: a torchvision ImageFolder with num_workers=0."""

    def __init__(self, folder: Path, batch_size: int, seed: int = 0) -> None:
        self.samples = list_folder(folder)
        self.batch_size = batch_size
        self.seed = seed
        self._epoch = 0

    def __len__(self) -> int:
        return len(self.samples) // self.batch_size

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number, samples in enumerate(self._iter_batches()):
            yield read_batch(samples, number)

    def _iter_batches(self) -> Iterator[list[tuple[str, int]]]:
        samples = list(self.samples)
        random.Random(self.seed + self._epoch).shuffle(samples)
        self._epoch += 1
        for start in range(0, len(samples) - self.batch_size + 1, self.batch_size):
            yield samples[start : start + self.batch_size]

    def close(self) -> None:
        """Nothing is open."""


class PilFolderOnAllCores(PilFolder):
    """The same in one process a core, each making whole batches: a torch DataLoader with num_workers=cores."""

    def __init__(self, folder: Path, batch_size: int, seed: int = 0) -> None:
        super().__init__(folder, batch_size, seed)
        self.processes = available_cores()
        self._pool = ProcessPoolExecutor(self.processes, multiprocessing.get_context("spawn"))

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        ahead: deque[Any] = deque()
        for number, samples in enumerate(self._iter_batches()):
            ahead.append(self._pool.submit(read_batch, samples, number))
            if len(ahead) >= _BATCHES_AHEAD * self.processes:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def close(self) -> None:
        """Stop the processes."""
        self._pool.shutdown(cancel_futures=True)


def list_folder(folder: Path) -> list[tuple[str, int]]:
    """`(path, label)` of every JPEG of a folder of class folders."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    samples = [(str(path), label) for label, name in enumerate(names) for path in sorted((folder / name).glob("*.jpg"))]
    if not samples:
        raise FileNotFoundError(f"{folder} holds no class folders with JPEGs")
    return samples


def read_batch(samples: Sequence[tuple[str, int]], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images of shape (n, 224, 224, 3), and int64 labels."""
    rng = random.Random(seed)
    images = np.stack([_read_image(path, rng) for path, _ in samples])
    return images, np.array([label for _, label in samples], np.int64)


def guide_pipeline(filenames: Sequence[str], batch_size: int) -> Any:
    """The input pipeline of Kaggle's TPU guide, over TFRecords of photos of any size; endless, and without a crop."""
    import tensorflow as tf

    auto = tf.data.AUTOTUNE

    def read_labeled_tfrecord(example: Any) -> tuple[Any, Any]:
        features = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        }
        example = tf.io.parse_single_example(example, features)
        image = tf.image.decode_jpeg(example["image/encoded"], channels=3)
        image = tf.image.resize(image, [SIZE, SIZE])
        image = tf.cast(image, tf.float32) / 255.0
        return image, example["image/class/label"]

    def data_augment(image: Any, label: Any) -> tuple[Any, Any]:
        return tf.image.random_flip_left_right(image), label

    ignore_order = tf.data.Options()
    ignore_order.deterministic = False  # the guide's experimental_deterministic, under its name of today
    dataset = tf.data.TFRecordDataset(filenames, num_parallel_reads=auto)
    dataset = dataset.with_options(ignore_order)
    dataset = dataset.map(read_labeled_tfrecord, num_parallel_calls=auto)
    dataset = dataset.map(data_augment, num_parallel_calls=auto)
    dataset = dataset.repeat()
    dataset = dataset.shuffle(2048)
    dataset = dataset.batch(batch_size)
    return dataset.prefetch(auto)


def _read_image(path: str, rng: random.Random) -> np.ndarray:
    with Image.open(path) as file:
        image = file.convert("RGB")
    image = random_crop(image, SIZE, rng)
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)
