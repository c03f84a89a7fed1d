"""`adopt`: make a dataset from foreign TFRecords by writing only an index and a manifest."""

import hashlib
import itertools
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from crc32c import crc32c

from tpufeed._version import __version__
from tpufeed.adoption.keys import NONE, BoxesOf, FirstRecord, choose_keys, glimpse, make_features
from tpufeed.adoption.scan import Keys, ShardScan, Totals, iter_records, scan_shard
from tpufeed.dataset.index import encode_index, is_index_of
from tpufeed.dataset.listed import MOST_CLASSES, Listed
from tpufeed.dataset.manifest import IndexFile, Manifest, Shard, Sizes, Split, Variant, encode_manifest
from tpufeed.dataset.naming import MANIFEST, index_name, read_classes
from tpufeed.dataset.object_boxes import Told
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.dataset.schema import OBJECT_XMIN, UNMOVED, FeatureSpec, further_columns
from tpufeed.dataset.tfrecord_files import ForeignFiles, sort_files
from tpufeed.dataset.walk import Walker, WalkProgress, map_shards
from tpufeed.dataset.writer import check_writable
from tpufeed.display.progress import show_progress
from tpufeed.display.summary import Summary
from tpufeed.errors import (
    DatasetExistsError,
    ManifestError,
    NoInputsError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    StoreError,
    advised,
    mask_secrets,
)
from tpufeed.options import checked
from tpufeed.storage.local import is_file
from tpufeed.storage.store import ObjectInfo, Store, open_store
from tpufeed.tfrecord.example import decode_example

_logger = logging.getLogger(__name__)

_PEEKED_BYTES = 256 << 10
_MOST_CLASSES = 1_000_000  # a larger label is not that of a class


@dataclass(frozen=True, slots=True, repr=False)
class AdoptResult(Summary):
    """An adopted dataset.

    Attributes:
        url: URL of the dataset.
        manifest: its manifest.
        seconds: time that it took.
        listed: what its records were taken for. A key is left out if its feature has varying kinds, or one of tpufeed's
            own names.
    """

    url: str
    manifest: Manifest
    seconds: float
    listed: Listed

    def _facts(self) -> dict[str, Any]:
        return {"url": self.url, "splits": self.manifest.records, "seconds": self.seconds}

    def _details(self) -> dict[str, Any]:
        return self.manifest._details() | {"understood": tuple(self.listed.iter_lines(self.manifest.sizes))}


