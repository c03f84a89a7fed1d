"""Where an adoption goes: whether it can, and whether it is there already."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tpufeed.dataset.foreign.files import ForeignFiles
from tpufeed.dataset.foreign.mapping import NONE, KeyOptions
from tpufeed.dataset.index import is_index_of
from tpufeed.dataset.manifest import Manifest, Shard
from tpufeed.dataset.naming import MANIFEST, index_name
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.errors import DatasetExistsError, ManifestError, NoInputsError, OptionError, mask_secrets
from tpufeed.storage.store import Store


def check_places(source: Store, target: Store) -> None:
    """Raises NoInputsError where the source is a file, OptionError where a manifest would show its secrets."""
    path = source.local_path(MANIFEST)
    if path is not None and path.parent.is_file():
        raise NoInputsError(f"{source.url} is a file; adopt takes the folder: tpufeed adopt {path.parent.parent}")
    if target.url != source.url and mask_secrets(source.url) != source.url:
        raise OptionError(
            f"{source.url} holds a password or token, which a manifest elsewhere (--to) would show to all who read it; "
            "give the credentials where the file system finds them, in its environment or configuration"
        )


def check_writable(source: Store, target: Store) -> None:
    """Before anything is read, as reading may take an hour. Raises OptionError."""
    path = target.local_path(MANIFEST)
    if path is not None:
        folder = next(parent for parent in path.parents if parent.exists())
        beside = target.url == source.url
        if not beside and not folder.is_dir():
            raise OptionError(f"{folder} is no folder; manifest and index need one (--to)")
        if not os.access(folder, os.W_OK):
            way = "; give a place for manifest and index with --to" if beside else ""
            raise OptionError(f"{folder} cannot be written to{way}")


def check_indexes(target: Store, files: ForeignFiles) -> None:
    """Before anything is read. Raises DatasetExistsError where an index would take the place of somebody else's file.

    One of these very files is an earlier adoption's that was cut off.
    """
    for split, infos in files.splits.items():
        name = index_name(split, None)
        if target.stat(name) is not None and not is_index_of(target, name, [info.size_bytes for info in infos]):
            raise DatasetExistsError(
                f"{target.url}/{name} stands there already, and is no index of these TFRecord files; nothing was "
                "changed. Give another destination (--to), or move it away first"
            )


def find_finished(
    source: Store, target: Store, files: ForeignFiles, options: KeyOptions, names: Sequence[str] | None
) -> Manifest | None:
    """The manifest of this very adoption, where it stands at `target` already; None where nothing does.

    Raises:
        DatasetExistsError: another dataset stands there, or what is none.
    """
    try:
        present = find_dataset(target)
    except ManifestError as error:
        difference = f"it is none that can be read ({error})"
    else:
        if present is None:
            return None
        difference = next(_iter_differences(present, source, files, options, names), "")
        if not difference:
            return present.manifest
    raise DatasetExistsError(
        f"{target.url} already holds a {MANIFEST}, and {difference}; nothing was changed. Give another destination "
        "(--to), or remove it first"
    )


def asked(options: KeyOptions, names: Sequence[str] | None) -> dict[str, Any]:
    """What a manifest says of the options that it was adopted with."""
    return {**asdict(options), "classes": names is not None}


def _iter_differences(
    present: Dataset, source: Store, files: ForeignFiles, options: KeyOptions, names: Sequence[str] | None
) -> Iterator[str]:
    """What is not as it would be adopted now. What follows one may not hold."""
    manifest, stored = present.manifest, present.manifest.options
    if stored.get("command") != "adopt":
        yield "its dataset was built, not adopted"
    if stored.get("source") != mask_secrets(source.url):
        yield f"it was adopted from {stored.get('source')}"
    before: Any = stored.get("asked")
    keys: Any = stored.get("keys")
    if not isinstance(before, dict) or not isinstance(keys, dict) or not isinstance(stored.get("left_out"), list):
        yield "it does not say with which options it was adopted"
    for role, key in asdict(options).items():
        taken = keys.get(role)
        if before.get(role) is not None if key is None else taken != (None if key == NONE else key):
            yield f"it was adopted with {taken or NONE} as its {role}"
    if before.get("classes") != (names is not None) or (names is not None and tuple(names) != manifest.class_names):
        yield "its classes were named otherwise"
    if set(manifest.splits) != set(files.splits):
        yield f"its splits are {', '.join(manifest.splits)}, not {', '.join(files.splits)}"
    for split, infos in files.splits.items():
        found = [(info.name, info.size_bytes, info.version if source.generations else None) for info in infos]
        if found != list(map(_identity, manifest.splits[split].variants[0].shards)):
            yield "the TFRecord files have changed since"
    for entry in manifest.splits.values():
        index = entry.variants[0].index
        info = present.store.stat(index.name)
        if info is None or info.size_bytes != index.bytes:
            yield f"{index.name} beside it is missing or damaged"


def _identity(shard: Shard) -> tuple[str, int, str | None]:
    return shard.name, shard.bytes, shard.generation
