"""Choose the keys of image, label and so on in records of another tool: as told, or by names and first records."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from tpufeed.dataset import schema
from tpufeed.dataset.adopt_scan import Tally, missing_value
from tpufeed.dataset.schema import DType, FeatureSpec
from tpufeed.errors import ImageError, OptionError
from tpufeed.images.decoding import image_size
from tpufeed.images.header import sniff
from tpufeed.images.mending import mend
from tpufeed.tfrecord.example import Feature, Kind

NONE = "none"
_IMAGE_KEYS = (schema.ENCODED, "image", "image_raw", "image_bytes", "encoded", "jpeg", "img")
_LABEL_KEYS = (schema.LABEL, "label", "class", "target", "class_label", "class_id", "label_id", "labels", "category")
_TEXT_KEYS = (schema.TEXT, "text", "class_text", "class_name", "label_text", "label_name", "class/text", "label/text")
_SYNSET = "image/class/synset"  # one to one where ImageNet's texts are not: both 134 and 517 are a crane
_FILENAME_KEYS = (schema.FILENAME, "filename", "file_name", "image/file_name", "image_name", "image_id", "id")
_SIZE_KEYS = {
    schema.HEIGHT: (schema.HEIGHT, "height"),
    schema.WIDTH: (schema.WIDTH, "width"),
    schema.CHANNELS: (schema.CHANNELS, "channels"),
}
_FORMAT_KEYS = (schema.FORMAT, "format")
_NO_LABELS = frozenset(key for keys in _SIZE_KEYS.values() for key in keys) | {"depth", "image/depth"}
_OWN_NAMES = frozenset(
    (schema.ENCODED, schema.TENSOR, schema.LABEL, schema.TEXT, *_SIZE_KEYS, schema.FORMAT, schema.FILENAME)
)
_DTYPES: dict[Kind, DType] = {"bytes": "bytes", "float": "float32", "int64": "int64"}


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """Keys as they are told; None lets tpufeed look, "none" (not for the image) says that there is none."""

    image: str | None = None
    label: str | None = None
    text: str | None = None
    filename: str | None = None

    def __post_init__(self) -> None:
        if self.image == NONE:
            raise OptionError("--image none: a dataset has images")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that were chosen; None where there is no such feature."""

    image: str
    label: str | None
    text: str | None
    filename: str | None

    @property
    def class_texts(self) -> tuple[str, ...]:
        """Keys that may name the classes, the best first."""
        return () if self.label is None else (*((self.text,) if self.text else ()), _SYNSET)


@dataclass(frozen=True, slots=True)
class Glimpse:
    """A feature of a shard's first record. `problem` says why its value is no image; "" where it is one."""

    kind: Kind | None
    values: int
    problem: str


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The features of a shard's first record, and its place for messages."""

    place: str
    glimpses: dict[str, Glimpse]


def glimpse(feature: Feature) -> Glimpse:
    """Return what choosing keys takes of a feature; keeps none of its bytes."""
    value = feature.values[0] if len(feature.values) == 1 else None
    if not isinstance(value, memoryview):
        return Glimpse(feature.kind, len(feature.values), "it is not one bytes value")
    start = f"its {len(value):,} bytes begin with {bytes(value[:8])!r}"
    if sniff(value) is None:
        return Glimpse(feature.kind, 1, f"{start}, as no image file that tpufeed reads does")
    try:
        image_size(value)
    except ImageError as error:
        try:
            mend(value, error)  # as loaders do
        except ImageError:
            return Glimpse(feature.kind, 1, f"{start}, but {error}")
    return Glimpse(feature.kind, 1, "")


def choose_keys(options: KeyOptions, records: Sequence[FirstRecord]) -> Keys:
    """The keys of image, label, text and filename.

    Args:
        options: what is told.
        records: the first of each shard that has any; at least one.

    Raises:
        OptionError: a key that is not there or holds something else, or several that could be meant.
        RecordError: one of the records lacks the image or the label.
    """
    found: dict[str, Glimpse] = {}
    for record in records:
        for key, seen in record.glimpses.items():
            found[key] = seen if key not in found or found[key].kind is None else found[key]
    image = _choose_image(options.image, found, records)
    label = _choose_label(options.label, found, records)
    text = _choose_bytes("--text", options.text, [key for key in _TEXT_KEYS if key != image], found)
    filename = _choose_bytes("--filename", options.filename, [key for key in _FILENAME_KEYS if key != image], found)
    return Keys(image, label, text, filename)


def make_features(keys: Keys, tallies: dict[str, Tally], records: int) -> tuple[tuple[FeatureSpec, ...], list[str]]:
    """The schema of `records` records, and the keys that it has no place for.

    The image, the label, the other names that tpufeed knows, then the rest as they are called. A name of tpufeed's own
    stands for nothing but the feature that was taken for it.
    """
    specs = [_make_spec(schema.ENCODED, keys.image, tallies, records)]
    taken = {keys.image}

    def take(name: str, choices: Iterable[str | None], fits: Callable[[FeatureSpec], bool]) -> None:
        for key in choices:
            spec = None if key is None or key in taken else _make_spec(name, key, tallies, records)
            if key is not None and spec is not None and fits(spec):
                specs.append(spec)
                taken.add(key)
                return

    take(schema.LABEL, [keys.label], lambda spec: spec.dtype == "int64" and spec.shape == ())
    for name, choices in _SIZE_KEYS.items():
        take(name, choices, lambda spec: spec.dtype == "int64" and spec.shape == ())
    take(schema.FORMAT, _FORMAT_KEYS, lambda spec: spec.dtype == "string" and spec.shape == ())
    take(schema.FILENAME, [keys.filename], lambda spec: spec.dtype in ("string", "bytes"))
    take(schema.TEXT, [keys.text], lambda spec: spec.dtype in ("string", "bytes"))
    for key in tallies:
        take(key, () if key in _OWN_NAMES else (key,), lambda _: True)
    return tuple(spec for spec in specs if spec is not None), [key for key in tallies if key not in taken]


