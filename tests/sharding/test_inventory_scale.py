"""Millions of inputs are sorted into one global order, by as few sorts as need be."""

import hashlib
from pathlib import Path

import pytest

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


def test_inputs_come_in_the_order_of_their_keys(inventory):
    paths = [item.path for item, _ in inventory.iter_inputs("train")]
    keys = [hashlib.blake2b(f"0\0{path}".encode(), digest_size=16, person=b"order").digest() for path in paths]
    assert len(paths) == ROWS + ROWS // 100
    assert keys == sorted(keys)


def test_a_plan_sorts_all_inputs_once(inventory):
    """By key for the shards: the digest, for which they are sorted by path, is as old as the inventory."""
    statements = []
    inventory._database.set_trace_callback(statements.append)
    draft = plan_shards(inventory, ShardOptions(), SizeEstimate(), "memory://s", {})
    list(draft.tasks)
    assert draft.header.notes["listed_twice"] == ROWS // 100
    whole = [statement for statement in statements if " ORDER BY " in statement and " LIMIT " not in statement]
    sorts = [statement.partition(" ORDER BY ")[2].partition(",")[0] for statement in whole]
    assert sorts == ["key"]
