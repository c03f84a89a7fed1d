"""`adopt`: foreign TFRecords become a dataset as they are; only an index and a manifest are written."""

import hashlib
import itertools
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from tpufeed import __version__
from tpufeed.dataset.adopt_keys import NONE, FirstRecord, KeyOptions, Keys, choose_keys, glimpse, make_features
from tpufeed.dataset.adopt_scan import ShardScan, Tally, Wanted, iter_records, make_walker, scan_shard
from tpufeed.dataset.classes import read_classes
from tpufeed.dataset.index import encode_index, is_index_of
from tpufeed.dataset.manifest import IndexFile, Manifest, Shard, Split, Variant, encode_manifest
from tpufeed.dataset.naming import MANIFEST, index_name
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.dataset.tfrecord_files import ForeignFiles, sort_files
from tpufeed.engines.engine import available_cores
from tpufeed.errors import (
    DatasetExistsError,
    ManifestError,
    NoInputsError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    mask_secrets,
)
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import ObjectInfo, Store
from tpufeed.tfrecord.crc32c import crc32c
from tpufeed.tfrecord.example import decode_example

_logger = logging.getLogger(__name__)

_PEEKED_BYTES = 256 << 10
_REMOTE_THREADS = 16  # they wait for the network
_MOST_CLASSES = 1_000_000  # a label beyond is an id of something else
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdoptProgress:
    """Progress of an adoption."""

    total_bytes: int
    bytes: int = 0
    images: int = 0


AdoptListener = Callable[[AdoptProgress], None]


@dataclass(frozen=True, slots=True)
class AdoptResult:
    """An adopted dataset.

    Attributes:
        url: of the manifest.
        manifest: what was found.
        seconds: that it took.
        ignored_files: below the source, that are no TFRecord files: how many, by their endings (`.txt`).
        left_out: keys of features that the schema has no place for: of varying kinds, or under a name of tpufeed's own.
    """

    url: str
    manifest: Manifest
    seconds: float
    ignored_files: dict[str, int]
    left_out: tuple[str, ...]


def adopt(  # noqa: PLR0913  # the public face: flat keywords, gathered into KeyOptions at once
    url: str | Path,
    dst: str | Path | None = None,
    *,
    image: str | None = None,
    label: str | None = None,
    text: str | None = None,
    filename: str | None = None,
    splits: Sequence[str] | None = None,
    classes: str | Path | Sequence[str] | None = None,
    exif: Literal["apply", "ignore"] = "ignore",
    listener: AdoptListener | None = None,
) -> AdoptResult:
    """Make a dataset of TFRecord files that another tool has written, without rewriting them.

    Every byte is read once and both CRCs of every record are verified; then an index and, last, the manifest are put.
    The same call again finds it by the names and sizes of the files, and does nothing.

    Args:
        url: a folder of uncompressed TFRecord files of tf.train.Example.
        dst: where manifest and index go, where that is not beside the files; the files then stay where they are.
        image: key of the encoded image. Without it, as with the next three, names and first records tell.
        label: key of the class, one int64; "none" leaves the samples unlabelled.
        text: key of the class's name; "none" for none.
        filename: key of the path, or of what else names a sample; "none" for none.
        splits: take only these, a list or "train,val"; folders or file names tell which there are.
        classes: names of the classes in the order of labels, or a file with a line for each. By default `text` tells
            them where it does so one to one, else they are called "0", "1" and so on.
        exif: "apply": loaders turn images by their EXIF orientation, as `shard` does, and caches hold them turned.
            "ignore": they come as they are stored. Such images are counted in `manifest.odd` either way.
        listener: called with an `AdoptProgress` after each file.

    Raises:
        NoInputsError, OptionError, DatasetExistsError: nothing was written.
        RecordError: a file is damaged, or a record has not what it should; names file, record and byte.
    """
    start = time.monotonic()
    if exif not in ("apply", "ignore"):
        raise OptionError(f"exif is 'apply' or 'ignore', not {exif!r}")
    options, names = KeyOptions(image, label, text, filename), None if classes is None else read_classes(classes)
    source = open_store(url)
    target = source if dst is None else open_store(dst)
    _check_places(source, target)
    wanted_splits = [split.strip() for split in splits.split(",")] if isinstance(splits, str) else splits
    files = sort_files(source.url, source.iter_objects(), wanted_splits)
    finished = _find_finished(source, target, files, options, names)
    if finished is not None:
        if finished.upright != (exif == "apply"):
            raise DatasetExistsError(
                f"{target.url} was adopted with --exif {'apply' if finished.upright else 'ignore'}; nothing was "
                f"changed. Give another destination (--to), or remove its {MANIFEST} first"
            )
        return AdoptResult(target.url, finished, 0.0, files.ignored, tuple(map(str, finished.options["left_out"])))
    _check_writable(source, target)
    _check_indexes(target, files)
    keys = _choose(source, files, options)
    if names is not None and keys.label is None:
        raise OptionError("--classes names the classes of labels, and there are none; say which key with --label")
    wanted = Wanted(keys.image, keys.label, _MOST_CLASSES if names is None else len(names), keys.class_texts)
    scans = _scan(source, files, wanted, listener or (lambda _: None))
    manifest, left_out = _make_manifest(source, target, keys, scans, names, _asked(options, names))
    if exif == "apply":
        manifest = msgspec.structs.replace(manifest, exif=exif)
    elif manifest.odd:
        _logger.warning(
            "%d images have an EXIF orientation, and loaders leave them as they are stored; with --exif apply they "
            "turn them, as tpufeed shard does",
            manifest.odd["exif"],
        )
    _put_manifest(target, manifest)
    return AdoptResult(target.url, manifest, time.monotonic() - start, files.ignored, left_out)


