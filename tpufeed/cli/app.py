"""The commands, put together. Help, usage errors and shell completion are typer's."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tpufeed._version import __version__
from tpufeed.cli import adopt, bench, cache, card, compact, doctor, info, shard, show, verify
from tpufeed.cli.console import echo
from tpufeed.cli.docstrings import describe
from tpufeed.cli.start import print_start

_SETTINGS = {"help_option_names": ["--help", "-h"]}
# What explains the flags of a command. See `docstrings.describe`.
_DOCUMENTED = {
    "shard": "sharding.build:shard images.policy:Images sources.options:Boxes",
    "append": "sharding.append:append sharding.build:shard",
    "compact": "builds.compact:compact",
    "prune": "builds.prune:prune",
    "adopt": "adoption.adopt:adopt",
    "verify": "dataset.verify:verify",
    "doctor": "measure.doctor:examine",
    "bench": "measure.bench:BenchOptions",
    "warmup": "cache.build:warmup sharding.build:shard",
}


class _Command(TyperCommand):
    """A command whose help shows no type behind a flag (newer releases of typer show `<bool>`)."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        describe(self.get_params(ctx), _DOCUMENTED.get(self.name or "", ""))
        super().format_help(ctx, formatter)


class _Group(TyperGroup):
    """A group with the same help that knows the commands of its groups: `warmup` is `cache warmup`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            paths = {inner: f"{outer} {inner}" for outer, group in self.commands.items() for inner in _names(group)}
            near = get_close_matches(args[0], paths, 1)
            if near:
                ctx.fail(f"No such command {args[0]!r}. Did you mean '{ctx.command_path} {paths[near[0]]}'?")
        return super().resolve_command(ctx, args)


def _names(group: Any) -> Iterable[str]:
    return getattr(group, "commands", ())


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


app = typer.Typer(
    cls=_Group,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=_SETTINGS,
)
caches = typer.Typer(cls=_Group, no_args_is_help=True, rich_markup_mode="rich", context_settings=_SETTINGS)


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
    (app, "card", card.card_command),
    (app, "doctor", doctor.doctor_command),
    (app, "bench", bench.bench_command),
    (caches, "warmup", cache.warmup_command),
):
    _typer.command(_name, cls=_Command, help=_help_of(_command), context_settings=_SETTINGS)(_command)
app.add_typer(caches, name="cache", help="Precompute the expensive part of an augmentation.")


@app.callback(help="An input pipeline for TPUs: raw images in, a fed training step out.")
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        echo(f"tpufeed {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print_start()
