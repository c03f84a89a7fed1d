"""Passes over an inventory: skip what a growing dataset has already, read images before the plan, drop duplicates."""

import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from tpufeed._version import __version__
from tpufeed.builds.digests import LEFT_OUT, REJECTED, TAKEN, image_digest
from tpufeed.builds.item import decode_item
from tpufeed.dataset.naming import DIGESTS, DUPLICATES, REJECTS
from tpufeed.errors import ImageError
from tpufeed.sharding.standing import StandingDataset, fate_of, iter_known, said_of
from tpufeed.sharding.worker import SampleMaker
from tpufeed.sources.inputs import Files, iter_certain, iter_taken

if TYPE_CHECKING:
    from tpufeed.sharding.inventory import Inventory

_logger = logging.getLogger(__name__)
_AT_ONCE = 4096
_SAY_SECONDS = 10.0  # between progress lines
_IS_UNCHANGED = "(known.version = inputs.version AND inputs.version != '')"  # some servers give no version
_IN_DATASET = -1  # in the place of a row


def skip_known(inventory: "Inventory", standing: StandingDataset, are_rows: bool) -> None:
    """Leave out inputs that are in the dataset already, with the same path and the same bytes.

    If `are_rows`, paths are numbers of rows in a file, which may change when the file is written again. So a row also
    counts as present if an image of the same file has its bytes; each such image matches one row.
    """
    _list_known(inventory, standing)
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
    read_digests(inventory, f"SELECT DISTINCT * FROM ({changed})", "compare them with those of the same path and size")
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
    taken, is_left_out = f"FROM known WHERE outcome = {TAKEN[0]}", f"outcome = {LEFT_OUT[0]}"
    if not inventory.query(f"SELECT 1 {taken} AND digest IS NULL LIMIT 1").fetchone():
        # The copy of a rejected image is not in the dataset either.
        no_copy = f"{is_left_out} AND digest NOT IN (SELECT digest {taken})"
        rejects = f"SELECT digest FROM known WHERE outcome = {REJECTED[0]} AND digest IS NOT NULL"
        inventory.query(f"UPDATE known SET outcome = {REJECTED[0]} WHERE {no_copy} AND digest IN ({rejects})")
        inventory.query(f"DELETE FROM known WHERE {no_copy}")
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


def rows_to_read(inventory: "Inventory") -> str:
    """Return the query of the rows whose images `Inventory.prepare` reads."""
    unread = "SELECT rowid FROM inputs WHERE reason IS NULL AND rowid NOT IN (SELECT row FROM digests)"
    if inventory.options.split_by_content:
        return unread
    taken = f"SELECT bytes FROM known WHERE digest IS NOT NULL AND outcome = {TAKEN[0]}"
    unsure = "SELECT 1 FROM inputs WHERE is_estimate"
    sizes = "SELECT bytes FROM inputs WHERE reason IS NULL GROUP BY bytes HAVING COUNT(*) > 1"
    if inventory.standing is not None:
        unsure += f" UNION ALL {taken} AND bytes IS NULL"
        sizes += f" UNION {taken}"
    if inventory.query(f"{unsure} LIMIT 1").fetchone():
        return unread  # an image may have the bytes of any whose size is not known
    return f"{unread} AND bytes IN ({sizes})"


