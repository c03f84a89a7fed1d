"""Datasets that grow: a version is the one before and a part, which is built below it like a dataset of its own.

The part's build ends with its own manifest. Then it is published: the manifest that stands is kept as
`_tpufeed/versions/N.json`, an index over all shards of each split is put under a new name, and manifest.json is
replaced in one step, if it is still the one that the part was built for. Nothing that stands is moved or written again.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tpufeed.dataset.index import ITEM_BYTES, NPY_HEADER_BYTES
from tpufeed.dataset.manifest import (
    GROWN_VERSION,
    IndexFile,
    Manifest,
    Markers,
    Part,
    Shard,
    Split,
    Variant,
    decode_manifest,
    encode_manifest,
)
from tpufeed.dataset.naming import MANIFEST, version_index_name, version_name
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.dataset.schema import LABEL, FeatureSpec
from tpufeed.errors import BuildError, ObjectChangedError, ObjectExistsError, OptionError, mask_secrets
from tpufeed.storage.reading import open_object
from tpufeed.storage.store import Store
from tpufeed.tfrecord.crc32c import crc32c

_logger = logging.getLogger(__name__)
_BLOCK_BYTES = 4 << 20


def join_features(base: tuple[FeatureSpec, ...], part: tuple[FeatureSpec, ...]) -> tuple[FeatureSpec, ...]:
    """Return the features of records of both; lists have the lengths of either.

    Raises:
        OptionError: a column is missing in one of them, or has another type; it names both sides.
    """
    there, here = {spec.name: spec for spec in base}, {spec.name: spec for spec in part}
    for name in (*there, *here):
        if name not in there or name not in here:
            has, lacks = ("the dataset has", "the new images do not")
            if name in here:
                has, lacks = ("the new images have", "the dataset does not")
            raise OptionError(
                f"{has} the column {name!r} and {lacks}; nothing was changed. Append what has the "
                "same columns, or shard it as a dataset of its own and mix both with tpufeed.Mixture"
            )
    return tuple(_join_feature(spec, here[spec.name]) for spec in base)


def _join_feature(base: FeatureSpec, part: FeatureSpec) -> FeatureSpec:
    if msgspec.structs.replace(base, lengths=part.lengths) == part and base.shape is not None:
        return base
    (low, high, each), (own_low, own_high, own_each) = _as_list(base), _as_list(part)
    alike = (base.dtype, base.keys, base.kind, base.of, each) == (part.dtype, part.keys, part.kind, part.of, own_each)
    joined = msgspec.structs.replace(
        base, shape=None, lengths=(min(low, own_low), max(high, own_high)), item_shape=each or msgspec.UNSET
    )
    # A label that is one value stands at a fixed place, and single small numbers are stored otherwise than lists.
    alike = alike and (base.shape == part.shape or base.name != LABEL)
    if not alike or not base.stored_kind == part.stored_kind == joined.stored_kind:
        raise OptionError(
            f"the column {base.name!r} is {base.type_text} in the dataset and {part.type_text} in the new images; "
            "nothing was changed. Give the new images that type"
        )
    return joined


def _as_list(spec: FeatureSpec) -> tuple[int, int, tuple[int, ...]]:
    """Return the least and the largest number of items of a feature, and the shape of one."""
    if spec.shape is not None:
        count = spec.shape[0] if spec.shape else 1
        return count, count, spec.shape[1:]
    low, high = spec.lengths if isinstance(spec.lengths, tuple) else (0, 1)
    return low, high, spec.each


def join_manifests(
    base: Manifest, part: Manifest, about: Part, indexes: Mapping[str, tuple[IndexFile, ...]]
) -> Manifest:
    """Return the manifest of a version: that of the one before, and of the part that was built for it.

    Args:
        base: the version before.
        part: the manifest of the part, whose class names begin with those of the base.
        about: what the part is; its folder holds the shards.
        indexes: for each split that of each variant, over all of its shards.
    """
    splits = dict[str, Split]()
    count = len(next(iter(base.splits.values())).variants)
    for name in dict.fromkeys((*base.splits, *part.splits)):
        old, new = base.splits.get(name), part.splits.get(name)
        variants = []
        for number in range(count):
            shards = [] if old is None else list(old.variants[number].shards)
            if new is not None:
                shards += [_below(about.folder, shard) for shard in new.variants[number].shards]
            index = indexes[name][number]
            variants.append(Variant(tuple(shards), index))
        counts = np.zeros(len(part.class_names), np.int64)
        for split in (old, new):
            if split is not None:
                counts[: len(split.class_counts)] += np.asarray(split.class_counts, np.int64)
        records = sum(split.records for split in (old, new) if split is not None)
        splits[name] = Split(records, tuple(counts.tolist()), tuple(variants))
    digest = hashlib.blake2b(f"{base.input_digest}\n{part.input_digest}".encode(), digest_size=16).hexdigest()
    return msgspec.structs.replace(
        base,
        format_version=GROWN_VERSION,
        run_id=part.run_id,
        tool_version=part.tool_version,
        splits=splits,
        class_names=part.class_names,
        features=join_features(base.features, part.features),
        input_digest=digest,
        rejects=_added(base.rejects, part.rejects),
        images=_added(base.images, part.images),
        odd=_added(base.odd, part.odd),
        cache=part.cache,
        markers=_joined_markers(base, part),
        version=base.number + 1,
        parts=(*base.history, about),
    )


def publish(base: Dataset, part: Dataset, about: Part) -> Dataset:
    """Publish a part that is built as the next version of its dataset.

    A run that is killed here leaves the version before; the same command goes on from here.

    Raises:
        BuildError: another build was quicker, and what stands is not the version that the part was built for.
        StoreError: the files cannot be written.
    """
    store, number = base.store, base.number + 1
    present = find_dataset(store)
    if present is not None and present.number == number and present.manifest.run_id == part.manifest.run_id:
        return present  # another run of the same command was quicker
    with store.temporary_folder() as folder:
        indexes = {
            name: tuple(_put_index(folder, base, part, name, variant, number) for variant in range(_variants(base)))
            for name in dict.fromkeys((*base.manifest.splits, *part.manifest.splits))
        }
    manifest = join_manifests(base.manifest, part.manifest, about, indexes)
    return put_version(base, manifest)


def put_version(base: Dataset, manifest: Manifest) -> Dataset:
    """Put a manifest in the place of its base's, which is kept beside it. Raises as `publish` does."""
    store = base.store
    standing = store.stat(MANIFEST)
    try:
        data = store.read(MANIFEST, "" if standing is None else standing.version)
        if standing is None or decode_manifest(data, f"{store.url}/{MANIFEST}") != base.manifest:
            raise ObjectChangedError(MANIFEST)
        _put_same(store, version_name(base.number), data)
        store.put(MANIFEST, encode_manifest(manifest), standing)
    except (ObjectChangedError, ObjectExistsError) as error:
        present = find_dataset(store)
        if present is not None and present.manifest.run_id == manifest.run_id:
            return present
        raise BuildError(
            f"{mask_secrets(store.url)} is another version by now than the one that this build has begun with; nothing "
            "of it was published. Run the same command again: it goes on from the version that stands"
        ) from error
    return find_dataset(store) or base


