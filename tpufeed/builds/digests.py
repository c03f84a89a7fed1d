"""Find images that a dataset holds more than once by the digests of their files, and report them.

`_tpufeed/digests.bin` holds 17 bytes for each input, in the order of the plan. The first byte is its outcome: 0 if it
was rejected, 1 if it was taken. The others are the BLAKE2b of its image's file as it was read, or zeros if it was not
read. Records do not hold digests.
"""

import hashlib
import itertools
import logging
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tpufeed.builds.destination import Destination
from tpufeed.builds.plan import Plan, iter_tasks, read_plan
from tpufeed.dataset.naming import DIGESTS, DUPLICATES, splits_mentioned
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import ManifestError, ObjectNotFoundError, mask_secrets
from tpufeed.storage.reading import open_object, read_certain
from tpufeed.storage.store import Store

_logger = logging.getLogger(__name__)
DIGEST_BYTES = 16
UNREAD = bytes(DIGEST_BYTES)
REJECTED, TAKEN = b"\0", b"\1"
_ENTRY_BYTES = 1 + DIGEST_BYTES
_IMAGES_AT_ONCE = 500_000  # or one group: only their paths are in memory


def image_digest(data: bytes) -> bytes:
    """Return the digest of a file's bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Overlap:
    """Images of one split that are in other splits as well.

    Attributes:
        images: number of these images.
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
        images: number of images in the dataset, not counting the first of each group.
        crossing: overlap of each split that shares images with another one, except the training split.
        labels: number of groups whose images have different labels.
        report: URL of the file that names all of them.
    """

    groups: int
    images: int
    crossing: dict[str, Overlap]
    labels: int
    report: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of duplicates that spoil a training run or its validation."""
        said = [
            f"{found.images:,} of {found.total:,} images of {split} {'is' if found.images == 1 else 'are'} in "
            f"{' and '.join(found.others)} as well, byte for byte: see {self.report}. Results on {split} will be too "
            "good. Leave them out: open_dataset(...).select(drop=[paths], split=...)"
            for split, found in self.crossing.items()
        ]
        if self.labels:
            said.append(f"equal images that have different labels: {self.labels:,}. See {self.report}")
        if self.images:
            said.append(f"images with the same bytes as another one of the dataset: {self.images:,}. See {self.report}")
        return tuple(said)


class InputDigests(NamedTuple):
    """Outcome of each input of a build, uint8 (inputs,), and digests of their images, uint8 (inputs, 16)."""

    fates: npt.NDArray[np.uint8]
    digests: npt.NDArray[np.uint8]


def read_digests(store: Store, inputs: int) -> InputDigests | None:
    """Return the stored digests of a build, if any. Raises ManifestError if they do not fit its inputs."""
    found = store.stat(DIGESTS)
    if found is None:
        return None
    if found.size_bytes != inputs * _ENTRY_BYTES:  # checked before reading: a file may be a hole of terabytes
        raise ManifestError(
            f"{store.url}/{DIGESTS} has {found.size_bytes} bytes. {inputs:,} inputs take {inputs * _ENTRY_BYTES}. The "
            "file is damaged: remove it to compare images by path and size"
        )
    data = read_certain(store, DIGESTS, found.version, is_text=False)
    entries = np.frombuffer(data, np.uint8).reshape(inputs, _ENTRY_BYTES)
    return InputDigests(entries[:, 0], entries[:, 1:])


class SeenImage(msgspec.Struct, frozen=True):
    """One of several equal images. `part` is the folder of the version that has added it."""

    path: str
    split: str
    label: str | None
    part: str = ""


class EqualImages(msgspec.Struct, frozen=True):
    """A line of the report: images whose files have the same bytes."""

    digest: str
    images: list[SeenImage]


_EQUAL_IMAGES = msgspec.json.Decoder(EqualImages)


class _ComparedBuild(NamedTuple):
    """A build whose images are compared. `folder` is the folder of the version that it added."""

    folder: str
    store: Store
    plan: Plan
    found: InputDigests


class _Tally:
    """Sums the lines of a report."""

    def __init__(self) -> None:
        self.groups, self.images, self.labels = 0, 0, 0
        self.crossing, self.others = Counter[str](), defaultdict[str, set[str]](set)

    def add(self, group: EqualImages) -> None:
        """Add a line."""
        self.groups += 1
        self.images += len(group.images) - 1
        self.labels += len({image.label for image in group.images}) > 1
        splits = Counter(image.split for image in group.images)
        if len(splits) > 1:
            self.crossing.update(splits)
            for split in splits:
                self.others[split] |= splits.keys() - {split}

    def sum_up(self, store: Store, records: dict[str, int]) -> Duplicates | None:
        """Return the sums. `records` has the number of images of each split."""
        if not self.groups:
            return None
        # One split is for training, by its name, else by its size. The others measure.
        mentioned = {split: splits_mentioned([split]) for split in records}
        named = [split for split, words in mentioned.items() if "train" in words]
        others = [split for split, words in mentioned.items() if not words]
        training = max(named or others or records, key=records.__getitem__, default="")
        crossing = {
            split: Overlap(self.crossing[split], records.get(split, 0), tuple(sorted(self.others[split])))
            for split in sorted(self.crossing)
            if split != training
        }
        report = f"{mask_secrets(store.url)}/{DUPLICATES}"
        return Duplicates(self.groups, self.images, crossing, self.labels, report)


