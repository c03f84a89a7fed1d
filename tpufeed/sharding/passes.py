"""Passes over an inventory: skip what a growing dataset has already."""

import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from tpufeed._version import __version__
from tpufeed.builds.digests import REJECTED, TAKEN, image_digest
from tpufeed.builds.item import decode_item
from tpufeed.dataset.naming import DIGESTS, REJECTS
from tpufeed.errors import ImageError
from tpufeed.sharding.standing import StandingDataset, fate_of, iter_known, said_of
from tpufeed.sources.inputs import Files, iter_certain

if TYPE_CHECKING:
    from tpufeed.sharding.inventory import Inventory

_logger = logging.getLogger(__name__)
_AT_ONCE = 4096
_SAY_SECONDS = 10.0  # between progress lines
_IS_UNCHANGED = "(known.version = inputs.version AND inputs.version != '')"  # some servers give no version


def skip_known(inventory: "Inventory", standing: StandingDataset) -> None:
    """Leave out inputs that are in the dataset already, with the same path and the same bytes.

    Paths may be numbers of rows in a file, which may change when the file is written again. So a row also counts as
    present if an image of the same file has its bytes. Each such image matches one row.
    """
    _list_known(inventory, standing)
    are_rows = inventory.query("SELECT 1 FROM known WHERE place != '' LIMIT 1").fetchone() is not None
    same = (
        "inputs JOIN known ON known.path = inputs.path "
        "AND (known.bytes = inputs.bytes OR known.bytes IS NULL OR inputs.is_estimate)"
    )
    in_dataset = f"{same} AND known.outcome != {REJECTED[0]}"
    inventory.database.executescript("DROP TABLE IF EXISTS equal; CREATE TABLE equal(row INTEGER PRIMARY KEY);")
    inventory.query(f"INSERT OR IGNORE INTO equal SELECT inputs.rowid FROM {in_dataset} WHERE {_IS_UNCHANGED}")
    inventory.compared_by_size = inventory.query(
        f"INSERT OR IGNORE INTO equal SELECT inputs.rowid FROM {in_dataset} WHERE known.digest IS NULL"
    ).rowcount
    changed = (
        f"SELECT inputs.rowid FROM {same} AND inputs.rowid NOT IN equal AND known.digest IS NOT NULL "
        f"AND {_IS_UNCHANGED} IS NOT TRUE"
    )
    if are_rows:
        changed += (
            " UNION SELECT rowid FROM inputs WHERE rowid NOT IN equal AND reason IS NULL "
            "AND file_of_row(path) IN (SELECT place FROM known WHERE digest IS NOT NULL AND place != '')"
        )
    read_digests(inventory, f"SELECT DISTINCT * FROM ({changed})")
    inventory.query(
        f"INSERT OR IGNORE INTO equal SELECT inputs.rowid FROM {in_dataset} "
        "JOIN digests ON digests.row = inputs.rowid WHERE known.digest = digests.digest"
    )
    if are_rows:
        _find_moved_rows(inventory)
    inventory.database.executescript(
        "DROP TABLE IF EXISTS present; CREATE TABLE present AS SELECT inputs.rowid AS row, item, said FROM equal "
        "JOIN inputs ON inputs.rowid = equal.row JOIN known ON known.path = inputs.path "
        f"LEFT JOIN digests ON digests.row = equal.row WHERE known.outcome = {TAKEN[0]} "
        f"AND ({_IS_UNCHANGED} OR known.digest IS NULL OR known.digest = digests.digest);"
    )
    inventory.query("DELETE FROM inputs WHERE rowid IN equal")
    inventory.query("DELETE FROM digests WHERE row IN equal")
    (inventory.skipped,) = inventory.query("SELECT COUNT(*) FROM equal").fetchone()


def _list_known(inventory: "Inventory", standing: StandingDataset) -> None:
    inventory.database.executescript(
        "DROP TABLE IF EXISTS known; CREATE TABLE known(path TEXT, place TEXT, bytes INT, version TEXT, "
        "digest BLOB, outcome INT, fate TEXT, said BLOB);"
    )
    for _, store in standing.parts:
        inventory.database.executemany("INSERT INTO known VALUES(?,?,?,?,?,?,?,?)", iter_known(store, inventory.base))
    inventory.query("CREATE INDEX known_path ON known(path)")


def _find_moved_rows(inventory: "Inventory") -> None:
    """Add to `equal` the rows with the bytes of an image of their file in the dataset, if no other row matches it."""
    inventory.query("CREATE INDEX known_place ON known(place, digest)")
    inventory.query("CREATE TABLE used(known INTEGER PRIMARY KEY)")
    inventory.query(
        "INSERT OR IGNORE INTO used SELECT known.rowid FROM equal CROSS JOIN inputs ON inputs.rowid = equal.row "
        "CROSS JOIN known ON known.path = inputs.path LEFT JOIN digests ON digests.row = inputs.rowid "
        f"WHERE {_IS_UNCHANGED} OR known.digest = digests.digest"
    )
    rows = inventory.query(
        "SELECT row, file_of_row(path) AS place, digest FROM digests JOIN inputs ON inputs.rowid = row "
        "WHERE row NOT IN equal AND place != '' ORDER BY place, digest, row"
    )

    def iter_moved() -> Iterator[tuple[int]]:
        for (place, digest), group in itertools.groupby(rows, lambda line: line[1:]):
            (left,) = inventory.query(
                "SELECT COUNT(*) FROM known WHERE place = ? AND digest = ? AND rowid NOT IN used "
                f"AND outcome != {REJECTED[0]}",
                (place, digest),
            ).fetchone()
            yield from ((row,) for row, *_ in itertools.islice(group, left))

    inventory.query("CREATE TABLE moved(row INT)")  # apart, as the query reads `equal`
    inventory.database.executemany("INSERT INTO moved VALUES(?)", iter_moved())
    inventory.query("INSERT INTO equal SELECT row FROM moved")
    inventory.query("DROP TABLE used")
    inventory.query("DROP TABLE moved")