def _put_index(folder: Path, base: Dataset, part: Dataset, split: str, variant: int, number: int) -> IndexFile:
    """Put the index of a split over the shards of both, and return what the manifest says of it."""
    sources = [(each, each.manifest.splits[split]) for each in (base, part) if split in each.manifest.splits]
    path, crc, count = folder / f"{split}-{variant}", 0, 0
    sizes = [sum(shard.records + 1 for shard in each.variants[variant].shards) for _, each in sources]
    count = sum(sizes)
    with path.open("w+b") as file:
        np.lib.format.write_array_header_1_0(file, {"shape": (count,), "fortran_order": False, "descr": "<u8"})
        assert file.tell() == NPY_HEADER_BYTES, "there is room for any count"
        for (dataset, each), size in zip(sources, sizes, strict=True):
            index = each.variants[variant].index
            with open_object(dataset.store, index.name) as stored:
                stored.seek(index.bytes - size * ITEM_BYTES)
                while block := stored.read(_BLOCK_BYTES):
                    file.write(block)
        file.seek(0)
        while block := file.read(_BLOCK_BYTES):
            crc = crc32c(block, crc)
        size_bytes = file.tell()
    if size_bytes != NPY_HEADER_BYTES + count * ITEM_BYTES:
        raise BuildError(f"{base.url}: an index has changed while it was read. Run: tpufeed verify {base.url}")
    name = version_index_name(split, None if _variants(base) == 1 and base.manifest.cache is None else variant, number)
    found = base.store.stat(name)
    if found is None or found.size_bytes != size_bytes or found.crc32c != crc:
        try:
            base.store.put_file(name, path, found)
        except ObjectExistsError:  # of another run of the same command
            _logger.info("%s was put by another run", name)
    return IndexFile(name, size_bytes, crc)


def _put_same(store: Store, name: str, data: bytes) -> None:
    """Put an object; what stands there under its name is the same, or replaced."""
    found = store.stat(name)
    if found is not None and found.size_bytes == len(data) and store.read(name) == data:
        return
    store.put(name, data, found)


def _variants(dataset: Dataset) -> int:
    return len(next(iter(dataset.manifest.splits.values())).variants)


def _below(folder: str, shard: Shard) -> Shard:
    return msgspec.structs.replace(shard, name=f"{folder}/{shard.name}")


def _added(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(first) + Counter(second)).items()))


def _joined_markers(base: Manifest, part: Manifest) -> Any:
    if isinstance(base.markers, Markers) and isinstance(part.markers, Markers):
        return Markers(
            base.markers.rewritten + part.markers.rewritten,
            base.markers.added_bytes + part.markers.added_bytes,
            _added(base.markers.unmarked, part.markers.unmarked),
        )
    return part.markers if isinstance(part.markers, Markers) else base.markers
