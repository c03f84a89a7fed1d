"""The ids that readers of a dataset give to its labels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpufeed.dataset.order import Ints
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import RecordError


@dataclass(frozen=True, slots=True)
class ClassIds:
    """The ids that a loader gives to the labels of one of its datasets.

    Attributes:
        declared: number of classes that the dataset declares. 0 if it has labels without names, which may be any.
        ids: the loader's id for each of them, int64; None if they are equal.
        names: names of the loader's classes; None if they are those of the dataset.
        is_mixture: True if the dataset is one of several.
    """

    declared: int
    ids: Ints | None = None
    names: tuple[str, ...] | None = None
    is_mixture: bool = False

    def of(self, labels: Any, place: Callable[[int], str]) -> Ints:
        """Return the loader's ids of stored labels.

        Raises:
            RecordError: a label is not one of the declared classes. `place` names the record of label number i.
        """
        # For every framework, and before any sees it: JAX would print `loss nan`, others would train garbage.
        found, count = np.asarray(labels, np.int64), self.declared if self.ids is None else len(self.ids)
        if count and found.size and found.view(np.uint64).max() >= count:  # labels below 0 are the largest
            number = int(((found < 0) | (found >= count)).argmax())
            raise RecordError(
                f"{place(number)}: its label is {found[number]}, and the dataset declares {count} classes, 0 to "
                f"{count - 1}. Its files or its manifest were changed: build it again, or adopt the files again with "
                "--classes for all of them"
            )
        return found if self.ids is None else self.ids[found]


def own_ids(dataset: Dataset) -> ClassIds:
    """Return the ids of a dataset that is read alone; those of a view may not be the dataset's."""
    declared = len(dataset.manifest.class_names)
    if dataset.selection is None or dataset.selection.classes is None:
        return ClassIds(declared)
    return ClassIds(declared, renumber(dataset), dataset.class_names)


def renumber(dataset: Dataset, ids: Ints | None = None) -> Ints:
    """Return the id for each stored label, given those of a view's classes; -1 for labels that it leaves out.

    By default classes have their places in the view.
    """
    assert dataset.selection is not None, "it names classes"
    classes = np.asarray(dataset.selection.classes, np.int64)
    table = np.full(max(len(dataset.manifest.class_names), int(classes.max()) + 1), -1, np.int64)
    table[classes] = np.arange(len(classes)) if ids is None else ids
    return table