def _make_spec(name: str, key: str, tallies: dict[str, Tally], records: int) -> FeatureSpec | None:
    """None for a feature that is not there, or not always of the same kind."""
    tally = tallies.get(key)
    if tally is None or len(tally.kinds) != 1:
        return None
    (kind,) = tally.kinds
    dtype: DType = "string" if kind == "bytes" and tally.is_text else _DTYPES[kind]
    shape = () if tally.single and tally.records == records else None
    return FeatureSpec(name, dtype, shape, msgspec.UNSET if key == name else key)


def _choose_image(told: str | None, found: dict[str, Glimpse], records: Sequence[FirstRecord]) -> str:
    key = told
    if key is None:
        holding = [[key for key, seen in record.glimpses.items() if not seen.problem] for record in records]
        candidates = set(holding[0]).intersection(*holding) or {key for keys in holding for key in keys}
        known = [key for key in _IMAGE_KEYS if key in candidates]
        if not known and len(candidates) > 1:
            raise _ambiguous("the image", "--image", sorted(candidates))
        # Where none holds an image, say why of the one whose name says so.
        tensors = [key for key in (*_IMAGE_KEYS, schema.TENSOR) if key in found]
        key = next(iter((*known, *candidates, *tensors)), None)
    if key is None:
        raise OptionError(f"{records[0].place}: no feature holds an encoded image; {_list_features(found)}")
    if key not in found:
        raise _unknown(key, "--image", found)
    for record in records:
        seen = record.glimpses.get(key)
        if seen is None:
            raise missing_value(key, None, True, record.place, record.glimpses)
        if seen.problem:
            raise OptionError(
                f"{record.place}: feature {key!r} ({seen.kind}) is no encoded image: {seen.problem}. Tensors, raw or "
                "serialized, cannot be adopted: write the images as JPEG or PNG, or run tpufeed shard on the files; "
                f"{_list_features(found)}; choose with --image"
            )
    return key


def _choose_label(told: str | None, found: dict[str, Glimpse], records: Sequence[FirstRecord]) -> str | None:
    if told == NONE:
        return None
    if told is not None and told not in found:
        raise _unknown(told, "--label", found)
    key = _find_label(found) if told is None else told
    kind = None if key is None else found[key].kind
    if key is not None and kind not in ("int64", None):
        place = next(record.place for record in records if key in record.glimpses)
        raise OptionError(
            f"{place}: the label {key!r} is of kind {kind}; labels are int64, and names cannot become numbers without "
            "rewriting the records. Write an int64 feature beside it, or adopt without labels: --label none; "
            f"{_list_features(found)}"
        )
    for record in records:
        if key is not None and key not in record.glimpses:
            raise missing_value(key, None, False, record.place, record.glimpses)
    return key


def _find_label(found: dict[str, Glimpse]) -> str | None:
    if schema.LABEL in found:
        return schema.LABEL
    named = [key for key in _LABEL_KEYS if key in found]
    ints = [key for key in named if found[key].kind == "int64"]
    if len(ints) > 1:
        raise _ambiguous("the label", "--label", [*ints, NONE])
    if ints or named:
        return (ints or named)[0]
    others = [key for key, seen in found.items() if seen.kind == "int64" and seen.values == 1 and key not in _NO_LABELS]
    if others:
        raise _ambiguous("the label", "--label", [*sorted(others), NONE])
    return None


def _choose_bytes(flag: str, told: str | None, known: Sequence[str], found: dict[str, Glimpse]) -> str | None:
    if told == NONE:
        return None
    if told is None:
        return next((key for key in known if key in found and found[key].kind == "bytes"), None)
    if told not in found:
        raise _unknown(told, flag, found)
    if found[told].kind not in ("bytes", None):
        raise OptionError(f"{flag} {told} is of kind {found[told].kind}, not bytes; {_list_features(found)}")
    return told


def _ambiguous(what: str, flag: str, candidates: Sequence[str]) -> OptionError:
    return OptionError(f"{what} could be any of {', '.join(candidates)}; choose with {flag} {candidates[0]} or another")


def _unknown(key: str, flag: str, found: dict[str, Glimpse]) -> OptionError:
    return OptionError(f"{flag} {key}: there is no such feature; {_list_features(found)}")


def _list_features(found: dict[str, Glimpse]) -> str:
    kinds = [f"{key} ({'empty' if seen.kind is None else seen.kind})" for key, seen in sorted(found.items())]
    return f"the records have {', '.join(kinds) or 'no features'}"
