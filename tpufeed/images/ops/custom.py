"""A function of the user's."""

import importlib
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from keyword import iskeyword
from typing import Annotated, Any, ClassVar

import numpy as np

from tpufeed.errors import OpError, OptionError
from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import LATER, CheckedOp, Draws, Op, SameSizeOp, keep
from tpufeed.images.rng import generator
from tpufeed.options import Rule, is_whole
from tpufeed.text import format_value

Augmentation = Callable[[Pixels, np.random.Generator], Pixels]
_WAY_OUT = "put it, by `def` and under a unique name, into a module that workers can import, and give 'module:name'"


def _is_version(value: object) -> bool:
    is_text = isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable() and value == value.strip()
    return is_text or is_whole(value)


@dataclass(frozen=True, slots=True, repr=False)
class Custom(SameSizeOp):
    """Any function of (image, numpy Generator) that returns an array of the same type and shape, usually uint8 RGB.

    With `sample=True` it is a function of (dict, Generator) that returns a dict: `image`, and the columns asked for, by
    their names: masks (height, width), boxes float32 (n, 4) in pixels of the image, keypoints, what belongs to boxes,
    texts and numbers, but not the label. It may return other boxes, in any number. For a text it may return whole
    numbers (n,), if the loader's `pad` gives the longest n.

    The function gets a copy of the image. It may change and return it. All its random numbers must come from the
    Generator: then any number of threads and processes gives the same pixels. The function is imported when the op
    first runs, once per process. Pickles and descriptions hold only its name. Threads call it at the same time. A
    function of `__main__` runs in this process only: in loaders with `processes=0`, and in no build.

    Attributes:
        target: "module:function", or "module:Class.method". A function is accepted, too, and stored as such a text.
        version: the user's own version of the function: another version means other pixels.
        sample: True if the function takes and returns a dict.
        random: False if it draws no random numbers. Then evaluation keeps it, see `evaluation_of`.

    Raises:
        OptionError: the function has no name that workers could import, or its import fails when it first runs.
        OpError: the function raised an error, or returned something else.
    """

    target: str | Augmentation
    version: Annotated[str, Rule("a short text, like '2'", _is_version, str)] = "1"
    sample: bool = field(default=False, metadata=LATER)
    random: bool = field(default=True, metadata=LATER)
    draws: ClassVar[int] = 4
    any_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        target = self.target if isinstance(self.target, str) else _name_of(self.target)
        object.__setattr__(self, "target", _check_target(target))
        CheckedOp.__post_init__(self)  # no super(): `slots` makes another class of this one

    def __repr__(self) -> str:
        whole = ", sample=True" if self.sample else ""
        random = "" if self.random else ", random=False"
        return f"Custom(target={self.target!r}, version={self.version!r}{whole}{random})"

    def evaluation(self) -> tuple[Op, ...]:
        return () if self.random else (self,)

    def skips(self, draws: Draws) -> bool:
        return False

    @property
    def obstacle(self) -> str:
        """The reason why other processes cannot import the function, or "" if none is known."""
        if not str(self.target).startswith("__main__:"):
            return ""
        return f"Custom: workers cannot import {self.target}, as they have another __main__: {_WAY_OUT}"

    def load(self) -> Augmentation:
        """Return the function. Raises OptionError if it cannot be imported."""
        # Notebooks redefine functions of their __main__ under the same names.
        return _find(str(self.target)) if self.obstacle else _find_once(str(self.target))

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        given = np.array(image, order="C")
        if self.sample:
            return keep(self.apply_sample({"image": given}, draws)["image"], out)
        result = self._call(given, draws)
        pixels = self._check(result, image)
        if out is None:
            # The function may reuse its own array for the next image.
            return pixels if pixels is given else pixels.copy()
        np.copyto(out, pixels)
        return out

    def apply_sample(self, sample: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the function's result for a sample, in new arrays. Raises OpError if it does not fit.

        Args:
            sample: arrays, texts and numbers by name. The function may change them.
            draws: seed its Generator.
        """
        given = {name: np.array(value, order="C") if np.ndim(value) else value for name, value in sample.items()}
        result = self._call(dict(given), draws)
        if not isinstance(result, dict) or result.keys() != sample.keys():
            found = sorted(result) if isinstance(result, dict) else type(result).__name__
            raise OpError(f"{self} returned {found}: return a dict of {', '.join(sample)}")
        changed = {"image": self._check(result["image"], sample["image"]).copy()}
        for name, stored in sample.items():
            if name == "image":
                continue
            is_text = isinstance(stored, str | bytes)
            if is_text and isinstance(result[name], type(stored)):
                changed[name] = result[name]
                continue
            # A tokeniser makes any number of int32 of a text.
            before = np.empty(0, np.int32) if is_text else np.asarray(stored)
            try:
                after = np.asarray(result[name])
            except ValueError:  # lists of different lengths
                after = np.array(None)
            is_mask = before.shape == sample["image"].shape[:2]
            fits = after.ndim == before.ndim and after.shape[is_mask ^ 1 :] == before.shape[is_mask ^ 1 :]
            kinds = {after.dtype.kind, before.dtype.kind}
            if not fits or (after.size and not (len(kinds) == 1 or kinds == {"i", "u"})):
                was = "a text" if is_text else f"{before.dtype} of shape {before.shape}"
                raise OpError(
                    f"{self} returned {name!r} as {after.dtype} of shape {after.shape} for {was}: only the number of "
                    "boxes, points and what belongs to them may change, and a text become whole numbers (n,)"
                )
            changed[name] = after.astype(before.dtype)[()]  # a number itself, no array of it
            if kinds <= {"i", "u"} and after.dtype != before.dtype and not np.array_equal(changed[name], after):
                raise OpError(
                    f"{self} returned {name!r} with values from {after.min()} to {after.max()}, which {before.dtype} "
                    "does not hold: return values that fit"
                )
        return changed

    def _call(self, given: Any, draws: Draws) -> object:
        function: Any = self.load()
        try:
            return function(given, generator(draws))
        except Exception as error:
            raise OpError(f"{self} raised {type(error).__name__}: {error}") from error

    def _check(self, result: object, image: Pixels) -> Pixels:
        if not isinstance(result, np.ndarray):
            found = type(result).__name__
            raise OpError(f"{self} returned {found}, not a numpy array: return np.asarray(...) of the pixels")
        if result.dtype != image.dtype:
            way_out = f"return image.astype(np.{image.dtype}), clipped to its range. 8-bit levels end at 255, not at 1"
            raise OpError(f"{self} returned pixels of {result.dtype}, not {image.dtype}: {way_out}")
        if result.shape != image.shape:
            way_out = "leave the size to tpufeed's own ops, before or after it, and return (height, width, channels)"
            raise OpError(f"{self} returned the shape {result.shape} for {image.shape}: {way_out}")
        if not result.flags.c_contiguous:
            raise OpError(f"{self} returned an array that is not C-contiguous: return np.ascontiguousarray(...) of it")
        return result


def _check_target(target: str) -> str:
    module, colon, name = target.partition(":")
    parts = (*module.split("."), *name.split("."))
    if not colon or not all(part.isidentifier() and not iskeyword(part) for part in parts):
        raise OptionError(
            f"Custom: the target is 'module:function', like 'my.augment:heavy', not {format_value(target)}"
        )
    return target


def _name_of(value: object) -> str:
    """Return `module:qualname` of `value`. Raises OptionError unless an import by that name gives `value` again."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not callable(value) or not isinstance(module, str) or not isinstance(name, str):
        raise OptionError(f"Custom: {format_value(value)} has no name by which workers could import it: {_WAY_OUT}")
    what = f"{module}:{name}"
    if "<lambda>" in name:
        raise OptionError(f"Custom: workers cannot import a lambda ({what}): {_WAY_OUT}")
    if "<locals>" in name:
        raise OptionError(f"Custom: workers cannot import {what}, as it is local to a function: {_WAY_OUT}")
    if _find(_check_target(what)) != value:
        raise OptionError(f"Custom: {what} is not {format_value(value)}, but another object of that name: {_WAY_OUT}")
    return what


def _holds(module: object, name: str) -> bool:
    """Return True if a module has `name` already: then a running import of it need not be waited for."""
    try:
        operator.attrgetter(name)(module)
    except AttributeError:
        return False
    return True


def _find(target: str) -> Augmentation:
    module, _, name = target.partition(":")
    found: Any = sys.modules.get(module)
    try:
        if not _holds(found, name):  # not imported, or not completely: this waits for another thread's import
            found = importlib.import_module(module)
    except Exception as error:
        raise OptionError(
            f"Custom: importing {module} for {target} raised {type(error).__name__}: {error}. Install the module, or "
            "put its folder on PYTHONPATH, wherever workers run"
        ) from error
    if not _holds(found, name):
        raise OptionError(f"Custom: there is no {name} in {module}. Write the function like my_ops:blur")
    found = operator.attrgetter(name)(found)
    if not callable(found):
        raise OptionError(f"Custom: {target} is {format_value(found)}, which cannot be called")
    function: Augmentation = found
    return function


_find_once = cache(_find)
