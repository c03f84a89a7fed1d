"""Growing datasets: a version is the version before plus a part, which is built below it like a new dataset.

The part's build ends with its own manifest. Then it is published: the present manifest is kept as
`_tpufeed/versions/N.json`, an index over all shards of each split is put under a new name, and manifest.json is
replaced in one step, if it is still the one that the part was built for. Nothing else is moved or rewritten.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c

from tpufeed.builds.destination import Destination, Owner
from tpufeed.dataset.index import ITEM, ITEM_BYTES, Offsets
from tpufeed.dataset.manifest import (
    IndexFile,
    Manifest,
    Markers,
    Part,
    Shard,
    Sizes,
    Split,
    Variant,
    decode_manifest,
    encode_manifest,
    join_levels,
)
from tpufeed.dataset.naming import MANIFEST, index_name, version_name
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.dataset.schema import LABEL, TEXT, FeatureSpec, flip_problem
from tpufeed.dataset.writer import IndexWriter
from tpufeed.errors import (
    BuildError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    ShardError,
    advised,
    mask_secrets,
)
from tpufeed.storage.reading import READS, read_certain
from tpufeed.storage.store import Store

COMPACT = "compact"  # the kind of a part whose shards replace others, and hold their records
PART_OPTIONS = frozenset({"append_to", "base_digest"})  # name the version that a part's plan follows


@dataclass(frozen=True, slots=True)
class Piece:
    """Shards `[start, stop)` of a split in the part, or in the version that it follows."""

    of_part: bool
    start: int
    stop: int


Layout = Mapping[str, Sequence[Piece]]


def append_layout(base: Manifest, part: Manifest) -> Layout:
    """Return the shards of each split of a new version: the base's, then the part's."""
    layout = dict[str, list[Piece]]()
    for name in dict.fromkeys((*base.splits, *part.splits)):
        layout[name] = [
            Piece(bool(of_part), 0, len(manifest.splits[name].variants[0].shards))
            for of_part, manifest in enumerate((base, part))
            if name in manifest.splits
        ]
    return layout


def join_features(base: tuple[FeatureSpec, ...], part: tuple[FeatureSpec, ...]) -> tuple[FeatureSpec, ...]:
    """Return the features of a dataset with the records of a base and a part.

    The type of an item never changes. The number of items may only become more general: one value in each sample, lists
    of one length, lists of several lengths.

    Raises:
        OptionError: a column is missing in one of them, or has another type. It names both sides.
    """
    there, here = {spec.name: spec for spec in base}, {spec.name: spec for spec in part}
    for spec in base:
        if spec.keys != here.get(spec.name, spec).keys:
            raise OptionError(
                f"the column {spec.name!r} has the key {spec.key!r} in the records of the dataset, and "
                f"{here[spec.name].key!r} in new ones. Nothing was changed. Give the dataset's value of the option "
                "names (tpufeed append takes it by itself)"
            )
    for name in (*there, *here):
        if name in there and name not in here and _is_optional(there[name]):
            continue
        if name not in there or name not in here:
            has, lacks = ("the dataset has", "the new images do not")
            if name in here:
                has, lacks = ("the new images have", "the dataset does not")
            raise OptionError(
                f"{has} the column {name!r}, {lacks}. Nothing was changed. Append images with the same columns, or "
                "shard them as a separate dataset and mix both with tpufeed.Mixture"
            )
    return tuple(_join_feature(spec, here[spec.name]) if spec.name in here else spec for spec in base)


def _join_feature(base: FeatureSpec, part: FeatureSpec) -> FeatureSpec:
    if msgspec.structs.replace(base, lengths=part.lengths) == part and base.shape is not None:
        return base
    (low, high, each), (own_low, own_high, own_each) = _as_list(base), _as_list(part)
    typed, other = (base, part) if high else (part, base)
    if not (high and own_high) and not other.is_raw and (base.kind, base.of) == (part.kind, part.of):
        # The records of the other side have no item, so they have no type.
        most, each = max((high, each), (own_high, own_each))
        return msgspec.structs.replace(typed, shape=None, lengths=(0, most), item_shape=each or msgspec.UNSET)
    alike = (base.dtype, base.kind, base.of, each) == (part.dtype, part.kind, part.of, own_each)
    alike = alike and (base.flip_pairs, base.pixels) == (part.flip_pairs, part.pixels)
    joined = msgspec.structs.replace(
        base, shape=None, lengths=(min(low, own_low), max(high, own_high)), item_shape=each or msgspec.UNSET
    )
    # A label with one value has a fixed place, and single small numbers are stored differently from lists.
    alike = alike and (base.shape == part.shape or base.name != LABEL)
    if not alike or not base.stored_kind == part.stored_kind == joined.stored_kind:
        raise OptionError(
            f"the column {base.name!r} is {base.type_text} in the dataset and {part.type_text} in the new images. "
            "Nothing was changed. Give the new images that type"
        )
    if flip_problem(joined):
        raise OptionError(
            f"the column {base.name!r} is {base.type_text} in the dataset and {part.type_text} in the new images: "
            f"{flip_problem(joined)}. Nothing was changed"
        )
    return joined


def _is_optional(spec: FeatureSpec) -> bool:
    """Return true for a column that all samples of a part may lack."""
    return (
        spec.shape is None and not _as_list(spec)[0] and not (spec.kind or spec.of) and spec.name not in (LABEL, TEXT)
    )


def _as_list(spec: FeatureSpec) -> tuple[int, int, tuple[int, ...]]:
    """Return the least and the largest number of items of a feature, and the shape of one."""
    if spec.shape is not None:
        count = spec.shape[0] if spec.shape else 1
        return count, count, spec.shape[1:]
    low, high = spec.lengths if isinstance(spec.lengths, tuple) else (0, 1)
    return low, high, spec.each


def join_manifests(
    base: Manifest,
    part: Manifest,
    about: Part,
    indexes: Mapping[str, tuple[IndexFile, ...]],
    layout: Layout,
) -> Manifest:
    """Return the manifest of a version: the manifest of the version before, joined with that of a part.

    Args:
        base: the version before.
        part: the manifest of the part, whose class names begin with those of the base. For a cache, it and its options
            name the version of the dataset that the cache covers.
        about: description of the part. Its folder holds the shards.
        indexes: for each split the index of each variant, over all shards.
        layout: the shards of each split.
    """
    splits = dict[str, Split]()
    for name, pieces in layout.items():
        sides = [manifest.splits.get(name) for manifest in (base, part)]
        variants = []
        for number, index in enumerate(indexes[name]):
            shards = [shard for piece in pieces for shard in _shards_of(piece, sides, number, about.folder)]
            variants.append(Variant(tuple(shards), index))
        counts = np.zeros(len(part.class_names), np.int64)
        for split in sides[:1] if about.kind == COMPACT else sides:
            if split is not None:
                counts[: len(split.class_counts)] += np.asarray(split.class_counts, np.int64)
        splits[name] = Split(
            sum(shard.records for shard in variants[0].shards), tuple(counts.tolist()), tuple(variants)
        )
    joined = msgspec.structs.replace(
        base,
        run_id=part.run_id,
        tool_version=part.tool_version,
        splits=splits,
        version=base.number + 1,
        parts=(*base.history, msgspec.structs.replace(about, follows=base.content_digest)),
    )
    if about.kind == COMPACT:  # everything else stays
        return joined
    markers = part.markers if isinstance(part.markers, Markers) else base.markers
    if isinstance(base.markers, Markers) and isinstance(part.markers, Markers):
        markers = base.markers + part.markers
    sizes: Sizes | msgspec.UnsetType = msgspec.UNSET
    if isinstance(base.sizes, Sizes) and isinstance(part.sizes, Sizes):
        before, added = (sum(each.records.values()) for each in (base, part))
        sizes = base.sizes.joined(part.sizes, before >= added)
    digest = hashlib.blake2b(f"{base.input_digest}\n{part.input_digest}".encode(), digest_size=16).hexdigest()
    options = {name: value for name, value in part.options.items() if name not in PART_OPTIONS}
    return msgspec.structs.replace(
        joined,
        class_names=part.class_names,
        features=join_features(base.features, part.features),
        options=base.options if part.cache is None else options,
        input_digest=digest if part.cache is None else part.input_digest,
        rejects=_added(base.rejects, part.rejects),
        images=_added(base.images, part.images),
        odd=_added(base.odd, part.odd),
        cache=part.cache,
        markers=markers,
        sizes=sizes,
        levels=join_levels(base.levels, part.levels),
    )


def check_class_names(base: Dataset, names: Sequence[str]) -> None:
    """Check that class names of a new version begin with those of its base: existing labels are indexes into them.

    Raises:
        BuildError: they do not, by a fault of tpufeed, or by a plan of an older tpufeed.
    """
    known = base.manifest.class_names
    if tuple(names[: len(known)]) == known:
        return
    place = next(
        (place for place, pair in enumerate(zip(known, names, strict=False)) if pair[0] != pair[1]), len(names)
    )
    becomes = f"would be {names[place]!r}" if place < len(names) else "would have no name"
    raise BuildError(
        f"{base.url}: class {place} of version {base.number} is {known[place]!r}, and in version {base.number + 1} it "
        f"{becomes}, so existing labels would mean other classes. Nothing was published. Run the same command again "
        "with --overwrite, which makes a new plan. If this does not help, please report it as a fault of tpufeed"
    )


def follows(base: Dataset) -> dict[str, Any]:
    """Return the options that name, in the plan of a part, the version that it follows."""
    return {"append_to": base.number, "base_digest": base.content_digest}


def check_base(base: Dataset) -> None:
    """Check the indexes of a version, before a part is built for it. Raises ShardError if one is not the manifest's."""
    for split in base.manifest.splits.values():
        for variant in split.variants:
            index = variant.index
            if not Destination(base.store).is_stored(index.name, index.bytes, index.crc32c):
                raise ShardError(
                    f"{base.url}/{index.name} does not match the manifest: {index.bytes} bytes of CRC-32C "
                    f"{index.crc32c:08x}. Nothing was changed. Run: {advised('verify', base.url)}"
                )