def drop_duplicates(inventory: "Inventory") -> None:
    """Leave out all but the first, by path, of inputs whose images are the same bytes.

    An image in the growing dataset comes before all new ones. Dropped inputs stay in the inventory, without a size: so
    the plan names them, and a build that continues need not read them again.
    """
    if inventory.standing is not None:
        inventory.query("CREATE INDEX known_digest ON known(digest)")
    inventory.database.executescript("DROP TABLE IF EXISTS doubles; CREATE TABLE doubles(row INTEGER PRIMARY KEY);")
    ordered = inventory.query(
        f"SELECT row, digest, item FROM digests JOIN inputs ON inputs.rowid = row ORDER BY digest, {inventory.ORDER}"
    )
    options = inventory.options
    make = SampleMaker(
        inventory.features, inventory.classes.names, options.images, inventory.box_format, options.to_dict()
    )
    files = Files(inventory.base)
    in_dataset = f"SELECT 1 FROM known WHERE digest = ? AND outcome = {TAKEN[0]} LIMIT 1"

    def iter_groups() -> Iterator[list[int]]:
        """Yield the rows of equal images in the order of their paths, behind the mark of one in the dataset."""
        for digest, lines in itertools.groupby(ordered, lambda line: line[1]):
            # An input with a bad label is rejected, so the others are not its duplicates.
            rows = [row for row, _, line in lines if inventory.identify(line).problem is None]
            if inventory.standing is not None and inventory.query(in_dataset, (digest,)).fetchone() is not None:
                yield [_IN_DATASET, *rows]
            elif len(rows) > 1:
                yield rows

    def iter_doubles() -> Iterator[tuple[int]]:
        """Yield all rows of each group after the first one that the build does not reject, for its boxes, say."""
        groups = iter_groups()
        while some := list(itertools.islice(groups, _AT_ONCE)):
            unsure = [rows for rows in some if rows[0] != _IN_DATASET] if make.depends_on_more else []
            sure = [rows for rows in some if rows[0] == _IN_DATASET] if make.depends_on_more else some
            yield from ((row,) for rows in sure for row in rows[1:])
            place = 0
            while unsure:
                unsure.sort(key=lambda rows: rows[place])  # in the order of reading
                one = "SELECT item FROM inputs WHERE rowid = ?"
                inputs = [inventory.identify(*inventory.query(one, (rows[place],)).fetchone()) for rows in unsure]
                again = []
                with closing(iter_taken(files, inputs, lambda *given: bool(make(*given)))) as taken:
                    for rows, (*_, found) in zip(unsure, taken, strict=True):
                        if not isinstance(found, ImageError):
                            yield from ((row,) for row in rows[place + 1 :])
                        elif place + 1 < len(rows):
                            again.append(rows)
                unsure, place = again, place + 1

    inventory.database.executemany("INSERT INTO doubles VALUES(?)", iter_doubles())
    said = inventory.query(
        "SELECT split, COUNT(*), SUM(rowid IN doubles) AS lost FROM inputs GROUP BY split HAVING lost ORDER BY split"
    ).fetchall()
    inventory.dropped = sum(lost for _, _, lost in said)
    if inventory.dropped:
        each = ", ".join(f"{lost:,} of {count:,} of {split}" for split, count, lost in said)
        inventory.said += (f"duplicate images are left out: {each}; {DUPLICATES} names them",)
    inventory.query("UPDATE inputs SET size = NULL WHERE rowid IN doubles")
    # A split without records has no shard, so that no task would name its dropped images.
    inventory.query(
        "UPDATE inputs SET split = (SELECT split FROM inputs WHERE size IS NOT NULL ORDER BY split LIMIT 1) "
        "WHERE size IS NULL AND split NOT IN (SELECT split FROM inputs WHERE size IS NOT NULL) "
        "AND EXISTS (SELECT 1 FROM inputs WHERE size IS NOT NULL)"
    )


def read_digests(inventory: "Inventory", rows: str, purpose: str) -> int:
    """Read the images of the rows of a query, and store the digests of readable ones; return the number of rows."""
    inventory.database.executescript("DROP TABLE IF EXISTS wanted; CREATE TABLE wanted(row INTEGER PRIMARY KEY);")
    inventory.query(f"INSERT INTO wanted {rows}")
    (total,) = inventory.query("SELECT COUNT(*) FROM wanted").fetchone()
    if not total:
        return 0
    _logger.warning("%s images are read before the build, to %s", f"{total:,}", purpose)
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
    return int(total)
