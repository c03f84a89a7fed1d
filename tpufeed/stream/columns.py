"""Columns of a batch: which ones a loader was asked for, their shapes, and how a record is decoded into a row."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.dataset import schema
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.sample import Sample
from tpufeed.dataset.schema import FeatureSpec, plain_boxes
from tpufeed.errors import OptionError, RecordError
from tpufeed.images.ops import Choose, Custom
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.images.protocols import MovingOp, Op, WindowOp
from tpufeed.stream.options import LoaderOptions

Array: TypeAlias = npt.NDArray[Any]
Batch: TypeAlias = Array | tuple[Array, ...] | dict[str, Array]
Rows: TypeAlias = Mapping[str, Array] | Mapping[str, list[Any]]  # a batch's arrays, or a list for each column

IMAGE, LABEL, SAMPLE, SOURCE, WINDOW = "image", "label", "sample", "source", "window"
DEVICE_NUMBERS = "(device_ops)"  # what device ops do to each image. No feature has this name
_OWN_NAMES = frozenset({IMAGE, SAMPLE})  # columns that loaders make. No feature has these names
TEXTS = ("bytes", "string")
_NO_CLASS = -1  # pads a list of labels: 0 is a class


class Column(msgspec.Struct, frozen=True):
    """One array of a batch: `dtype` and `shape` of a sample. `dtype` "O" is for text and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()


class Field(Protocol):
    """Writes the values of a sample to one or several of the columns that a loader was asked for."""

    columns: tuple[Column, ...]
    moves: bool  # True if its values depend on how the ops move pixels

    @property
    def spec(self) -> FeatureSpec | None:
        """The feature that it is read from."""

    def put(self, sample: Sample, rows: Rows, row: int) -> None:
        """Write a sample's values to a row of the field's columns. Raises RecordError."""


class Scalar:
    """One value per sample.

    Attributes:
        position: its index among the integers of the fixed layout. None if the record must be parsed.
        choice: the place of the op that chooses one of several values. None if there is one value.
    """

    moves = False

    def __init__(
        self, name: str, spec: FeatureSpec, position: int | None, fill: float | str | None, choice: int | None = None
    ) -> None:
        self.position, self.spec, self.fill_value, self.choice = position, spec, fill, choice
        self.columns: tuple[Column, ...] = (Column(name, "O" if spec.dtype in TEXTS else spec.dtype),)

    def put(self, sample: Sample, rows: Rows, row: int) -> None:
        rows[self.columns[0].name][row] = self.read(sample)

    def read(self, sample: Sample) -> Any:
        """Return the value, as rows hold it. Raises RecordError."""
        found, (column,) = sample.values(self.spec), self.columns
        if self.spec.is_raw and len(found) == 1 and isinstance(found[0], memoryview):
            found = sample.items(self.spec).tolist()  # of a small type, at most one number
        if self.choice is not None and len(found) > 1:
            share = next(iter(sample.draws[self.choice]), 0.0)  # no draw for the first one
            found = [found[int(share * len(found))]]
        if len(found) != 1:
            if len(found) > 1 or self.fill_value is None:
                raise RecordError(
                    f"{sample.where}: {self.spec.key} has {len(found)} values, not 1; leave the column "
                    f"{column.name!r} out, or give each sample one value"
                )
            found = [self.fill_value]
        elif self.spec.name == schema.LABEL and sample.classes is not None:
            found = sample.classes.of(found, lambda _: sample.where)
        value = found[0]
        if isinstance(value, memoryview):
            value = str(value, "utf-8") if self.spec.dtype == "string" else bytes(value)
        elif isinstance(value, np.integer):
            value = int(value)  # rows may be lists
        return value