def publish(base: Dataset, part: Dataset, about: Part, layout: Layout | None = None) -> Dataset:
    """Publish a finished part as the next version of its dataset.

    A run that is killed here leaves the version before. The same command continues from here.

    Raises:
        BuildError: another build was faster, so the dataset is no longer the version that the part was built for.
        BuildError: the part belongs to another run now, a file is gone, or existing classes would get other names.
        ShardError: an index does not match the manifest.
        StoreError: the files cannot be written.
    """
    store, number, run_id = base.store, base.number + 1, part.manifest.run_id
    present = find_published(store, run_id)
    if present is not None:  # another run of the same command was faster
        return present
    check_class_names(base, part.manifest.class_names)
    built = Destination(part.store, Owner(run_id, ""))
    built.check_owner()
    pieces = append_layout(base.manifest, part.manifest) if layout is None else layout
    count = len(next(iter(base.manifest.splits.values())).variants)
    with store.temporary_folder() as folder:
        indexes = {
            name: tuple(_put_index(folder, (base, part), name, variant, pieces[name]) for variant in range(count))
            for name in pieces
        }
    manifest = join_manifests(base.manifest, part.manifest, about, indexes, pieces)
    # One listing of the whole dataset, so that a version with missing files is never published.
    for lost in Destination(store).iter_lost(manifest):
        raise BuildError(
            f"{store.url}/{lost} is missing or damaged. Version {number} was not published, and version {base.number} "
            f"stays as it was. Run: {advised('verify', store.url)}"
        )
    return put_version(base, manifest, built.check_owner)


