"""Whether a place holds an adoption already: the same one is recognised, another one is refused."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tpufeed.dataset.foreign.files import ForeignFiles
from tpufeed.dataset.foreign.mapping import KeyOptions
from tpufeed.dataset.manifest import Manifest, Shard
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.reader import find_dataset
from tpufeed.errors import DatasetExistsError, mask_secrets
from tpufeed.storage.store import Store


def find_finished(
    source: Store, target: Store, files: ForeignFiles, options: KeyOptions, names: Sequence[str] | None
) -> Manifest | None:
    """The manifest of this very adoption, where it stands at `target` already; None where nothing does.

    Raises:
        DatasetExistsError: another dataset stands there.
        ManifestError: a manifest that cannot be read.
    """
    present = find_dataset(target)
    if present is None:
        return None
    difference = _difference(present.manifest, source, files, options, names)
    if difference:
        raise DatasetExistsError(
            f"{target.url} already holds a {MANIFEST}, and {difference}; nothing was changed. Give another destination "
            "(--to), or remove it first"
        )
    return present.manifest


def asked(options: KeyOptions, names: Sequence[str] | None) -> dict[str, Any]:
    """What a manifest says of the options that it was adopted with."""
    return {**asdict(options), "classes": names is not None}


def _difference(
    manifest: Manifest, source: Store, files: ForeignFiles, options: KeyOptions, names: Sequence[str] | None
) -> str:
    """What is not as it would be adopted now; empty where nothing is."""
    if manifest.options.get("command") != "adopt":
        return "its dataset was built, not adopted"
    if manifest.options.get("source") != mask_secrets(source.url):
        return f"it was adopted from {manifest.options.get('source')}"
    if manifest.options.get("asked") != asked(options, names) or (names and tuple(names) != manifest.class_names):
        return "it was adopted with other keys or classes"
    if list(manifest.options.get("splits", ())) != list(files.splits):
        return f"its splits are {', '.join(manifest.splits)}, not {', '.join(files.splits)}"
    found = {
        split: [(info.name, info.size_bytes, info.version if source.generations else None) for info in infos]
        for split, infos in files.splits.items()
    }
    if found != {split: [_identity(shard) for shard in of.variants[0].shards] for split, of in manifest.splits.items()}:
        return "the TFRecord files have changed since"
    return ""


def _identity(shard: Shard) -> tuple[str, int, str | None]:
    return shard.name, shard.bytes, shard.generation