class Items:
    """A tensor, or a list that is padded to a static length, with its own length in the next column.

    Boxes and points are in pixels of the result. Boxes are clipped, and dropped with everything that belongs to them if
    nothing is left. A column of points is followed by one that says which points the result shows.

    Args:
        name: name of the column.
        spec: the feature.
        most: the static length of a list. None for a tensor of a fixed shape.
        truncate: True to cut longer lists. Otherwise they are an error.
        padding: the value after a list's items.
        counted: True for a column of the list's lengths.
    """

    def __init__(
        self, name: str, spec: FeatureSpec, most: int | None, truncate: bool, padding: float, counted: bool
    ) -> None:
        self.spec, self.most, self._truncate, self._padding, self._counted = spec, most, truncate, padding, counted
        self.moves = spec.kind in ("boxes", "keypoints") or isinstance(spec.of, str)
        shape = spec.shape or () if most is None else (most, *spec.each)
        lengths = (Column(f"{name}_length", "int32"),) if counted else ()
        visible = (Column(f"{name}_visible", "bool", shape[:-1]),) if spec.kind == "keypoints" else ()
        self.columns: tuple[Column, ...] = (Column(name, spec.dtype, shape), *lengths, *visible)

    def put(self, sample: Sample, rows: Rows, row: int) -> None:
        column, visible = self.columns[0], None
        if self.spec.kind == "keypoints":
            items, visible = sample.points(self.spec)
        else:
            items = sample.boxes(self.spec) if self.spec.kind == "boxes" else sample.items(self.spec)
        if self.most is None:
            if items.shape != column.shape:
                raise RecordError(f"{sample.where}: {self.spec.key} has the shape {items.shape}, not {column.shape}")
            rows[column.name][row] = items.astype(column.dtype, copy=False)
        else:
            if len(items) > self.most and not self._truncate:
                name = column.name if self._counted else self.spec.of
                raise RecordError(
                    f"{sample.where}: {column.name} has {len(items)} items, and the batch has room for {self.most}; "
                    f"give pad={{{name!r}: {len(items)}}}, or truncate=[{name!r}]"
                )
            padded = np.full(column.shape, self._padding, column.dtype)
            padded[: len(items)] = items[: self.most]
            rows[column.name][row] = padded
            if self._counted:
                rows[self.columns[1].name][row] = min(len(items), self.most)
        if visible is not None:
            seen = np.zeros(self.columns[-1].shape, np.bool_)
            seen[: len(visible)] = visible[: len(seen)]
            rows[self.columns[-1].name][row] = seen


class Tokens(Items):
    """Whole numbers that a function of the user's makes of a text, padded to a static length.

    Attributes:
        text: reads the text.
    """

    def __init__(self, text: Scalar, most: int, truncate: bool) -> None:
        spec = msgspec.structs.replace(text.spec, dtype="int32", shape=None)
        super().__init__(text.columns[0].name, spec, most, truncate, 0, True)
        self.text = text


class MultiHot:
    """The labels of a sample as one float per class, 1 for its classes."""

    def __init__(self, spec: FeatureSpec, classes: int) -> None:
        self.spec, self.moves = spec, isinstance(spec.of, str)
        self.columns: tuple[Column, ...] = (Column("label", "float32", (classes,)),)

    def put(self, sample: Sample, rows: Rows, row: int) -> None:
        labels, (column,) = sample.items(self.spec), self.columns
        hot = np.zeros(column.shape, np.float32)
        hot[labels] = 1
        rows[column.name][row] = hot


class Mask:
    """A mask or depth image: each pixel is the nearest one, never a mix."""

    moves = True

    def __init__(self, name: str, spec: FeatureSpec, size: tuple[int, int] | None, fill: int) -> None:
        self.spec, self.fill_value = spec, fill
        dtype = "uint8" if spec.kind == "mask" else "int32"
        self.columns: tuple[Column, ...] = (Column(name, dtype, () if size is None else size),)

    def put(self, sample: Sample, rows: Rows, row: int) -> None:
        target = rows[self.columns[0].name]
        made = sample.mask(self.spec, self.fill_value, None if isinstance(target, list) else target[row])
        if isinstance(target, list):
            target[row] = made


class Picture:
    """Another image of a sample, which the ops change exactly as they change the main image."""

    moves = False

    def __init__(self, name: str, spec: FeatureSpec, size: tuple[int, int] | None) -> None:
        self.spec = spec
        self.columns: tuple[Column, ...] = (image_column(name, RGB8, size),)


class WindowField:
    """The part of the stored image that the result shows: top, left, height and width in pixels."""

    moves, spec = True, None
    columns: tuple[Column, ...] = (Column(WINDOW, "float32", (4,)),)

    def put(self, sample: Sample, rows: Rows, row: int) -> None:
        rows[WINDOW][row] = np.array(sample.window, np.float32)


