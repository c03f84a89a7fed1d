"""What differs between the inputs that a dataset was made of and those that are there now."""

import sqlite3
from collections.abc import Iterable, Iterator

from tpufeed.dataset.plan import Input, Plan, iter_tasks
from tpufeed.errors import mask_secrets
from tpufeed.sharding.inventory import Inventory
from tpufeed.storage.store import Store
from tpufeed.storage.temporary import temporary_folder

_CHANGES = {
    "changed": "SELECT path FROM ({after} EXCEPT {before}) WHERE path IN (SELECT path FROM before)",
    "added": "SELECT path FROM after EXCEPT SELECT path FROM before",
    "gone": "SELECT path FROM before EXCEPT SELECT path FROM after",
}


def describe_changes(store: Store, plan: Plan, inventory: Inventory) -> str:
    """How many inputs are others than in the plan at `store`, and the first of each kind; memory is bounded."""
    before = (item for task in iter_tasks(store, plan) for item in task.inputs)
    after = (item for split in inventory.splits for item, _ in inventory.iter_inputs(split))
    with temporary_folder() as folder:
        database = sqlite3.connect(folder / "changes.sqlite", isolation_level=None)
        try:
            database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA temp_store=FILE; BEGIN;")
            for name, inputs in (("before", before), ("after", after)):
                database.execute(f"CREATE TABLE {name}(path TEXT, rest TEXT)")
                database.executemany(f"INSERT INTO {name} VALUES(?, ?)", _iter_lines(inputs))
                database.execute(f"CREATE INDEX {name}_path ON {name}(path)")
            return ", ".join(_iter_kinds(database))
        finally:
            database.close()


def _iter_lines(inputs: Iterable[Input]) -> Iterator[tuple[str, str]]:
    """As a plan stores them: without secrets."""
    for item in inputs:
        rest = (item.bytes, item.version, item.label, item.file or item.path, item.offset, item.columns, item.problem)
        yield mask_secrets(item.path), mask_secrets(repr(rest))


def _iter_kinds(database: sqlite3.Connection) -> Iterator[str]:
    for kind, statement in _CHANGES.items():
        paths = statement.format(before="SELECT * FROM before", after="SELECT * FROM after")
        count, first = database.execute(f"SELECT COUNT(DISTINCT path), MIN(path) FROM ({paths})").fetchone()
        if count:
            yield f"{count:,} {kind} ({'the first: ' if count > 1 else ''}{first})"
