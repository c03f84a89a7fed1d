"""Format of `--help`: plain text in 80 columns or fewer, options in groups, examples that can be copied."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

EXAMPLES = "Examples:"
OTHER_OPTIONS = "Options"

_KINDS = {"valid integer": "whole number", "valid number": "number", "valid float": "number"}
_WIDEST, _NARROWEST = 80, 20
_STACKED = 64  # on narrower terminals an explanation stands below its option
_NAMES = 26
_QUOTED = r"""(?:[^\s'"]|'[^']*'|"[^"]*")+"""
_WORD = re.compile(rf"--\S+ (?!-){_QUOTED}|{_QUOTED}")  # an option stays beside its value


class Command(TyperCommand):
    """A command with this help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, but refuse numbers in plain words, which newer releases of typer no longer have."""
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            kind = next((kind for word, kind in _KINDS.items() if word in error.message), None)
            if kind is not None and error.param is not None:
                default = error.param.default
                example = default if isinstance(default, int | float) else 224 if error.param.metavar == "PIXELS" else 4
                error.message = f"that is no {kind}; write it like {max(error.param.opts, key=len)} {example}"
            raise

    def get_help(self, ctx: Any) -> str:
        return render(self, ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return usage_pieces(self, ctx)


class Group(TyperGroup):
    """A command of commands with this help."""

    def get_help(self, ctx: Any) -> str:
        return render(self, ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*usage_pieces(self, ctx), "COMMAND ..."]


def usage_pieces(command: Any, ctx: Any) -> list[str]:
    """Return what follows the command's name."""
    return ["[OPTIONS]", *(argument.metavar for argument in _parameters(command, ctx, "argument"))]


def render(command: Any, ctx: Any) -> str:
    """The help of a command, for a terminal as wide as this one."""
    width = max(min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST), _NARROWEST)
    indent = " " * min(len(f"Usage: {ctx.command_path} "), width // 4)
    usage = f"Usage: {ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}"
    text, examples = split_examples(command.help or "")
    lines = [*_wrap(usage, width, "", indent), ""]
    for paragraph in text.split("\n\n"):
        lines += [*_wrap(paragraph, width, "  ", "  "), ""]
    if isinstance(command, TyperGroup):
        rows = [(name, below.get_short_help_str(200)) for name, below in command.commands.items() if not below.hidden]
        lines += _section("Commands", rows, width)
    lines += _section("Arguments", [(entry.metavar, explain(entry)) for entry in _arguments(command, ctx)], width)
    for panel, options in panels(command, ctx).items():
        lines += _section(panel, [(spell(option), explain(option)) for option in options], width)
    if examples:
        lines += [EXAMPLES, *(line for example in examples for line in _fold(example, width))]
    return "\n".join(lines).rstrip()


def split_examples(text: str) -> tuple[str, list[str]]:
    """A docstring's prose, and the command lines below its "Examples:"."""
    prose, _, examples = text.partition(f"\n{EXAMPLES}\n")
    return prose.strip(), [line.strip() for line in examples.splitlines() if line.strip()]


def panels(command: Any, ctx: Any) -> dict[str, list[Any]]:
    """The options by the group that they are shown in, in order; those of no group last."""
    found: dict[str, list[Any]] = {}
    options = _parameters(command, ctx, "option")
    for option in sorted(options, key=lambda option: getattr(option, "rich_help_panel", None) is None):
        found.setdefault(getattr(option, "rich_help_panel", None) or OTHER_OPTIONS, []).append(option)
    return found


def spell(option: Any) -> str:
    """Return an option's flags, the short one first, and the name of its value."""
    flags = ", ".join(sorted(option.opts, key=len))
    return flags if option.is_flag else f"{flags} {option.metavar}"


def explain(parameter: Any) -> str:
    """Return an option's purpose, with its default."""
    default = default_of(parameter)
    text = (parameter.help or "").rstrip()
    return f"{text} [default: {default}]" if default else text


def default_of(parameter: Any) -> str:
    """Return an option's default in words, empty where there is none to speak of."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    default = parameter.default
    said = parameter.show_default and not (default is None or isinstance(default, bool) or callable(default))
    return str(default) if said else ""


def _parameters(command: Any, ctx: Any, kind: str) -> Iterator[Any]:
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == kind and not parameter.hidden:
            yield parameter


def _arguments(command: Any, ctx: Any) -> Iterator[Any]:
    return _parameters(command, ctx, "argument")


def _section(title: str, rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    rows = list(rows)
    if not rows:
        return []
    column = min(max(len(name) for name, _ in rows), _NAMES) + 4
    lines = [f"{title}:"]
    for name, text in rows:
        if width < _STACKED:
            lines += [f"  {name}", *_wrap(text, width, " " * 6, " " * 6)]
            continue
        first = f"  {name}"
        if len(first) > column - 2:
            lines.append(first)
            first = ""
        lines += _wrap(text, width, first.ljust(column), " " * column)
    return [*lines, ""]


def _wrap(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def _fold(example: str, width: int) -> Iterator[str]:
    """A command line that a shell takes as it stands, also where it goes on in the next line."""
    line = " "
    for word in _WORD.findall(example):
        if len(line) + len(word) + 3 > width and line.strip():
            yield f"{line} \\"
            line = "   "
        line += f" {word}"
    yield line