def report_duplicates(
    destination: Destination, folder: Path, standing: Sequence[tuple[str, Store]] = ()
) -> Duplicates | None:
    """Put the report of a build's duplicate images, and return its sums, or None if there are none.

    Groups without a new image are left out.

    Args:
        destination: destination of the build, which has put its digests.
        folder: folder for temporary files.
        standing: the growing dataset, as (folder, store) of each part.
    """
    store, plan = destination.store, destination.plan
    own = read_digests(store, plan.header.images)
    if own is None:
        _logger.warning("duplicates are not counted: reports of some shards have no digests")
        return None
    parts = list[_ComparedBuild]()
    for name, part in standing:
        with suppress(ObjectNotFoundError):  # skip parts that have no plan
            found = read_plan(part)
            digests = read_digests(part, found.header.images)
            if digests is not None:
                parts.append(_ComparedBuild(name, part, found, digests))
    parts.append(_ComparedBuild("", store, plan, own))
    # Zeros mean rejects, which equal no image.
    every = np.concatenate([found.digests * (found.fates != REJECTED[0])[:, None] for *_, found in parts])
    places, starts = group_equal(every, len(every) - len(own.digests))
    if not len(starts):
        return None
    tally, path, crc, size = _Tally(), folder / "duplicates", 0, 0
    with path.open("wb") as file:
        records, bounds, first = Counter[str](), [*starts.tolist(), len(places)], 0
        while first < len(starts):
            last = max(first + 1, bisect_right(bounds, bounds[first] + _IMAGES_AT_ONCE) - 1)
            some, first = bounds[first : last + 1], last
            records.clear()
            images = _find_images(parts, places[some[0] : some[-1]], records)
            for start, stop in itertools.pairwise(some):
                group = places[start:stop].tolist()
                seen = [images[place] for place in group if place in images]
                names, splits = {image.path for image in seen}, {image.split for image in seen}
                # A table may name one file in several rows, which is reported as listed more than once.
                if len(seen) > 1 and (len(names) > 1 or len(splits) > 1):
                    equal = EqualImages(every[group[0]].tobytes().hex(), seen)
                    tally.add(equal)
                    line = msgspec.json.encode(equal) + b"\n"
                    file.write(line)
                    crc, size = crc32c(line, crc), size + len(line)
            images.clear()  # before the next ones are found
    if tally.groups:
        destination.put(DUPLICATES, path, size, crc)
    return tally.sum_up(store, records)


def find_duplicates(dataset: Dataset) -> Duplicates | None:
    """Return the duplicates that the build of a dataset has reported, or None without a readable report."""
    tally = _Tally()
    try:
        with open_object(dataset.store, DUPLICATES) as file:
            for line in file:
                tally.add(_EQUAL_IMAGES.decode(line))
    except ObjectNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _logger.warning("%s/%s cannot be read: %s", mask_secrets(dataset.url), DUPLICATES, error)
        return None
    return tally.sum_up(dataset.store, dataset.manifest.records)


def _find_images(
    parts: Sequence[_ComparedBuild], places: npt.NDArray[np.int64], records: Counter[str]
) -> dict[int, SeenImage]:
    """Return the images at some places among the digests of all parts. Count the images of each split in `records`."""
    wanted, images, at = iter(np.sort(places).tolist()), dict[int, SeenImage](), 0
    due = next(wanted, None)
    for folder, store, plan, found in parts:
        names, rejected = plan.header.class_names, iter((found.fates == REJECTED[0]).tolist())
        for task in iter_tasks(store, plan):
            for item in task.inputs:
                is_image, is_due = not next(rejected, True), at == due
                at += 1
                if is_image:
                    records[task.split] += 1
                if not is_due:
                    continue
                due = next(wanted, None)
                if is_image:
                    labels = item.labels or ((item.label,) if item.label >= 0 else ())
                    label = ", ".join(names[each] for each in labels if each >= 0) or None
                    images[at - 1] = SeenImage(item.path, task.split, label, folder)
    return images


def group_equal(digests: npt.NDArray[np.uint8], first_new: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of equal digests, group after group, and the start of each group.

    Each group has two or more places in ascending order. The last one is new. Zeros mean unread files and are ignored.
    """
    words = np.ascontiguousarray(digests).view(np.uint64).reshape(-1, DIGEST_BYTES // 8)
    order = np.lexsort(words.T)  # a stable sort
    sorted_words = words[order]
    differs = np.ones(len(order) + 1, np.bool_)
    differs[1:-1] = (sorted_words[1:] != sorted_words[:-1]).any(axis=1)
    bounds = np.flatnonzero(differs)
    starts, lengths = bounds[:-1], np.diff(bounds)
    is_read = sorted_words[starts].any(axis=1)
    has_new = order[starts + lengths - 1] >= first_new
    chosen = np.flatnonzero((lengths > 1) & is_read & has_new)
    places = order[np.repeat(np.isin(np.arange(len(starts)), chosen), lengths)]
    return places, np.concatenate([[0], np.cumsum(lengths[chosen])[:-1]]).astype(np.int64)[: len(chosen)]