@checked()
def adopt(  # noqa: PLR0913  # the public face: flat keywords
    url: str | Path,
    dst: str | Path | None = None,
    *,
    image_key: str | None = None,
    label_key: str | None = None,
    text_key: str | None = None,
    filename_key: str | None = None,
    only: str | Sequence[str] | None = None,
    classes: str | Path | Sequence[str] | None = None,
    exif: Literal["apply", "ignore"] = "ignore",
    boxes_of: BoxesOf = "sizes",
    listener: Callable[[WalkProgress], None] | None = None,
    progress: bool | None = None,
) -> AdoptResult:
    """Make a dataset from TFRecord files that another tool has written, without rewriting them.

    Every byte is read once, and both CRCs of every record are verified, then an index and, last, the manifest are put.
    A second call finds the dataset by the names and sizes of the files, and does nothing.

    Args:
        url: path or URL of a folder of uncompressed TFRecord files of tf.train.Example.
        dst: folder of manifest and index. The files stay where they are. Default: beside the files.
        image_key: key of the encoded image. Default, here and for the next three: found by names and first records.
        label_key: key of the class, one int64, or "none" to leave the samples unlabelled.
        text_key: key of the class's name, or "none" if there is no such feature.
        filename_key: key of the path or another name of the sample, or "none" if there is no such feature.
        only: take only these splits, like "train,val". Splits follow from the names of folders or files.
        classes: names of the classes in the order of labels, or a file with one per line. Default: the text feature if
            it maps one-to-one to labels. Otherwise "0", "1" and so on.
        exif: "apply" lets loaders turn images by their EXIF orientation, as `shard` does, and caches hold them turned,
            "ignore" leaves them as they are stored. Either way such images are counted in `manifest.odd`, and
            boxes of TensorFlow's Object Detection API fit their objects.
        boxes_of: the image that boxes of TensorFlow's Object Detection API refer to, if it has an EXIF orientation:
            "stored", "upright", or the one whose "sizes" are in the record. If these do not tell, it is the upright
            image if all other records say so, else the stored one, as TensorFlow decodes it.
        listener: called with a `WalkProgress` after each file.
        progress: show a progress bar, as in `tpufeed.shard`.

    Raises:
        NoInputsError, OptionError, DatasetExistsError: nothing was written.
        RecordError: a file is damaged, or a record lacks a feature. The message names file, record and byte.
    """
    start = time.monotonic()
    if image_key == NONE:
        raise OptionError("--image-key none: a dataset needs images")
    names = None if classes is None else read_classes(classes)
    told = {"image": image_key, "label": label_key, "text": text_key, "filename": filename_key}
    source = open_store(url, follow=dst is not None)  # a dataset beside the files may contain no link that leaves it
    target = source if dst is None else open_store(dst, follow=False)
    path = source.local_path(MANIFEST)
    if path is not None and is_file(path.parent):
        raise NoInputsError(f"{source.url} is a file. Give its folder: {advised('adopt', str(path.parent.parent))}")
    if target.url != source.url and mask_secrets(source.url) != source.url:
        raise OptionError(
            f"{source.url} holds a password or token, which a manifest elsewhere (--to) would show to all its readers. "
            "Give the credentials in the environment or configuration of the file system"
        )
    wanted = [split.strip() for split in only.split(",")] if isinstance(only, str) else only
    files = sort_files(source.url, source.iter_objects(), wanted)
    options: dict[str, Any] = {
        "command": "adopt",
        "source": mask_secrets(source.url),
        "asked": {**told, "classes": names is not None, **({} if boxes_of == "sizes" else {"boxes_of": boxes_of})},
    }
    finished = _find_finished(source, target, files, options, names, exif)
    if finished is not None:
        return AdoptResult(target.url, finished, 0.0, finished.listed)
    _check_target(target, files)

    infos = [info for infos in files.splits.values() for info in infos]
    # The first record of each shard tells in seconds whether a scan of an hour would fail.
    first = [record for record in map_shards(source, partial(_read_first, source), infos) if record is not None]
    if not first:
        raise NoInputsError(f"the {len(infos)} TFRecord files below {source.url} hold no record")
    keys = choose_keys(told, first)
    if names is not None and keys.label is None:
        raise OptionError("--classes names the classes of labels, but there are none. Name their key with --label-key")
    if boxes_of != "sizes" and not any(OBJECT_XMIN in record.glimpses for record in first):
        raise OptionError(f"--boxes-of {boxes_of}: no record has boxes ({OBJECT_XMIN}). Leave boxes_of out")

    total, walked = Totals(), WalkProgress(sum(info.size_bytes for info in infos))
    by_split = {split: list[ShardScan]() for split in files.splits}
    scan_one = partial(
        scan_shard, source, keys, _MOST_CLASSES if names is None else len(names), upright=exif == "apply"
    )
    with (
        show_progress("adopting", progress, listener) as listen,
        closing(map_shards(source, scan_one, infos)) as scans,
    ):
        listen(walked)
        for split in (split for split, members in files.splits.items() for _ in members):
            scan = next(scans)
            by_split[split].append(scan)
            total.merge(scan.totals)
            walked = replace(walked, bytes=walked.bytes + scan.info.size_bytes, records=walked.records + scan.records)
            listen(walked)
    _warn(by_split, total, exif)
    all_boxes_of = _decide_boxes(total.told) if boxes_of == "sizes" else boxes_of
    features, left_out = make_features(keys, total.tallies, walked.records, all_boxes_of)
    class_names = _name_classes(keys, total) if names is None else names
    options |= {"keys": {role: getattr(keys, role) for role in told}, "splits": list(by_split), "left_out": left_out}
    listed = _understand(keys, total, class_names, features, files, left_out)
    shards = [(scan.info.name, scan.info.size_bytes, scan.crc32c) for found in by_split.values() for scan in found]
    manifest = Manifest(
        run_id=secrets.token_hex(8),
        tool_version=__version__,
        splits={split: _put_index(source, target, split, of, len(class_names)) for split, of in by_split.items()},
        class_names=class_names,
        features=features,
        options=options,
        input_digest=hashlib.blake2b(msgspec.json.encode(shards), digest_size=16).hexdigest(),
        rejects={},
        images=dict(sorted(total.formats.items())),
        odd=+Counter({"exif": total.turned, "exif, of another size": total.told["another"]}),
        sizes=Sizes.of_all(total.heights, total.widths, walked.records),
        listed=listed,
        data_url=None if target.url == source.url else source.url,
        exif="apply" if exif == "apply" else msgspec.UNSET,
    )
    # Put last, and never over another one: a dataset exists if and only if its manifest does.
    try:
        target.put(MANIFEST, encode_manifest(manifest))
    except ObjectExistsError as error:
        raise DatasetExistsError(f"{target.url}: another {MANIFEST} was put meanwhile. Nothing was replaced") from error
    return AdoptResult(target.url, manifest, time.monotonic() - start, listed)


