"""A table in a temporary file, for lists of files and rows that are too long for memory."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tpufeed.storage.local import temporary_folder


@contextmanager
def temporary_table(table: str) -> Iterator[sqlite3.Connection]:
    """Open a database with one empty table, like "files(name TEXT, bytes INT)". Its file is removed on exit.

    What a crash leaves of it is no use to anybody, so it keeps no journal.
    """
    with temporary_folder() as folder, closing(sqlite3.connect(folder / "table", isolation_level=None)) as database:
        database.executescript(
            f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA temp_store=FILE; BEGIN;CREATE TABLE {table};"
        )
        yield database
