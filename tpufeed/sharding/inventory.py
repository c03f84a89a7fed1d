"""An inventory keeps all inputs of a build in a database file: memory does not grow with their number.

SQLite sorts them outside memory, into the same global order as a list of their hashes would have.
"""

import hashlib
import itertools
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tpufeed import __version__
from tpufeed.build.commit import Reject
from tpufeed.build.digests import LEFT_OUT, REJECTED, TAKEN, image_digest
from tpufeed.build.plan import DUPLICATE, ImageRef, Input
from tpufeed.build.versions import join_features
from tpufeed.dataset.naming import DUPLICATES, check_split_name
from tpufeed.dataset.schema import kaggle_keys, record_schema, several_labels
from tpufeed.errors import BuildError, ImageError, OptionError, SourceError, mask_secrets, url_identity
from tpufeed.sharding.boxes import mark_boxes
from tpufeed.sharding.columns import ColumnTypes, encode_values, revive, to_json
from tpufeed.sharding.inputs import UNREACHABLE, Files, iter_read, iter_taken
from tpufeed.sharding.labels import (
    Classes,
    bad_label,
    extend_classes,
    iter_class_warnings,
    iter_labels,
    join_names,
    make_classes,
)
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.row_groups import PREFIX
from tpufeed.sharding.rows import Found, Label, Row, file_of_row, identity_of
from tpufeed.sharding.sample import SampleMaker
from tpufeed.sharding.sources import Source, find_source, iter_source_warnings
from tpufeed.sharding.standing import StandingDataset, fate_of
from tpufeed.sharding.tables import has_box
from tpufeed.storage.local import temporary_folder
from tpufeed.storage.reading import READS, DamagedReadError

_logger = logging.getLogger(__name__)
_ROWS_AT_ONCE = 4096
_SAY_SECONDS = 10.0  # between lines on the progress of a reading pass
_CACHE_BYTES = 16 << 20  # of SQLite, which sorts as much at a time
_MOST_SPLITS = 100
_COLUMNS = "path, bytes, version, label, file, offset, columns, problem, labels, images, pixels"
_FIRST_REJECTS = 3  # that an error shows
_IS_UNCHANGED = "(known.version = inputs.version AND inputs.version != '')"  # some servers say no version
_IS_ESTIMATE = f"substr(inputs.file, 1, {len(PREFIX)}) = '{PREFIX}'"  # the size of a row of Parquet is a mean
_IN_DATASET = -1  # in the place of a row
_FILE = "CASE file WHEN '' THEN path ELSE identity_of(file) END"
_Line = tuple[Any, ...]