def find_published(store: Store, run_id: str) -> Dataset | None:
    """Return the dataset at `store` if the run `run_id` has built one of its parts."""
    present = find_dataset(store)
    is_there = present is not None and any(part.run_id == run_id for part in present.manifest.history[1:])
    return present if is_there else None


def put_version(base: Dataset, manifest: Manifest, check: Callable[[], None] = lambda: None) -> Dataset:
    """Replace the manifest of the base, which is kept beside the new one. Raises as `publish` does.

    `check` raises BuildError if another run with --overwrite has discarded the part, which may happen at any moment.
    """
    store = base.store
    standing = store.stat(MANIFEST)
    try:
        data = read_certain(store, MANIFEST, "" if standing is None else standing.version)
        if standing is None or decode_manifest(data, f"{store.url}/{MANIFEST}") != base.manifest:
            raise ObjectChangedError(MANIFEST)
        Destination(store).put(version_name(base.number), data)
        check()
        stored = store.put(MANIFEST, encode_manifest(manifest), standing)
    except (ObjectChangedError, ObjectExistsError) as error:
        present = find_published(store, manifest.run_id)
        if present is not None:
            return present
        raise BuildError(
            f"{mask_secrets(store.url)} has another version now than when this build began. Nothing was published. Run "
            "the same command again: it continues from the present version"
        ) from error
    try:
        check()
    except BuildError:  # discarded at this moment: its shards are about to be removed
        with suppress(ObjectExistsError):
            store.put(MANIFEST, data, stored)
        raise
    return find_dataset(store) or base


