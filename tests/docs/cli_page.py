"""The reference in docs/cli.md, made of the parser: `python -m tests.docs.cli_page` writes it anew."""

import re
from pathlib import Path
from typing import Any

import typer

from tpufeed.cli.app import app
from tpufeed.cli.helptext import default_of, panels, spell, split_examples

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BEGIN, END = "<!-- made of the parser by tests/docs/cli_page.py -->\n", "<!-- end of what is made -->\n"


def all_commands() -> dict[str, Any]:
    """Each command with its context, by name: `cache warmup`."""
    root: Any = typer.main.get_command(app)
    found, groups = {}, [("", root, root.context_class(root, info_name="tpufeed"))]
    while groups:
        prefix, group, context = groups.pop(0)
        for name, command in group.commands.items():
            below = context.command.context_class(command, info_name=name, parent=context)
            if hasattr(command, "commands"):
                groups.append((f"{prefix}{name} ", command, below))
            else:
                found[prefix + name] = below
    return found


def make_reference() -> str:
    """Markdown for all commands."""
    return "\n".join(_describe(name, context) for name, context in all_commands().items())


def examples_of(context: Any) -> list[str]:
    """The command lines in a command's help."""
    return split_examples(context.command.help)[1]


def write() -> None:
    """Put the reference where the page's marks are."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{make_reference()}\n{END}{rest.partition(END)[2]}")


def _describe(name: str, context: Any) -> str:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    prose, examples = split_examples(command.help)
    lines = [f"### tpufeed {name}", "", "```text", f"tpufeed {name} {usage}", "```", "", " ".join(prose.split()), ""]
    arguments = [entry for entry in command.get_params(context) if entry.param_type_name == "argument"]
    rows = [("Argument", entry.metavar, entry.help, "") for entry in arguments]
    for panel, options in panels(command, context).items():
        rows += [(panel, spell(option), option.help, default_of(option)) for option in options if option.name != "help"]
    lines += ["| | | | default |", "|---|---|---|---|"]
    last = ""
    for panel, flag, text, default in rows:
        lines.append(f"| {panel if panel != last else ''} | `{_cell(flag)}` | {_cell(text)} | {_cell(default)} |")
        last = panel
    return "\n".join([*lines, "", "```bash", *examples, "```", ""])


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    write()