class Inventory:
    """The inputs of one source. Not for several threads.

    Attributes:
        base: the URL that their files are relative to.
        classes: names and ids; no names without labels.
        schema: features that further columns become.
        features: all features of the records.
        splits: names, in the order of the dataset.
        ignored_files: which are no images by their names, by their endings (`.txt`).
        labelled: true where inputs have labels.
        several_labels: true where they have lists of them.
        totals: for each split: inputs, bytes of all their files, and bytes of their paths and columns; without those
            that are left out as duplicates.
        count: all inputs.
        digest: identity of all inputs together, whatever their order.
        skipped: inputs that are in the dataset already, which grows.
        compared_by_size: those of them that were compared by path and size, as the dataset has no digests of them.
        dropped: inputs that are duplicates and are left out.
        read_before: images that were read before the plan.
        renewed: inputs of a path that is in the dataset with other content.
        rejected_before: inputs that a build of the dataset has rejected, and that are as they were: they are left out.
        listed_twice: rows that name a file that another row names as well, however they spell it.
        rejects: inputs that are rejected without being read, counted by reason.
        first_rejects: the first few of them.
        warnings: what labels, columns and folders became that may not have been meant, as sentences.
    """

    def __init__(
        self, folder: Path, source: Source, options: ShardOptions, standing: StandingDataset | None = None
    ) -> None:
        """Read all rows of `source` into a file in `folder`; of `standing`, the dataset that grows, none again.

        Raises:
            SourceError, NoInputsError, OptionError: the source cannot be understood.
            UnavailableError, AccessError: its store does not answer, refuses, or gives other bytes each time.
        """
        self.base, self._given, options = source.base, options, source.options or options
        self._standing = standing
        self.skipped, self.compared_by_size, self.renewed, self.dropped, self.read_before = 0, 0, 0, 0, 0
        self.rejected_before = 0
        # No journal: the file is nobody's after a crash. The cache bounds what sorting takes, too.
        self._database = sqlite3.connect(folder / "inventory.sqlite", isolation_level=None)
        self._database.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA temp_store=FILE;"
            f"PRAGMA cache_size=-{_CACHE_BYTES >> 10};"
        )
        self._database.create_function("file_of_row", 1, file_of_row, deterministic=True)
        self._database.create_function("identity_of", 1, lambda file: identity_of(self.base, file), deterministic=True)
        self._by_file = source.kind == "table"  # a table may spell a file in several ways; a tar is one file for many
        try:
            for tries_left in reversed(range(READS)):
                try:
                    self._read(source, options)
                    break
                except DamagedReadError as error:  # rows of it may be in the tables
                    if not tries_left:
                        raise
                    _logger.warning("%s; the source is listed again", error)
        except BaseException:
            self.close()
            raise

    def _read(self, source: Source, options: ShardOptions) -> None:
        standing = self._standing
        declared = options.declared if standing is None else standing.declare(options.declared)
        found, types, splits = Found(), ColumnTypes(declared, options.box_columns or ()), set[str]()
        labels, list_lengths = Counter[Label](), set[int]()
        shares = None if source.splits else {"train": 1.0} if options.split_shares is None else options.split_shares
        rows = source.iter_rows(found)
        self._database.executescript(
            f"DROP TABLE IF EXISTS inputs; CREATE TABLE inputs(key BLOB, split TEXT, extra INT, size INT, {_COLUMNS});"
            "DROP TABLE IF EXISTS digests; CREATE TABLE digests(row INTEGER PRIMARY KEY, digest BLOB);"
        )
        self._database.execute("BEGIN")
        while chunk := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            labels.update(iter_labels(row.label for row in chunk))
            list_lengths.update(len(row.label) for row in chunk if isinstance(row.label, tuple))
            # Row by row: converted columns take much more memory than their text.
            base = self.base if self._by_file else None
            lines = [_to_line(_learn(row, types), options.seed, shares, base) for row in chunk]
            try:
                self._database.executemany(f"INSERT INTO inputs VALUES({','.join('?' * 15)})", lines)
            except UnicodeEncodeError as error:
                raise SourceError(f"{error.object!r} in the source is not UTF-8; mend it") from error
            if source.splits:
                splits.update(str(row.split) for row in chunk)
                if len(splits) > _MOST_SPLITS:
                    raise OptionError(
                        f"more than {_MOST_SPLITS} splits, like {sorted(splits)[:3]}; is this the right column?"
                    )
        self._database.execute("COMMIT")
        if standing is not None:
            self._skip_known(standing, source.kind == "rows")
        self.splits = tuple(map(check_split_name, sorted(splits))) if shares is None else tuple(shares)
        are_folders = source.kind == "folder"
        self._find_features(labels, list_lengths, types, options, are_folders)
        self.ignored_files: dict[str, int] = dict(found.ignored_files)
        columns = [spec.name for spec in self.schema]
        self.warnings: tuple[str, ...] = (
            *iter_source_warnings(source, options, found, self.classes.names, columns, self.labelled),
            *iter_class_warnings(labels, self.classes, are_folders or options.class_names is not None),
            *types.iter_warnings(),
        )
        if standing is not None:
            self._skip_rejected()
        self._sum_up()
        self._look_at_each()
        if self._by_file and self.listed_twice:
            self.warnings += tuple(self._iter_repeats(options))

    def _look_at_each(self) -> None:
        """Find what is rejected, what is listed twice, and the digest."""
        self.rejects, self.first_rejects, self.listed_twice = Counter[str](), list[Reject](), 0

        def iter_inputs() -> Iterator[Input]:
            """One pass in the order of the paths is enough for all three."""
            last = None
            for line in self._query(f"SELECT {_COLUMNS} FROM inputs ORDER BY {_COLUMNS}"):
                self.listed_twice += line[0] == last
                last = line[0]
                item = self._to_input(line)
                if item.problem is not None:
                    self.rejects[item.problem[0]] += 1
                    if len(self.first_rejects) < _FIRST_REJECTS:
                        self.first_rejects.append(Reject(item.path, *item.problem))
                yield item

        self.digest = input_digest(iter_inputs(), self.base)
        if self._by_file and self._query("SELECT 1 FROM inputs WHERE file != '' LIMIT 1").fetchone():
            each = f"SELECT COUNT(*) AS rows FROM inputs GROUP BY {_FILE}"
            (self.listed_twice,) = self._query(f"SELECT SUM(rows - 1) FROM ({each})").fetchone()

    def _iter_repeats(self, options: ShardOptions) -> Iterator[str]:
        """Yield a sentence on images that a table names in several rows, each of which becomes a sample."""
        if options.boxes is None and has_box(spec.name for spec in self.schema):
            each = f"SELECT COUNT(*) AS rows, MIN(path) AS path FROM inputs GROUP BY {_FILE} HAVING rows > 1"
            images, rows, path = self._query(f"SELECT COUNT(*), SUM(rows), MIN(path) FROM ({each})").fetchone()
            yield (
                f"{images:,} images are in {rows:,} rows, each with a box, like {path}: every row becomes a sample of "
                "its own, with one label and a box that does not move with the crop. For a sample with all boxes of "
                "its image, make JSON lines with a row for each image (docs/samples.md has a program), and run: "
                "tpufeed shard boxes.jsonl DST --boxes boxes --label label"
            )
        elif self.labelled:
            self._database.create_function("class_of", 1, self.classes.ids.get)
            each = (
                f"SELECT MIN(path) AS path FROM inputs WHERE problem IS NULL GROUP BY {_FILE} "
                "HAVING COUNT(DISTINCT COALESCE(labels, class_of(label))) > 1"
            )
            images, path = self._query(f"SELECT COUNT(*), MIN(path) FROM ({each})").fetchone()
            if images:
                yield (
                    f"{images:,} images are in several rows with different labels, like {path}: every row becomes a "
                    "sample of its own, and they contradict each other. For a sample with several labels give a list "
                    "of them, in JSON lines with a row for each image: docs/samples.md"
                )

    def _sum_up(self) -> None:
        sums = self._query(
            "SELECT split, COUNT(*), SUM(size), SUM(extra) FROM inputs WHERE size IS NOT NULL GROUP BY split"
        )
        self.totals: dict[str, tuple[int, int, int]] = dict.fromkeys(self.splits, (0, 0, 0))
        self.totals |= {name: (count, size, extra) for name, count, size, extra in sums}
        (self.count,) = self._query("SELECT COUNT(*) FROM inputs").fetchone()

    def _find_features(
        self,
        labels: Counter[Label],
        list_lengths: set[int],
        types: ColumnTypes,
        options: ShardOptions,
        are_folders: bool,
    ) -> None:
        """Find out what labels and features there are.

        `list_lengths` becomes that of all samples, where some have lists of labels.
        """
        self.labelled = options.label != "none" and (set(labels) != {None} or options.class_names is not None)
        if options.label not in ("auto", "none") and set(labels) == {None}:
            raise OptionError(f"no sample has a label in {options.label!r}")
        of_lists = self._standing is not None and several_labels(self._standing.manifest.features)
        self.several_labels = self.labelled and (of_lists or bool(list_lengths))
        if self.several_labels:  # a sample without a list has one label, or none
            alone = self._query("SELECT DISTINCT label IS NOT NULL FROM inputs WHERE labels IS NULL")
            list_lengths.update(number for (number,) in alone)
            del labels[None]
        self.classes = self._find_classes(labels, options, are_folders) if self.labelled else Classes((), {})
        several = (min(list_lengths, default=0), max(list_lengths, default=0)) if self.several_labels else None
        own = record_schema(self.labelled, several, options.boxes)
        columns = types.schema(needs_all=self._standing is None)
        features = (*own, *columns, *(picture.spec for picture in options.pictures))
        are_cut = options.images.presize_px is not None and options.images.presize_mode == "fit"
        pairs = options.pairs
        if self._standing is not None:
            pairs = self._standing.flip_pairs if pairs is None else pairs
        elif pairs is not None and options.keypoints is None:
            raise OptionError("flip_pairs are of keypoints; say which column holds them: --keypoints COLUMN")
        self.features = mark_boxes(features, options.boxes, options.box_columns or (), are_cut, pairs)
        if options.names == "kaggle":
            self.features = kaggle_keys(self.features)
        self.schema = tuple(spec for spec in self.features[len(own) :] if not spec.is_picture)
        if self._standing is not None:
            self._check_columns(self._standing)

    def _find_classes(self, labels: Counter[Label], options: ShardOptions, are_folders: bool) -> Classes:
        """Return the classes; those of a dataset that grows keep their ids, whatever numbers the source gives them."""
        if self._standing is None:
            return make_classes(labels, options.class_names, are_folders)
        known, fixed = self._standing.manifest.class_names, self._given.class_names
        # Of a source that has a list itself, see `find_source`.
        own = None if options.class_names == fixed else options.class_names
        if fixed is None:
            return extend_classes(labels, known, are_folders, own)
        fixed = join_names(known, fixed)
        if own is None:
            return make_classes(labels, fixed, are_folders)
        return make_classes(extend_classes(labels, (), are_folders, own).ids, fixed, are_names=True)

    def _check_columns(self, standing: StandingDataset) -> None:
        """Raise OptionError where columns are not those of the dataset; one that no row fits is named by its value."""
        there = {spec.name: spec for spec in standing.manifest.features}
        missing = there.keys() - {spec.name for spec in self.features}
        statement = "SELECT path, problem FROM inputs WHERE problem LIKE '%bad_column%' ORDER BY path LIMIT 1"
        odd = self._query(statement).fetchone() if missing else None
        if odd is not None:
            types = ", ".join(f"{name} {there[name].type_text}" for name in sorted(missing))
            raise OptionError(
                f"{odd[0]}: {json.loads(odd[1])[1]}. The dataset has the columns {types}, and no row of the new images "
                "fits them; nothing was changed. Give the new images those types"
            )
        join_features(standing.manifest.features, self.features)

    def _skip_known(self, standing: StandingDataset, are_rows: bool) -> None:
        """Leave out inputs that are in the dataset already: those of one path whose bytes are the same.

        The path of a row of a file is its number (`are_rows`), and another row may have that in a file that was written
        again. So a row is in the dataset, too, if an image of the same file is that has its bytes; each stands for one.
        """
        self._list_known(standing)
        same = (
            "inputs JOIN known ON known.path = inputs.path "
            f"AND (known.bytes = inputs.bytes OR known.bytes IS NULL OR {_IS_ESTIMATE})"
        )
        in_dataset = f"{same} AND known.outcome != {REJECTED[0]}"
        self._database.executescript("DROP TABLE IF EXISTS equal; CREATE TABLE equal(row INTEGER PRIMARY KEY);")
        self._database.execute("BEGIN")
        self._database.execute(
            f"INSERT OR IGNORE INTO equal SELECT inputs.rowid FROM {in_dataset} WHERE {_IS_UNCHANGED}"
        )
        self.compared_by_size = self._database.execute(
            f"INSERT OR IGNORE INTO equal SELECT inputs.rowid FROM {in_dataset} WHERE known.digest IS NULL"
        ).rowcount
        self._database.execute("COMMIT")
        changed = (
            f"SELECT inputs.rowid FROM {same} AND inputs.rowid NOT IN equal AND known.digest IS NOT NULL "
            f"AND {_IS_UNCHANGED} IS NOT TRUE"
        )
        if are_rows:
            changed += (
                " UNION SELECT rowid FROM inputs WHERE rowid NOT IN equal AND problem IS NULL "
                "AND file_of_row(path) IN (SELECT place FROM known WHERE digest IS NOT NULL AND place != '')"
            )
        self._read_digests(f"SELECT DISTINCT * FROM ({changed})", "compare them with those of the same path and size")
        self._database.execute("BEGIN")
        self._database.execute(
            f"INSERT OR IGNORE INTO equal SELECT inputs.rowid FROM {in_dataset} "
            "JOIN digests ON digests.row = inputs.rowid WHERE known.digest = digests.digest"
        )
        if are_rows:
            self._find_moved_rows()
        self._database.execute("DELETE FROM inputs WHERE rowid IN equal")
        self._database.execute("DELETE FROM digests WHERE row IN equal")
        self._database.execute("COMMIT")
        (self.skipped,) = self._query("SELECT COUNT(*) FROM equal").fetchone()

    def _list_known(self, standing: StandingDataset) -> None:
        self._database.executescript(
            "DROP TABLE IF EXISTS known; CREATE TABLE known(path TEXT, place TEXT, bytes INT, version TEXT, "
            "digest BLOB, outcome INT, fate TEXT);"
        )
        self._database.execute("BEGIN")
        known = standing.iter_known(self.base)
        while chunk := list(itertools.islice(known, _ROWS_AT_ONCE)):
            self._database.executemany("INSERT INTO known VALUES(?,?,?,?,?,?,?)", chunk)
        taken, is_left_out = f"FROM known WHERE outcome = {TAKEN[0]}", f"outcome = {LEFT_OUT[0]}"
        if not self._query(f"SELECT 1 {taken} AND digest IS NULL LIMIT 1").fetchone():
            # The copy of an image that was rejected is not in the dataset either.
            no_copy = f"{is_left_out} AND digest NOT IN (SELECT digest {taken})"
            rejects = f"SELECT digest FROM known WHERE outcome = {REJECTED[0]} AND digest IS NOT NULL"
            self._database.execute(
                f"UPDATE known SET outcome = {REJECTED[0]} WHERE {no_copy} AND digest IN ({rejects})"
            )
            self._database.execute(f"DELETE FROM known WHERE {no_copy}")
        self._database.execute("COMMIT")
        self._database.execute("CREATE INDEX known_path ON known(path)")

    def _find_moved_rows(self) -> None:
        """Add to `equal` the rows that stand for an image of their file in the dataset, and for which no other does."""
        self._database.execute("CREATE INDEX known_place ON known(place, digest)")
        self._database.execute("CREATE TABLE used(known INTEGER PRIMARY KEY)")
        self._database.execute(
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
                    place,
                    digest,
                ).fetchone()
                yield from ((row,) for row, *_ in itertools.islice(group, left))

        self._database.execute("CREATE TABLE moved(row INT)")  # apart, as the query reads `equal`
        self._database.executemany("INSERT INTO moved VALUES(?)", iter_moved())
        self._database.execute("INSERT INTO equal SELECT row FROM moved")
        self._database.execute("DROP TABLE used")
        self._database.execute("DROP TABLE moved")

    def _skip_rejected(self) -> None:
        """Leave out inputs that a build of the dataset has rejected, if nothing that decided it is another now.

        They would be rejected again, and fill the budget of each append.
        """
        lines = (
            f"SELECT inputs.rowid, known.fate, {_IS_UNCHANGED} OR known.digest = digests.digest, "
            f"{', '.join(f'inputs.{name}' for name in _COLUMNS.split(', '))} FROM inputs "
            "LEFT JOIN digests ON digests.row = inputs.rowid JOIN known ON known.{} "
            f"WHERE known.outcome = {REJECTED[0]}"
        )
        ways = ["path = inputs.path"]
        if self._query("SELECT 1 FROM known WHERE place != '' LIMIT 1").fetchone():
            ways.append("place = file_of_row(inputs.path) AND known.place != '' AND known.digest = digests.digest")
        rejected, options = set[int](), self._given.to_dict()
        for way in ways:
            for row, fate, is_same, *line in self._query(lines.format(way)):
                item = self._to_input(line)
                # Of what is rejected unread the bytes do not matter.
                if (is_same or item.problem is not None) and fate_of(
                    item, self.classes.names, options, __version__
                ) == fate:
                    rejected.add(row)
        self._database.execute("BEGIN")
        self._database.executemany("DELETE FROM inputs WHERE rowid = ?", [(row,) for row in rejected])
        self._database.executemany("DELETE FROM digests WHERE row = ?", [(row,) for row in rejected])
        self._database.execute("COMMIT")
        self.rejected_before = len(rejected)
        (self.renewed,) = self._query(
            "SELECT COUNT(*) FROM inputs WHERE EXISTS "
            f"(SELECT 1 FROM known WHERE known.path = inputs.path AND known.outcome != {REJECTED[0]})"
        ).fetchone()

    def count_reads(self, options: ShardOptions) -> int:
        """Return how many images `prepare` reads."""
        statement = self._rows_to_read(options)
        return 0 if statement is None else int(self._query(f"SELECT COUNT(*) FROM ({statement})").fetchone()[0])

    def prepare(self, options: ShardOptions) -> None:
        """Read what has to be read before the plan: to deal inputs to splits by content, and to drop duplicates.

        `digest` stays that of all inputs of the source, so that a finished build is recognised without this.
        """
        statement = self._rows_to_read(options)
        if statement is None:
            return
        self.read_before = self._read_digests(
            statement, "deal images to splits by content" if options.split_by_content else "find duplicates"
        )
        if options.split_by_content and options.split_shares is not None:
            self._split_by_content(options.split_shares)
        if options.duplicates == "drop":
            self._drop_duplicates(options)
        self._sum_up()

    def _rows_to_read(self, options: ShardOptions) -> str | None:
        """Return the query of the rows whose images `prepare` reads; None where it has nothing to do."""
        unread = "SELECT rowid FROM inputs WHERE problem IS NULL AND rowid NOT IN (SELECT row FROM digests)"
        if options.split_by_content:
            return unread
        if options.duplicates != "drop":
            return None
        taken = f"SELECT bytes FROM known WHERE digest IS NOT NULL AND outcome = {TAKEN[0]}"
        unsure = f"SELECT 1 FROM inputs WHERE {_IS_ESTIMATE}"
        sizes = "SELECT bytes FROM inputs WHERE problem IS NULL GROUP BY bytes HAVING COUNT(*) > 1"
        if self._standing is not None:
            unsure += f" UNION ALL {taken} AND bytes IS NULL"
            sizes += f" UNION {taken}"
        if self._query(f"{unsure} LIMIT 1").fetchone():
            return unread  # an image may have the bytes of any whose size is not known
        return f"{unread} AND bytes IN ({sizes})"

    def _drop_duplicates(self, options: ShardOptions) -> None:
        """Leave out all but the first, by path, of inputs whose images are the same bytes.

        One in the dataset that grows goes before all new ones. What is left out stays among the inputs, with a problem
        and without a size: so the plan names it, and a build that goes on need not read it again.
        """
        if self._standing is not None:
            self._database.execute("CREATE INDEX known_digest ON known(digest)")
        self._database.executescript("DROP TABLE IF EXISTS doubles; CREATE TABLE doubles(row INTEGER PRIMARY KEY);")
        ordered = self._query(
            f"SELECT row, digest, {_COLUMNS} FROM digests JOIN inputs ON inputs.rowid = row ORDER BY digest, {_COLUMNS}"
        )
        make, files = (
            SampleMaker(self.features, self.classes.names, options.images, options.to_dict()),
            Files(self.base),
        )
        in_dataset = f"SELECT 1 FROM known WHERE digest = ? AND outcome = {TAKEN[0]} LIMIT 1"

        def iter_groups() -> Iterator[list[int]]:
            """Yield the rows of equal images, the first by path first; new ones behind one in the dataset."""
            for digest, lines in itertools.groupby(ordered, lambda line: line[1]):
                # A bad label: it is rejected, and stands for no other.
                rows = [row for row, _, *line in lines if self._to_input(line).problem is None]
                if self._standing is not None and self._query(in_dataset, digest).fetchone() is not None:
                    yield [_IN_DATASET, *rows]
                elif len(rows) > 1:
                    yield rows

        def take(item: Input, data: Sequence[bytes]) -> bool:
            make(item, data)
            return True

        def iter_doubles() -> Iterator[tuple[int]]:
            """Yield all of each group but the first that the build will not reject for its boxes, say."""
            groups = iter_groups()
            while some := list(itertools.islice(groups, _ROWS_AT_ONCE)):
                sure = [rows for rows in some if rows[0] == _IN_DATASET or not make.depends_on_more]
                yield from ((row,) for rows in sure for row in rows[1:])
                unsure, place = [] if len(sure) == len(some) else [rows for rows in some if rows[0] != _IN_DATASET], 0
                while unsure:
                    unsure.sort(key=lambda rows: rows[place])  # as rows are read
                    inputs = [self._input_of(rows[place]) for rows in unsure]
                    with closing(iter_taken(files, inputs, take)) as taken:
                        refused = [isinstance(found, ImageError) for _, found in taken]
                    doubles = (rows for rows, is_refused in zip(unsure, refused, strict=True) if not is_refused)
                    yield from ((row,) for rows in doubles for row in rows[place + 1 :])
                    place += 1
                    unsure = [
                        rows
                        for rows, is_refused in zip(unsure, refused, strict=True)
                        if is_refused and place < len(rows)
                    ]

        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO doubles VALUES(?)", iter_doubles())
        said = self._query(
            "SELECT split, COUNT(*), SUM(rowid IN doubles) AS lost FROM inputs "
            "GROUP BY split HAVING lost ORDER BY split"
        ).fetchall()
        self.dropped = sum(lost for _, _, lost in said)
        if self.dropped:
            each = ", ".join(f"{lost:,} of {count:,} of {split}" for split, count, lost in said)
            self.warnings += (f"images are left out as duplicates: {each}; {DUPLICATES} names them",)
        digest = "(SELECT lower(hex(digest)) FROM digests WHERE row = inputs.rowid)"
        self._database.execute(
            f"""UPDATE inputs SET problem = '["{DUPLICATE}", "' || {digest} || '"]', size = NULL """
            "WHERE rowid IN doubles"
        )
        # A split without a record has no shard, so that no task would name what it has lost.
        self._database.execute(
            "UPDATE inputs SET split = (SELECT split FROM inputs WHERE size IS NOT NULL ORDER BY split LIMIT 1) "
            "WHERE size IS NULL AND split NOT IN (SELECT split FROM inputs WHERE size IS NOT NULL) "
            "AND EXISTS (SELECT 1 FROM inputs WHERE size IS NOT NULL)"
        )
        self._database.execute("COMMIT")

    def _split_by_content(self, shares: dict[str, float]) -> None:
        """Deal inputs to splits by the digests of their images; one that cannot be read stays where its path is."""
        self._database.create_function("split_of", 1, lambda digest: split_of(digest.hex(), shares))
        self._database.execute("BEGIN")
        self._database.execute(
            "UPDATE inputs SET split = split_of((SELECT digest FROM digests WHERE row = inputs.rowid)) "
            "WHERE rowid IN (SELECT row FROM digests)"
        )
        self._database.execute("COMMIT")

    def _rows_of_content(self, digests: dict[int, set[bytes]]) -> set[int]:
        """Read some inputs, and return those whose bytes have one of their digests."""
        self._database.executescript("DROP TABLE IF EXISTS alike; CREATE TABLE alike(row INTEGER PRIMARY KEY);")
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO alike VALUES(?)", ((row,) for row in digests))
        self._database.execute("COMMIT")
        self._read_digests("SELECT row FROM alike", "compare them with those of the same path and size")
        return {row for row, digest in self._query("SELECT row, digest FROM digests") if digest in digests[row]}

    def _read_digests(self, rows: str, purpose: str) -> int:
        """Read the images of the rows of a query; `digests` then has those that can be read. Returns how many."""
        self._database.executescript("DROP TABLE IF EXISTS wanted; CREATE TABLE wanted(row INTEGER PRIMARY KEY);")
        self._database.execute(f"INSERT INTO wanted {rows}")
        (total,) = self._query("SELECT COUNT(*) FROM wanted").fetchone()
        if not total:
            return 0
        _logger.warning("%s images are read before the build, to %s", f"{total:,}", purpose)
        files, done, last, due = Files(self.base), 0, 0, time.monotonic() + _SAY_SECONDS
        statement = (
            f"SELECT row, {_COLUMNS} FROM wanted JOIN inputs ON inputs.rowid = row WHERE row > ? ORDER BY row LIMIT ?"
        )
        while lines := self._query(statement, last, _ROWS_AT_ONCE).fetchall():
            # The image's own file alone: neither masks nor columns.
            inputs = [
                Input(path, size, version, file=file, offset=offset)
                for _, path, size, version, _, file, offset, *_ in lines
            ]
            with closing(iter_read(files, inputs)) as read:
                found = [
                    (row, image_digest(data[0]))
                    for (row, *_), (_, data) in zip(lines, read, strict=True)
                    if not isinstance(data, ImageError)
                ]
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO digests VALUES(?,?)", found)
            self._database.execute("COMMIT")
            done, last = done + len(lines), lines[-1][0]
            if time.monotonic() >= due:
                due = time.monotonic() + _SAY_SECONDS
                _logger.warning("%s of %s images are read", f"{done:,}", f"{total:,}")
        return int(total)

    def close(self) -> None:
        """Give the file up; its folder's owner removes it."""
        self._database.close()

    def __enter__(self) -> "Inventory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def largest(self, slope: float, intercept: float) -> tuple[str, int]:
        """Path and size of the largest record, where it takes `slope` times the file, `intercept` and the rest."""
        path, size = self._query(
            "SELECT path, ? * size + ? + extra AS record FROM inputs ORDER BY record DESC LIMIT 1", slope, intercept
        ).fetchone()
        return path, int(size)

    def sample(self, count: int) -> list[Input]:
        """A few inputs, drawn by the global order."""
        found = self._query(
            f"SELECT {_COLUMNS} FROM inputs WHERE problem IS NULL ORDER BY key, {_COLUMNS} LIMIT ?", count
        )
        return [self._to_input(line) for line in found]

    def iter_inputs(self, split: str) -> Iterator[tuple[Input, int]]:
        """The inputs of a split in the global order, each with the bytes that its path and columns take."""
        statement = f"SELECT extra, {_COLUMNS} FROM inputs WHERE split = ? ORDER BY key, {_COLUMNS}"
        for extra, *line in self._query(statement, split):
            yield self._to_input(line), extra

    def _input_of(self, row: int) -> Input:
        return self._to_input(self._query(f"SELECT {_COLUMNS} FROM inputs WHERE rowid = ?", row).fetchone())

    def _to_input(self, line: Sequence[Any]) -> Input:
        path, size, version, label, file, offset, columns, problem, listed, images, sides = line
        values = encode_values(None if columns is None else json.loads(columns, object_hook=revive), self.schema)
        wrong = None if problem is None else tuple(json.loads(problem))
        further = () if images is None else tuple(ImageRef(*image) for image in json.loads(images))
        pixels = None if sides is None else tuple(json.loads(sides))
        if self.several_labels:
            found = json.loads(listed) if listed is not None else [] if label is None else [label]
            unknown = [each for each in found if each not in self.classes.ids]
            if unknown and wrong is None:
                wrong = bad_label(unknown[0], self.classes)
                if unknown[0] is None:
                    wrong = "bad_label", f"one of its {len(found)} labels is empty"
            numbers = tuple(self.classes.ids.get(each, -1) for each in found)
            return Input(path, size, version, -1, file, offset, values, wrong, numbers, further, pixels)
        number = self.classes.ids.get(label, -1)
        if self.labelled and number < 0 and wrong is None:
            wrong = bad_label(label, self.classes)
        return Input(path, size, version, number, file, offset, values, wrong, (), further, pixels)

    def _query(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._database.execute(statement, values)


@contextmanager
def take_inventory(source: str, options: ShardOptions, standing: StandingDataset | None = None) -> Iterator[Inventory]:
    """List all inputs of a source into a file that is removed afterwards; those of a dataset that grows are left out.

    Raises:
        OptionError, NoInputsError, SourceError: the source cannot be understood.
        BuildError: the folder for temporary files has no room for them.
    """
    found = find_source(source, options)
    with temporary_folder() as folder:  # of a killed run, too, nothing stays
        try:
            with _open_inventory(folder, found, options, standing) as inventory:
                yield inventory
        except sqlite3.Error as error:
            raise BuildError(
                f"the list of inputs cannot be kept in {folder}: {error}. Nothing was changed. Make room there, or set "
                "TMPDIR to a folder that has some"
            ) from error


def _open_inventory(folder: Path, source: Source, options: ShardOptions, standing: StandingDataset | None) -> Inventory:
    try:
        return Inventory(folder, source, options, standing)
    except (OptionError, SourceError) as error:
        if standing is None:
            raise
        sides = f"{mask_secrets(source.base)} cannot be appended to {mask_secrets(standing.dataset.url)}"
        raise type(error)(f"{sides}: {error}") from error


def split_of(path: str, splits: dict[str, float]) -> str:
    """The split of a path: stable, so that adding files moves none of the old ones."""
    if len(splits) == 1:
        return next(iter(splits))
    point = int.from_bytes(_path_hash(path, None)[:8], "big") / 2**64
    for name, stop in zip(splits, itertools.accumulate(splits.values()), strict=True):
        if point < stop:
            return name
    return list(splits)[-1]


def input_digest(inputs: Iterable[Input], base: str = "") -> str:
    """Hash inputs in the order of their paths: what they are, and what becomes of them; `base` is their source's."""
    digest = hashlib.blake2b(digest_size=16)
    for item in inputs:
        line = f"{item.path}\0{item.bytes}\0{item.version}\0{item.label}"
        if item.file or item.columns or item.problem or item.images:
            # What a web server says of its refusal may be another sentence each time.
            problem = None if item.problem is None else (item.problem[0], url_identity(item.problem[1]))
            if problem is not None and problem[0] == UNREACHABLE:
                problem = (UNREACHABLE, "")
            line += f"\0{identity_of(base, item.file)}\0{item.offset}\0{item.columns}\0{problem}"
            line += "".join(
                f"\0{identity_of(base, image.file)}\0{image.bytes}\0{image.version}\0{image.offset}"
                for image in item.images
            )
        if item.labels:
            line += f"\0{item.labels}"
        if item.pixels is not None:
            line += f"\0{item.pixels}"
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _learn(row: Row, types: ColumnTypes) -> Row:
    """Take note of a row's values, and return it with declared columns converted.

    A row with a value that does not fit its declaration is a reject. It has no columns then and says nothing about
    their types: one bad number would make its column one of lists, of 0 or 1 numbers.
    """
    columns, wrong = types.convert(row.columns)
    if wrong is not None:
        return row._replace(columns=None, problem=row.problem or wrong)
    types.add(columns)
    return row._replace(columns=columns)


def _to_line(row: Row, seed: int, shares: dict[str, float] | None, base: str | None) -> _Line:
    """Return a line of the database; `base` is that of a table, whose rows are dealt to splits by their files."""
    try:
        path_bytes = len(row.path.encode())
    except UnicodeEncodeError:
        raise SourceError(f"the file name {row.path!r} is not UTF-8; rename it") from None
    columns = None if row.columns is None else to_json(row.columns)
    return (
        _path_hash(row.group or row.path, seed),
        str(row.split)
        if shares is None
        else split_of(row.path if base is None or not row.file else identity_of(base, row.file), shares),
        path_bytes + len(columns or ""),
        row.bytes + sum(image.bytes for image in row.images),
        row.path,
        row.bytes,
        row.version,
        None if isinstance(row.label, tuple) else row.label,
        row.file,
        row.offset,
        columns,
        None if row.problem is None else json.dumps(row.problem),
        json.dumps(row.label) if isinstance(row.label, tuple) else None,
        json.dumps([(image.file, image.bytes, image.version, image.offset) for image in row.images])
        if row.images
        else None,
        None if row.pixels is None else json.dumps(row.pixels),
    )


def _path_hash(path: str, seed: int | None) -> bytes:
    """blake2b of (seed, path): a global order that an external sort of ten million names gives as well."""
    person = b"split" if seed is None else b"order"
    return hashlib.blake2b(f"{seed}\0{path}".encode(), digest_size=16, person=person).digest()
