"""Choose the keys of image, label, text and filename in records of another tool, by options or by names and values."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from tpufeed.adoption.scan import Keys, Tally, missing_value
from tpufeed.dataset import schema
from tpufeed.dataset.schema import DType, FeatureSpec
from tpufeed.errors import ImageError, OptionError
from tpufeed.images.decoding import image_size
from tpufeed.images.header import sniff
from tpufeed.images.mending import mend
from tpufeed.tfrecord.example import Feature, Kind

NONE = "none"
BoxesOf = Literal["sizes", "stored", "upright"]
# Keys of other tools for features that tpufeed has a name for, the best first.
_KNOWN_KEYS = {
    "image": (schema.ENCODED, "image", "image_raw", "image_bytes", "encoded", "jpeg", "img"),
    "label": (schema.LABEL, "label", "class", "target", "class_label", "class_id", "label_id", "labels", "category"),
    "text": (schema.TEXT, "text", "class_text", "class_name", "label_text", "label_name", "class/text", "label/text"),
    "filename": (schema.FILENAME, "filename", "file_name", "image/file_name", "image_name", "image_id", "id"),
}
_SIZE_KEYS = {
    schema.HEIGHT: (schema.HEIGHT, "height"),
    schema.WIDTH: (schema.WIDTH, "width"),
    schema.CHANNELS: (schema.CHANNELS, "channels"),
}
_FORMAT_KEYS = (schema.FORMAT, "format")
_NO_LABELS = frozenset(key for keys in _SIZE_KEYS.values() for key in keys) | {"depth", "image/depth"}
_BOXES = FeatureSpec("boxes", "float32", None, schema.OBJECT_BOXES, item_shape=(4,), kind="boxes")
_NOT_ADOPTED = (
    "Tensors, raw or serialized, cannot be adopted: write the images as JPEG or PNG, or run tpufeed shard on the files"
)
_DTYPES: dict[Kind, DType] = {"bytes": "bytes", "float": "float32", "int64": "int64"}


class Glimpse(NamedTuple):
    """A feature of a shard's first record without its bytes. `problem` says why it is not an image, or "" if it is."""

    kind: Kind | None
    values: int
    problem: str


class FirstRecord(NamedTuple):
    """Features of a shard's first record, and its place for messages."""

    place: str
    glimpses: dict[str, Glimpse]


def glimpse(feature: Feature) -> Glimpse:
    """Return what `choose_keys` needs to know about a feature."""
    value = feature.values[0] if len(feature.values) == 1 else None
    if not isinstance(value, memoryview):
        return Glimpse(feature.kind, len(feature.values), "it is not one bytes value")
    problem = "" if sniff(value) else ", as no image file that tpufeed reads does"
    if not problem:
        try:
            image_size(value)
        except ImageError as error:
            try:
                mend(value, error)  # as loaders do
            except ImageError:
                problem = f", but {error}"
    start = f"its {len(value):,} bytes begin with {bytes(value[:8])!r}" if problem else ""
    return Glimpse(feature.kind, 1, start + problem)


def choose_keys(told: Mapping[str, str | None], records: Sequence[FirstRecord]) -> Keys:
    """Return the keys of image, label, text and filename.

    Args:
        told: keys by role. None leaves the choice to names and records. "none" means that there is no such feature.
        records: the first record of each shard that has any, at least one.

    Raises:
        OptionError: a key is missing or holds something else, or several keys are possible.
        RecordError: one of the records lacks the image or the label.
    """
    found: dict[str, Glimpse] = {}
    for record in records:
        for key, seen in record.glimpses.items():
            found[key] = seen if key not in found or found[key].kind is None else found[key]
    kinds = [f"{key} ({'empty' if seen.kind is None else seen.kind})" for key, seen in sorted(found.items())]
    there = f"the records have {', '.join(kinds) or 'no features'}"
    for role, choice in told.items():
        if choice is not None and choice != NONE and choice not in found:
            raise OptionError(f"--{role}-key {choice}: there is no such feature; {there}")
    image = told["image"] or _find_image(found, records)
    if image is None:
        raise OptionError(f"{records[0].place}: no feature holds an encoded image; {there}. {_NOT_ADOPTED}")
    for record in records:
        if image not in record.glimpses:
            raise missing_value(image, None, image, record.place, record.glimpses)
        seen = record.glimpses[image]
        if seen.problem:
            raise OptionError(
                f"{record.place}: feature {image!r} ({seen.kind}) is not an encoded image: {seen.problem}. "
                f"{_NOT_ADOPTED}; {there}. Choose with --image-key"
            )
    # Records of TensorFlow's Object Detection API have a class for each box. ImageNet's have boxes, and one label.
    has_boxes = all(key in found and found[key].kind in ("float", None) for key in _BOXES.keys)
    several = has_boxes and schema.OBJECT_LABEL in found and told["label"] in (None, schema.OBJECT_LABEL)
    label: str | None = schema.OBJECT_LABEL
    if not several:
        label = _choose_label(told["label"], image, found, records, there)
    others: dict[str, str | None] = {}
    for role in ("text", "filename"):
        choice = told[role]
        if choice is None:
            known = (key for key in _KNOWN_KEYS[role] if key != image and key in found and found[key].kind == "bytes")
            choice = next(known, NONE)
        elif choice != NONE and found[choice].kind not in ("bytes", None):
            raise OptionError(f"--{role}-key {choice} is of kind {found[choice].kind}, not bytes; {there}")
        others[role] = None if choice == NONE else choice
    return Keys(image, label, **others, several=several)


