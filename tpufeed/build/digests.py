"""Digests of source images, by which a build finds equal images.

`_tpufeed/digests.bin` holds 17 bytes for each input, in the order of the plan. The first byte says what became of it: 0
if it was rejected, 1 if it was taken, 2 if it was left out as a duplicate. The others are the BLAKE2b of its image's
file as it was read, or zeros if it was not read. Records do not hold digests.
"""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.naming import DIGESTS
from tpufeed.errors import ManifestError
from tpufeed.storage.store import Store

DIGEST_BYTES = 16
UNREAD = bytes(DIGEST_BYTES)
REJECTED, TAKEN, LEFT_OUT = b"\0", b"\1", b"\2"
_ENTRY_BYTES = 1 + DIGEST_BYTES


def image_digest(data: bytes) -> bytes:
    """Return the digest of a file's bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Overlap:
    """Images of one split that are in other splits as well.

    Attributes:
        images: how many.
        total: number of all images of the split.
        others: the other splits that have them.
    """

    images: int
    total: int
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Images of a dataset whose files have the same bytes.

    Attributes:
        groups: number of groups of equal images.
        images: number of images in the dataset, besides the first of each group.
        dropped: number of images that were left out of the dataset.
        crossing: for each split that shares images with another one, except for the split that is trained on.
        labels: number of groups whose images have different labels.
        report: URL of the file that names all of them.
    """

    groups: int
    images: int
    dropped: int
    crossing: dict[str, Overlap]
    labels: int
    report: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of what spoils a training or its validation."""
        said = [
            f"{found.images:,} of {found.total:,} images of {split} {'is' if found.images == 1 else 'are'} in "
            f"{' and '.join(found.others)} as well, byte for byte: see {self.report}. What is measured on {split} is "
            "too good. --duplicates drop keeps one of each; --shares with --split-by-content keeps equal images in one "
            "split"
            for split, found in self.crossing.items()
        ]
        if self.labels:
            kept = ". Where some were left out, the label of the first by path stays" if self.dropped else ""
            said.append(f"equal images that have different labels: {self.labels:,}; see {self.report}{kept}")
        if self.images:
            said.append(
                f"images with the same bytes as another one of the dataset: {self.images:,}; see {self.report}"
                + ("" if self.crossing else "; --duplicates drop keeps one of each")
            )
        return tuple(said)


class InputDigests(NamedTuple):
    """Fate of each input of a build, uint8 (inputs,), and the digests of their images, uint8 (inputs, 16)."""

    fates: npt.NDArray[np.uint8]
    digests: npt.NDArray[np.uint8]


def read_digests(store: Store, inputs: int) -> InputDigests | None:
    """Return the digests of a build; None if it has stored none.

    Raises:
        ManifestError: the file does not fit this number of inputs.
    """
    found = store.stat(DIGESTS)
    if found is None:
        return None
    if found.size_bytes != inputs * _ENTRY_BYTES:  # before it is read: a file may be a hole of terabytes
        raise ManifestError(
            f"{store.url}/{DIGESTS} has {found.size_bytes} bytes; {inputs:,} inputs take {inputs * _ENTRY_BYTES}. The "
            "file was damaged: remove it, and images are compared by path and size"
        )
    entries = np.frombuffer(store.read(DIGESTS, found.version), np.uint8).reshape(inputs, _ENTRY_BYTES)
    return InputDigests(entries[:, 0], entries[:, 1:])
