"""A growing dataset: its columns, the inputs that its builds have taken or rejected, and what is new in a source."""

import hashlib
import itertools
import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import msgspec

from tpufeed._version import __version__
from tpufeed.builds.destination import Reject
from tpufeed.builds.digests import REJECTED, TAKEN, UNREAD, image_digest, read_digests
from tpufeed.builds.item import Item, decode_item
from tpufeed.builds.plan import iter_tasks, read_plan
from tpufeed.dataset.naming import DIGESTS, REJECTS
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import OWN_NAMES, FeatureSpec
from tpufeed.errors import ImageError, ObjectNotFoundError, OptionError, url_identity
from tpufeed.sources.boxes import FlipPairs
from tpufeed.sources.columns import Declared
from tpufeed.sources.inputs import Files, iter_certain, version_of
from tpufeed.sources.paths import file_of_row
from tpufeed.storage.reading import read_certain
from tpufeed.storage.store import Store, open_store

_logger = logging.getLogger(__name__)
_REJECT = msgspec.json.Decoder(Reject)
_AT_ONCE = 4096
_SAY_SECONDS = 10.0  # between progress lines
_IS_UNCHANGED = "(known.version = inputs.version AND inputs.version != '')"  # some servers give no version

_NO_FATE = frozenset({  # options that do not decide whether an image is taken
    "append_to", "base_digest", "shard_bytes", "shards", "hosts", "split", "split_by", "split_with", "seed",
    "names", "image", "label", "classes", "keeps_classes", "flip_pairs",
})  # fmt: skip


class Known(NamedTuple):
    """An input of the dataset."""

    path: str
    place: str  # the file of rows that it is in, see `file_of_row`, or empty for a file or a member of a tar
    size_bytes: int | None  # of its image. None if the plan has only an estimate
    version: str | None  # of its files. None if it is in another place, where versions mean something else
    digest: bytes | None  # of its image. None if no digest is stored, or the image was not read
    outcome: int  # taken or rejected, as `build.digests` stores it
    fate: str | None  # all that decided that it is not in the dataset, see `fate_of`
    said: bytes | None  # what the source said of an image that is in the dataset, see `said_of`


def fate_of(item: Item, class_names: Sequence[str], options: Mapping[str, Any], tool_version: str) -> str:
    """Return a digest of all that decides, besides the bytes of its image, whether an input is taken or rejected.

    `options` are the plan's. `tool_version` is the version of the tpufeed that decides.
    """
    names = [class_names[each] if 0 <= each < len(class_names) else None for each in (item.label, *item.labels)]
    problem = None
    if item.problem is not None:
        problem = item.problem[0], re.sub(r"\brow [0-9]+", "row", url_identity(item.problem[1]))  # rows may move
    images = [(url_identity(image.file), image.bytes, image.version, image.offset) for image in item.images]
    deciding = {name: value for name, value in sorted(options.items()) if name not in _NO_FATE}
    parts: list[Any] = [tool_version, names, item.columns, problem, images, deciding]
    parts += [item.outlines] if item.outlines else []
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()


def said_of(item: Item, class_names: Sequence[str], features: Sequence[FeatureSpec]) -> bytes:
    """Return a digest of what a source says of an image: labels, values of columns with boxes, outlines, masks' sizes.

    `features` are those of the records. A column without a value counts as missing.
    """
    names = [class_names[each] if 0 <= each < len(class_names) else None for each in (item.labels or (item.label,))]
    columns = [spec.name for spec in features if spec.name not in OWN_NAMES and not spec.is_picture]
    values = sorted(
        (name, value) for name, value in zip(columns, item.columns, strict=True) if value not in ((), ("",))
    )
    sizes = [image.bytes for image in item.images]
    return hashlib.blake2b(msgspec.json.encode([names, values, item.outlines, sizes]), digest_size=8).digest()


