"""The options of commands that say what runs their tasks, and where."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # a command imports what it runs when it runs it
    from tpufeed.engines.engine import Engine

EngineName = Annotated[
    str, typer.Option("--engine", help="What runs the work: local, which is processes of this host; ray; beam.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray, HOST:PORT of the cluster; auto: the one that this host is in; local: this host alone.",
        show_default="auto",
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
    """What there is to say of it before a build, as lines."""
    from tpufeed.engines.beam import BeamEngine
    from tpufeed.engines.ray import RayEngine

    return [engine.describe()] if isinstance(engine, RayEngine | BeamEngine) else []
