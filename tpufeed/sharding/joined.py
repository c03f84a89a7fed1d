"""Check that a plan which stands at a destination already names files of its source, and nothing else.

Who can write to the destination can put a plan there that names any file which the user can read, and its image would
come into the dataset. So each input of a plan that another run has put is checked before any is read. A folder or a tar
is not listed for that, as names below it are its own. A table is read again, as it may name any place.
"""

import fnmatch
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from tpufeed.dataset.naming import PLAN
from tpufeed.dataset.plan import Input, Plan, PlanHeader, Task, iter_tasks
from tpufeed.dataset.schema import LABEL, record_schema
from tpufeed.errors import ManifestError, OptionError, mask_secrets
from tpufeed.sharding import folders, tables, tars
from tpufeed.sharding.sources import expand, find_files, named_files
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store, check_name

_WILD = re.compile(r"[*?\[]")
_MOST_BYTES = 1 << 53  # files end there
_FindForeign: TypeAlias = Callable[[Sequence[Input]], Input | None]


def check_joined(store: Store, plan: Plan, source: str, image: str | None) -> None:
    """Check the plan at `store`, which another run has put there, against its source.

    Args:
        store: the destination.
        plan: its plan.
        source: the URL of the images.
        image: the column of a table that holds paths, as in `ShardOptions`.

    Raises:
        ManifestError: an input is none of the source's, or contradicts the plan's header. No image was read.
        SourceError, OptionError: a table cannot be read, or has no such column.
    """
    header, (base, find_foreign) = plan.header, _files_of(source, image)
    if mask_secrets(header.base) != mask_secrets(base):
        raise forged(store, source, f"its files lie in {header.base!r}, not in {base!r}")
    labelled = any(feature.name == LABEL for feature in header.features)
    own = record_schema(labelled)
    if header.features[1 : len(own)] != own[1:]:
        raise forged(store, source, f"its features are {', '.join(feature.name for feature in header.features)}")
    inputs, stops = 0, dict.fromkeys(header.splits, 0)
    for task in iter_tasks(store, plan):
        if header.variants is not None and (task.first, task.stop) != _range(task, stops[task.split]):
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
            if not _fits(item, header, labelled, len(header.features) - len(own)):
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


def _range(task: Task, first: int) -> tuple[int, int]:
    return first, first + len(task.inputs)


def _fits(item: Input, header: PlanHeader, labelled: bool, columns: int) -> bool:
    of_class = 0 <= item.label < len(header.class_names) if labelled else item.label == -1
    return of_class and 0 <= item.offset <= item.offset + item.bytes < _MOST_BYTES and len(item.columns) == columns


def _files_of(source: str, image: str | None) -> tuple[str, _FindForeign]:
    """The base of a source's inputs, and what finds the first of some inputs that cannot be one of them."""
    named = named_files(source)
    if named is None:
        return open_store(source).url, _first_not(lambda item: _is_below(item, _is_tar))
    store, pattern = named
    if pattern.lower().endswith(tars.SUFFIXES):
        patterns = expand(pattern)
        names = {one for one in patterns if not _WILD.search(one)}
        wild = [one for one in patterns if one not in names]

        @lru_cache(maxsize=1024)  # thousands of inputs on end are of one tar
        def is_named(name: str) -> bool:
            return name in names or any(fnmatch.fnmatchcase(name, one) for one in wild)

        return store.url, _first_not(lambda item: bool(item.file) and _is_below(item, is_named))
    files = (file for info in find_files(store, pattern) for file in tables.iter_files(store, info.name, image))
    return store.url, _NamedFiles(files).find_foreign


def _first_not(is_own: Callable[[Input], bool]) -> _FindForeign:
    return lambda inputs: next((item for item in inputs if not is_own(item)), None)


def _is_tar(name: str) -> bool:
    return name.lower().endswith(tars.SUFFIXES)


def _is_below(item: Input, is_tar: Callable[[str], bool]) -> bool:
    """Return true where a listing can give the input: an image of a folder, or one within a tar right in it."""
    if item.file:
        return "/" not in item.file and is_tar(item.file)
    try:
        return folders.is_image_name(check_name(item.path)) and not item.offset
    except OptionError:
        return False


class _NamedFiles:
    """The files that tables name, in 8 bytes each: hashes by a key that no forger knows."""

    def __init__(self, files: Iterable[str]) -> None:
        self._key = secrets.token_bytes(16)
        self._hashes = np.append(np.unique(self._hash(files)), np.uint64(0))  # one more, for what is beyond the last

    def find_foreign(self, inputs: Sequence[Input]) -> Input | None:
        """The first of some inputs that is none of these files."""
        hashes = self._hash(item.file or item.path for item in inputs)
        known = self._hashes[np.searchsorted(self._hashes[:-1], hashes)] == hashes
        return None if known.all() else inputs[int(known.argmin())]

    def _hash(self, files: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        def hash_one(file: str) -> int:
            data = file.encode("utf-8", "surrogatepass")
            return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=self._key).digest())

        return np.fromiter(map(hash_one, files), np.uint64)
