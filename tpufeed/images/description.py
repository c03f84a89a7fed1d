"""The two descriptions of ops: plain data for manifests, and text for the command line."""

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, NoReturn

from tpufeed.errors import OptionError
from tpufeed.images.ops import OPS, Custom
from tpufeed.images.protocols import Op
from tpufeed.text import format_value

_MOST_CHARACTERS = 1000
_SHOWN_CHARACTERS = 100
_CUSTOM = re.compile(r"(?P<target>[^\s()@'\"]*:[^\s()@'\"]*)(?:@(?P<version>.*))?", re.DOTALL)


def to_dict(op: Op) -> dict[str, Any]:
    """Return the op as plain data for a manifest: name, version, parameters. Equal ops have equal descriptions."""
    parameters = {
        field.name: value
        for field in fields(op)  # type: ignore[arg-type]  # a dataclass
        if (value := getattr(op, field.name)) is not field.default or not field.metadata
    }
    return {"op": type(op).__name__, "version": op.version, **parameters}


def from_dict(data: Mapping[str, Any]) -> Op:
    """Return the op that `to_dict` described. Nothing is imported.

    Raises:
        OptionError: this tpufeed does not have the op, or has another version of it, or the op has no such parameters.
    """
    parameters = dict(data)
    name = parameters.pop("op", None)
    found = OPS.get(str(name))
    if found is None:
        raise OptionError(f"{format_value(name)} is not one of the ops of this tpufeed: {', '.join(OPS)}")
    names = [field.name for field in fields(found)]
    if "version" not in names:
        version = parameters.pop("version", None)
        if found.version != version:
            raise OptionError(f"{name} is of version {version}, but this tpufeed makes version {found.version}")
    unknown = sorted(map(str, set(parameters) - set(names)))
    if unknown:
        raise OptionError(f"{name} has no parameters {unknown}: it is {signature(found)}")
    try:
        op: Op = found(**parameters)
    except TypeError as error:
        raise OptionError(f"{name}: {error}. It is {signature(found)}") from error
    return op


def short_text(op: Op) -> str:
    """Return an op with the parameters that differ from their defaults, for people."""
    given = ((field.name, getattr(op, field.name), field.default) for field in fields(op))  # type: ignore[arg-type]
    return f"{type(op).__name__}({', '.join(f'{name}={value!r}' for name, value, usual in given if value != usual)})"


def signature(op: type[Any]) -> str:
    """Return an op's name, parameters and defaults, like `RandomCrop(size, padding=0, fill=0)`."""
    parameters = (
        field.name if field.default is MISSING else f"{field.name}={_short(field.default)}" for field in fields(op)
    )
    return f"{op.__name__}({', '.join(parameters)})"


def _short(value: object) -> str:
    """Format a default for a message: four digits of a float are enough."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def parse_op(text: str) -> Op:
    """Return the op that `text` describes. `parse_op(repr(op)) == op`.

    The text is a call with literal arguments, by name or position ("Resize(256)", "RandomResizedCrop(scale=(0.3,
    1.0))"), a name ("HorizontalFlip"), or a user's function ("my.augment:heavy", "my.augment:heavy@2" for version "2").
    Nothing is evaluated or imported.

    Raises:
        OptionError: with the text, the place in it, and what is allowed there.
    """
    if len(text) > _MOST_CHARACTERS:
        raise OptionError(f"op {_shorten(text)!r} has {len(text)} characters; {_MOST_CHARACTERS} are the most")
    text = text.strip()
    custom = _CUSTOM.fullmatch(text)
    try:
        if custom is not None:
            op = Custom(custom["target"], "1" if custom["version"] is None else custom["version"])
            if op.obstacle:  # a text comes from a command with its own __main__
                raise OptionError(op.obstacle)
            return op
        return _parse_call(text)
    except OptionError as error:  # it says what is wrong with the text, without the text
        raise OptionError(f"op {_shorten(text)!r}: {error}") from None


def _parse_call(text: str) -> Op:
    tree = _parse(text)
    if isinstance(tree, ast.Name):
        return _make(tree.id, {})
    if not isinstance(tree, ast.Call):
        _refuse_name(text)
    if not isinstance(tree.func, ast.Name):
        _refuse_name(ast.get_source_segment(text, tree.func) or text)
    name = tree.func.id
    if name not in OPS:
        _refuse_name(name)
    names = [field.name for field in fields(OPS[name])]
    placed = [field.name for field in fields(OPS[name]) if not field.kw_only]
    if len(tree.args) > len(placed):
        raise OptionError(f"{len(tree.args)} values are too many: it is {signature(OPS[name])}")
    parameters = {key: _literal(text, node) for key, node in zip(placed, tree.args, strict=False)}
    for keyword in tree.keywords:
        key = keyword.arg
        if key is None:
            raise OptionError(
                f"'**'{_place(text, keyword.value)} is not allowed here. Write each parameter by its name"
            )
        if key not in names:
            near = get_close_matches(key, names, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise OptionError(
                f"{name} has no parameter {key!r}{_place(text, keyword)}. {hint}It is {signature(OPS[name])}"
            )
        if key in parameters:
            raise OptionError(f"{key!r}{_place(text, keyword)} is given twice")
        parameters[key] = _literal(text, keyword.value)
    return _make(name, parameters)


def _parse(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd escapes in a literal: an error below, or fine
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        place = f" at character {error.offset}" if error.offset else ""
        raise OptionError(f"{error.msg}{place}. Write a name or a call, like RandomResizedCrop(size=224)") from error
    except (ValueError, MemoryError, RecursionError) as error:
        raise OptionError(f"it cannot be read ({error or type(error).__name__})") from error


def _make(name: str, parameters: dict[str, Any]) -> Op:
    op = OPS.get(name)
    if op is None:
        _refuse_name(name)
    missing = [field.name for field in fields(op) if field.default is MISSING and field.name not in parameters]
    if missing:
        raise OptionError(f"{name} needs {' and '.join(missing)}: it is {signature(op)}")
    try:
        made: Op = op(**parameters)
    except OptionError as error:
        raise OptionError(f"{error}. It is {signature(op)}") from error
    return made


def _literal(text: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        written = _shorten(ast.get_source_segment(text, node) or "it")
        raise OptionError(
            f"{written}{_place(text, node)} is not a number, text or tuple of these. Nothing else is allowed there"
        ) from None


def _refuse_name(name: str) -> NoReturn:
    near = get_close_matches(name, OPS, 1)
    hint = f"Did you mean {near[0]}? " if near else ""
    module, _, function = name.rpartition(".")
    if all(part.isidentifier() for part in (*module.split("."), function)):
        hint = f"A function of your own is written {_shorten(f'{module}:{function}')}. "
    raise OptionError(
        f"no op is called {_shorten(name)!r}. {hint}There are {', '.join(OPS)}, and functions of your own as "
        "module:function or module:function@version"
    )


def _place(text: str, node: ast.expr | ast.keyword) -> str:
    """Return the place of a node in words: its column counts bytes of UTF-8, and people count characters from 1."""
    line = re.split(r"\r\n|\r|\n", text)[node.lineno - 1]
    column = len(line.encode()[: node.col_offset].decode(errors="replace")) + 1
    return f" at character {column}" + (f" of line {node.lineno}" if node.lineno > 1 else "")


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
