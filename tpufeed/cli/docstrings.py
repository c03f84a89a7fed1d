"""Help of flags: the `Args:` of the function that a command calls, read from its file without importing it."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
_SENTENCE = re.compile(r"(?<!e\.g)\. (?=[A-Z\"`])")
_FLAGS = {  # of parameters and of fields of a group that have another name
    "sharding.build:shard": {"bands": "chosen_bands"},
    "sources.options:Boxes": {
        "column": "boxes",
        "format": "box_format",
        "outside": "boxes_outside",
        "columns": "box_columns",
    },
}
_REFERENCE = re.compile(r"^as for `|\b(?:as in|see) `tpufeed\.")


@cache
def read_args(place: str) -> dict[str, str]:
    """Return the text of each argument in the docstring of a function or class, like "sharding.build:shard"."""
    module, _, name = place.partition(":")
    tree = ast.parse((Path(__file__).parents[1] / f"{module.replace('.', '/')}.py").read_bytes())
    found = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)
    _, _, listed = (ast.get_docstring(next(found)) or "").partition("s:\n    ")  # Args: or Attributes:
    flags = _FLAGS.get(place, {})
    found_args = _ARGUMENT.findall(f"    {listed}".partition("\n\n")[0])
    return {flags.get(name, name): " ".join(text.split()) for name, text in found_args}


def describe(params: list[Any], places: str) -> None:
    """Give help to parameters that have none: the first sentence of the argument of the same name, and its default.

    The first of the `places`, separated by blanks, that says more than "as in `tpufeed.shard`" counts.
    """
    flags: dict[str, str] = {
        param.name: param.opts[0] if param.param_type_name == "option" else param.name.upper() for param in params
    }
    for param in params:
        if getattr(param, "help", None):
            continue
        said = (read_args(place).get(param.name, "") for place in places.split())
        text = next((text for text in said if text and not _REFERENCE.search(text)), "")
        text = re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[1]), text)
        first, *others = _SENTENCE.split(re.sub(r"`tpufeed\.(\w+)`", r"tpufeed \1", text).replace("`", ""))
        if first:
            start = first[:1] if re.match(r"\w+:\S", first) else first[:1].upper()  # emulated:PROFILE stays
            param.help = f"{start}{first[1:].rstrip('.')}.{' Repeatable.' if param.multiple else ''}"
        default = next((other for other in others if other.startswith("Default: ")), None)
        if default is not None and param.default is None:
            param.show_default = default.removeprefix("Default: ").rstrip(".")
