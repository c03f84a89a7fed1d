"""`prune`: remove old versions of a dataset, and the files that no kept version names."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpufeed.builds.destination import Destination
from tpufeed.dataset.manifest import Manifest, decode_manifest
from tpufeed.dataset.naming import MANIFEST, VERSIONS, index_name, is_data_name, is_part_folder, version_name
from tpufeed.dataset.reader import find_versions, open_dataset
from tpufeed.display.summary import Summary
from tpufeed.errors import DatasetNotFoundError, ObjectExistsError, ObjectNotFoundError
from tpufeed.options import Count, checked
from tpufeed.storage.reading import read_certain
from tpufeed.storage.store import Store, open_store

_PRUNED = ".pruned.json"  # the manifest of a version that is being removed: no reader opens it


@dataclass(frozen=True, slots=True, repr=False)
class PruneResult(Summary):
    """Result of pruning.

    Attributes:
        url: URL of the dataset.
        kept: numbers of the versions that can be opened.
        removed: numbers of the versions that were removed, or would be.
        files: number of files that only removed versions had.
        bytes: size of these files.
    """

    url: str
    kept: tuple[int, ...]
    removed: tuple[int, ...]
    files: int
    bytes: int


@checked()
def prune(url: str | Path, *, keep: Count = 1, dry_run: bool = False) -> PruneResult:
    """Remove all but the last versions of a dataset, with the shards and indexes that no kept version names.

    Plans and digests stay, since appends need them to know which images are there. Readers of a removed version fail at
    the next shard that they open. If the call is interrupted, the same call resumes.

    Args:
        url: URL of the dataset.
        keep: number of the newest versions to keep.
        dry_run: only return what would be removed.

    Raises:
        DatasetNotFoundError: there is no dataset.
        OptionError: `keep` is less than 1.
    """
    store = open_store(url, follow=False)
    newest = Destination(store).find_finished()
    if newest is None:
        raise DatasetNotFoundError(f"{store.url} holds no dataset to prune")
    versions = find_versions(store, newest)
    kept, dropped = versions[-keep:], versions[:-keep]
    begun = [name for name in (info.name for info in store.iter_objects(VERSIONS)) if name.endswith(_PRUNED)]
    needed = {name for manifest in _open_versions(store, kept) for name in _names_of(manifest)}
    manifests = list(_open_versions(store, dropped))
    for name in begun:
        with suppress(ObjectNotFoundError):  # another run was faster
            manifests.append(decode_manifest(read_certain(store, name), f"{store.url}/{name}"))
    present = {info.name: info for info in store.iter_objects()}
    # Names in a manifest may be forged: only files that a build can have put are removed.
    unneeded = {name for manifest in manifests for name in _names_of(manifest) if is_data_name(name)} - needed
    folders = _folders(unneeded) & _folders(present)  # including a part that an earlier run has begun to remove
    unneeded |= set(_own_names(folders, manifests)) - needed
    unneeded &= present.keys()
    numbers = sorted({*dropped, *(manifest.number for manifest in manifests)})
    result = PruneResult(
        store.url, tuple(kept), tuple(numbers), len(unneeded), sum(present[name].size_bytes for name in unneeded)
    )
    if dry_run:
        return result
    for number in dropped:  # under its new name no reader opens it, and it names its files until they are gone
        name = f"{VERSIONS}/{number}{_PRUNED}"
        with suppress(ObjectNotFoundError):  # another run was faster
            data = read_certain(store, version_name(number))
            with suppress(ObjectExistsError):  # left by a run that was killed here, with the same bytes
                store.put(name, data)
            store.delete(version_name(number))
        begun.append(name)
    # Only now, when no manifest that readers open names these files.
    for name in sorted(unneeded):
        store.delete(name, present[name].version if store.conditional else "")
    for name in begun:
        store.delete(name)
    return result


def _open_versions(store: Store, numbers: Sequence[int]) -> Iterator[Manifest]:
    """Yield the manifests of versions, except those that another prune has removed meanwhile."""
    for number in numbers:
        with suppress(DatasetNotFoundError):
            yield open_dataset(store.url, number).manifest


def _names_of(manifest: Manifest) -> Iterator[str]:
    for split in manifest.splits.values():
        for variant in split.variants:
            yield from (file.name for file in variant.files)


def _folders(names: Iterable[str]) -> set[str]:
    return {name.partition("/")[0] for name in names if "/" in name}


def _own_names(folders: Iterable[str], manifests: list[Manifest]) -> Iterator[str]:
    """Yield the manifests and indexes of parts that lose shards: they are no longer datasets."""
    for folder in filter(is_part_folder, folders):
        yield f"{folder}/{MANIFEST}"
        for manifest in manifests:
            for name, split in manifest.splits.items():
                for variant in (None, *range(len(split.variants))):
                    yield f"{folder}/{index_name(name, variant)}"
