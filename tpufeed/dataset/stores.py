"""The stores of a build: its engine has to see them, and the destination is not the source."""

from pathlib import PurePath, PurePosixPath

from tpufeed.dataset.naming import MANIFEST
from tpufeed.engines.choice import LOCAL, SerialEngine, make_engine
from tpufeed.engines.engine import Engine
from tpufeed.errors import OptionError
from tpufeed.storage.store import Store


def choose_engine(engine: Engine | str | None, workers: int | None, *stores: Store) -> Engine:
    """The engine that is asked for; for this host `workers` processes, or none where processes could not see all.

    Raises:
        OptionError: no such engine, a number of workers below one or other than that of an `Engine`, or a store that no
            worker of the engine sees.
        MissingExtraError: the engine is not installed.
    """
    hidden = [store.url for store in stores if not store.shared]
    if isinstance(engine, str | None):
        found, name = make_engine(engine, workers), engine
    else:
        found, name = engine, type(engine).__name__
        if workers not in (None, getattr(engine, "workers", None)):
            raise OptionError(f"workers={workers} is not for engine={name}, which says itself how many it takes")
    if not hidden or isinstance(found, SerialEngine):
        return found
    if engine in (None, LOCAL):
        return SerialEngine()
    raise OptionError(f"only this process sees {hidden[0]}, and no worker of engine={name!r} does")


def refuse_source(destination: Store, *sources: Store) -> None:
    """Raises OptionError where a build would stand among what it reads, and be read or removed by a later one."""
    place = _place(destination)
    for source in sources:
        if place == _place(source):
            raise OptionError(f"{destination.url} is the source itself; take another destination")


def _place(store: Store) -> PurePath:
    path = store.local_path(MANIFEST)
    return PurePosixPath(store.url) if path is None else path.resolve().parent
