"""The commands, put together."""

from typing import Annotated

import typer

from tpufeed import __version__
from tpufeed.cli import adopt, bench, cache, doctor, info, shard, show, verify

app = typer.Typer(
    help="An input pipeline for TPUs: raw images in, a fed training step out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
caches = typer.Typer(help="Precompute the expensive part of an augmentation.", no_args_is_help=True)

app.command("shard")(shard.shard_command)
caches.command("warmup")(cache.warmup_command)
app.add_typer(caches, name="cache")
app.command("adopt")(adopt.adopt_command)
app.command("info")(info.info_command)
app.command("verify")(verify.verify_command)
app.command("show")(show.show_command)
app.command("doctor")(doctor.doctor_command)
app.command("bench")(bench.bench_command)


@caches.callback()
def _caches() -> None:
    """Precompute the expensive part of an augmentation."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tpufeed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An input pipeline for TPUs: raw images in, a fed training step out."""
