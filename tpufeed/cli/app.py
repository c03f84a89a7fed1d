"""The commands, put together. Help, usage errors and shell completion are typer's."""

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from tpufeed import __version__
from tpufeed.cli import adopt, bench, cache, compact, doctor, info, shard, show, verify
from tpufeed.cli.console import echo

_SETTINGS = {"help_option_names": ["--help", "-h"]}

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich", context_settings=_SETTINGS
)
caches = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", context_settings=_SETTINGS)


def _help_of(command: Callable[..., None]) -> str:
    """Return a command's docstring as typer wants it: one line for a paragraph, and the examples behind a \\b."""
    prose, _, examples = (inspect.getdoc(command) or "").partition("\nExamples:\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in prose.strip().split("\n\n")]
    return "\n\n".join([*paragraphs, f"\b\nExamples:\n{examples}"])


for _typer, _name, _command in (
    (app, "shard", shard.shard_command),
    (app, "append", shard.append_command),
    (app, "compact", compact.compact_command),
    (app, "prune", compact.prune_command),
    (app, "adopt", adopt.adopt_command),
    (app, "info", info.info_command),
    (app, "verify", verify.verify_command),
    (app, "show", show.show_command),
    (app, "doctor", doctor.doctor_command),
    (app, "bench", bench.bench_command),
    (caches, "warmup", cache.warmup_command),
):
    _typer.command(_name, help=_help_of(_command), context_settings=_SETTINGS)(_command)
app.add_typer(caches, name="cache", help="Precompute the expensive part of an augmentation.")


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"tpufeed {__version__}")
        raise typer.Exit


@app.callback(help="An input pipeline for TPUs: raw images in, a fed training step out.")
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
