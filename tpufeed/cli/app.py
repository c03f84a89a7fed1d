"""The commands, put together."""

from typing import Annotated

import typer

from tpufeed import __version__
from tpufeed.cli import adopt, bench, cache, doctor, info, shard, show, verify
from tpufeed.cli.console import say
from tpufeed.cli.helptext import Command, Group

_SETTINGS = {"help_option_names": ["--help", "-h"]}

app = typer.Typer(
    cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, context_settings=_SETTINGS
)
caches = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None, context_settings=_SETTINGS)

for _name, _command in (
    ("shard", shard.shard_command),
    ("adopt", adopt.adopt_command),
    ("info", info.info_command),
    ("verify", verify.verify_command),
    ("show", show.show_command),
    ("doctor", doctor.doctor_command),
    ("bench", bench.bench_command),
):
    app.command(_name, cls=Command, context_settings=_SETTINGS)(_command)
caches.command("warmup", cls=Command, context_settings=_SETTINGS)(cache.warmup_command)
app.add_typer(caches, name="cache")


@caches.callback()
def _caches() -> None:
    """Precompute the expensive part of an augmentation.

    Examples:
      tpufeed cache warmup flowers flowers-224 --size 224
      tpufeed cache warmup --help
    """


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"tpufeed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """An input pipeline for TPUs: raw images in, a fed training step out.

    Examples:
      tpufeed shard photos flowers --split train=0.9,val=0.1
      tpufeed cache warmup flowers flowers-224 --variants 4
      tpufeed doctor flowers-224 --tpu v5e-8
    """