@dataclass(frozen=True, slots=True)
class BatchForm:
    """Form in which a batch is handed over: a dict or tuple of columns, or a single array if there is one column."""

    names: tuple[str, ...]
    as_dict: bool

    def package(self, arrays: Mapping[str, Any]) -> Any:
        """Return the batch for the training loop."""
        if self.as_dict:
            return {name: arrays[name] for name in self.names}
        return arrays[self.names[0]] if len(self.names) == 1 else tuple(arrays[name] for name in self.names)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a loader's batches.

    Attributes:
        every: all columns but `sample` and the mask.
        images: the image columns, one per size of the views. Empty if not asked for.
        views: for each view of the image its column, and its index there. None as the index of a single view.
        scalars: fields at fixed places, for which a record need not be parsed.
        fields: all other fields, without images and `sample`.
        pooled: the pixel columns, which take most of a batch's memory.
        names: the names of all columns, in the order in which they are handed over.
        mask: the name of the column that is False for padding.
    """

    every: tuple[Column, ...]
    images: tuple[Column, ...]
    views: tuple[tuple[str, int | None], ...]
    scalars: tuple[Scalar, ...]
    fields: tuple[Field | Picture, ...]
    pooled: tuple[Column, ...]
    names: tuple[str, ...]
    mask: str

    def before_device_ops(self, image: Column, numbers: int) -> "Columns":
        """Return the columns with this one of images, and `numbers` numbers for the device ops."""

        def changed(columns: tuple[Column, ...]) -> tuple[Column, ...]:
            return tuple(image if column.name == IMAGE else column for column in columns)

        every = (*changed(self.every), Column(DEVICE_NUMBERS, "float32", (numbers,)))
        return replace(self, every=every, images=(image,), pooled=changed(self.pooled))


def resolve_columns(
    manifest: Manifest,
    options: LoaderOptions,
    sizes: Sequence[tuple[int, int] | None],
    mixed: bool,
    ops: Sequence[Op],
) -> Columns:
    """Return the columns of a loader, or of one dataset of a mixture.

    Args:
        manifest: the dataset's manifest.
        options: `columns`, and the options for batching them.
        sizes: (height, width) of each view's images. None if they differ from sample to sample.
        mixed: True if the dataset is one of several.
        ops: those of the first view.

    Raises:
        OptionError: the dataset does not have a column, or the options cannot batch it.
    """
    asked: Sequence[str] = options.columns or ()
    if options.columns is None or options.columns == "default":
        asked = (IMAGE, *(("label",) if manifest.has_label else ()), *((SAMPLE,) if options.columns is None else ()))
    _check_plain_boxes(manifest, options, asked)
    finder = _Finder(manifest, options, asked, sizes[0], {spec.name: spec for spec in manifest.features[1:]}, ops)
    list(map(finder.find, (op.column for op in ops if isinstance(op, Choose))))  # raises for columns not asked for, too
    images, names = list[Column](), list[str]()
    views: Sequence[tuple[str, int | None]] = ()
    scalars, fields = list[Scalar](), list[Field | Picture]()
    for name in asked:
        if name == IMAGE:
            single = image_column(IMAGE, manifest.pixels, sizes[0])
            images, views = _lay_out_views(sizes, manifest.pixels) if len(sizes) > 1 else ([single], [(IMAGE, None)])
            names += [column.name for column in images]
        elif name == SAMPLE or (name == SOURCE and mixed):
            names.append(name)
        else:
            field = finder.find(name)
            names += [column.name for column in field.columns]
            if isinstance(field, Scalar) and field.position is not None:
                scalars.append(field)
            else:
                fields.append(field)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"two columns of a batch are called {twice!r}; leave one of them out of columns=")
    unknown = [name for option in (options.pad, options.fill) for name in option or () if name not in names]
    if unknown:
        raise OptionError(
            f"pad and fill name columns that are asked for, not {unknown[0]!r}; they are {', '.join(names)}"
        )
    for name in options.pad or ():
        lists = (field for field in fields if isinstance(field, Items) and field.most is not None)
        if not any(field.columns[0].name == name for field in lists):
            raise OptionError(
                f"pad is for lists, and for texts of which Custom('module:function', sample=True) makes numbers. "
                f"{name!r} is neither: leave it out of pad="
            )
    moving = len(sizes) > 1 and options.share != "crop"
    if moving and any(field.moves or isinstance(field, Picture) for field in fields):
        raise OptionError(
            "views are crops of the image alone: masks, boxes, keypoints, other images and the window of a sample "
            "would differ from view to view; leave them out of columns=, or leave out views=, or give share='crop'"
        )
    mask = "sample_mask" if any(feature.name == "mask" for feature in manifest.features) else "mask"
    own = (Column(SOURCE, "int32"),) if mixed and SOURCE in names else ()
    every = (*own, *images, *(column for field in (*scalars, *fields) for column in field.columns))
    masks = (column for field in fields if isinstance(field, Mask | Picture) for column in field.columns)
    pooled = (*images, *masks)
    return Columns(every, tuple(images), tuple(views), tuple(scalars), tuple(fields), pooled, tuple(names), mask)


def _check_plain_boxes(manifest: Manifest, options: LoaderOptions, asked: Sequence[str]) -> None:
    """Raise OptionError if ops would move pixels away from boxes that were stored as plain numbers."""
    plain = [name for name in plain_boxes(manifest.features, manifest.options) if name in asked]
    ops = itertools.chain(options.ops or (), options.device_ops or (), *options.view_ops)
    mover = next((type(op).__name__ for op in ops if isinstance(op, WindowOp | MovingOp)), None)
    if plain and mover:
        raise OptionError(
            f"{mover} moves pixels, and {', '.join(plain)} would stay: they look like boxes, but were stored as plain "
            "numbers. Build the dataset with --boxes, or with --column NAME:TYPE if they are no boxes"
        )


def image_column(name: str, pixels: PixelFormat, size: tuple[int, int] | None) -> Column:
    """Return the column of images of this (height, width), or of several sizes."""
    return Column(name, pixels.dtype, () if size is None else pixels.shape(size))


def _lay_out_views(
    sizes: Sequence[tuple[int, int] | None], pixels: PixelFormat
) -> tuple[list[Column], list[tuple[str, int | None]]]:
    """Return the columns of several views of the image, one for each size, and `Columns.views`."""
    counts, taken, views = Counter(sizes), Counter[str](), list[tuple[str, int | None]]()
    columns = list[Column]()
    for (height, width), count in counts.items():  # type: ignore[misc]  # each view fixes a size
        name = IMAGE if len(counts) == 1 else f"{IMAGE}_{height}" + (f"x{width}" if width != height else "")
        columns.append(Column(name, pixels.dtype, (count, *pixels.shape((height, width)))))
    names = {size: column.name for size, column in zip(counts, columns, strict=True)}
    for size in sizes:
        views.append((names[size], taken[names[size]]))
        taken[names[size]] += 1
    return columns, views


def _check_fill(name: str, spec: FeatureSpec, fill: object) -> None:
    """Raise OptionError if the column's type cannot hold a value of `fill=`."""
    # In a cache of JPEGs or PNGs the manifest calls masks and depth bytes.
    held = {"mask": "uint8", "depth": "int32"}.get(str(spec.kind), spec.dtype)
    dtype = np.dtype("O" if held in TEXTS else held)
    if dtype.kind == "O":
        fits = isinstance(fill, str)
    elif isinstance(fill, bool | np.bool_) or not isinstance(fill, int | float | np.number):
        fits = dtype.kind == "b" and isinstance(fill, bool | np.bool_)
    elif dtype.kind == "f":  # NaN and infinity fit
        most = float(np.finfo(dtype).max)
        fits = not (most < fill < np.inf or -np.inf < fill < -most)
    else:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        fits = bool(low <= fill <= high and float(fill).is_integer())
    if not fits:
        raise OptionError(f"fill of {name!r} is a value of {held}, not {fill!r}")


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds the field of a column that was asked for."""

    manifest: Manifest
    options: LoaderOptions
    asked: Sequence[str]
    size: tuple[int, int] | None
    features: Mapping[str, FeatureSpec]
    ops: Sequence[Op]

    def find(self, name: str) -> Field | Picture:
        """Return the field: a feature of exactly this name, except for labels, or what the name is short for.

        Raises OptionError.
        """
        features, manifest, options = self.features, self.manifest, self.options
        short = schema.FEATURE_OF_NAME.get(name, name)
        wanted = name if name in features and (name != "label" or not manifest.labelled) else short
        is_chosen = self._choice(name) is not None
        if wanted == WINDOW and wanted not in features and not is_chosen:
            return WindowField()
        if wanted not in features or wanted in _OWN_NAMES:
            shorts = [short for short, feature in schema.FEATURE_OF_NAME.items() if feature in features]
            known = dict.fromkeys((IMAGE, SAMPLE, *shorts, *sorted(features.keys() - _OWN_NAMES), WINDOW))
            renamed = [feature.name for feature in features.values() if feature.key == name]
            hint = f". In the records {name!r} is the key of {renamed[0]}" if renamed else ""
            what = f"Choose({name!r}) takes a stored column" if is_chosen else f"no column {name!r}"
            raise OptionError(f"{what}; this dataset has {', '.join(known)}{hint}")
        spec = features[wanted]
        fill = (options.fill or {}).get(name)
        if is_chosen:
            if spec.kind or spec.of or spec.is_raw or spec.each or len(spec.shape or ()) > 1:
                raise OptionError(
                    f"Choose({name!r}) is for a list of texts, bool, int32, int64 or float32, and the column is "
                    f"{spec.type_text}: leave it out of ops="
                )
            if isinstance(spec.lengths, tuple) and spec.lengths[0] == 0 and name in self.asked:
                self._check_filled(name, spec, fill)
            spec = msgspec.structs.replace(spec, shape=(), lengths=msgspec.UNSET)
        if fill is not None:
            _check_fill(name, spec, fill)
        if spec.kind in ("mask", "depth"):
            return Mask(name, spec, self.size, int(fill or 0))
        if spec.kind == "image":
            return Picture(name, spec, self.size)
        if options.label_format == "multi_hot" and (wanted == schema.LABEL or name == "label"):
            if spec.shape is not None:
                raise OptionError(
                    "label_format='multi_hot' is for samples with lists of labels; here each has one: leave it out, "
                    "and make a one-hot vector of the id on the device"
                )
            if not manifest.class_names:
                raise OptionError(
                    "label_format='multi_hot' needs the number of classes, and the dataset does not name its classes: "
                    "leave it out, or adopt the files again with --classes"
                )
            return MultiHot(spec, len(manifest.class_names))
        return self._single(name, spec, fill) if spec.shape == () else self._list(name, spec, fill)

    def _choice(self, name: str) -> int | None:
        return next((at for at, op in enumerate(self.ops) if isinstance(op, Choose) and op.column == name), None)

    def _check_filled(self, name: str, spec: FeatureSpec, fill: float | str | None) -> None:
        """Raise OptionError if samples without a value get none. An adopted record without it may be skipped."""
        if fill is None and self.manifest.options.get("command") != "adopt":
            raise OptionError(
                f"the column {name!r} cannot be batched: some samples have no value in it; give a value to use "
                f"instead, like fill={{{name!r}: {0 if spec.dtype not in TEXTS else ''!r}}}, or leave it out of "
                "columns="
            )

    def _single(self, name: str, spec: FeatureSpec, fill: float | str | None) -> Field:
        ints, options = schema.fixed_ints(self.manifest.features), self.options
        field = Scalar(name, spec, ints.index(spec.name) if spec.name in ints else None, fill, self._choice(name))
        most = (options.pad or {}).get(name) if spec.dtype in TEXTS else None
        if most is not None and any(isinstance(op, Custom) and op.sample for op in self.ops):
            return Tokens(field, most, options.truncates(name))
        return field

    def _list(self, name: str, spec: FeatureSpec, fill: float | str | None) -> Field:
        options, is_boxes = self.options, spec.kind == "boxes"
        is_adopted = self.manifest.options.get("command") == "adopt"
        owner = spec.of if isinstance(spec.of, str) else None
        pad, counted_by, counting = ({} if spec.dtype in TEXTS else options.pad or {}), name, spec
        if owner is not None and owner in self.asked:  # `boxes_length` counts these items, too: they get its room
            counted_by, counting = owner, self.features[owner]
        lengths = None if isinstance(counting.lengths, msgspec.UnsetType) else counting.lengths
        given = pad.get(counted_by)
        room = lengths[1] if given is None and lengths else given
        if pad.get(name, room) != room:
            raise OptionError(
                f"pad gives {name!r} room for {pad[name]} items, but there is one for each box in {counted_by!r}: give "
                f"pad={{{counted_by!r}: {pad[name]}}} alone"
            )
        # A list of at most one value is a value that may be missing, except for labels and what belongs to boxes.
        if spec.shape is None and not spec.each and given is None and not owner and spec.name != schema.LABEL:
            lacks = lengths is not None and lengths[1] <= 1 and lengths[0] == 0  # some samples lack the value
            if lacks:
                self._check_filled(name, spec, fill)
            if lacks or (is_adopted and lengths is None):  # an adopted record without its value may be skipped
                return self._single(name, spec, fill)
        if spec.dtype in TEXTS:
            raise OptionError(
                f"the column {name!r} cannot be batched: it holds lists of text (`tpufeed info` says {spec.name} "
                f"{spec.type_text}). Add Choose({name!r}) to ops=, which draws one of them, or leave it out of columns="
            )
        most = given if spec.shape is None else None
        if spec.shape is None and given is None:
            if lengths is None:
                raise OptionError(
                    f"the dataset does not say how long the lists of {name!r} are; give a length for batches, like "
                    f"pad={{{counted_by!r}: 64}}"
                )
            if lengths[0] == lengths[1] > 0 and not owner and not is_boxes:  # all are equal
                spec = msgspec.structs.replace(spec, shape=(lengths[1], *spec.each), lengths=msgspec.UNSET)
            else:
                most = max(1, lengths[1])
        padding: float = _NO_CLASS if spec.name == schema.LABEL else 0
        if fill is not None and not isinstance(fill, str):  # a number, maybe numpy's
            padding = fill
        counted = most is not None and counted_by == name
        return Items(name, spec, most, options.truncates(counted_by), padding, counted)