def _put_index(
    folder: Path, sides: tuple[Dataset, Dataset], split: str, variant: int, pieces: Sequence[Piece]
) -> IndexFile:
    """Put the index of a split over the shards of its pieces, and return its entry for the manifest."""
    base, path = sides[0], folder / f"{split}-{variant}"
    indexes = {side: _read_index(sides[side], split, variant) for side in {piece.of_part for piece in pieces}}
    writer = IndexWriter(path)
    for piece in pieces:
        offsets, starts = indexes[piece.of_part]
        writer.add(offsets[starts[piece.start] : starts[piece.stop]])
    size, crc = writer.finish()
    name = index_name(split, None if base.manifest.cache is None else variant, base.number + 1)
    Destination(base.store).put(name, path, size, crc)
    return IndexFile(name, size, crc)


def read_offsets(dataset: Dataset, split: str, variant: int) -> list[Offsets]:
    """Return the offsets of each shard from the index. Raises ShardError if it does not match the manifest."""
    offsets, starts = _read_index(dataset, split, variant)
    return [offsets[start:stop] for start, stop in itertools.pairwise(starts)]


def _read_index(dataset: Dataset, split: str, variant: int) -> tuple[Offsets, Sequence[int]]:
    """Return the offsets of all shards, and where those of each shard start. Raises as `read_offsets` does.

    What the store says of the object would not do: these bytes are published under a new CRC.
    """
    entry, store = dataset.manifest.splits[split].variants[variant], dataset.store
    index, starts, found = entry.index, entry.index_starts, ""
    header_bytes = index.bytes - starts[-1] * ITEM_BYTES
    for _ in range(READS):  # bytes may be damaged on the way
        try:
            data = store.read_range(index.name, 0, index.bytes)
        except ObjectNotFoundError:
            found = "it is missing"
            break
        if (crc := crc32c(data)) == index.crc32c and header_bytes > 0:
            return np.frombuffer(data, ITEM, starts[-1], header_bytes), starts
        found = f"{len(data)} bytes with CRC-32C {crc:08x}"
    raise ShardError(
        f"{store.url}/{index.name} is not the manifest's index of {index.bytes} bytes with CRC-32C "
        f"{index.crc32c:08x}: {found}. Nothing was published. Run: {advised('verify', store.url)}"
    )


def _shards_of(piece: Piece, sides: Sequence[Split | None], variant: int, folder: str) -> list[Shard]:
    side = sides[piece.of_part]
    assert side is not None, "the side of a piece has its split"
    shards = side.variants[variant].shards[piece.start : piece.stop]
    if not piece.of_part:
        return list(shards)
    return [msgspec.structs.replace(shard, name=f"{folder}/{shard.name}") for shard in shards]


def _added(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(first) + Counter(second)).items()))
