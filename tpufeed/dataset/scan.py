"""Read columns of all samples of a split without their images' pixels, and keep the labels for the next time."""

import logging
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.format import read_array

from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.object_boxes import read_boxes
from tpufeed.dataset.order import Ints
from tpufeed.dataset.records import Reader
from tpufeed.dataset.schema import FEATURE_OF_NAME, FeatureSpec, fixed_ints, record_layout
from tpufeed.errors import OptionError, RecordError, mask_secrets
from tpufeed.images.mending import seen_size
from tpufeed.storage.copies_folder import user_cache
from tpufeed.storage.local import LocalStore
from tpufeed.tfrecord.example import ABSENT, Feature, decode_arrays

_logger = logging.getLogger(__name__)

_AT_ONCE = 4096  # samples
_SAID_BYTES = 10**9
# What zipfile and numpy raise for a missing, forged or damaged file: the labels are then read again.
_DAMAGED = OSError, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile
_FOLDER = "tpufeed-classes"  # in the user's cache


class Stored(Protocol):
    """What columns are read from: `dataset.reader.Dataset`."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def url(self) -> str: ...
    @property
    def is_remote(self) -> bool: ...
    def reader(self, split: str) -> Reader: ...


class Labels(NamedTuple):
    """The labels of all samples of a split, end to end, in the smallest dtype.

    Those of sample i are `values[starts[i]:starts[i + 1]]`, or `values[i]`, if `starts` is None: each has one.
    """

    values: npt.NDArray[Any]
    starts: Ints | None

    def have(self, classes: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return for each sample whether it has one of these classes."""
        if self.starts is None:
            return np.isin(self.values, classes)
        found = np.concatenate([[0], np.cumsum(np.isin(self.values, classes))])
        return found[self.starts[1:]] > found[self.starts[:-1]]


def read_labels(dataset: Stored, split: str) -> Labels:
    """Return the labels of all samples that are stored in a split.

    The first call reads each record once, and keeps the labels in the user's cache folder for all later processes.

    Raises:
        OptionError: the samples have no labels.
        RecordError, ShardError, StoreError: the records cannot be read.
    """
    if not dataset.manifest.labelled and dataset.manifest.has_label:
        raise OptionError(f"{mask_secrets(dataset.url)} has numbers as labels, and no classes")
    spec = _find(dataset, "label")
    stored = dataset.manifest.splits[split]
    folder = user_cache()
    path = None if folder is None else folder / _FOLDER / f"{dataset.manifest.content_digest}-{split}.npz"
    if path is not None:
        with suppress(*_DAMAGED), zipfile.ZipFile(path) as kept:  # which has a CRC of each array
            arrays = {name: read_array(kept.open(name), allow_pickle=False) for name in kept.namelist()}
            values, starts = arrays["values.npy"], arrays.get("starts.npy")
            ends = (len(values), stored.records) if starts is None else (starts[-1], len(starts) - 1)
            if ends == (len(values), stored.records):
                return Labels(values, starts)
    size = sum(shard.bytes for shard in stored.variants[0].shards)
    if size > _SAID_BYTES or dataset.is_remote:
        _logger.warning(
            "%s: reading the %d records of split %r once for their labels (%.1f GB); %s",
            mask_secrets(dataset.url),
            stored.records,
            split,
            size / 1e9,
            "nothing is kept, as there is no cache folder" if path is None else f"kept in {path}",
        )
    parts, counts = [np.empty(0, np.int64)], [np.zeros(1, np.int64)]
    for chunk in _iter_chunks(dataset, split, {"label": spec}):
        parts.append(np.concatenate([np.atleast_1d(each) for each in chunk["label"]], dtype=np.int64))
        counts.append(np.fromiter(map(np.size, chunk["label"]), np.int64))
    values = np.concatenate(parts)
    least, most = (np.min_scalar_type(edge(initial=0)) for edge in (values.min, values.max))
    starts = None if spec.shape == () else np.cumsum(np.concatenate(counts))
    labels = Labels(values.astype(np.result_type(least, most)), starts)
    if path is not None:
        store = LocalStore(str(path.parent))
        with suppress(OSError), store.temporary_folder() as folder:
            given: dict[str, Any] = {name: part for name, part in labels._asdict().items() if part is not None}
            np.savez(folder / path.name, **given)
            store.put_file(path.name, folder / path.name, store.stat(path.name))  # maybe over a damaged one
    return labels


