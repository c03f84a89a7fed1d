"""What a host sees of a build: for engines whose workers are on other hosts."""

import secrets
from collections.abc import Iterable
from contextlib import suppress

from tpufeed.dataset.naming import PLAN, PROBE
from tpufeed.dataset.plan import read_run_id
from tpufeed.errors import ManifestError, ObjectNotFoundError, StoreError
from tpufeed.storage.reading import READS
from tpufeed.storage.store import Store


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


def see_objects(places: Iterable[tuple[Store, str]]) -> dict[str, str]:
    """Versions of the objects that this host sees, by their URLs. Raises StoreError as `see_destination` does."""
    found = ((store, store.stat(name)) for store, name in places)
    return {f"{store.url.rstrip('/')}/{info.name}": info.version for store, info in found if info is not None}