def _find_image(found: Mapping[str, Glimpse], records: Sequence[FirstRecord]) -> str | None:
    """Return the feature that holds an image in all records, or for an error one with the name of an image."""
    holding = [[key for key, seen in record.glimpses.items() if not seen.problem] for record in records]
    candidates = set(holding[0]).intersection(*holding) or {key for keys in holding for key in keys}
    known = [key for key in _KNOWN_KEYS["image"] if key in candidates]
    if not known and len(candidates) > 1:
        raise _ambiguous("image", sorted(candidates))
    tensors = [key for key in (*_KNOWN_KEYS["image"], schema.TENSOR) if key in found]
    return next(iter((*known, *candidates, *tensors)), None)


def _choose_label(
    told: str | None, image: str, found: Mapping[str, Glimpse], records: Sequence[FirstRecord], there: str
) -> str | None:
    label = told
    if label is None:
        named = [key for key in _KNOWN_KEYS["label"] if key in found]
        others = [key for key, seen in sorted(found.items()) if seen.values == 1 and key not in _NO_LABELS]
        ints = [key for key in named or others if found[key].kind == "int64"]
        if schema.LABEL not in found and (len(ints) > 1 or (ints and not named)):
            raise _ambiguous("label", [*ints, NONE])
        label = schema.LABEL if schema.LABEL in found else next(iter((*ints, *named)), NONE)
    if label == NONE:
        return None
    kind = found[label].kind
    for record in records:
        if label not in record.glimpses:
            raise missing_value(label, None, image, record.place, record.glimpses)
        if kind not in ("int64", None):
            raise OptionError(
                f"{record.place}: the label {label!r} is of kind {kind}. Labels are int64, and turning names into "
                "numbers would rewrite the records. Write an int64 feature beside it, or adopt without labels: "
                f"--label-key none; {there}"
            )
    return label


def _ambiguous(role: str, keys: Sequence[str]) -> OptionError:
    return OptionError(f"the {role} could be any of {', '.join(keys)}. Choose with --{role}-key {keys[0]} or another")


def make_features(
    keys: Keys, tallies: dict[str, Tally], records: int, boxes_of: BoxesOf = "sizes"
) -> tuple[tuple[FeatureSpec, ...], list[str]]:
    """Return the schema of `records` records, and the keys that it leaves out.

    It has the image, the label, other features that tpufeed knows, then the rest under their own keys. Only the feature
    chosen for one of tpufeed's own names gets that name. `boxes_of` is the option of `adopt`.
    """
    specs, taken = list[FeatureSpec](), set[str]()

    def take(name: str, choices: Iterable[str | None], *dtypes: DType, scalar: bool = False) -> None:
        """Add the first feature that exists, has only one kind and, if `dtypes` are given, one of these."""
        for key in choices:
            tally = None if key is None or key in taken else tallies.get(key)
            if key is None or tally is None or len(tally.kinds) != 1:
                continue
            (kind,) = tally.kinds
            dtype: DType = "string" if kind == "bytes" and tally.is_text else _DTYPES[kind]
            shape = () if tally.least == tally.most == 1 and tally.records == records else None
            if (dtypes and dtype not in dtypes) or (scalar and shape is None):
                continue
            lengths: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
            if shape is None:
                lengths = (tally.least or 0) if tally.records == records else 0, tally.most
            specs.append(FeatureSpec(name, dtype, shape, msgspec.UNSET if key == name else key, lengths))
            taken.add(key)
            return

    take(schema.ENCODED, [keys.image])
    if not keys.several:
        take(schema.LABEL, [keys.label], "int64", scalar=True)
    for name, choices in _SIZE_KEYS.items():
        take(name, choices, "int64", scalar=True)
    take(schema.FORMAT, _FORMAT_KEYS, "string", scalar=True)
    take(schema.FILENAME, [keys.filename], "string", "bytes")
    take(schema.TEXT, [keys.text], "string", "bytes")
    sides = [tallies[key] for key in _BOXES.keys if key in tallies]
    if len(sides) == len(_BOXES.keys):
        taken.update(_BOXES.keys)
        lengths = 0, max(side.most for side in sides)
        of = msgspec.UNSET if boxes_of == "sizes" else boxes_of
        specs.append(msgspec.structs.replace(_BOXES, lengths=lengths, boxes_of=of))
        if keys.several and keys.label in tallies:
            taken.add(keys.label)
            most = tallies[keys.label].most
            specs.append(FeatureSpec(schema.LABEL, "int64", None, keys.label, (0, most), of=_BOXES.name))
    for key in tallies:
        take(key, () if key in schema.OWN_NAMES else (key,))
    if len(sides) == len(_BOXES.keys):
        specs = [_mark(spec, tallies, sides[0].values) for spec in specs]
    return tuple(specs), [key for key in tallies if key not in taken]


def _mark(spec: FeatureSpec, tallies: Mapping[str, Tally], boxes: int) -> FeatureSpec:
    """Return a feature, marked as one of boxes if it has a value for each: a crop that drops a box drops its value.

    Args:
        spec: the feature.
        tallies: sums over each feature, by its key.
        boxes: number of boxes in all records.
    """
    if not spec.key.startswith(schema.OBJECT_PREFIX) or spec.kind == "boxes":
        return spec
    tally = tallies[spec.key]
    # If there are as many values as boxes, records without the feature have no boxes.
    if not tally.per_box or tally.values != boxes or (spec.name in schema.OWN_NAMES and spec.shape is not None):
        return spec
    return msgspec.structs.replace(spec, shape=None, lengths=(0, tally.most), of=_BOXES.name)
