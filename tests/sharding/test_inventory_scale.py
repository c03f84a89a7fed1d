"""Millions of inputs are sorted into one global order, by as few sorts as need be."""

import hashlib
from contextlib import closing
from pathlib import Path

import pytest

from tests.sharding.listed import Listed
from tpufeed.build.item import Item
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.recipe import SizeEstimate, plan_shards

ROWS = 6_000  # more than are taken from the source at once


@pytest.fixture
def inventory(tmp_path):
    """Rows of which every 100th comes twice."""
    rows = [Item(f"class-{n % 7}/{n:05d}.jpg", n, "1", f"class-{n % 7}") for n in range(ROWS)]
    source = Listed(rows + rows[::100])
    with closing(Inventory(Path(tmp_path), source, ShardOptions())) as made:
        yield made


def test_inputs_come_in_the_order_of_their_keys(inventory):
    paths = [item.path for item, _ in inventory.iter_inputs("train")]
    keys = [hashlib.blake2b(f"0\0{path}".encode(), digest_size=16, person=b"order").digest() for path in paths]
    assert len(paths) == ROWS + ROWS // 100
    assert keys == sorted(keys)


def test_a_plan_sorts_all_inputs_once(inventory):
    """By key for the shards: the digest, for which they are sorted by path, is as old as the inventory."""
    statements = []
    inventory.database.set_trace_callback(statements.append)
    draft = plan_shards(inventory, ShardOptions(), SizeEstimate(), "memory://s", {})
    list(draft.tasks)
    assert draft.header.listed_twice == ROWS // 100
    whole = [statement for statement in statements if " ORDER BY " in statement and " LIMIT " not in statement]
    sorts = [statement.partition(" ORDER BY ")[2].partition(",")[0] for statement in whole]
    assert sorts == ["key"]
