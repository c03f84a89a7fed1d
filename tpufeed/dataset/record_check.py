"""Check one record against the manifest: every feature, the range of the label, and that its image decodes."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpufeed.dataset.clips import frames_of
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.schema import CHANNELS, HEIGHT, LABEL, TEXT, WIDTH, FeatureSpec, fixed_ints, record_layout
from tpufeed.errors import ImageError, OptionError, RecordError
from tpufeed.images.decoding import Scratch, decode
from tpufeed.images.masks import decode_mask
from tpufeed.images.mending import mend, seen_header, seen_size
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.images.tensors import NPY_START, npy_view
from tpufeed.tfrecord.example import ABSENT, Feature, decode_entries, decode_example, read_text
from tpufeed.tfrecord.layout import ScalarEntry, pack_values

_PLAIN = ("bytes", "string", "int64", "float32")  # types of which any value is valid
_RANGES = {"bool": (0, 1), "uint8": (0, 255), "uint16": (0, 65535), "int32": (-(2**31), 2**31 - 1)}  # stored as int64
Picks = Callable[[str, int], bool]  # (shard's name, record) -> whether its image is decoded


class CheckedRecord(NamedTuple):
    """Contents of a sound record. `label` is None if samples have none. `sizes` are all integers that it has."""

    image: memoryview
    label: int | None
    sizes: Mapping[str, int]
    payload: memoryview


def parse_picks(share: str | None) -> Picks | None:
    """Return a function that picks the records to decode: "all", or a share like "5%", the same ones each time.

    Raises:
        OptionError: `share` is neither, or not above 0 and at most 100 %.
    """
    if share is None:
        return None
    try:
        percent = 100.0 if share == "all" else float(str(share)[:-1]) if str(share).endswith("%") else math.nan
    except ValueError:
        percent = math.nan
    if not 0 < percent <= 100:
        raise OptionError(f"decode has to be 'all' or a share like '5%', above 0% and up to 100%, not {share!r}")
    bound = round(percent / 100 * 2**64)

    def picks(shard: str, record: int) -> bool:
        digest = hashlib.blake2b(f"{shard}\0{record}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest, "big") < bound

    return picks


class RecordCheck:
    """Compares payloads with a manifest's schema. Thread-safe.

    A record in the fixed layout costs some 10 us. Records of other tools, and unusual ones, are parsed in full.
    """

    def __init__(self, manifest: Manifest) -> None:
        features = manifest.features
        self._features = features
        self._layout = record_layout(features)
        self._int_names = fixed_ints(features)
        self._rest = features[1 + len(self._int_names) :]
        self._entries = [
            ScalarEntry(spec.key, spec.stored_kind) if spec.shape == () and spec.dtype in _PLAIN else None
            for spec in self._rest
        ]
        self._texts = [spec.dtype == "string" for spec in self._rest]
        self._classes = len(manifest.class_names)
        self._least = -1 if manifest.has_unlabelled else 0
        self._names = [name.encode() for name in manifest.class_names]
        self._label, self._text = (
            next((spec for spec in features if spec.name == name), None) for name in (LABEL, TEXT)
        )
        forms = {(spec.shape, spec.of) for spec in (self._label, self._text) if spec is not None}
        if not self._names or len(forms) > 1 or self._label is None or manifest.options.get("command") == "adopt":
            self._text = None  # texts of other tools may differ from the names that a user gives
        # A cache may have texts of an adopted dataset: a text is only wrong if it is the name of another class, and
        # not the number of one without a name.
        names = {name for number, name in enumerate(self._names) if name != b"%d" % number}
        self._wrong_texts = None if manifest.cache is None else names
        self._tensor_shape, self._pixels = manifest.tensor_shape, manifest.pixels
        # An adopted dataset lists features that its schema leaves out. Its channels may mean anything: loaders decode
        # to three in any case.
        self._left_out = frozenset(manifest.options.get("left_out") or ())
        self._foreign = manifest.options.get("command") == "adopt"
        self._pictures = [spec for spec in features[1:] if spec.is_picture and not spec.shape]
        self._scratch = Scratch()

    def check(self, payload: memoryview) -> CheckedRecord:
        """Check a payload and return its contents. Raises RecordError with everything that is wrong."""
        # By offsets if all lengths are right, as nearly always. Otherwise by the parser, which says what is wrong.
        parts = self._layout.split(payload)
        try:
            if parts is not None:
                size, values, rest = parts
                image = payload[self._layout.image_offset : self._layout.image_offset + size]
                ints = dict(zip(self._int_names, values, strict=True))
                problems = []
                if not self._is_sound(rest, ints.get(LABEL)):
                    features = decode_entries(rest, "")
                    problems = self._problems(self._rest, features)
                    problems = problems or self._text_problems(features, ints.get(LABEL))
            else:
                features = decode_example(payload, "")
                problems = self._problems(self._features, features)
                if problems:
                    raise RecordError("; ".join(problems))
                stored: Any = features[self._features[0].key].values  # its kind was compared
                image = memoryview(pack_values(stored)) if len(stored) > 1 else stored[0]
                scalars = [spec for spec in self._features[1:] if spec.dtype == "int64" and spec.shape == ()]
                ints = {spec.name: int(features[spec.key].values[0]) for spec in scalars}
                problems = self._text_problems(features, ints.get(LABEL))
        except RecordError as error:
            raise RecordError(str(error).removeprefix(": ")) from error
        shape, label = self._tensor_shape, ints.get(LABEL)
        if shape is None and self._pixels.frames:
            frames_of(image, self._pixels)
        if shape is not None:
            if len(image) != (expected := self._pixels.bytes_of(shape)):
                problems.append(f"the image has {len(image)} bytes, but a tensor of {shape} takes {expected}")
            problems += _size_problems(ints, shape)
        if label is not None and self._classes and not self._least <= label < self._classes:
            problems.append(f"label {label}, and there are {self._classes} classes, 0 to {self._classes - 1}")
        if problems:
            raise RecordError("; ".join(problems))
        return CheckedRecord(image, label, ints, payload)

    def check_image(self, sample: CheckedRecord) -> None:
        """Decode the image. Raises RecordError if it does not decode, or has another size than its record says."""
        if self._pixels.frames:
            for number, frame in enumerate(frames_of(sample.image, self._pixels)):
                try:
                    self._check_image(sample._replace(image=frame))
                except RecordError as error:
                    raise RecordError(f"frame {number}: {error}") from error
        else:
            self._check_image(sample)

    def _check_image(self, sample: CheckedRecord) -> None:
        try:
            image, (height, width, channels) = self._decode_mended(sample.image)
            if CHANNELS in sample.sizes:
                channels = seen_header(image).channels  # decoders skip an empty comment, so `image` may have one
        except ImageError as error:
            raise RecordError(f"the image does not decode ({error.reason}): {error}") from error
        sizes = sample.sizes
        if self._foreign:
            channels = sizes.get(CHANNELS, channels)
            if (sizes.get(HEIGHT), sizes.get(WIDTH)) == seen_size(image, upright=True):
                sizes = {}  # they are the upright image's
        problems = _size_problems(sizes, (height, width, channels))
        found = RGB8
        if bytes(image[:6]) == NPY_START:
            stored: Any = npy_view(image)
            found = PixelFormat(stored.dtype.name, stored.shape[2])
        if found != self._pixels.frame:
            problems.append(f"it is {found}, not {self._pixels.frame}")
        if self._pictures and not problems:
            problems = self._picture_problems(decode_example(sample.payload), (height, width))
        if problems:
            raise RecordError("; ".join(problems))

    def _decode_mended(self, image: bytes | memoryview) -> tuple[bytes | memoryview, tuple[int, ...]]:
        """Return the image, mended if loaders would mend it, and the shape of its pixels."""
        try:
            return image, decode(image, buffer=self._scratch).shape
        except ImageError as error:
            image = mend(image, error)
            return image, decode(image, buffer=self._scratch).shape

    def _picture_problems(self, features: Mapping[str, Feature], size: tuple[int, int]) -> list[str]:
        """Decode further images and masks, and compare the size of masks with that of the image."""
        problems = []
        for spec in self._pictures:
            (data,) = features[spec.key].values
            try:
                if spec.kind == "image":
                    self._decode_mended(data)  # type: ignore[arg-type]  # its kind was compared
                    continue
                found = decode_mask(data, "mask" if spec.kind == "mask" else "depth").shape  # type: ignore[arg-type]
            except ImageError as error:
                problems.append(f"{spec.key!r} does not decode ({error.reason}): {error}")
                continue
            if found != size:
                problems.append(f"{spec.key!r} has {found[1]}x{found[0]} pixels, but its image has {size[1]}x{size[0]}")
        return problems

    def _is_sound(self, rest: bytes, label: int | None) -> bool:
        """Return true if the features after the integers are sound, in order and in shortest form. False is no
        verdict."""
        at = 0
        for spec, entry, is_text in zip(self._rest, self._entries, self._texts, strict=True):
            found = None if entry is None else entry.read(rest, at)
            if found is None:
                return False
            value, at = found
            if is_text and not value.isascii() and read_text(value) is None:
                return False
            if spec is self._text and (label is None or self._is_misnamed(value, label)):
                return False
        return at == len(rest)

    def _problems(self, specs: Sequence[FeatureSpec], features: Mapping[str, Feature]) -> list[str]:
        problems = []
        for spec in specs:
            if len(spec.keys) > 1:
                problems += _side_problems(spec, features)
                continue
            feature, count = features.get(spec.key), None if spec.shape is None else math.prod(spec.shape)
            if spec.is_raw or spec.is_picture:
                count = 1  # all of it is one bytes value
            elif spec.dtype == "bytes" and spec.pixels and spec.pixels.frames:
                count = spec.pixels.frames
            if feature is None or (not len(feature.values) and (feature.kind is None or not count)):
                # An empty list is often left out, or has no type: TensorFlow makes no difference.
                problem = "is missing" if count else ""
            elif feature.kind != spec.stored_kind:
                problem = f"holds {feature.kind}, not {spec.dtype}"
            elif count is not None and len(feature.values) != count:
                problem = f"has {len(feature.values)} values, not {count}"
            elif spec.dtype == "string" and None in map(read_text, feature.values):
                problem = "is not valid UTF-8"
            else:
                problem = _value_problem(spec, feature)
                if spec.name == LABEL and spec.shape is None and self._classes and not problem:
                    odd = next((label for label in feature.values if not 0 <= int(label) < self._classes), None)
                    problem = "" if odd is None else f"has the label {odd!r}, and there are {self._classes} classes"
            found = (problem, _owner_problem(spec, specs, features))
            problems += [f"feature {spec.key!r} {problem}" for problem in found if problem]
        unknown = sorted(features.keys() - {key for spec in specs for key in spec.keys} - self._left_out)
        return [*problems, *(f"feature {key!r} is not in the manifest's schema" for key in unknown)]

    def _is_misnamed(self, text: bytes, label: int) -> bool:
        """Return true if a text is not the name of its label's class. Labels out of range are found elsewhere."""
        if not 0 <= label < self._classes or text == self._names[label]:
            return False
        return self._wrong_texts is None or text in self._wrong_texts

    def _text_problems(self, features: Mapping[str, Feature], label: int | None) -> list[str]:
        """Compare the text of each label with the name of its class. Features are of the right kinds."""
        if self._text is None or self._label is None:
            return []
        labels = features.get(self._label.key, ABSENT).values if label is None else (label,)
        found = features.get(self._text.key, ABSENT).values
        texts = [bytes(text) for text in found]  # type: ignore[arg-type]  # its kind was compared
        if len(texts) != len(labels):
            return [f"feature {self._text.key!r} has {len(texts)} texts for {len(labels)} labels"]
        for text, number in zip(texts, map(int, labels), strict=True):
            if self._is_misnamed(text, number):
                said, name = text.decode("utf-8", "replace"), self._names[number].decode()
                return [f"feature {self._text.key!r} is {said!r}, and its label {number} is of the class {name!r}"]
        return []