def skip_rejected(inventory: "Inventory") -> None:
    """Leave out inputs that a build of the dataset has rejected, if nothing that decided this has changed.

    They would be rejected again, and use up the budget of each append.
    """
    lines = (
        f"SELECT inputs.rowid, known.fate, {_IS_UNCHANGED} OR known.digest = digests.digest, inputs.item FROM inputs "
        "LEFT JOIN digests ON digests.row = inputs.rowid JOIN known ON known.{} "
        f"WHERE known.outcome = {REJECTED[0]}"
    )
    ways = ["path = inputs.path"]
    if inventory.query("SELECT 1 FROM known WHERE place != '' LIMIT 1").fetchone():
        ways.append("place = file_of_row(inputs.path) AND known.place != '' AND known.digest = digests.digest")
    rejected, names, options = set[int](), inventory.classes.names, inventory.options.to_dict()
    for way in ways:
        for row, fate, is_same, line in inventory.query(lines.format(way)):
            item = inventory.identify(line)
            # If an input is rejected unread, its bytes do not matter.
            if (is_same or item.problem is not None) and fate_of(item, names, options, __version__) == fate:
                rejected.add(row)
    for table, key in (("inputs", "rowid"), ("digests", "row")):
        inventory.database.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(row,) for row in rejected])
    inventory.rejected_before = len(rejected)
    (inventory.renewed,) = inventory.query(
        "SELECT COUNT(*) FROM inputs WHERE EXISTS "
        f"(SELECT 1 FROM known WHERE known.path = inputs.path AND known.outcome != {REJECTED[0]})"
    ).fetchone()


def find_corrected(inventory: "Inventory") -> None:
    """Count the images that the growing dataset has, but of which the source says something else now."""
    inventory.corrected, inventory.first_corrected = 0, ""
    classes, features = inventory.listed_classes, inventory.features
    lines = inventory.query("SELECT row, item, said FROM present ORDER BY row")
    for _, group in itertools.groupby(lines, lambda line: line[0]):  # an image may be there in several versions
        (_, line, said), *others = group
        item = inventory.identify(line, classes)
        if said_of(item, classes.names, features) not in {said, *(each for *_, each in others)}:
            inventory.corrected += 1
            inventory.first_corrected = inventory.first_corrected or item.path


def iter_growth_warnings(inventory: "Inventory") -> Iterator[str]:
    """Yield warnings of inputs that a growing dataset has, or has rejected before."""
    if inventory.rejected_before:
        yield (
            f"{inventory.rejected_before:,} inputs are left out because this dataset rejected them before and they "
            f"have not changed; the {REJECTS} of its versions name them"
        )
    if inventory.corrected:
        yield (
            f"{inventory.corrected:,} images are in the dataset already, with other labels, boxes or columns than the "
            f"source has now, like {inventory.first_corrected}: the dataset keeps the old ones. To get the corrected "
            "ones, shard the source again in another place"
        )
    if inventory.compared_by_size:
        yield (
            f"{inventory.compared_by_size:,} images were compared with the dataset's by path and size alone, as it has "
            f"no digests of them ({DIGESTS})"
        )
    if inventory.renewed:
        yield (
            f"{inventory.renewed:,} images have the path of an image in the dataset but other content: they are added, "
            "and the older ones stay"
        )


def read_digests(inventory: "Inventory", rows: str) -> None:
    """Read the images of the rows of a query, and store the digests of readable ones."""
    inventory.database.executescript("DROP TABLE IF EXISTS wanted; CREATE TABLE wanted(row INTEGER PRIMARY KEY);")
    inventory.query(f"INSERT INTO wanted {rows}")
    (total,) = inventory.query("SELECT COUNT(*) FROM wanted").fetchone()
    if not total:
        return
    _logger.warning(
        "%s images are read before the build, to compare them with those of the same path and size", f"{total:,}"
    )
    files, done, last, due = Files(inventory.base), 0, 0, time.monotonic() + _SAY_SECONDS
    statement = "SELECT row, item FROM wanted JOIN inputs ON inputs.rowid = row WHERE row > ? ORDER BY row LIMIT ?"
    while lines := inventory.query(statement, (last, _AT_ONCE)).fetchall():
        # Only the image's own file: neither masks nor columns.
        items = (decode_item(line) for _, line in lines)
        inputs = [msgspec.structs.replace(item, images=(), problem=None) for item in items]
        with closing(iter_certain(files, inputs)) as read:
            found = [
                (row, image_digest(data[0]))
                for (row, *_), (_, data) in zip(lines, read, strict=True)
                if not isinstance(data, ImageError)
            ]
        inventory.database.executemany("INSERT INTO digests VALUES(?,?)", found)
        done, last = done + len(lines), lines[-1][0]
        if time.monotonic() >= due:
            due = time.monotonic() + _SAY_SECONDS
            _logger.warning("%s of %s images are read", f"{done:,}", f"{total:,}")