def iter_columns(dataset: Stored, split: str, names: Sequence[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield columns of the samples that are stored in a split, some thousand samples at a time, in their order.

    Numbers are arrays of shape (samples, *shape), texts arrays of str. Columns whose lists vary in length are object
    arrays with an array, or a list of str, for each sample. Labels are the dataset's, also in a view that renumbers
    them, and boxes are in pixels.

    Args:
        dataset: the dataset.
        split: the name of the split.
        names: short names of columns, as loaders take them, all but image.

    Raises:
        OptionError: there is no such column.
        RecordError, ShardError, StoreError: the records cannot be read.
    """
    specs = {name: _find(dataset, name) for name in names}
    for chunk in _iter_chunks(dataset, split, specs):
        columns = dict[str, npt.NDArray[Any]]()
        for name, spec in specs.items():
            values = chunk[name]
            columns[name] = np.fromiter(values, object, len(values)) if spec.shape is None else np.array(values)
        yield columns


def _iter_chunks(dataset: Stored, split: str, specs: dict[str, FeatureSpec]) -> Iterator[dict[str, list[Any]]]:
    """Yield the values of features, one list or array per sample."""
    layout, ints = record_layout(dataset.manifest.features), fixed_ints(dataset.manifest.features)
    are_ints = all(spec.name in ints for spec in specs.values())
    records, manifest = dataset.manifest.splits[split].records, dataset.manifest
    chunk: dict[str, list[Any]] = {name: [] for name in specs}
    for sample, payload in enumerate(dataset.reader(split).iter_payloads(0, records)):
        where = f"{mask_secrets(dataset.url)}, sample {sample} of split {split!r}"
        if are_ints:
            values = dict(zip(ints, layout.decode(payload, where)[1], strict=True))
            for name, spec in specs.items():
                chunk[name].append(values[spec.name])
        else:
            found = decode_arrays(payload, where)
            for name, spec in specs.items():
                chunk[name].append(_read(found, spec, manifest.features[0].key, manifest.upright, where))
        if (sample + 1) % _AT_ONCE == 0 or sample + 1 == records:
            yield chunk
            chunk = {name: [] for name in specs}


def _read(features: dict[str, Feature], spec: FeatureSpec, image: str, upright: bool, where: str) -> Any:
    """Return the value of a column in a record: numbers in its shape, a text or a list of texts. Raises RecordError."""
    if len(spec.keys) > 1:  # TensorFlow's Object Detection API, in shares of the image's sides
        data: Any = features[image].values[0]
        height, width = seen_size(data, upright)
        shares = read_boxes(features, spec, data, upright, where)
        return (shares * (width, height, width, height)).astype(np.float32)
    values: Any = features.get(spec.key, ABSENT).values
    try:
        if spec.is_raw:
            data = bytes(values[0]) if len(values) else b""
            values = np.frombuffer(data, np.dtype(spec.dtype).newbyteorder("<"))
        elif spec.stored_kind == "bytes":
            texts = [str(value, "utf-8", "replace") for value in values]
            return texts if spec.shape is None else np.array(texts).reshape(spec.shape)
        elif not len(values):
            values = np.empty(0, np.int64 if spec.stored_kind == "int64" else np.float32)
        return np.asarray(values).reshape((-1, *spec.each) if spec.shape is None else spec.shape)
    except ValueError as error:
        raise RecordError(f"{where}: {spec.key} has {len(values)} values, expected {spec.type_text}") from error


def _find(dataset: Stored, name: str) -> FeatureSpec:
    features = {spec.name: spec for spec in dataset.manifest.features[1:] if not spec.is_picture}
    is_class = name == "label" and dataset.manifest.labelled  # as loaders find a feature
    spec = (None if is_class else features.get(name)) or features.get(FEATURE_OF_NAME.get(name, name))
    if spec is not None:
        return spec
    if name == "label":
        raise OptionError(f"{mask_secrets(dataset.url)} has no labels")
    shorts = [short for short, feature in FEATURE_OF_NAME.items() if feature in features]
    others = sorted(features.keys() - FEATURE_OF_NAME.values())
    raise OptionError(f"{mask_secrets(dataset.url)} has no column {name!r}. It has {', '.join([*shorts, *others])}")
