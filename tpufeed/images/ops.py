"""List of all ops by name, and their descriptions as plain data."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, TypeGuard

from tpufeed.errors import OptionError
from tpufeed.images.colour import ColorJitter, GaussianBlur, Grayscale
from tpufeed.images.custom import Custom
from tpufeed.images.erasing import RandomErasing
from tpufeed.images.flips import HorizontalFlip, VerticalFlip
from tpufeed.images.geometry import Rotate
from tpufeed.images.parameters import shown
from tpufeed.images.protocols import Draws, Op, PixelOp, Window, WindowOp
from tpufeed.images.randaugment import RandAugment
from tpufeed.images.windows import CenterCrop, RandomCrop, RandomResizedCrop, Resize

__all__ = [
    "OPS",
    "CenterCrop",
    "ColorJitter",
    "Custom",
    "Draws",
    "GaussianBlur",
    "Grayscale",
    "HorizontalFlip",
    "Op",
    "PixelOp",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "Resize",
    "Rotate",
    "VerticalFlip",
    "Window",
    "WindowOp",
    "from_dict",
    "is_op",
    "signature",
    "to_dict",
]

OPS: Mapping[str, type[Any]] = MappingProxyType(
    {
        op.__name__: op
        for op in (
            CenterCrop,
            ColorJitter,
            Custom,
            GaussianBlur,
            Grayscale,
            HorizontalFlip,
            RandAugment,
            RandomCrop,
            RandomErasing,
            RandomResizedCrop,
            Resize,
            Rotate,
            VerticalFlip,
        )
    }
)


def is_op(value: object) -> TypeGuard[Op]:
    """Return true where `value` is an op that tpufeed can run."""
    return isinstance(value, WindowOp | PixelOp) and not isinstance(value, type)


def to_dict(op: Op) -> dict[str, Any]:
    """The op as plain data for a manifest: name, version and parameters. Equal ops have equal descriptions."""
    parameters = {field.name: getattr(op, field.name) for field in fields(op)}  # type: ignore[arg-type]  # a dataclass
    return {"op": type(op).__name__, "version": op.version, **parameters}


def from_dict(data: Mapping[str, Any]) -> Op:
    """The op of `to_dict`; nothing is imported for it.

    Raises:
        OptionError: this tpufeed does not have the op, or has another version of it, or it has no such parameters.
    """
    parameters = dict(data)
    name = parameters.pop("op", None)
    found = OPS.get(str(name))
    if found is None:
        raise OptionError(f"{shown(name)} is none of the ops that this tpufeed has: {', '.join(OPS)}")
    names = [field.name for field in fields(found)]
    if "version" not in names:
        version = parameters.pop("version", None)
        if found.version != version:
            raise OptionError(f"{name} is of version {version}; this tpufeed makes version {found.version}")
    unknown = sorted(map(str, set(parameters) - set(names)))
    if unknown:
        raise OptionError(f"{name} has no parameters {unknown}: it is {signature(found)}")
    try:
        op: Op = found(**parameters)
    except TypeError as error:
        raise OptionError(f"{name}: {error}; it is {signature(found)}") from error
    return op


def signature(op: type[Any]) -> str:
    """An op's parameters with their defaults, as one writes them: `RandomCrop(size, padding=0, fill=0)`."""
    parameters = (
        field.name if field.default is MISSING else f"{field.name}={_short(field.default)}" for field in fields(op)
    )
    return f"{op.__name__}({', '.join(parameters)})"


def _short(value: object) -> str:
    """A default in a message: four digits of a float are enough."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
