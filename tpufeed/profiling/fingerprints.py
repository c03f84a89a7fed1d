"""Check by the pixels that came whether a loader gave each sample once an epoch: dropping or repeating makes it fast.

A fingerprint is a weighted sum of eight 8-byte words, one from each eighth of an image: 0.12 us an image of 150 kB,
0.6 % of one core at 50,000 images a second. Images that agree in all eight have one fingerprint, so photographs before
one flat colour may; hence the share of repeats that is let pass.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Datasets hold some images twice, and some look alike to a fingerprint; more than this share is the loader's doing, or
# a dataset's that makes for no honest measurement. A loader that repeats gains no more than this either.
MOST_REPEATS = 0.01
_FEW_REPEATS = 2

Fingerprint = NDArray[np.uint64]

_WORDS = 8
_WORD_BYTES = 8
_GOLDEN = 0.6180339887498949  # spreads the words over rows and columns alike
_MOST_WORDS = _WORDS * 16  # of elements of 16 bytes
_WEIGHTS = np.random.default_rng(8).integers(0, 1 << 63, _MOST_WORDS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


@dataclass(frozen=True, slots=True)
class Expected:
    """The images that an honest loader gives.

    Attributes:
        samples: of the split.
        batch_size: what `remainder="drop"` leaves out of an epoch is less than one.
        variants: after how many epochs the same pixels may come again: 1 where nothing is random, K of a cache of K
            random variants; None where each epoch is augmented anew, so that none ever may.
        endless: whether one iteration goes through epoch after epoch, each of whole batches.
    """

    samples: int
    batch_size: int
    variants: int | None = 1
    endless: bool = False

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return self.samples // self.batch_size


@dataclass(frozen=True, slots=True)
class Findings:
    """Conclusions from the fingerprints of a run. None stands for unknown.

    Attributes:
        images: that were looked at.
        repeated: those that came with the pixels of another one of the same epoch, or in more epochs than `variants`
            explains.
        missing: of the epochs that ended, more than the remainder of a batch explains; None where none ended.
    """

    images: int
    repeated: int | None = None
    missing: int | None = None

    def problems(self) -> tuple[str, ...]:
        """Return why the figures of this loader are not to be trusted, as sentences."""
        found = []
        if self.repeated is not None and self.repeated > max(_FEW_REPEATS, MOST_REPEATS * self.images):
            found.append(
                f"{self.repeated:,} of {self.images:,} images came again with the very same pixels, more often than "
                "the epochs explain: the loader repeats samples, or the dataset holds many of them twice"
            )
        if self.missing:
            found.append(
                f"{self.missing:,} images of the epochs that ended never came, more than the remainder of a batch: the "
                "loader drops samples"
            )
        return tuple(found)


@dataclass
class Ledger:
    """The fingerprints of a run, epoch by epoch."""

    epochs: dict[int, list[Fingerprint]] = field(default_factory=dict)
    unseen: int = 0  # images whose pixels could not be read

    def enter(self, epoch: int, batch: Any) -> None:
        """Look at a batch, an array or a tuple or dict whose first member is one."""
        images = first_member(batch)
        pixels = host_view(images)
        if pixels is None:
            self.unseen += int(images.shape[0])
        else:
            self.epochs.setdefault(epoch, []).append(fingerprint(pixels))

    def findings(self, expected: Expected | None, ended: int) -> Findings:
        """Judge the epochs from 0 on, of which `ended` came to their end."""
        if self.unseen or not self.epochs:
            return Findings(self.unseen)
        epochs = [np.concatenate(self.epochs[number]) for number in sorted(self.epochs)]
        images = sum(map(len, epochs))
        if expected is None:
            return Findings(images)
        if expected.endless:
            size = max(1, expected.batches * expected.batch_size)
            given = np.concatenate(epochs)
            epochs, ended = [given[start : start + size] for start in range(0, images, size)], images // size
        whole = expected.samples - expected.samples % expected.batch_size
        missing = sum(max(0, whole - len(epoch)) for epoch in epochs[:ended]) if ended else None
        return Findings(images, _count_repeats(epochs, expected.variants), missing)


def first_member(batch: Any) -> Any:
    """Return the images of a batch."""
    if isinstance(batch, Mapping):
        return next(iter(batch.values()))
    return batch[0] if isinstance(batch, Sequence) else batch


def host_view(images: Any) -> NDArray[Any] | None:
    """Return the images as numpy sees them, without a copy; None where they are not in the memory of this host."""
    if isinstance(images, np.ndarray):
        return images
    for view in (lambda: np.asarray(memoryview(images)), lambda: np.from_dlpack(images)):
        try:
            return view()
        except (TypeError, ValueError, RuntimeError, BufferError, AttributeError):
            continue
    return None


def fingerprint(images: NDArray[Any]) -> Fingerprint:
    """Return the fingerprint of each image of `images`, whose first axis counts them."""
    count, row_bytes, shape = len(images), images[:1].nbytes, images.shape[1:]
    size = math.prod(shape)
    if images.flags.c_contiguous and row_bytes and row_bytes % _WORD_BYTES == 0:
        words = images.reshape(count, -1).view(np.uint64)
        words = words.take(_places(words.shape[1]), axis=1)
    elif size:
        # Eight elements in place of each word, wherever they are: to make the images contiguous would copy all of them.
        places = np.minimum(_places(size)[:, None] + np.arange(_WORD_BYTES), size - 1).ravel()
        picked = images[(slice(None), *np.unravel_index(places, shape))] if shape else images[:, None][:, places]
        words = np.ascontiguousarray(picked).view(np.uint64)
    else:
        words = np.zeros((count, _WORDS), np.uint64)
    weighed: Fingerprint = np.einsum("ij,j->i", words, _WEIGHTS[: words.shape[1]])  # modulo 2^64
    return weighed


def _places(size: int) -> NDArray[np.intp]:
    """Return one place in each eighth of `size`."""
    numbers = np.arange(_WORDS)
    return np.minimum(((numbers + (numbers + 1) * _GOLDEN % 1) * size / _WORDS).astype(np.intp), size - 1)


def _count_repeats(epochs: Sequence[Fingerprint], variants: int | None) -> int:
    apart = [np.unique(epoch) for epoch in epochs]
    within = sum(len(epoch) - len(unique) for epoch, unique in zip(epochs, apart, strict=True))
    allowed = 1 if variants is None else -(-len(epochs) // variants)
    _, times = np.unique(np.concatenate(apart), return_counts=True)
    return within + int(np.maximum(0, times - allowed).sum())
