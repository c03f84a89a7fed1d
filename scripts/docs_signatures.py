"""For the reference: a signature that ends in `**options: Unpack[LoaderKeywords]` names each option, with its default.

An extension of Griffe, which mkdocstrings reads the package with. Defaults are those of the options' dataclasses.
"""

from collections.abc import Iterator
from typing import Any

import griffe

# Where defaults are looked up, besides the keywords' own module.
SHARED = (
    "tpufeed.loaders.options.LoaderOptions",
    "tpufeed.sharding.options.ShardOptions",
    "tpufeed.images.policy.ImagePolicy",
)


class SpelledOptions(griffe.Extension):
    """Of functions and methods; what their docstrings say of `**options` stays as it is."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        last = next(reversed(list(func.parameters)), None)
        keywords = None if last is None else _keywords_of(func, last)
        if last is None or keywords is None:
            return
        for documented in (func, func.parent) if func.name == "__init__" else (func,):
            if documented is not None and documented.docstring is not None:
                documented.docstring.parsed  # noqa: B018  # Griffe keeps it, with the parameters as they are until now
        del func.parameters[last.name]
        for attribute in _iter_attributes(keywords):
            if attribute.name not in func.parameters:
                func.parameters.add(
                    griffe.Parameter(
                        attribute.name,
                        annotation=attribute.annotation,
                        kind=griffe.ParameterKind.keyword_only,
                        default=_default(attribute, keywords),
                    )
                )


def _keywords_of(func: griffe.Function, parameter: griffe.Parameter) -> griffe.Class | None:
    annotation = parameter.annotation
    if parameter.kind is not griffe.ParameterKind.var_keyword or not isinstance(annotation, griffe.ExprSubscript):
        return None
    found = func.modules_collection[annotation.slice.canonical_path]
    return found if annotation.canonical_path == "typing.Unpack" and isinstance(found, griffe.Class) else None


def _iter_attributes(keywords: griffe.Class) -> Iterator[griffe.Attribute]:
    """Its own, and then those of the keywords that it adds to."""
    for one in (keywords, *keywords.mro()):
        yield from one.attributes.values()


def _default(attribute: griffe.Attribute, keywords: griffe.Class) -> Any:
    own = (one for one in keywords.module.classes.values() if one.name.endswith("Options"))
    for options in (*own, *(keywords.modules_collection[path] for path in SHARED)):
        for name in (attribute.name, f"{attribute.name}_px"):
            field = options.members.get(name)
            if field is not None and field.is_attribute and field.value is not None:
                return field.value
    return "None" if "None" in str(attribute.annotation) else "..."