def _side_problems(spec: FeatureSpec, features: Mapping[str, Feature]) -> list[str]:
    """Say what is wrong with boxes of other tools, whose sides are features of their own."""
    keys, sides = ", ".join(spec.keys), [features.get(key, ABSENT) for key in spec.keys]
    counts = [len(side.values) for side in sides]
    if len(set(counts)) > 1:
        return [f"features {keys} have {', '.join(map(str, counts))} values"]
    if any(side.kind not in {None, "float"} for side in sides):
        return [f"a feature of {keys} does not hold float"]
    is_finite = np.isfinite(np.array([side.values for side in sides], float)).all()
    return [] if is_finite else [f"a feature of {keys} holds a value that is not finite"]


def _value_problem(spec: FeatureSpec, feature: Feature) -> str:
    """Say what is wrong with the number, or the range, of a feature's values."""
    if (spec.is_raw or spec.is_picture) and spec.shape:
        size, expected = sum(map(len, feature.values)), math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
        return "" if size == expected else f"has {size} bytes; {spec.dtype} of {list(spec.shape)} takes {expected}"
    if spec.shape is None and isinstance(spec.lengths, tuple):
        items, (least, most) = spec.count_items(feature), spec.lengths
        if not items.is_integer() or not least <= items <= most:
            return f"has {items:g} items of shape {list(spec.each)}, but the manifest says {least} to {most}"
    if spec.is_raw or spec.is_picture:
        return ""
    if spec.dtype in _RANGES:
        low, high = _RANGES[spec.dtype]
        odd = next((value for value in feature.values if not low <= int(value) <= high), None)
        return "" if odd is None else f"holds {odd!r}, which {spec.dtype} cannot"
    if spec.kind == "boxes":
        boxes = np.array(feature.values, np.float64).reshape(-1, 4)
        bad = ~(np.isfinite(boxes).all(1) & (boxes[:, 2] >= boxes[:, 0]) & (boxes[:, 3] >= boxes[:, 1]))
        return f"holds the box {boxes[bad][0].tolist()}" if bad.any() else ""
    return ""


def _owner_problem(spec: FeatureSpec, specs: Sequence[FeatureSpec], features: Mapping[str, Feature]) -> str:
    """Say that a column does not have one item for each box of another."""
    owner = next((other for other in specs if other.name == spec.of), None)
    if owner is None:
        return ""
    items = spec.count_items(features.get(spec.key, ABSENT))
    sides = [features.get(key, ABSENT) for key in owner.keys]
    boxes = owner.count_items(sides[0]) if len(sides) == 1 else float(len(sides[0].values))
    return "" if items == boxes else f"has {items:g} items for {boxes:g} boxes in {owner.key!r}"


def _size_problems(sizes: Mapping[str, int], shape: tuple[int, ...]) -> list[str]:
    return [
        f"{name} is {sizes[name]}, but the image has {found}"
        for name, found in zip((HEIGHT, WIDTH, CHANNELS), shape[-3:], strict=True)
        if name in sizes and sizes[name] != found
    ]
