"""Images that a dataset holds more than once: found by the digests of their files, and reported."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.dataset.commit import put_data
from tpufeed.dataset.digests import DIGEST_BYTES, read_digests
from tpufeed.dataset.naming import DUPLICATES
from tpufeed.dataset.plan import Plan, iter_tasks, read_plan
from tpufeed.errors import ObjectNotFoundError, mask_secrets
from tpufeed.sharding.options import ShardOptions
from tpufeed.storage.store import Store


class SeenImage(msgspec.Struct, frozen=True):
    """One of several equal images; `part` is the folder of the version that has added it."""

    path: str
    split: str
    label: str | None
    part: str = ""


class EqualImages(msgspec.Struct, frozen=True):
    """A line of the report: images whose files are the same bytes."""

    digest: str
    images: list[SeenImage]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Duplicates of a dataset.

    Attributes:
        images: that are in it besides the first of each group.
        crossing: for each split but the largest: its images that lie in another split as well, and all its images.
        labels: groups whose images have different labels.
        report: URL of the lines that name all of them.
    """

    images: int
    crossing: dict[str, tuple[int, int]]
    labels: int
    report: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should hear of, as sentences."""
        said = [
            f"of {count:,} images of {split} {both:,} lie in another split as well, under other names: what is "
            f"measured on it is too good. {self.report} names them; --duplicates drop keeps one of each, and "
            "--split-by-content keeps equal images in one split"
            for split, (both, count) in self.crossing.items()
        ]
        if self.labels:
            said.append(f"images that occur with different labels: {self.labels:,}; {self.report} names them")
        if self.images and not said:
            said.append(
                f"images that are in the dataset again under another name: {self.images:,}; {self.report} names them, "
                "and --duplicates drop keeps one of each"
            )
        return tuple(said)


def report_duplicates(
    store: Store, plan: Plan, rejected: frozenset[str], standing: Sequence[tuple[str, Store]] = ()
) -> Duplicates | None:
    """Put the report of images that a build has taken more than once; None where there is none, or no digests.

    Args:
        store: of the build, whose digests stand already.
        plan: of it.
        rejected: paths of the inputs that were not taken.
        standing: the dataset that it appends to, as (folder, store) of each part; groups without a new image are left
            out.
    """
    parts = [*standing, ("", store)]
    plans = [_plan_of(each) for _, each in standing] + [plan]
    digests = [
        None if found is None else read_digests(each, found.header.notes["images"])
        for (_, each), found in zip(parts, plans, strict=True)
    ]
    if digests[-1] is None:
        return None
    told = [
        (part, found, own)
        for part, found, own in zip(parts, plans, digests, strict=True)
        if found is not None and own is not None
    ]
    every = np.concatenate([own for _, _, own in told])
    groups = _groups(every, len(every) - len(digests[-1]))
    wanted, images = {place for group in groups for place in group}, dict[int, SeenImage]()
    records, at = Counter[str](), 0
    for (folder, each), found, _ in told:
        for image in _iter_images(each, found, folder):
            if folder or image.path not in rejected:
                records[image.split] += 1
                if at in wanted:
                    images[at] = image
            at += 1
    lines, crossing, labels, more = list[bytes](), Counter[str](), 0, 0
    largest = max(records, key=records.__getitem__, default="")
    for group in groups:
        seen = [images[place] for place in group if place in images]
        if len({image.path for image in seen}) < 2:  # a table may name one file in several rows
            continue
        more += len(seen) - 1
        labels += len({image.label for image in seen}) > 1
        splits = Counter(image.split for image in seen)
        if len(splits) > 1:
            crossing.update({split: count for split, count in splits.items() if split != largest})
        lines.append(msgspec.json.encode(EqualImages(every[group[0]].tobytes().hex(), seen)) + b"\n")
    if not lines:
        return None
    put_data(store, DUPLICATES, b"".join(lines), plan.owner)
    url = f"{mask_secrets(store.url)}/{DUPLICATES}"
    return Duplicates(more, {split: (both, records[split]) for split, both in sorted(crossing.items())}, labels, url)


def warn_of_duplicates(
    store: Store,
    plan: Plan,
    options: ShardOptions,
    rejected: frozenset[str],
    standing: Sequence[tuple[str, Store]] = (),
) -> tuple[str, ...]:
    """Report a build's duplicates as its options say, and return warnings; arguments as of `report_duplicates`."""
    found = None if options.duplicates == "keep" else report_duplicates(store, plan, rejected, standing)
    return () if found is None else found.warnings


def _plan_of(store: Store) -> Plan | None:
    try:
        return read_plan(store)
    except ObjectNotFoundError:
        return None


def _iter_images(store: Store, plan: Plan, folder: str) -> Iterator[SeenImage]:
    """Yield all inputs of a build, in the order of its digests."""
    names = plan.header.class_names
    for task in iter_tasks(store, plan):
        for item in task.inputs:
            labels = item.labels or ((item.label,) if item.label >= 0 else ())
            yield SeenImage(item.path, task.split, ", ".join(names[label] for label in labels) or None, folder)


def _groups(digests: npt.NDArray[np.uint8], first_new: int) -> list[list[int]]:
    """Return the places of equal digests, in groups that have one of the new ones; zeros stand for unread files."""
    words = np.ascontiguousarray(digests).view(np.uint64).reshape(-1, DIGEST_BYTES // 8)
    order = np.lexsort(words.T)
    sorted_words = words[order]
    differs = np.ones(len(order) + 1, np.bool_)
    differs[1:-1] = (sorted_words[1:] != sorted_words[:-1]).any(axis=1)
    starts = np.flatnonzero(differs)
    several = np.flatnonzero(np.diff(starts) > 1)
    found = (sorted(order[starts[each] : starts[each + 1]].tolist()) for each in several.tolist())
    return [group for group in found if group[-1] >= first_new and digests[group[0]].any()]
