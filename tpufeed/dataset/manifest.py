"""The manifest describes a dataset. It is put last: a dataset exists if and only if its manifest does."""

import hashlib
import itertools
import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias, overload

import msgspec

from tpufeed.dataset.listed import UNLISTED, Listed
from tpufeed.dataset.schema import LABEL, FeatureSpec, flip_problem, several_labels
from tpufeed.display.summary import Summary
from tpufeed.errors import ManifestError, ManifestVersionError
from tpufeed.images.pixel_format import PIXEL_TYPES, RGB8, PixelFormat
from tpufeed.tfrecord.framing import OVERHEAD_BYTES

FORMAT = "tpufeed-dataset"
FORMAT_VERSION = 1
_SMALL_BYTES, GOOD_BYTES, _LARGE_BYTES = 10 * 10**6, 128 * 10**6, 10**9  # of a shard
_IMAGE_BYTES = 1 << 31  # protobuf holds no message of 2 GiB
_FILE_BYTES = 1 << 53  # files end there, and so do whole numbers of JSON in most other programs


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One TFRecord file. `generation` is the object's, if the store has generations."""

    name: str
    bytes: int
    crc32c: int
    records: int
    generation: str | None = None


# Made once, during the import. msgspec completes a type's information while other threads may already read it, and a
# thread that decodes the type for the first time then ends the process by SIGSEGV: docs/decisions/2026-11-26-format.md.
# So no module of tpufeed decodes by `type=`.
_SHARD = msgspec.msgpack.Decoder(Shard)


class IndexFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of record offsets, see `dataset.index`."""

    name: str
    bytes: int
    crc32c: int


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """One set of shards. Sample i is record i in every variant of a split."""

    shards: tuple[Shard, ...]
    index: IndexFile

    @property
    def files(self) -> tuple[Shard | IndexFile, ...]:
        """All objects of the variant."""
        return (*self.shards, self.index)

    @cached_property
    def index_starts(self) -> "array[int]":
        """Place of each shard's first offset in the index, counted in offsets, and the end of the last shard's."""
        return array("Q", itertools.accumulate((shard.records + 1 for shard in self.shards), initial=0))

    @cached_property
    def fewest_record_bytes(self) -> float:
        """Average bytes per record in the shard with the smallest records, infinite without records."""
        return min((shard.bytes / shard.records for shard in self.shards if shard.records), default=math.inf)


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the dataset: one variant, or K in a cache.

    Attributes:
        records: number of samples, the same in each variant.
        class_counts: number of samples of each class. Samples of several classes count in each.
        variants: the sets of shards.
    """

    records: int
    class_counts: tuple[int, ...]
    variants: tuple[Variant, ...]

    @property
    def total_bytes(self) -> int:
        """Size of the shards of all variants."""
        return sum(shard.bytes for variant in self.variants for shard in variant.shards)


class CacheInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Origin of a cache: the dataset that it was made from and the ops that made it. Loaders apply the `live` ops.

    `quality` is that of DCT images, and not there for others.
    """

    source_digest: str
    ops: tuple[dict[str, Any], ...]
    live: tuple[dict[str, Any], ...]
    encode: str
    shape: tuple[int, ...]
    dtype: str
    variants: int
    seed: int
    fingerprint: str
    quality: int | msgspec.UnsetType = msgspec.UNSET


class Markers(msgspec.Struct, frozen=True):
    """Kept JPEGs and their restart markers, or with encode="dct" those that became DCT images.

    Attributes:
        rewritten: JPEGs that were given markers, or packed, without loss.
        added_bytes: bytes that this takes.
        unmarked: kept JPEGs without it, counted by reason.
    """

    rewritten: int = 0
    added_bytes: int = 0
    unmarked: dict[str, int] = {}

    def __add__(self, other: "Markers") -> "Markers":
        """Return the sums of two tasks, or of two parts of a dataset, with sorted reasons."""
        unmarked = dict(sorted((Counter(self.unmarked) + Counter(other.unmarked)).items()))
        return Markers(self.rewritten + other.rewritten, self.added_bytes + other.added_bytes, unmarked)


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of the images as ops see them: (height, width), each side separately.

    Attributes:
        least: the least height and the least width.
        median: the median of each. In a dataset that has grown, that of its larger part.
        most: the greatest height and the greatest width.
    """

    least: tuple[int, int]
    median: tuple[int, int]
    most: tuple[int, int]

    @classmethod
    def of(cls, heights: Mapping[int, int], widths: Mapping[int, int]) -> "Sizes":
        """Return the sizes of at least one image: how many have each height, and each width."""
        found = []
        for counts in (heights, widths):
            sides, total = sorted(counts), sum(counts.values())
            before = list(itertools.accumulate(counts[side] for side in sides))
            found.append((sides[0], sides[bisect_right(before, (total - 1) // 2)], sides[-1]))
        return cls(*zip(*found, strict=True))

    @classmethod
    def of_all(cls, heights: Counter[int], widths: Counter[int], records: int) -> "Sizes | msgspec.UnsetType":
        """Return the sizes, or UNSET without records or if the sizes of some records are unknown."""
        is_known = records > 0 and heights.total() == widths.total() == records
        return cls.of(heights, widths) if is_known else msgspec.UNSET

    def joined(self, other: "Sizes", is_larger: bool) -> "Sizes":
        """Return the sizes of two parts of a dataset. `is_larger` is True if this one has more images."""
        least = min(self.least[0], other.least[0]), min(self.least[1], other.least[1])
        most = max(self.most[0], other.most[0]), max(self.most[1], other.most[1])
        return Sizes(least, self.median if is_larger else other.median, most)

    def __str__(self) -> str:
        if self.least == self.most:
            return f"all {_format_size(self.least)}"
        least, median, most = map(_format_size, (self.least, self.median, self.most))
        return f"least {least}, median {median}, most {most} (width and height each)"


def _format_size(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"


Levels: TypeAlias = tuple[float, float] | msgspec.UnsetType  # least and greatest value


def join_levels(one: Levels, other: Levels) -> Levels:
    """Return the least and the greatest value of both."""
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One version of a dataset that has grown: what it has added to the version before.

    Attributes:
        folder: folder of the shards, plan and reports of this version, below the dataset, empty for the first version.
        kind: "shard", "append", "warmup" or "compact".
        source: URL of its images.
        run_id: id of its build.
        input_digest: digest of its inputs.
        records: number of samples that it has added, by split.
        skipped: number of its inputs that were in the dataset already.
        different: options that change bytes and differ from those of the first version.
        follows: content digest of the version before, empty for the first version.
        listed: what its source was taken for. The first version's is in the manifest itself.
    """

    folder: str
    kind: str
    source: str
    run_id: str
    input_digest: str
    records: dict[str, int]
    skipped: int = 0
    different: dict[str, Any] = {}
    follows: str = ""
    listed: Listed = UNLISTED


class Manifest(Summary, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of manifest.json.

    Attributes:
        format: the name of the format.
        format_version: version of the format. Other versions are not read.
        run_id: id of the build, different each time.
        tool_version: version of the tpufeed that built it.
        splits: splits by name.
        class_names: names of the classes. A label is an index into them.
        features: name, dtype and shape of each feature of a record.
        options: options of the build that change bytes.
        input_digest: digest of the inputs. For a cache, of the dataset that it was made from.
        rejects: inputs not taken, counted by reason.
        images: inputs taken, counted by how they were stored.
        odd: odd cases that a policy dealt with, counted.
        markers: restart markers of kept JPEGs. Only in manifests of builds that write them.
        sizes: sizes of the images. Caches, whose shape says it, do not have it, nor datasets of which not all sizes are
            known.
        levels: the least and the greatest value of the images, if they are not `RGB8`. Those of a cache are its
            source's.
        listed: what the source was taken for: kind, labels, splits, columns and the like. Of a dataset that was made of
            another one it only has warnings.
        version: number of the version. Only of a dataset that has grown.
        parts: all versions up to this one. Only of a dataset that has grown.
        data_url: URL of the shards, if they are not beside the manifest.
        cache: origin of a cache, or None for other datasets.
        exif: "apply" if loaders turn images by their EXIF orientation, as chosen by `adopt`. Other manifests do not
            have it: images that `shard` stores are upright.
    """

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    run_id: str
    tool_version: str
    splits: dict[str, Split]
    class_names: tuple[str, ...]
    features: tuple[FeatureSpec, ...]
    options: dict[str, Any]
    input_digest: str
    rejects: dict[str, int]
    images: dict[str, int]
    odd: dict[str, int]
    data_url: str | None = None
    cache: CacheInfo | None = None
    exif: Literal["apply"] | msgspec.UnsetType = msgspec.UNSET
    markers: Markers | msgspec.UnsetType = msgspec.UNSET
    sizes: Sizes | msgspec.UnsetType = msgspec.UNSET
    levels: Levels = msgspec.UNSET
    listed: Listed = UNLISTED
    version: int | msgspec.UnsetType = msgspec.UNSET
    parts: tuple[Part, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def number(self) -> int:
        """Number of the version, or 1 for a dataset that has not grown."""
        return 1 if isinstance(self.version, msgspec.UnsetType) else self.version

    @property
    def history(self) -> tuple[Part, ...]:
        """All versions up to this one, with the additions of each."""
        if not isinstance(self.parts, msgspec.UnsetType):
            return self.parts
        first = Part(
            folder="",
            kind=str(self.options.get("command", "")),
            source=str(self.options.get("source", "")),
            run_id=self.run_id,
            input_digest=self.input_digest,
            records=self.records,
        )
        return (first,)

    @property
    def past_digests(self) -> tuple[str, ...]:
        """Content digests of all versions before this one, oldest first, including pruned ones."""
        return tuple(part.follows for part in self.history if part.follows)

    def records_of(self, content_digest: str) -> dict[str, int] | None:
        """Return the samples of each split in the earlier version with this content, or None without such a version."""
        records = Counter[str]()
        for part in self.history:
            if part.follows and part.follows == content_digest:
                return dict(records)
            records.update(part.records)
        return None

    @property
    def content_digest(self) -> str:
        """Digest of the dataset's shards, counts, schema and classes, and of whether loaders turn its images.

        It does not depend on who built the dataset, when, or with which version of tpufeed.
        """
        content = [
            [
                (name, [[(s.crc32c, s.bytes, s.records) for s in v.shards] for v in split.variants], split.class_counts)
                for name, split in self.splits.items()
            ],
            # `lengths` follow from the records.
            [msgspec.structs.replace(feature, lengths=msgspec.UNSET) for feature in self.features],
            self.class_names,
            *(["upright"] if self.upright else []),
        ]
        return hashlib.blake2b(msgspec.json.encode(content), digest_size=16).hexdigest()

    def draws_seed(self, seed: int) -> int:
        """Return the seed for random ops on these samples, given the user's `seed`.

        For a cache it is another one: ops with the seed of the cache's own ops would draw the same numbers again, and
        undo in epoch e each flip in variant e.
        """
        if self.cache is None:
            return seed
        salt = hashlib.blake2b(self.cache.fingerprint.encode(), digest_size=8).digest()
        return seed ^ int.from_bytes(salt, "little")

    @property
    def pixels(self) -> PixelFormat:
        """The pixel format of the images, as loaders give them."""
        return self.features[0].pixels or RGB8

    @property
    def tensor_shape(self) -> tuple[int, ...] | None:
        """(height, width, channels) of a raw cache's images, after the frames of clips, or None if encoded."""
        image = self.features[0]
        return image.shape if image.dtype in PIXEL_TYPES else None

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(height, width) of all images, or None if they differ or are not known."""
        if self.cache is not None:
            return self.cache.shape[-3], self.cache.shape[-2]
        return self.sizes.least if isinstance(self.sizes, Sizes) and self.sizes.least == self.sizes.most else None

    @property
    def is_coded(self) -> bool:
        """True for a cache of DCT images. Colours of these are interpolated, as a device does, not repeated."""
        return self.cache is not None and self.cache.encode == "dct"

    @property
    def upright(self) -> bool:
        """True if loaders turn images by their EXIF orientation."""
        return self.exif == "apply"

    @property
    def labelled(self) -> bool:
        """True if samples have a label."""
        return any(feature.name == LABEL for feature in self.features)

    @property
    def has_unlabelled(self) -> bool:
        """True if some samples have no class. Their label is -1."""
        is_counted = self.labelled and bool(self.class_names) and not several_labels(self.features)
        return is_counted and any(sum(each.class_counts) < each.records for each in self.splits.values())

    @property
    def has_label(self) -> bool:
        """True if loaders give a label by default: a class, or a number."""
        return self.labelled or any((each.name, each.dtype) == ("label", "float32") for each in self.features)

    @property
    def records(self) -> dict[str, int]:
        """Samples by split."""
        return {name: split.records for name, split in self.splits.items()}

    def _facts(self) -> dict[str, Any]:
        return {
            "made_by": self.options.get("command"),
            "source": self.options.get("source"),
            "splits": self.records,
            "classes": len(self.class_names) or None,
            "version": self.number if self.number > 1 else None,
        }

    def _details(self) -> dict[str, Any]:
        sizes = {
            name: f"{split.records:,} samples, {split.total_bytes / 1e6:,.1f} MB" for name, split in self.splits.items()
        }
        columns = {feature.name: feature.type_text for feature in self.features}
        stored = {"stored": self.images, "odd_images": self.odd, "rejects": self.rejects}
        return {"splits": sizes, "classes": self.class_names, "features": columns, **stored}


_MANIFEST = msgspec.json.Decoder(Manifest)


class _Version(msgspec.Struct):
    format: str = ""
    format_version: int = 0


_VERSION = msgspec.json.Decoder(_Version)


class _PackedShards(Sequence[Shard]):
    """Shards as bytes, each decoded when it is needed.

    Forks of a process keep sharing bytes. They share an object only until one of them uses it, as it contains its count
    of references.
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        encoded = list(map(msgspec.msgpack.Encoder().encode, shards))
        self._bytes = b"".join(encoded)
        self._starts = array("Q", itertools.accumulate(map(len, encoded), initial=0))

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, place: int) -> Shard: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Shard]: ...
    def __getitem__(self, place: int | slice) -> Shard | Sequence[Shard]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        return _SHARD.decode(self._bytes[self._starts[place] : self._starts[place + 1]])


def pack_manifest(manifest: Manifest) -> Manifest:
    """Return an equal manifest whose memory forks of this process share, however many shards it has."""
    splits = {}
    for name, split in manifest.splits.items():
        variants = list[Variant]()
        for variant in split.variants:
            variants.append(msgspec.structs.replace(variant, shards=_PackedShards(variant.shards)))
            computed = {"index_starts": variant.index_starts, "fewest_record_bytes": variant.fewest_record_bytes}
            vars(variants[-1]).update(computed)
        splits[name] = msgspec.structs.replace(split, variants=tuple(variants))
    return msgspec.structs.replace(manifest, splits=splits)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest that `data` holds, validated. `where` names it in errors.

    Raises:
        ManifestVersionError: this tpufeed does not read its format version.
        ManifestError: `data` is no manifest, or the manifest contradicts itself.
    """
    try:
        version = _VERSION.decode(data)
        if version.format != FORMAT:
            raise ManifestError(f"{where}: not a tpufeed manifest (format is {version.format!r}, not {FORMAT!r})")
        if version.format_version != FORMAT_VERSION:
            raise ManifestVersionError(
                f"{where}: format version {version.format_version}, but this tpufeed reads version {FORMAT_VERSION}. "
                "Install the tpufeed that wrote it (tool_version in the file), or build the dataset again"
            )
        manifest = _MANIFEST.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{where}: not a readable manifest: {error}. Build the dataset again") from error
    problems = (_iter_feature_problems(manifest), _iter_split_problems(manifest), _iter_version_problems(manifest))
    for problem in itertools.chain(*problems):  # only the first: code that finds the others relies on it
        raise ManifestError(f"{where}: {problem}. The file was edited or damaged. Build the dataset again")
    return manifest


def iter_warnings(split: str, shards: int, size_bytes: float, hosts: int) -> Iterator[str]:
    """Yield warnings about the number and size of a split's shards, which hold `size_bytes` together."""
    if not shards:
        yield f"split {split} is empty: it gets no input"
        return
    if shards < hosts:
        yield f"split {split} has fewer shards ({shards}) than hosts ({hosts}): some hosts read nothing. Add images"
    mean, fewest = size_bytes / shards, hosts * max(1, round(size_bytes / GOOD_BYTES / hosts))
    if mean > _LARGE_BYTES:
        yield f"split {split} has shards of {mean / 1e9:.1f} GB. Smaller ones stream better: --shard-size 128MB"
    elif mean < _SMALL_BYTES and fewest < shards:
        yield (
            f"split {split} has {shards} shards of {mean / 1e6:.2f} MB, less than 10 MB. Fewer and larger ones are "
            "read faster: --shard-size 128MB"
        )


def _iter_feature_problems(manifest: Manifest) -> Iterator[str]:
    """Yield contradictions in the features and in the cache."""
    try:  # workers get it in MessagePack. The numbers in its splits are checked one by one
        msgspec.msgpack.encode(msgspec.structs.replace(manifest, splits={}))
    except OverflowError:
        yield "a number of more than 64 bits"
    if not manifest.features:
        yield "no features"
    image, cache = manifest.features[0], manifest.cache
    pixels = manifest.pixels
    if image.dtype in PIXEL_TYPES and (image.dtype != pixels.dtype or not _is_image(image.shape, pixels)):
        yield f"{image.name} of shape {image.shape} is not an image"
    for feature in manifest.features:
        least, most = feature.lengths if isinstance(feature.lengths, tuple) else (0, 1)
        sizes = (*((max(most, 1),) if feature.shape is None else feature.shape), *feature.each)
        can_be = feature.kind != "boxes" or (feature.dtype, feature.shape, feature.each) == ("float32", None, (4,))
        # Loaders allocate a batch of these.
        if not can_be or not 0 <= least <= most or min(sizes, default=1) < 1 or math.prod(sizes) >= _IMAGE_BYTES:
            yield f"{feature.name} cannot be {feature.type_text}"
        elif problem := flip_problem(feature):
            yield f"{feature.name}: {problem}"
    if cache is not None and not _is_image(cache.shape, pixels):
        yield f"a cache of shape {cache.shape} holds no images"
    frame = pixels.frame  # loaders decode one at a time
    if (size := manifest.image_size) is not None and cache is None and not _is_image(frame.shape(size), frame):
        yield f"its images cannot have {_format_size(size)} pixels"
    if cache is not None and not all(isinstance(op.get("op"), str) for op in (*cache.ops, *cache.live)):
        yield "an op of the cache has no name"


def _iter_split_problems(manifest: Manifest) -> Iterator[str]:
    """Yield contradictions in the splits and their files."""
    several, names = several_labels(manifest.features), list[str]()
    for name, split in manifest.splits.items():
        if not split.variants:
            yield f"split {name!r} has no shards"
        boundaries = [shard.records for shard in split.variants[0].shards]
        most = max(split.class_counts, default=0) if several else sum(split.class_counts)
        if min((*boundaries, *split.class_counts), default=0) < 0 or most > split.records:
            yield f"the counts of split {name!r} contradict each other"
        if sum(boundaries) != split.records:
            yield f"the shards of split {name!r} do not hold {split.records} records"
        for variant in split.variants:
            if [shard.records for shard in variant.shards] != boundaries:
                yield f"the variants of split {name!r} differ in their shards' records"
            for file in variant.files:
                is_name = file.name.isprintable() and not {"", ".", ".."}.intersection(file.name.split("/"))
                if not is_name or not 0 <= file.bytes <= _FILE_BYTES or not 0 <= file.crc32c < 1 << 32:
                    yield f"{file.name!r} with {file.bytes} bytes of CRC-32C {file.crc32c} cannot be a dataset's file"
                names.append(file.name)
            for shard in variant.shards:
                if shard.records * OVERHEAD_BYTES > shard.bytes:  # readers allocate memory by the count
                    yield f"{shard.name} with {shard.bytes} bytes cannot hold {shard.records} records"
    if len(set(names)) != len(names):
        yield "a file is named twice"


def _iter_version_problems(manifest: Manifest) -> Iterator[str]:
    """Yield contradictions in the versions, or in the place of the shards."""
    if manifest.data_url is not None and (not manifest.data_url or "\0" in manifest.data_url):
        yield f"its shards cannot be at {manifest.data_url!r}"
    version, parts = manifest.version, manifest.parts
    never_grew = version is parts is msgspec.UNSET
    if not never_grew and not (isinstance(parts, tuple) and version == len(parts) > 1):
        yield f"it has {len(manifest.history)} parts in version {manifest.number}"
    added = Counter[str]()
    for part in parts or ():
        added.update(part.records)
    if parts is not msgspec.UNSET and +added != +Counter(manifest.records):
        yield "its parts have not added the numbers of samples in its splits"


def _is_image(shape: tuple[int, ...] | None, pixels: PixelFormat) -> bool:
    """Return true if images can have this shape: loaders allocate a batch of them."""
    if shape is None or len(shape) < 3 or shape != pixels.shape((shape[-3], shape[-2])) or min(shape) < 1:
        return False
    return pixels.bytes_of(shape) < _IMAGE_BYTES
