"""Short descriptions of results and datasets: a line for `repr`, and a table in notebooks."""

import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import fields
from itertools import islice
from typing import Any

from tpufeed.errors import mask_secrets, printable
from tpufeed.text import format_value

_ITEMS = 20  # of a list that a table shows. A dataset may have thousands of classes


class Summary:
    """Gives an object a short `repr`, and `_repr_html_`, which notebooks call.

    Both leave out what is None or empty, round floats to three digits, and hide the secrets of URLs.
    """

    __slots__ = ()

    def _facts(self) -> Mapping[str, Any]:
        """Return what `repr` and table show, by name. Default: the fields of a dataclass that differ from theirs."""
        values = ((field, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return {field.name: value for field, value in values if value != field.default}

    def _details(self) -> Mapping[str, Any]:
        """Return what only the table says. It replaces facts of the same name."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_short(value)}' for name, value in _known(self._facts()))})"

    def _repr_html_(self) -> str:
        head = "text-align: left; vertical-align: top"
        rows = "".join(
            f'<tr><th style="{head}">{html.escape(name.replace("_", " "))}</th>'
            f'<td style="text-align: left">{_cell(value)}</td></tr>'
            for name, value in _known({**self._facts(), **self._details()})
        )
        return f"<table><caption>{html.escape(type(self).__name__)}</caption>{rows}</table>"


def clean(text: str) -> str:
    """Return `text` without the secrets of URLs, and without characters that HTML does not allow."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", mask_secrets(text))


def rounded(value: Any) -> Any:
    """Return a float with three digits, or without decimals if it has more before them. Other values as they are."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return round(value) if abs(value) >= 1000 else float(f"{value:.3g}")


def _known(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if value is not None and not (isinstance(value, Sized) and not len(value)):
            yield name, value


def _short(value: Any) -> str:
    if isinstance(value, str):
        return repr(mask_secrets(value))
    return repr(value) if isinstance(value, Summary) else mask_secrets(format_value(rounded(value)))


def _cell(value: Any) -> str:
    """Return a value as HTML: names come from strangers, and may contain tags."""
    if isinstance(value, Summary):
        return value._repr_html_()
    if isinstance(value, Mapping):
        value = [f"{name}: {_text(each)}" for name, each in value.items()]
    if isinstance(value, str) or not isinstance(value, Iterable):
        return html.escape(printable(_text(value)))
    lines = [html.escape(printable(_text(each))) for each in islice(value, _ITEMS)]
    more = len(value) - len(lines)  # type: ignore[arg-type]  # lists, tuples and mappings
    return "<br>".join([*lines, *([f"... and {more:,} more"] if more else [])])


def _text(value: Any) -> str:
    value = rounded(value)
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
