"""Check that a plan which another run has put at a destination names only files of its source.

Anyone who can write to the destination can put a plan there that names any file which the user can read, so that its
image would get into the dataset. So each input of such a plan is checked before any input is read. Folders and tars are
not listed for that: names below them are theirs. Tables, which may name any place, are read again, and so are the
footers of files that hold images in columns.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from tpufeed.builds.item import ImageRef, Item
from tpufeed.builds.plan import Plan, forged, iter_tasks
from tpufeed.dataset.schema import LABEL, FeatureSpec, kaggle_features, kaggle_keys, record_schema
from tpufeed.errors import OptionError, url_identity
from tpufeed.sources.folder import FolderSource
from tpufeed.sources.inputs import files_of, place_of
from tpufeed.sources.kinds import expand, find_source, named_files
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.source import identity_of, is_image_name, stem_of
from tpufeed.sources.tars import TarSource
from tpufeed.storage.store import Store, check_name, open_store

_WILD = re.compile(r"[*?\[]")
_DIGEST = re.compile(r"(?:[0-9a-f]{32})?")
_MOST_BYTES = 1 << 53  # files end there
_FindForeign: TypeAlias = Callable[[Sequence[Item]], str | None]


def check_joined(
    store: Store, plan: Plan, source: str, options: ShardOptions, variants: int | None, image: FeatureSpec
) -> None:
    """Check the plan at `store`, which another run has put there, against its source.

    `variants` is the number of a cache's variants, or None for a dataset; `image` is the feature of a record's image.

    Raises:
        ManifestError: an input is not of the source, or contradicts the plan's header. No image was read.
        SourceError, OptionError: a table cannot be read, or has no such column.
    """
    header, (base, box_format, find_foreign) = plan.header, _files_of(source, options)
    with_keys = kaggle_keys if options.names == "kaggle" else tuple[FeatureSpec, ...]
    if header.variants != variants or header.features[:1] != with_keys([image]):
        raise forged(store, source, "it makes a cache, or another one")
    found_format = header.box_format or None
    if (url_identity(header.base), found_format) != (url_identity(base), box_format):
        there, here = f"{header.base!r} (box format {found_format})", f"{base!r} (box format {box_format})"
        raise forged(store, source, f"its files are in {there}, not in {here}")
    label = next((feature for feature in header.features if feature.name == LABEL), None)
    labelled, several, lengths, owner = label is not None, False, None, None
    if label is not None:
        several, owner = label.shape is None, label.of if isinstance(label.of, str) else None
        lengths = label.lengths if several and isinstance(label.lengths, tuple) else None
    own = record_schema(labelled, lengths, owner)
    own = kaggle_features(own, len(header.class_names)) if options.names == "kaggle" else own
    if header.features[1 : len(own)] != with_keys(own)[1:]:
        raise forged(store, source, f"its features are {', '.join(feature.name for feature in header.features)}")
    pictures = [feature for feature in header.features if feature.is_picture]
    if [(feature.name, feature.kind) for feature in pictures] != [
        (one.name, one.kind) for one in options.picture_specs
    ]:
        raise forged(store, source, f"its further images are {', '.join(feature.name for feature in pictures)}")
    inputs, stops = 0, dict.fromkeys(header.splits, 0)
    for task in iter_tasks(store, plan):
        first = stops[task.split]
        if header.variants is not None and (task.first, task.stop) != (first, first + len(task.inputs)):
            raise forged(store, source, f"task {task.number} has the samples {task.first} to {task.stop}")
        stops[task.split] = task.stop
        inputs += len(task.inputs)
        read = [item for item in task.inputs if item.problem is None]
        if not all(_DIGEST.fullmatch(item.duplicate_of) for item in task.inputs):
            raise forged(store, source, f"task {task.number} leaves out an input without a digest")
        foreign = find_foreign(read)
        if foreign is not None:
            raise forged(store, source, f"task {task.number} reads {foreign!r}, which is not a file of the source")
        for item in read:
            labels = item.labels if several or not labelled else (item.label,)
            of_class = all(0 <= each < len(header.class_names) for each in labels)
            of_class = of_class and (labelled or not labels) and (not labelled or several or not item.labels)
            in_file = all(0 <= file.offset <= file.offset + file.bytes < _MOST_BYTES for file in files_of(item))
            values = len(header.features) - len(own) - len(pictures)
            if not (of_class and in_file and len(item.columns) == values and len(item.images) == len(options.pictures)):
                raise forged(store, source, f"{item.path!r} in task {task.number} has impossible values")
    if inputs * len(header.variant_numbers) != header.images:
        raise forged(store, source, f"it has {inputs} inputs; its header says {header.images} images")


def _files_of(source: str, options: ShardOptions) -> tuple[str, str | None, _FindForeign]:
    """Return the base of a source, the format of its boxes if it declares one, and a function.

    The function finds the first file of some inputs that the source does not have.
    """
    named = named_files(source)
    if named is None or not named[1].lower().endswith(TarSource.suffixes):
        found = find_source(source, options)
        if not isinstance(found, FolderSource | TarSource):
            find_foreign = _not_among(found.base, found.iter_files())
            return found.base, found.contents.box_format, find_foreign  # the files may tell the format
    if named is None:
        masks = None if options.masks is None else open_store(options.masks).url.rstrip("/")
        is_tar = _first_not(lambda name: name.lower().endswith(TarSource.suffixes), folder=True, masks=masks)
        return open_store(source).url, None, is_tar
    store, pattern = named
    patterns = expand(pattern)
    names = {one for one in patterns if not _WILD.search(one)}
    wild = [one for one in patterns if one not in names]

    @lru_cache(maxsize=1024)  # thousands of successive inputs are in one tar
    def is_named(name: str) -> bool:
        return name in names or any(fnmatch.fnmatchcase(name, one) for one in wild)

    return store.url, None, _first_not(is_named, folder=False)


def _not_among(base: str, files: Iterable[str]) -> _FindForeign:
    """Find the first file that is not among `files` of a source at `base`, however their URLs are signed."""
    # 8 bytes for each: Python's own hash of strings, whose key is drawn for each process, so that no forger knows it.
    known = np.unique(np.fromiter((hash(identity_of(base, file)) for file in files), np.int64))
    hashes = np.append(known, 0)  # one more, for hashes above the last

    def find_foreign(inputs: Sequence[Item]) -> str | None:
        names = [place_of(file) for item in inputs for file in files_of(item)]
        wanted = np.fromiter((hash(identity_of(base, name)) for name in names), np.int64)
        is_known = hashes[np.searchsorted(known, wanted)] == wanted
        return None if is_known.all() else names[int(is_known.argmin())]

    return find_foreign


def _first_not(is_tar: Callable[[str], bool], folder: bool, masks: str | None = None) -> _FindForeign:
    """Find the first file that is neither in a tar right below the source nor, in a folder, an image or its mask.

    `is_tar` returns true for the name of a tar of the source.
    """

    def is_own(item: Item) -> bool:
        if item.file:
            return "/" not in item.file and is_tar(item.file) and all(image.file == item.file for image in item.images)
        try:
            return (
                folder
                and is_image_name(check_name(item.path))
                and not item.offset
                and all(is_mask(image, item.path) for image in item.images)
            )
        except OptionError:
            return False

    def is_mask(image: ImageRef, path: str) -> bool:
        if masks is None or image.offset or not image.file.startswith(f"{masks}/"):
            return False
        name = check_name(image.file.removeprefix(f"{masks}/"))
        return is_image_name(name) and stem_of(name) == stem_of(path)

    def find_foreign(inputs: Sequence[Item]) -> str | None:
        item = next((item for item in inputs if not is_own(item)), None)
        return None if item is None else ", ".join(map(place_of, files_of(item)))

    return find_foreign