def _find_finished(
    source: Store,
    target: Store,
    files: ForeignFiles,
    options: Mapping[str, Any],
    names: tuple[str, ...] | None,
    exif: str,
) -> Manifest | None:
    """Return the manifest of this same adoption if `target` has it already, or None if it has no manifest.

    Raises:
        DatasetExistsError: there is another dataset, or a manifest that is not tpufeed's.
    """
    wrong = "it is not of this source, these files and these options, or lacks an index"
    try:
        present = find_dataset(target)
        if present is None:
            return None
        manifest = present.manifest
        if (
            options.items() <= manifest.options.items()
            and names in (None, manifest.class_names)
            and manifest.upright == (exif == "apply")
            and _are_shards(present, source, files)
        ):
            return manifest
    except ManifestError as error:
        wrong = f"it cannot be read ({error})"
    raise DatasetExistsError(
        f"{target.url} already holds a {MANIFEST}, and {wrong}. Nothing was changed. Give another destination (--to), "
        "or remove it first"
    )


def _are_shards(present: Dataset, source: Store, files: ForeignFiles) -> bool:
    """Return true if the files are a dataset's shards, by name, size and version, and its indexes are there."""
    if set(present.manifest.splits) != set(files.splits):
        return False
    for split, infos in files.splits.items():
        variant = present.manifest.splits[split].variants[0]
        found = [(info.name, info.size_bytes, info.version if source.generations else None) for info in infos]
        index = present.store.stat(variant.index.name)
        if index is None or index.size_bytes != variant.index.bytes:
            return False
        if found != [(shard.name, shard.bytes, shard.generation) for shard in variant.shards]:
            return False
    return True


def _check_target(target: Store, files: ForeignFiles) -> None:
    """Check that the target can be written to, before anything is read: reading may take an hour.

    Raises:
        OptionError: it cannot be written to.
        DatasetExistsError: an index would replace somebody else's file. An index of these same files comes from an
            earlier, interrupted adoption.
    """
    try:
        check_writable(target)
    except StoreError as error:
        raise OptionError(f"{error}. Give another place for manifest and index with --to") from error
    for warning in target.try_puts():
        _logger.warning("%s", warning)
    for split, infos in files.splits.items():
        name = index_name(split, None)
        if target.stat(name) is not None and not is_index_of(target, name, [info.size_bytes for info in infos]):
            raise DatasetExistsError(
                f"{target.url}/{name} exists already, and is not an index of these TFRecord files. Nothing was "
                "changed. Give another destination (--to), or move it away first"
            )


def _read_first(source: Store, info: ObjectInfo, stop: threading.Event) -> FirstRecord | None:
    if not info.size_bytes:
        source.read(info.name)  # fails for a broken link, which is listed as an empty file
    walker = Walker(source, info.name, info.size_bytes, info.version, _PEEKED_BYTES)
    for _, place, payload in iter_records(walker, stop):
        return FirstRecord(place, {key: glimpse(feature) for key, feature in decode_example(payload, place).items()})
    return None