class StandingDataset:
    """The version of a dataset that an append starts from. Raises OptionError if it cannot grow by new images."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.manifest = dataset, dataset.manifest
        command = dataset.manifest.options.get("command")
        if dataset.manifest.cache is not None:
            raise OptionError(
                f"{dataset.url} is a cache: append to the dataset that it was made from, then run tpufeed cache warmup "
                "again"
            )
        if command != "shard":
            raise OptionError(
                f"{dataset.url} was made by tpufeed {command}. Only datasets made by tpufeed shard can grow. Shard the "
                "new images as a separate dataset, and mix both with tpufeed.Mixture"
            )

    def declare(self, given: Sequence[Declared]) -> tuple[Declared, ...]:
        """Return the column types of the dataset, so that new values become the same, with those that are given."""
        declared = dict[str, Declared]()
        for spec in self.manifest.features:
            is_column = spec.name not in OWN_NAMES and not spec.is_picture
            if spec.kind in ("boxes", "keypoints"):
                declared[spec.name] = Declared(spec.name, spec.dtype, None, spec.each, spec.kind)
            elif is_column and spec.lengths != (0, 0):
                # A single number of few bits is stored differently from a list.
                grows = spec.shape in ((), None) and spec.dtype not in ("uint8", "float16")
                declared[spec.name] = Declared(spec.name, spec.dtype, spec.shape, spec.each, None, grows)
        return tuple((declared | {each.name: each for each in given}).values())

    @property
    def flip_pairs(self) -> FlipPairs | None:
        """The flip pairs of its keypoints, which new images share unless their source says others."""
        found = (spec.flip_pairs for spec in self.manifest.features if isinstance(spec.flip_pairs, tuple))
        return next(found, None)

    @property
    def parts(self) -> list[tuple[str, Store]]:
        """Folder and store of each part that added images."""
        store = self.dataset.store
        return [
            (part.folder, open_store(f"{store.url.rstrip('/')}/{part.folder}", follow=False) if part.folder else store)
            for part in self.manifest.history
            if part.kind != "compact"
        ]


def iter_known(store: Store, base: str, files: int) -> Iterator[Known]:
    """Yield all inputs of a part of a dataset, rejects included. `base` is the base of the new source.

    An image is in as many `files`.
    """
    try:
        plan = read_plan(store)
    except ObjectNotFoundError:
        raise OptionError(
            f"{store.url} no longer has its plan, which would tell which images are in it. Nothing was changed. Build "
            "the dataset again to let it grow"
        ) from None
    header = plan.header
    same_place = header.base == url_identity(base)
    stored = read_digests(store, header.images)
    rejects = set[str]()
    if stored is None:
        with suppress(ObjectNotFoundError):
            for line in read_certain(store, REJECTS).splitlines():
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # an edited line
                    rejects.add(_REJECT.decode(line).path)
    for at, item in enumerate(item for task in iter_tasks(store, plan) for item in task.inputs):
        if stored is not None:
            digest, outcome = stored.digests[at].tobytes(), int(stored.fates[at])
        else:
            digest = UNREAD
            outcome = (REJECTED if item.problem is not None or item.path in rejects else TAKEN)[0]
        is_taken = outcome == TAKEN[0]
        yield Known(
            item.path,
            file_of_row(item.path) if item.file else "",
            None if item.row is not None else item.bytes,
            version_of(item, files) if same_place else None,
            None if digest == UNREAD else digest,
            outcome,
            None if is_taken else fate_of(item, header.class_names, header.options, header.tool_version),
            said_of(item, header.class_names, header.features) if is_taken else None,
        )


class Growth:
    """Leaves out inputs of a source that a growing dataset has, or has rejected before.

    Attributes:
        compared_by_size: number of inputs that were compared by path and size, as the dataset lacks their digests.
        renewed: number of inputs whose path is in the dataset with other content.
        corrected: number of inputs that the dataset has, but of which the source says something else now.
        first_corrected: the first of them.
        rejected_before: number of inputs left out because the dataset rejected them before and they have not changed.
    """

    def __init__(self, standing: StandingDataset, database: sqlite3.Connection, base: str, files: int) -> None:
        """Compare `standing` with the inventory of a source with this `base`, which is in `database`.

        An image is in as many `files`.
        """
        self._standing, self._database, self._query, self._base = standing, database, database.execute, base
        self._files = files
        self.compared_by_size, self.renewed, self.rejected_before = 0, 0, 0
        self.corrected, self.first_corrected = 0, ""

    def skip_known(self) -> int:
        """Leave out inputs that are in the dataset already, with the same path and the same bytes. Return their number.

        Paths may be numbers of rows in a file, which may change when the file is written again. So a row also counts as
        present if an image of the same file has its bytes. Each such image matches one row.
        """
        self._list_known()
        if self._files > 1:  # `known` has versions of all files
            self._database.create_function("versions", 1, lambda line: version_of(decode_item(line), self._files))
            self._query("UPDATE inputs SET version = versions(item)")
        are_rows = self._query("SELECT 1 FROM known WHERE place != '' LIMIT 1").fetchone() is not None
        same = (
            "inputs JOIN known ON known.path = inputs.path "
            "AND (known.bytes = inputs.bytes OR known.bytes IS NULL OR inputs.is_estimate)"
        )
        in_dataset = f"{same} AND known.outcome != {REJECTED[0]}"
        self._database.executescript("DROP TABLE IF EXISTS equal; CREATE TABLE equal(row INTEGER PRIMARY KEY);")
        self._query(f"INSERT OR IGNORE INTO equal SELECT inputs.rowid FROM {in_dataset} WHERE {_IS_UNCHANGED}")
        self.compared_by_size = self._query(
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
        self._read_digests(f"SELECT DISTINCT * FROM ({changed})")
        self._query(
            f"INSERT OR IGNORE INTO equal SELECT inputs.rowid FROM {in_dataset} "
            "JOIN digests ON digests.row = inputs.rowid WHERE known.digest = digests.digest"
        )
        if are_rows:
            self._find_moved_rows()
        self._database.executescript(
            "DROP TABLE IF EXISTS present; CREATE TABLE present AS SELECT inputs.rowid AS row, item, said FROM equal "
            "JOIN inputs ON inputs.rowid = equal.row JOIN known ON known.path = inputs.path "
            f"LEFT JOIN digests ON digests.row = equal.row WHERE known.outcome = {TAKEN[0]} "
            f"AND ({_IS_UNCHANGED} OR known.digest IS NULL OR known.digest = digests.digest);"
        )
        self._query("DELETE FROM inputs WHERE rowid IN equal")
        self._query("DELETE FROM digests WHERE row IN equal")
        return int(self._query("SELECT COUNT(*) FROM equal").fetchone()[0])

    def _list_known(self) -> None:
        self._database.executescript(
            "DROP TABLE IF EXISTS known; CREATE TABLE known(path TEXT, place TEXT, bytes INT, version TEXT, "
            "digest BLOB, outcome INT, fate TEXT, said BLOB);"
        )
        for _, store in self._standing.parts:
            lines = iter_known(store, self._base, self._files)
            self._database.executemany("INSERT INTO known VALUES(?,?,?,?,?,?,?,?)", lines)
        self._query("CREATE INDEX known_path ON known(path)")

    def _find_moved_rows(self) -> None:
        """Add to `equal` the rows with the bytes of an image of their file, if no other row matches that image."""
        self._query("CREATE INDEX known_place ON known(place, digest)")
        self._query("CREATE TABLE used(known INTEGER PRIMARY KEY)")
        self._query(
            "INSERT OR IGNORE INTO used SELECT known.rowid FROM equal CROSS JOIN inputs ON inputs.rowid = equal.row "
            "CROSS JOIN known ON known.path = inputs.path LEFT JOIN digests ON digests.row = inputs.rowid "
            f"WHERE {_IS_UNCHANGED} OR known.digest = digests.digest"
        )
        rows = self._query(
            "SELECT row, file_of_row(path) AS place, digest FROM digests JOIN inputs ON inputs.rowid = row "
            "WHERE row NOT IN equal AND place != '' ORDER BY place, digest, row"
        )

        def iter_moved() -> Iterator[tuple[int]]:
            for (place, digest), group in itertools.groupby(rows, lambda line: line[1:]):
                (left,) = self._query(
                    "SELECT COUNT(*) FROM known WHERE place = ? AND digest = ? AND rowid NOT IN used "
                    f"AND outcome != {REJECTED[0]}",
                    (place, digest),
                ).fetchone()
                yield from ((row,) for row, *_ in itertools.islice(group, left))

        self._query("CREATE TABLE moved(row INT)")  # apart, as the query reads `equal`
        self._database.executemany("INSERT INTO moved VALUES(?)", iter_moved())
        self._query("INSERT INTO equal SELECT row FROM moved")
        self._query("DROP TABLE used")
        self._query("DROP TABLE moved")

    def skip_rejected(
        self, identify: Callable[[bytes], Item], class_names: Sequence[str], options: Mapping[str, Any]
    ) -> None:
        """Leave out inputs that a build of the dataset has rejected, if nothing that decided this has changed.

        They would be rejected again, and use up the budget of each append.
        """
        lines = (
            f"SELECT inputs.rowid, known.fate, {_IS_UNCHANGED} OR known.digest = digests.digest, inputs.item "
            "FROM inputs LEFT JOIN digests ON digests.row = inputs.rowid JOIN known ON known.{} "
            f"WHERE known.outcome = {REJECTED[0]}"
        )
        ways = ["path = inputs.path"]
        if self._query("SELECT 1 FROM known WHERE place != '' LIMIT 1").fetchone():
            ways.append("place = file_of_row(inputs.path) AND known.place != '' AND known.digest = digests.digest")
        rejected = set[int]()
        for way in ways:
            for row, fate, is_same, line in self._query(lines.format(way)):
                item = identify(line)
                # If an input is rejected unread, its bytes do not matter.
                if (is_same or item.problem is not None) and fate_of(item, class_names, options, __version__) == fate:
                    rejected.add(row)
        for table, key in (("inputs", "rowid"), ("digests", "row")):
            self._database.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(row,) for row in rejected])
        self.rejected_before = len(rejected)
        (self.renewed,) = self._query(
            "SELECT COUNT(*) FROM inputs WHERE EXISTS "
            f"(SELECT 1 FROM known WHERE known.path = inputs.path AND known.outcome != {REJECTED[0]})"
        ).fetchone()

    def find_corrected(
        self, identify: Callable[[bytes], Item], class_names: Sequence[str], features: Sequence[FeatureSpec]
    ) -> None:
        """Count the images that the growing dataset has, but of which the source says something else now."""
        lines = self._query("SELECT row, item, said FROM present ORDER BY row")
        for _, group in itertools.groupby(lines, lambda line: line[0]):  # an image may be there in several versions
            (_, line, said), *others = group
            item = identify(line)
            if said_of(item, class_names, features) not in {said, *(each for *_, each in others)}:
                self.corrected += 1
                self.first_corrected = self.first_corrected or item.path

    def iter_warnings(self) -> Iterator[str]:
        """Yield warnings of inputs that a growing dataset has, or has rejected before."""
        if self.rejected_before:
            yield (
                f"{self.rejected_before:,} inputs are left out because this dataset rejected them before and they "
                f"have not changed. The {REJECTS} of its versions name them"
            )
        if self.corrected:
            yield (
                f"{self.corrected:,} images are in the dataset already, with other labels, boxes or columns than the "
                f"source has now, like {self.first_corrected}: the dataset keeps the old ones. To get the corrected "
                "ones, shard the source again in another place"
            )
        if self.compared_by_size:
            yield (
                f"{self.compared_by_size:,} images were compared with the dataset's by path and size alone, as it has "
                f"no digests of them ({DIGESTS})"
            )
        if self.renewed:
            yield (
                f"{self.renewed:,} images have the path of an image in the dataset but other content: they are added, "
                "and the older ones stay"
            )

    def _read_digests(self, rows: str) -> None:
        """Read the images of the rows of a query, and store the digests of readable ones."""
        self._database.executescript("DROP TABLE IF EXISTS wanted; CREATE TABLE wanted(row INTEGER PRIMARY KEY);")
        self._query(f"INSERT INTO wanted {rows}")
        (total,) = self._query("SELECT COUNT(*) FROM wanted").fetchone()
        if not total:
            return
        _logger.warning(
            "%s images are read before the build, to compare them with those of the same path and size", f"{total:,}"
        )
        files, done, last, due = Files(self._base), 0, 0, time.monotonic() + _SAY_SECONDS
        statement = "SELECT row, item FROM wanted JOIN inputs ON inputs.rowid = row WHERE row > ? ORDER BY row LIMIT ?"
        while lines := self._query(statement, (last, _AT_ONCE)).fetchall():
            # Only the image's own files: neither masks nor columns.
            items = (decode_item(line) for _, line in lines)
            inputs = [
                msgspec.structs.replace(item, images=item.images[: self._files - 1], problem=None) for item in items
            ]
            with closing(iter_certain(files, inputs)) as read:
                found = [
                    (row, image_digest(b"".join(data)))
                    for (row, *_), (_, data) in zip(lines, read, strict=True)
                    if not isinstance(data, ImageError)
                ]
            self._database.executemany("INSERT INTO digests VALUES(?,?)", found)
            done, last = done + len(lines), lines[-1][0]
            if time.monotonic() >= due:
                due = time.monotonic() + _SAY_SECONDS
                _logger.warning("%s of %s images are read", f"{done:,}", f"{total:,}")