def _check_places(source: Store, target: Store) -> None:
    """Raises NoInputsError where the source is a file, OptionError where a manifest would show its secrets."""
    path = source.local_path(MANIFEST)
    if path is not None and path.parent.is_file():
        raise NoInputsError(f"{source.url} is a file; adopt takes the folder: tpufeed adopt {path.parent.parent}")
    if target.url != source.url and mask_secrets(source.url) != source.url:
        raise OptionError(
            f"{source.url} holds a password or token, which a manifest elsewhere (--to) would show to all who read it; "
            "give the credentials where the file system finds them, in its environment or configuration"
        )


def _check_writable(source: Store, target: Store) -> None:
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


def _check_indexes(target: Store, files: ForeignFiles) -> None:
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


def _find_finished(
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


def _asked(options: KeyOptions, names: Sequence[str] | None) -> dict[str, Any]:
    """Return the manifest's entry for the options that a dataset was adopted with."""
    return {**asdict(options), "classes": names is not None}


def _iter_differences(
    present: Dataset, source: Store, files: ForeignFiles, options: KeyOptions, names: Sequence[str] | None
) -> Iterator[str]:
    """Say what is not as it would be adopted now. What follows the first may not hold."""
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


def _choose(source: Store, files: ForeignFiles, options: KeyOptions) -> Keys:
    """Keys by the first record of each shard; says in seconds what a scan would say after an hour."""
    infos = [info for infos in files.splits.values() for info in infos]
    first = [record for record in _map_shards(source, partial(_read_first, source), infos) if record is not None]
    if not first:
        raise NoInputsError(f"the {len(infos)} TFRecord files below {source.url} hold no record")
    return choose_keys(options, first)


def _read_first(source: Store, info: ObjectInfo, stop: threading.Event) -> FirstRecord | None:
    for _, place, payload in iter_records(make_walker(source, info, _PEEKED_BYTES), stop):
        return FirstRecord(place, {key: glimpse(feature) for key, feature in decode_example(payload, place).items()})
    return None


def _scan(source: Store, files: ForeignFiles, wanted: Wanted, listener: AdoptListener) -> dict[str, list[ShardScan]]:
    scans: dict[str, list[ShardScan]] = {split: [] for split in files.splits}
    split_of = [(split, info) for split, infos in files.splits.items() for info in infos]
    progress = AdoptProgress(sum(info.size_bytes for _, info in split_of))
    listener(progress)
    found = _map_shards(source, partial(_scan_one, source, wanted), [info for _, info in split_of])
    for (split, info), scan in zip(split_of, found, strict=True):
        scans[split].append(scan)
        progress = replace(progress, bytes=progress.bytes + info.size_bytes, images=progress.images + scan.records)
        listener(progress)
    for split, found_in in scans.items():
        if not any(scan.records for scan in found_in):
            _logger.warning("split %s holds no record; loaders will refuse it", split)
    empty = [scan.info.name for scan in itertools.chain(*scans.values()) if not scan.records]
    if empty:
        _logger.warning("%d of %d TFRecord files hold no record, like %s", len(empty), len(split_of), empty[0])
    unknown = next((scan.first_unknown for scan in itertools.chain(*scans.values()) if scan.first_unknown), None)
    if unknown is not None:
        _logger.warning("%s and maybe others hold no image that tpufeed reads; loaders will stop there", unknown)
    return scans


def _scan_one(source: Store, wanted: Wanted, info: ObjectInfo, stop: threading.Event) -> ShardScan:
    return scan_shard(source, info, wanted, stop)


def _map_shards(
    source: Store, work: Callable[[ObjectInfo, threading.Event], T], infos: Sequence[ObjectInfo]
) -> Iterator[T]:
    """Results in order, worked out by threads; after the first error the others are stopped."""
    stop = threading.Event()
    threads = _REMOTE_THREADS if source.local_path(MANIFEST) is None else available_cores()
    with ThreadPoolExecutor(threads, "tpufeed-adopt") as executor:
        try:
            yield from executor.map(lambda info: work(info, stop), infos)
        except BaseException:
            stop.set()
            executor.shutdown(cancel_futures=True)
            raise


def _make_manifest(
    source: Store,
    target: Store,
    keys: Keys,
    scans: dict[str, list[ShardScan]],
    names: tuple[str, ...] | None,
    given: Mapping[str, Any],
) -> tuple[Manifest, tuple[str, ...]]:
    """The manifest, its indices put already, and the keys of features that it leaves out."""
    flat = list(itertools.chain(*scans.values()))
    features, left_out = make_features(keys, _merge_tallies(flat), sum(scan.records for scan in flat))
    class_names = _name_classes(keys, flat) if names is None else names
    turned = sum(scan.turned for scan in flat)
    manifest = Manifest(
        run_id=secrets.token_hex(8),
        tool_version=__version__,
        splits={split: _put_index(source, target, split, found, len(class_names)) for split, found in scans.items()},
        class_names=class_names,
        features=features,
        options={
            "command": "adopt",
            "source": mask_secrets(source.url),
            "asked": given,
            "keys": {"image": keys.image, "label": keys.label, "text": keys.text, "filename": keys.filename},
            "splits": list(scans),
            "left_out": left_out,
        },
        input_digest=_digest(flat),
        rejects={},
        images=dict(sorted(sum((scan.formats for scan in flat), Counter[str]()).items())),
        odd={"exif": turned} if turned else {},
        data_url=None if target.url == source.url else source.url,
    )
    return manifest, tuple(left_out)


def _merge_tallies(scans: Sequence[ShardScan]) -> dict[str, Tally]:
    merged: dict[str, Tally] = {}
    for scan in scans:
        for key, tally in scan.tallies.items():
            merged.setdefault(key, Tally()).merge(tally)
    return merged


def _name_classes(keys: Keys, scans: Sequence[ShardScan]) -> tuple[str, ...]:
    if keys.label is None:
        return ()
    count = max((label for scan in scans for label in scan.class_counts), default=-1) + 1
    for key in keys.class_texts:
        names: dict[int, str | None] = {}
        for label, text in itertools.chain.from_iterable(scan.texts[key].items() for scan in scans):
            names[label] = text if names.get(label, text) == text else None
        if names and None not in names.values() and len(set(names.values())) == len(names):
            return tuple(names.get(label) or str(label) for label in range(count))
    return tuple(map(str, range(count)))


def _put_index(source: Store, target: Store, split: str, scans: Sequence[ShardScan], classes: int) -> Split:
    name, data = index_name(split, None), encode_index([scan.offsets for scan in scans])
    _put_or_find(target, name, data)
    shards = tuple(
        Shard(
            scan.info.name,
            scan.info.size_bytes,
            scan.crc32c,
            scan.records,
            scan.info.version if source.generations else None,
        )
        for scan in scans
    )
    counts = sum((scan.class_counts for scan in scans), Counter[int]())
    variant = Variant(shards, IndexFile(name, len(data), crc32c(data)))
    return Split(sum(shard.records for shard in shards), tuple(counts[label] for label in range(classes)), (variant,))


def _put_or_find(target: Store, name: str, data: bytes) -> None:
    """Put an index; one of the same files that was cut off before its manifest is the same, or replaced."""
    found = target.stat(name)
    try:
        if found is None or target.read(name, found.version) != data:
            target.put(name, data, found)
    except (ObjectExistsError, ObjectChangedError, ObjectNotFoundError) as error:
        raise DatasetExistsError(
            f"{target.url}/{name} was put or changed by something else meanwhile; no dataset was made. Run the same "
            "command again, or give another destination (--to)"
        ) from error


def _digest(scans: Sequence[ShardScan]) -> str:
    shards = [(scan.info.name, scan.info.size_bytes, scan.crc32c) for scan in scans]
    return hashlib.blake2b(msgspec.json.encode(shards), digest_size=16).hexdigest()


def _put_manifest(target: Store, manifest: Manifest) -> None:
    try:
        target.put(MANIFEST, encode_manifest(manifest))
    except ObjectExistsError as error:
        raise DatasetExistsError(f"{target.url}: another {MANIFEST} was put meanwhile; nothing was replaced") from error
