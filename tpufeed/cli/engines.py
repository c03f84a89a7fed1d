"""The options of commands that say what runs their tasks, and where."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tpufeed.cli.flags import ENGINES, RUN, one_of

if TYPE_CHECKING:  # a command imports what it runs when it runs it
    from tpufeed.engines.engine import Engine

EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        autocompletion=one_of(*ENGINES),
        help="What runs the work: local, which is processes of this host; ray; beam.",
        rich_help_panel=RUN,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        autocompletion=one_of("auto", "local"),
        help="With --engine ray, where the cluster is; auto: the one that this host is in; local: this host alone.",
        show_default="auto",
        rich_help_panel=RUN,
    ),
]
BeamArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- BEAM...]", help="With --engine beam, after `--`: Beam's own options, like --runner=DataflowRunner."
    ),
]


def make_engine(
    name: str, workers: int | None, ray_address: str | None, beam_arguments: Sequence[str] | None
) -> "Engine | None":
    """The engine beyond this host that is asked for. Raises OptionError and MissingExtraError as `choice` does."""
    from tpufeed.engines import choice

    engine = choice.make_engine(name, workers, ray_address, beam_arguments or ())
    return None if name == choice.LOCAL else engine


def describe(engine: "Engine | None") -> list[str]:
    """Describe an engine before a build, in lines."""
    return [] if engine is None else [engine.describe()]