def _warn(scans: Mapping[str, Sequence[ShardScan]], total: Totals, exif: str) -> None:
    for split, found in scans.items():
        if not any(scan.records for scan in found):
            _logger.warning("split %s holds no record. Loaders will refuse it", split)
    empty = [scan.info.name for found in scans.values() for scan in found if not scan.records]
    if empty:
        count = sum(map(len, scans.values()))
        _logger.warning("%d of %d TFRecord files hold no record, like %s", len(empty), count, empty[0])
    if total.first_unknown is not None:
        _logger.warning("%s, and maybe others, hold no readable image. Loaders will stop there", total.first_unknown)
    unmoved = sorted(key for key in total.tallies if key.startswith(UNMOVED))
    if unmoved:
        _logger.warning("loaders and caches leave %s as stored, whatever ops do to the image", ", ".join(unmoved))
    if total.turned and exif == "ignore":
        _logger.warning(
            "%d images have an EXIF orientation, and loaders leave them as stored. With --exif apply they turn them, "
            "as tpufeed shard does",
            total.turned,
        )


def _decide_boxes(told: Counter[Told]) -> BoxesOf:
    """Return the image that all boxes refer to, as far as records tell. Warn of records that do not."""
    # Usually one tool has written all records, so records that do not tell are treated like the others.
    decided: BoxesOf = "upright" if told["upright"] and not told["stored"] else "sizes"
    untold, taken = told["nothing"] + told["another"], "stored" if decided == "sizes" else "upright"
    if not untold and not (told["stored"] and told["upright"]):
        return decided
    _logger.warning(
        "%d images with an EXIF orientation have boxes. By image/height and image/width, the boxes of %d refer to the "
        "stored image and those of %d to the upright one; %d do not tell (%d have the sizes of another image), and are "
        "taken to refer to the %s one. If tpufeed show draws boxes beside their objects, adopt with --boxes-of %s",
        told.total(),
        told["stored"],
        told["upright"],
        untold,
        told["another"],
        taken,
        "stored" if taken == "upright" else "upright",
    )
    return decided


def _name_classes(keys: Keys, total: Totals) -> tuple[str, ...]:
    if keys.label is None:
        return ()
    count = max(total.class_counts, default=-1) + 1
    for key in keys.class_texts:
        names = total.texts.get(key, {})
        if names and None not in names.values() and len(set(names.values())) == len(names):
            found = tuple(names.get(label) or str(label) for label in range(count))
            if len(set(found)) == count:
                return found
    return tuple(map(str, range(count)))


def _understand(
    keys: Keys,
    total: Totals,
    class_names: Sequence[str],
    features: Sequence[FeatureSpec],
    files: ForeignFiles,
    left_out: Sequence[str],
) -> Listed:
    """Return what the records were taken for."""
    first = itertools.islice(sorted(total.class_counts.items()), MOST_CLASSES)
    return Listed(
        kind="TFRecord files of another tool",
        labels="" if keys.label is None else f"the key {keys.label}",
        classes={class_names[label]: count for label, count in first},
        class_count=len(class_names),
        splits="the names of folders or files",
        columns=further_columns(features),
        boxes=next((spec.name for spec in features if spec.kind == "boxes"), ""),
        box_format="xyxy,relative",
        ignored_files=dict(files.ignored),
        named="as TFRecords are",
        left_out=tuple(left_out),
    )


def _put_index(source: Store, target: Store, split: str, scans: Sequence[ShardScan], classes: int) -> Split:
    """Put the index of a split, and return the split as the manifest has it."""
    name, data = index_name(split, None), encode_index([scan.offsets for scan in scans])
    found = target.stat(name)
    try:
        # An interrupted adoption has left the same index, or one to replace.
        if found is None or target.read(name, found.version) != data:
            target.put(name, data, found)
    except (ObjectExistsError, ObjectChangedError, ObjectNotFoundError) as error:
        raise DatasetExistsError(
            f"{target.url}/{name} was put or changed by something else meanwhile. No dataset was made. Run the same "
            "command again, or give another destination (--to)"
        ) from error
    shards = tuple(
        Shard(info.name, info.size_bytes, crc, len(offsets) - 1, info.version if source.generations else None)
        for info, crc, offsets, _ in scans
    )
    counts = sum((scan.totals.class_counts for scan in scans), Counter[int]())
    variant = Variant(shards, IndexFile(name, len(data), crc32c(data)))
    return Split(sum(shard.records for shard in shards), tuple(counts[label] for label in range(classes)), (variant,))
