"""Check that a plan which stands at a destination already names files of its source, and nothing else.

Who can write to the destination can put a plan there that names any file which the user can read, and its image would
come into the dataset. So each input of a plan that another run has put is checked before any is read. A folder or a tar
is not listed for that, as names below it are its own. A table is read again, as it may name any place.
"""

import fnmatch
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from tpufeed.dataset.naming import PLAN
from tpufeed.dataset.plan import Input, Plan, iter_tasks
from tpufeed.dataset.schema import LABEL, FeatureSpec, record_schema
from tpufeed.errors import ManifestError, OptionError, mask_secrets
from tpufeed.sharding import tables, tars
from tpufeed.sharding.rows import is_image_name
from tpufeed.sharding.sources import expand, find_files, named_files
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store, check_name

_WILD = re.compile(r"[*?\[]")
_MOST_BYTES = 1 << 53  # files end there
_FindForeign: TypeAlias = Callable[[Sequence[Input]], Input | None]


def check_joined(
    store: Store, plan: Plan, source: str, image_column: str | None, variants: int | None, image: FeatureSpec
) -> None:
    """Check the plan at `store`, which another run has put there, against its source.

    Args:
        store: the destination.
        plan: its plan.
        source: the URL of the images.
        image_column: the column of a table that holds paths.
        variants: the variants of a cache, or None for a dataset.
        image: the feature that holds the image of a record.

    Raises:
        ManifestError: an input is none of the source's, or contradicts the plan's header. No image was read.
        SourceError, OptionError: a table cannot be read, or has no such column.
    """
    header, (base, find_foreign) = plan.header, _files_of(source, image_column)
    if header.variants != variants or header.features[:1] != (image,):
        raise forged(store, source, "it makes a cache, or another one")
    if mask_secrets(header.base) != mask_secrets(base):
        raise forged(store, source, f"its files lie in {header.base!r}, not in {base!r}")
    label = next((feature for feature in header.features if feature.name == LABEL), None)
    labelled, several = label is not None, label is not None and label.shape is None
    lengths, owner = (None, None) if label is None else (label.lengths, label.of)
    own = record_schema(
        labelled, lengths if several and isinstance(lengths, tuple) else None, owner if isinstance(owner, str) else None
    )
    if header.features[1 : len(own)] != own[1:]:
        raise forged(store, source, f"its features are {', '.join(feature.name for feature in header.features)}")
    inputs, stops = 0, dict.fromkeys(header.splits, 0)
    for task in iter_tasks(store, plan):
        first = stops[task.split]
        if header.variants is not None and (task.first, task.stop) != (first, first + len(task.inputs)):
            raise forged(store, source, f"task {task.number} is of the samples {task.first} to {task.stop}")
        stops[task.split] = task.stop
        inputs += len(task.inputs)
        read = [item for item in task.inputs if item.problem is None]
        foreign = find_foreign(read)
        if foreign is not None:
            raise forged(
                store, source, f"task {task.number} reads {foreign.file or foreign.path!r}, which is none of its"
            )
        for item in read:
            labels = item.labels if several or not labelled else (item.label,)
            of_class = all(0 <= each < len(header.class_names) for each in labels)
            of_class = of_class and (labelled or not labels) and (not labelled or several or not item.labels)
            in_file = 0 <= item.offset <= item.offset + item.bytes < _MOST_BYTES
            if not (of_class and in_file and len(item.columns) == len(header.features) - len(own)):
                raise forged(store, source, f"what task {task.number} says of {item.path!r} cannot be")
    if inputs * len(header.variant_numbers) != header.notes["images"]:
        raise forged(store, source, f"it has {inputs} inputs, and says {header.notes['images']} images")


def forged(store: Store, source: str, problem: str) -> ManifestError:
    """The error for a plan that cannot be of this build, whatever its header says."""
    return ManifestError(
        mask_secrets(
            f"{store.url}/{PLAN}: no plan of {source}: {problem}. Nothing was read or changed. It was forged, or the "
            f"source has changed since: take another destination, or say --overwrite to build {store.url} anew"
        )
    )


def _files_of(source: str, image: str | None) -> tuple[str, _FindForeign]:
    """The base of a source's inputs, and what finds the first of some inputs that cannot be one of them."""
    named = named_files(source)
    if named is None:
        return open_store(source).url, _first_not(lambda name: name.lower().endswith(tars.SUFFIXES), folder=True)
    store, pattern = named
    if pattern.lower().endswith(tars.SUFFIXES):
        patterns = expand(pattern)
        names = {one for one in patterns if not _WILD.search(one)}
        wild = [one for one in patterns if one not in names]

        @lru_cache(maxsize=1024)  # thousands of inputs on end are of one tar
        def is_named(name: str) -> bool:
            return name in names or any(fnmatch.fnmatchcase(name, one) for one in wild)

        return store.url, _first_not(is_named, folder=False)
    files = (file for info in find_files(store, pattern) for file in tables.iter_files(store, info.name, image))
    # Each in 8 bytes, by Python's own hash of strings, whose key is drawn for each process: no forger knows it.
    hashes = np.append(np.unique(np.fromiter(map(hash, files), np.int64)), 0)  # one more, for what is beyond the last

    def find_foreign(inputs: Sequence[Input]) -> Input | None:
        wanted = np.fromiter((hash(item.file or item.path) for item in inputs), np.int64)
        known = hashes[np.searchsorted(hashes[:-1], wanted)] == wanted
        return None if known.all() else inputs[int(known.argmin())]

    return store.url, find_foreign


def _first_not(is_tar: Callable[[str], bool], folder: bool) -> _FindForeign:
    """Find the first input that is neither in a tar right below the source nor, in a folder, an image of it."""

    def is_own(item: Input) -> bool:
        if item.file:
            return "/" not in item.file and is_tar(item.file)
        try:
            return folder and is_image_name(check_name(item.path)) and not item.offset
        except OptionError:
            return False

    return lambda inputs: next((item for item in inputs if not is_own(item)), None)
