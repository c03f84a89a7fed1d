"""Millions of inputs: sorted a part at a time into the one global order, by as few sorts of everything as need be."""

import hashlib
import sqlite3
from pathlib import Path

import pytest

from tpufeed.sharding import inventory as inventory_module
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.plan import SizeEstimate, plan_shards
from tpufeed.sharding.rows import Row
from tpufeed.sharding.sources import Source

ROWS = 6_000  # more than are taken from the source at once


@pytest.fixture
def inventory(tmp_path):
    """Rows of which every 100th comes twice."""
    rows = [Row(f"class-{n % 7}/{n:05d}.jpg", n, "1", f"class-{n % 7}") for n in range(ROWS)]
    source = Source("memory://s", "table", False, lambda _: iter(rows + rows[::100]))
    with Inventory(Path(tmp_path), source, ShardOptions()) as made:
        yield made


def test_parts_follow_one_another_in_the_order_of_all(inventory):
    paths = [item.path for item, _ in inventory.iter_inputs("train")]
    keys = [hashlib.blake2b(f"0\0{path}".encode(), digest_size=16, person=b"order").digest() for path in paths]
    assert len(paths) == ROWS + ROWS // 100
    assert keys == sorted(keys)
    assert {key[0] for key in keys} == set(range(256))  # all parts have some


def test_no_part_has_much_more_than_its_share(inventory):
    counts = [
        inventory._query(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in inventory_module._iter_tables()
    ]
    assert sum(counts) == ROWS + ROWS // 100
    assert max(counts) < 2 * ROWS / len(counts)


def test_a_plan_sorts_all_inputs_together_once(inventory):
    """For their digest; what is listed twice is counted by the way. The parts are sorted one by one."""
    statements = []
    inventory._database.set_trace_callback(statements.append)
    header, tasks = plan_shards(inventory, ShardOptions(), SizeEstimate(), "memory://s")
    list(tasks)
    assert header.notes["listed_twice"] == ROWS // 100
    together = [one for one in statements if " FROM inputs " in one and "ORDER BY path" in one]
    apart = [one for one in statements if " FROM inputs_" in one and "ORDER BY key" in one]
    assert len(together) == 1
    assert len(apart) == inventory_module._TABLES


def test_the_parts_are_read_as_one_table():
    """Else SQLite would sort each, and merge all two by two."""
    database = sqlite3.connect(":memory:")
    database.executescript(inventory_module._make_tables())
    plan = [
        row[3] for row in database.execute("EXPLAIN QUERY PLAN SELECT path, bytes FROM inputs ORDER BY path, bytes")
    ]
    database.close()
    assert plan.count("USE TEMP B-TREE FOR ORDER BY") == 1
    assert not any("MERGE" in step for step in plan)
