"""Deal samples to folds: by their ids, by their classes, by groups, or by classes and groups as scikit-learn does."""

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.order import random_words
from tpufeed.dataset.scan import Labels, Stored, iter_columns
from tpufeed.errors import OptionError, mask_secrets
from tpufeed.text import format_names

_logger = logging.getLogger(__name__)
_FOLDS = 3  # purpose of random words, as in `dataset.order`
_KEY = 0, (1 << 64) - 3  # of the words of folds: no epoch has this number
_MOST_KEPT = 16
Numbers: TypeAlias = npt.NDArray[np.integer[Any]]
_dealt: dict[tuple[Any, ...], Numbers] = {}  # a cross-validation asks for each twice


def deal(dataset: Stored, split: str, count: int, labels: Labels | None, group: Sequence[str]) -> Numbers:
    """Return the fold of each sample that is stored in a split, of `count` folds, with equal classes by `labels`.

    A sample keeps its fold when the dataset grows, except by labels and groups together: then it may move.

    Raises:
        OptionError: samples have several labels, groups or classes are too few, or a sample has no group.
        RecordError, ShardError, StoreError: the records cannot be read.
    """
    key = (dataset.manifest.content_digest, dataset.url, split, count, labels is None, tuple(group))
    if key not in _dealt:
        if len(_dealt) == _MOST_KEPT:
            _dealt.clear()
        where = f"{mask_secrets(dataset.url)}, split {split!r}"
        _dealt[key] = _deal(dataset, where, split, count, labels, group)
    return _dealt[key]


def _deal(dataset: Stored, where: str, split: str, count: int, labels: Labels | None, group: Sequence[str]) -> Numbers:
    smallest = np.min_scalar_type(count)
    if labels is None and not group:
        words = random_words(dataset.manifest.splits[split].records, _KEY, _FOLDS)
        return (words % np.uint64(count)).astype(smallest)
    classes = np.empty(0, np.int64)
    if labels is not None:
        if labels.starts is not None:
            raise OptionError(f"{where}: samples have several labels, so folds cannot be stratified by class")
        names, classes, sizes = np.unique(labels.values, return_inverse=True, return_counts=True)
        few = [f"{number} ({size} samples)" for number, size in zip(names, sizes, strict=True) if size < count]
        if few and len(few) == len(names):
            raise OptionError(
                f"{where}: each class has fewer samples than the {count} folds, like {few[0]}. Give fewer folds"
            )
        if few:
            _logger.warning("%s: %d classes have fewer samples than %d folds, like %s", where, len(few), count, few[0])
    if not group:
        # Round by round within each class. Later samples of a class come last, so earlier ones stay.
        order = np.argsort(classes, kind="stable")
        place = np.arange(len(order)) - np.concatenate([[0], np.cumsum(sizes)[:-1]])[classes[order]]
        # Starts differ, so that no fold gets all odd ones. Each is its class's own, the last that of samples without
        # a class: others may come later.
        starts = np.append(random_words(int(max(names[-1:], default=-1)) + 1, _KEY, _FOLDS), np.uint64(0))
        first = starts[names] % np.uint64(count)
        folds = np.empty(len(order), np.int64)
        folds[order] = (place + first[classes[order]].astype(np.int64)) % count
        return folds.astype(smallest)
    values, of_samples = np.unique(_read_groups(dataset, where, split, group), return_inverse=True)
    if len(values) < count:
        said = f"{len(values)} values, like {values[0].item()!r}" if len(values) else "no values"
        raise OptionError(f"{where}: {','.join(group)} has {said}, too few for {count} folds. Give fewer")
    if labels is None:
        digests = (hashlib.blake2b(value.encode(), digest_size=8, person=b"fold").digest() for value in values.tolist())
        found = np.array([int.from_bytes(digest, "big") % count for digest in digests])
    else:
        found = stratify_groups(classes, of_samples, count)
    counts = [format_names(list(map(str, np.bincount(each, minlength=count)))) for each in (found[of_samples], found)]
    _logger.warning("%s: folds of %s samples, with %s values of %s", where, *counts, ",".join(group))
    return found[of_samples].astype(smallest)


def _read_groups(dataset: Stored, where: str, split: str, names: Sequence[str]) -> list[str]:
    """Return the group of each sample: its values of some columns. Raises OptionError for a sample without one."""
    groups = list[str]()
    for chunk in iter_columns(dataset, split, names):
        for row in zip(*(chunk[name] for name in names), strict=True):
            values = [np.asarray(value).ravel().tolist() for value in row]
            odd = next((name for name, each in zip(names, values, strict=True) if len(each) != 1 or each == [""]), None)
            if odd is not None:
                raise OptionError(
                    f"{where}: sample {len(groups)} has {values[names.index(odd)]} in the column {odd!r}. A group is "
                    "one value: select the samples that have one first, or give another column"
                )
            groups.append("\1".join(str(value) for (value,) in values))
    return groups


def stratify_groups(classes: Numbers, groups: Numbers, count: int) -> Numbers:
    """Return the fold of each group, as scikit-learn's StratifiedGroupKFold without shuffling.

    Groups of the most uneven classes come first. Each goes where the shares of classes then differ least between folds.

    Args:
        classes: the class of each sample, numbered from 0 without gaps.
        groups: its group, numbered likewise.
        count: number of folds.
    """
    of_groups = np.zeros((groups.max() + 1, classes.max() + 1), np.int64)
    np.add.at(of_groups, (groups, classes), 1)
    totals, folds = of_groups.sum(0), np.zeros(len(of_groups), np.int64)
    in_folds = np.zeros((count, len(totals)))
    added = np.eye(count)[:, :, None]
    for group in np.argsort(-np.std(of_groups, axis=1), kind="stable"):
        uneven = np.std((in_folds + added * of_groups[group]) / totals, axis=1).mean(1)
        best, least, fewest = 0, np.inf, np.inf
        for fold, (value, samples) in enumerate(zip(uneven.tolist(), in_folds.sum(1).tolist(), strict=True)):
            if value < least or (samples < fewest and np.isclose(value, least)):
                best, least, fewest = fold, value, samples
        in_folds[best] += of_groups[group]
        folds[group] = best
    return folds
