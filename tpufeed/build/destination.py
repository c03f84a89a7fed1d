"""The destination of a build: apart from its source, writable, with room, and seen by every worker."""

import os
import secrets
from contextlib import suppress
from pathlib import PurePath, PurePosixPath

from tpufeed.build.plan import read_run_id
from tpufeed.dataset.naming import MANIFEST, PLAN, PROBE
from tpufeed.engines.choice import LOCAL, SerialEngine, make_engine
from tpufeed.engines.engine import Engine
from tpufeed.errors import BuildError, ManifestError, ObjectNotFoundError, OptionError, StoreError
from tpufeed.storage.reading import READS
from tpufeed.storage.store import Store


def check_space(destination: Store, wanted_bytes: float, freed_bytes: int = 0) -> None:
    """Raises BuildError where `wanted_bytes` of shards do not fit, once `freed_bytes` are removed."""
    free = destination.free_bytes()
    if free is not None and wanted_bytes > free + freed_bytes:
        raise BuildError(
            f"{destination.url} has room for {(free + freed_bytes) / 1e6:,.1f} MB; the shards will take about "
            f"{wanted_bytes / 1e6:,.1f} MB. Nothing was changed. Make room, take another destination, or store smaller "
            "images"
        )


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
    return PurePosixPath(store.url) if path is None else PurePosixPath(os.path.realpath(path.parent))


def see_destination(store: Store, run_id: str) -> dict[str, str]:
    """The plan at the destination, by its URL, with the id of its run; empty where this host sees none.

    One of another run than `run_id`, or that cannot be read, is looked at again: it may have been damaged on its way.

    Raises:
        StoreError: the store does not answer, or refuses to be read or written to.
    """
    seen = ""
    for _ in range(READS):
        try:
            seen = read_run_id(store)
        except ObjectNotFoundError:
            return {}
        except ManifestError:
            seen = "unreadable"
        if seen == run_id:
            break
    name = f"{PROBE}-{secrets.token_hex(8)}"
    probe = store.put(name, b"")
    with suppress(StoreError):  # who may create objects may not be allowed to remove them
        store.delete(name, probe.version)
    return {f"{store.url}/{PLAN}": seen}
