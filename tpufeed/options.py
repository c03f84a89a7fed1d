"""Refuse unknown and former keywords of a public function with an error that names the right one."""

import functools
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

from tpufeed.errors import OptionError

P = ParamSpec("P")
R = TypeVar("R")


def named_options(renamed: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that a keyword which it does not have raises OptionError, not TypeError.

    The signature that editors, `help()` and type checkers show stays.

    Args:
        renamed: for keywords that people bring along, from an older version or from another library: the parameter of
            the function, or a phrase with a space in it that says what to do ("give ops=[...] instead").
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
        said = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for keyword in kwargs:
                if keyword not in names:
                    raise OptionError(f"{said} has no option {keyword!r}; {advice(keyword)}")
            return function(*args, **kwargs)

        def advice(keyword: str) -> str:
            phrase = renamed.get(keyword, "")
            if " " in phrase:
                return phrase
            near = [phrase] if phrase else get_close_matches(keyword, names, 1)
            return f"use {near[0]}" if near else f"the options are {', '.join(names)}"

        return call

    return decorate
