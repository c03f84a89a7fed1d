"""Keep all inputs of a build in a database file, so that memory does not grow with their number.

SQLite sorts them outside memory, in the global order: by their hashes.
"""

import hashlib
import itertools
import json
import logging
import math
import shlex
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tpufeed.builds.destination import Reject
from tpufeed.builds.item import Item, Label, decode_item
from tpufeed.builds.versions import join_features
from tpufeed.dataset.listed import MOST_CLASSES, Listed
from tpufeed.dataset.naming import check_split_name
from tpufeed.dataset.schema import (
    further_columns,
    kaggle_features,
    kaggle_keys,
    plain_boxes,
    record_schema,
    several_labels,
)
from tpufeed.errors import BuildError, OptionError, SourceError, mask_secrets, url_identity
from tpufeed.sharding.standing import Growth, StandingDataset
from tpufeed.sources.boxes import FORMATS, mark_boxes
from tpufeed.sources.columns import BadValue, ColumnTypes, Declared, as_text, encode_values, long_as_text
from tpufeed.sources.inputs import UNREACHABLE, files_of, place_of
from tpufeed.sources.kinds import find_source
from tpufeed.sources.labels import (
    Classes,
    bad_label,
    extend_classes,
    is_missing_label,
    iter_class_warnings,
    join_names,
    make_classes,
)
from tpufeed.sources.options import GEOREFERENCE, ShardOptions, names_in
from tpufeed.sources.outlines import MOST_VALUES
from tpufeed.sources.paths import file_of_row, identity_of
from tpufeed.sources.source import NUMBER, Contents, Found, Source, read_size, size_columns
from tpufeed.sources.table import box_flags, group_of
from tpufeed.storage.local import temporary_folder
from tpufeed.storage.reading import READS, DamagedReadError
from tpufeed.text import format_names, format_percent, format_value

_logger = logging.getLogger(__name__)
_AT_ONCE = 4096
_CACHE_BYTES = 16 << 20  # of SQLite, which sorts as much at a time
_MOST_SPLITS = 100
_NUMBERS = ", as numbers (float32)"
_FIRST_REJECTS = 3  # rejects that an error shows
_FILE = "CASE file WHEN '' THEN path ELSE identity_of(file) END"
# An item, and what the queries sort and choose by.
_COLUMNS = (
    "key BLOB, split TEXT, extra INT, size INT, path, bytes, version, label, file, offset, rest, labels, reason, "
    "is_estimate INT, held TEXT, item BLOB"
)


class Inventory:
    """The inputs of one source. Not thread-safe.

    Attributes:
        base: the URL that their files are relative to.
        classes: names and ids of the classes, without names if there are no labels.
        listed_classes: of a source of a growing dataset, also those that only inputs in the dataset have.
        features: all features of the records.
        schema: the features that further columns become.
        splits: names of the splits, in the order of the dataset.
        listed: what the source was taken for.
        labelled: inputs have labels.
        several_labels: inputs have lists of labels.
        totals: for each split: number of inputs, bytes of all their files, and bytes of their paths and columns.
        count: number of inputs.
        digest: identity of all inputs together, whatever their order.
        skipped: number of inputs that the growing dataset has already.
        growth: what a growing dataset has of them already. None for a new dataset.
        rejects: inputs that are rejected without being read, counted by reason.
        first_rejects: the first few of `rejects`.
        database: has a line for each input.
    """

    ORDER = "path, bytes, version, label, file, offset, rest"  # sorts inputs with the same key

    def __init__(
        self, folder: Path, source: Source, options: ShardOptions, standing: StandingDataset | None = None
    ) -> None:
        """Read all rows of `source` into a file in `folder`, without those that the growing dataset `standing` has.

        Raises:
            SourceError, NoInputsError, OptionError: the source cannot be understood.
            UnavailableError, AccessError: its store does not answer, refuses, or returns other bytes each time.
        """
        self.base, self.options, self.standing, self.skipped = source.base, options, standing, 0
        # No journal and no commit: the file is useless after a crash. The cache also bounds the memory of sorting.
        self.database = sqlite3.connect(folder / "inventory.sqlite")
        self.database.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA temp_store=FILE;"
            f"PRAGMA cache_size=-{_CACHE_BYTES >> 10};"
        )
        self.query, self.close = self.database.execute, self.database.close
        self.database.create_function("file_of_row", 1, file_of_row, deterministic=True)
        self.database.create_function("identity_of", 1, lambda file: identity_of(self.base, file), deterministic=True)
        for tries_left in reversed(range(READS)):
            try:
                self._read(source)
                self._check_format()
                break
            except BaseException as error:
                if not isinstance(error, DamagedReadError) or not tries_left:
                    self.close()
                    raise
                _logger.warning("%s. Listing the source again", error)  # `_read` drops the rows so far

    def _read(self, source: Source) -> None:
        options, standing, contents = self.options, self.standing, source.contents.merge(self.options)
        self.growth = None if standing is None else Growth(standing, self.database, self.base, options.image_files)
        declared = contents.declared if standing is None else standing.declare(contents.declared)
        found, splits = Found(), set[str]()
        types = ColumnTypes(declared, [options.name_of(name) for name in options.boxes.columns or ()])
        has_boxes = contents.boxes is not None or contents.keypoints is not None
        held_by, first_box = [options.name_of(name) for name in names_in(options.split_with)], ""
        labels, list_lengths, has_outlines = Counter[Label](), set[int](), options.outlines is None
        shares = None if source.splits else {"train": 1.0} if options.split_shares is None else options.split_shares
        are_names = source.labels_are_names or source.contents.class_names is not None
        items = iter_as_asked(source.iter_items(found), options, contents.boxes is not None, are_names)
        base = self.base if source.spells_files else None
        self.database.executescript(
            f"DROP TABLE IF EXISTS inputs; CREATE TABLE inputs({_COLUMNS});"
            "DROP TABLE IF EXISTS digests; CREATE TABLE digests(row INTEGER PRIMARY KEY, digest BLOB);"
        )
        while chunk := list(itertools.islice(items, _AT_ONCE)):
            lines = []
            for item in chunk:  # one by one: converted values take much more memory than their text
                _count_labels(item, labels, list_lengths)
                learnt, (values, wrong) = item, types.learn(item.values)
                if values is not None or wrong is not None:
                    learnt = msgspec.structs.replace(item, values=values, problem=item.problem or wrong)
                learnt = _with_size(learnt) if has_boxes else learnt
                if not first_box and contents.boxes is not None and learnt.problem is None:
                    boxes = (learnt.values or {}).get(contents.boxes)
                    first_box = f"{boxes[0]} in {learnt.path}" if boxes else ""
                has_outlines = has_outlines or any(each.polygons or each.counts for each in item.outlines)
                lines.append(to_line(learnt, options.seed, shares, base, _group_of(item, held_by)))
            self.database.executemany(f"INSERT INTO inputs VALUES({','.join('?' * 16)})", lines)
            if source.splits:
                splits.update(str(item.split) for item in chunk)
                if len(splits) > _MOST_SPLITS:
                    raise OptionError(f"more than {_MOST_SPLITS} splits, like {sorted(splits)[:3]}: the wrong column?")
        contents, taken = source.contents.merge(options), labels
        self._check_groups()  # also of rows that an append skips
        if self.growth is not None:
            self.skipped = self.growth.skip_known()
            if self.skipped and self.query("SELECT 1 FROM inputs LIMIT 1").fetchone():
                # What only skipped rows have would become classes and lengths without a sample.
                taken = self._count_left(types, list_lengths)
        self.splits = tuple(map(check_split_name, sorted(splits))) if shares is None else tuple(shares)
        self._find_features(labels, taken, list_lengths, types, contents, source.labels_are_names)
        columns, are_numbers = [spec.name for spec in self.schema], options.label_type == "number"
        if same := {picture.name for picture in options.made} & {*columns, *(each.name for each in options.pictures)}:
            raise OptionError(f"the build makes a column {min(same)!r}: --rename {min(same)}=NEW renames the source's")
        groups, said_of_groups = self._look_at_groups(shares) if held_by else ("", ())
        warnings = (
            *found.notes,
            *said_of_groups,
            *source.iter_warnings(found, self.classes.names if self.labelled or are_numbers else None, columns),
            *iter_class_warnings(labels, self.classes, source.labels_are_names or contents.class_names is not None),
            *types.iter_warnings(),
            *(() if has_outlines else ("no object has an outline, only a box: all masks are empty",)),
            *(() if shares is None or options.splits is not None else types.iter_split_warnings()),
        )
        if self.growth is not None:
            listed = self.listed_classes
            self.growth.find_corrected(partial(self.identify, classes=listed), listed.names, self.features)
            self.growth.skip_rejected(self.identify, self.classes.names, options.to_dict())
        listed_twice = self._look_at_each(source.spells_files)
        said = tuple(self._iter_repeats(contents.boxes, source)) if source.spells_files and listed_twice else ()
        self.listed = msgspec.structs.replace(
            self._understand(source, contents, labels, groups),
            first_box=first_box,
            ignored_files=dict(found.ignored_files),
            listed_twice=listed_twice,
            warnings=(*warnings, *(said or self._iter_plain_boxes(source))),
        )

    def _understand(self, source: Source, contents: Contents, labels: Counter[Label], groups: str) -> Listed:
        """Return what the source is taken for. `labels` counts the samples of each, `groups` is said of the splits."""
        options, names, listed = self.options, self.classes.names, self.listed_classes
        ids = ", in the order of --classes" if options.classes is not None else ""
        is_fixed = contents.class_names is not None or source.labels_are_names
        if not is_fixed and names == tuple(map(str, range(len(names)))):
            ids = ", whose whole numbers are class ids"
        several = ", several for a sample" if self.several_labels else ""
        several += ", none for some (-1)" if self.labelled and options.unlabelled == "keep" and labels[None] else ""
        said = ids + several if self.labelled else _NUMBERS if options.label_type == "number" else None
        counts = Counter[int]()
        for label, number in listed.ids.items():
            counts[number] += labels[label]
        dealt = "none in the source, so all samples are train"
        if options.split_shares is not None:
            hashed = options.split_with or "each image's path"
            dealt = f"shares, by a hash of {hashed}"
        return Listed(
            kind=source.what,
            why=source.why,
            labels="" if said is None else source.labels_from + said,
            classes={listed.names[number]: counts[number] for number in sorted(+counts)[:MOST_CLASSES]},
            class_count=len(listed.names),
            splits=(source.splits_from if source.splits else dealt) + groups,
            columns=further_columns(self.features),
            boxes=contents.boxes or "",
            box_format=contents.box_format or FORMATS[0],
            images_from=mask_secrets(url_identity(source.images_from)),
        )

    def _check_groups(self) -> None:
        """Raise SourceError if the source has a group in two splits."""
        what = self.options.split_with
        least = "SELECT held, MIN(split), MAX(split) FROM inputs GROUP BY held HAVING MIN(split) < MAX(split) LIMIT 1"
        for held, *splits in self.query(least) if what is not None else ():
            where = "SELECT MIN(path) FROM inputs WHERE held = ? AND split = ?"
            first, second = (f"{split} ({self.query(where, (held, split)).fetchone()[0]})" for split in splits)
            raise SourceError(
                f"{what} {format_value(held)} is in the splits {first} and {second}. Correct the source, or deal the "
                "splits anew: --splits train=0.8,val=0.2"
            )

    def _check_format(self) -> None:
        """Raise SourceError if the values of an appended source say that its boxes have another format than before."""
        standing, found, form = self.standing, self.listed, self.listed.box_format
        if standing is None or "box_format" in {*standing.manifest.options, *self.options.to_dict()}:
            return
        before = standing.manifest.listed
        if found.kind == before.kind and found.first_box and before.first_box and form != before.box_format:
            raise SourceError(
                f"boxes look like {form!r}, and those of the dataset were taken for {before.box_format!r}. Say what "
                f"they are (--box-format {before.box_format}), and pass it with the dataset's other options to tpufeed "
                "shard with --append"
            )

    def _look_at_groups(self, shares: dict[str, float] | None) -> tuple[str, list[str]]:
        """Return what splits have of images and of groups, and warnings."""
        what, warnings = self.options.split_with, list[str]()
        each = self.query("SELECT split, COUNT(*), COUNT(DISTINCT held) FROM inputs GROUP BY split")
        counts = {split: (images, groups) for split, images, groups in each}
        total = sum(images for images, _ in counts.values())
        if shares is not None and self.standing is None:
            largest = "SELECT held, COUNT(*) AS most FROM inputs GROUP BY held ORDER BY most DESC LIMIT 1"
            held, most = self.query(largest).fetchone()
            small = min(shares, key=lambda name: shares[name])
            if most > shares[small] * total:
                warnings.append(
                    f"{what} {format_value(held)} has {most:,} of {total:,} images, more than the share of {small}. "
                    "They stay in one split. For other shares give a column of splits: --split-by COLUMN"
                )
            warnings += [
                f"the split {name} has no images, as few groups are dealt by a hash. Give it a larger share, or a "
                "column of splits: --split-by COLUMN"
                for name in shares
                if name not in counts
            ]
        images = ", ".join(f"{name} {format_percent(100 * count / total)}" for name, (count, _) in counts.items())
        groups = " and ".join(f"{count:,}" for _, count in counts.values())
        return f": {images} of images; {groups} values of {what}", warnings

    def _count_left(self, types: ColumnTypes, list_lengths: set[int]) -> Counter[Label]:
        """Return the labels of the rows that are left, and let them alone decide the types of columns."""
        labels = Counter[Label]()
        list_lengths.clear()
        types.forget()
        for (line,) in self.query("SELECT item FROM inputs ORDER BY rowid"):
            item = decode_item(line)
            _count_labels(item, labels, list_lengths)
            if item.values is not None or item.problem is None:
                types.count(item.values)
        return labels

    def _look_at_each(self, by_file: bool) -> int:
        """Find totals, rejects and the digest, the latter in the order of paths. Return how many are listed twice.

        That is the number of rows that name a file which another row names as well, in any spelling.
        """
        sums = self.query("SELECT split, COUNT(*), SUM(size), SUM(extra) FROM inputs GROUP BY split")
        self.totals: dict[str, tuple[int, int, int]] = dict.fromkeys(self.splits, (0, 0, 0))
        self.totals |= {name: (count, size, extra) for name, count, size, extra in sums}
        self.count = sum(count for count, _, _ in self.totals.values())
        self.rejects, self.first_rejects, listed_twice = Counter[str](), list[Reject](), 0
        digest, last = hashlib.blake2b(digest_size=16), None
        for (line,) in self.query(f"SELECT item FROM inputs ORDER BY {self.ORDER}"):
            item = self.identify(line)
            listed_twice += item.path == last
            last = item.path
            if item.problem is not None:
                self.rejects[item.problem[0]] += 1
                if len(self.first_rejects) < _FIRST_REJECTS:
                    self.first_rejects.append(Reject(item.path, *item.problem))
            digest.update(f"{format_identity(item, self.base)}\n".encode())
        self.digest = digest.hexdigest()
        if by_file and self.query("SELECT 1 FROM inputs WHERE file != '' LIMIT 1").fetchone():
            each = f"SELECT COUNT(*) AS rows FROM inputs GROUP BY {_FILE}"
            (listed_twice,) = self.query(f"SELECT SUM(rows - 1) FROM ({each})").fetchone()
        return listed_twice

    def _iter_plain_boxes(self, source: Source) -> Iterator[str]:
        """Yield a warning of columns that look like boxes, which are stored as plain numbers."""
        found = plain_boxes(self.features, self.options.to_dict())
        if not found:
            return
        spec = next(spec for spec in self.schema if spec.name == found[0])
        way = f"pass{box_flags(found)}"
        if len(found) > 1 or not spec.each:  # a side each, or one box for each row
            way = f"pass --group-by {shlex.quote(source.image_column)}{box_flags(found)}"
            way = way if source.groups else "put the four numbers of each box into a list, and these into one list"
        size = "" if len(found) > 1 else "[,4]" if spec.each else "[4]"
        yield (
            f"{', '.join(found)}: they look like boxes, but are stored as plain numbers of the source's image, which "
            f"neither --presize nor a crop moves. To store boxes, {way}. If they are no boxes, pass --column "
            f"{shlex.quote(f'{found[0]}:{spec.dtype}{size}')} (docs/samples.md)"
        )

    def _iter_repeats(self, boxes: str | None, source: Source) -> Iterator[str]:
        """Yield a warning of images that a table names in several rows, each of which becomes a sample."""
        way = f"--group-by {shlex.quote(source.image_column)}"
        if boxes is None and (found := box_flags(spec.name for spec in self.schema)):
            each = f"SELECT COUNT(*) AS rows, MIN(path) AS path FROM inputs GROUP BY {_FILE} HAVING rows > 1"
            images, rows, path = self.query(f"SELECT COUNT(*), SUM(rows), MIN(path) FROM ({each})").fetchone()
            yield (
                f"{images:,} images are in {rows:,} rows, each with a box, like {path}: every row becomes a separate "
                "sample, with one label and a box that does not move with the crop. To get samples with all boxes of "
                f"their image, pass {way}{found} (docs/samples.md)"
            )
        elif self.labelled:
            self.database.create_function("class_of", 1, self.classes.ids.get)
            each = (
                f"SELECT MIN(path) AS path FROM inputs WHERE reason IS NULL GROUP BY {_FILE} "
                "HAVING COUNT(DISTINCT COALESCE(labels, class_of(label))) > 1"
            )
            images, path = self.query(f"SELECT COUNT(*), MIN(path) FROM ({each})").fetchone()
            if images:
                yield (
                    f"{images:,} images are in several rows with different labels, like {path}: every row becomes a "
                    "separate sample, and they contradict each other. To get samples with several labels, pass "
                    f"{way}"
                )

    def _find_features(
        self,
        labels: Counter[Label],
        taken: Counter[Label],
        list_lengths: set[int],
        types: ColumnTypes,
        contents: Contents,
        are_names: bool,
    ) -> None:
        """Find out which labels and features there are. `list_lengths` has the lengths of lists of labels.

        `labels` are those of all rows, `taken` those of rows that a growing dataset does not have.
        """
        options, standing = self.options, self.standing
        has_labels = set(labels) != {None} or contents.class_names is not None
        has_labels |= options.unlabelled == "keep" and standing is not None and standing.manifest.labelled
        self.labelled = options.label != "none" and has_labels
        if options.label not in ("auto", "none") and not has_labels and options.label_type == "class":
            raise OptionError(f"no sample has a label in {options.label!r}")
        first = next((label for label in labels if label is not None), None)
        if options.label_separator and first is not None and standing is None and max(list_lengths, default=0) < 2:
            raise OptionError(
                f"{self.base}: no label has the separator {options.label_separator!r}, like {format_value(first)}. "
                "Give what stands between several labels, or leave --label-separator out"
            )
        of_lists = standing is not None and several_labels(standing.manifest.features)
        self.several_labels = self.labelled and (of_lists or bool(list_lengths))
        _check_kept(self.base, options, self.several_labels)
        if self.several_labels:  # a sample without a list has one label or no label
            alone = self.query("SELECT DISTINCT label IS NOT NULL FROM inputs WHERE labels IS NULL")
            list_lengths.update(number for (number,) in alone)
            del labels[None], taken[None]
        if not self.labelled:
            self.classes = self.listed_classes = Classes((), {})
        elif standing is None:
            self.classes = self.listed_classes = make_classes(labels, contents.class_names, are_names)
        else:
            self.classes = self._grow_classes(standing, taken, contents.class_names, are_names)
            self.listed_classes = self._grow_classes(standing, labels, contents.class_names, are_names)
        if options.outlines == "semantic" and len(self.classes.names) > MOST_VALUES:
            raise OptionError(
                f"semantic outlines are drawn with the ids of 1 to {MOST_VALUES} classes, and there are "
                f"{len(self.classes.names)} classes. Draw the number of each object instead: instance"
            )
        several = (min(list_lengths, default=0), max(list_lengths, default=0)) if self.several_labels else None
        own = record_schema(
            self.labelled,
            several,
            contents.boxes,
            msgspec.UNSET if standing is None else standing.manifest.features[0].pixels,
        )
        if options.names == "kaggle":
            own = kaggle_features(own, len(self.classes.names))
        pictures = (picture.spec for picture in (*options.pictures, *options.made))
        features = (*own, *types.schema(needs_all=standing is None), *pictures)
        is_square = options.images.presize is not None and options.images.presize_mode == "fit"
        are_cut = is_square or options.boxes.outside != "reject"
        pairs = contents.pairs
        if standing is not None:
            pairs = standing.flip_pairs if pairs is None else pairs
        elif pairs is not None and contents.keypoints is None:
            raise OptionError("flip_pairs are for keypoints. Name the column that holds them: --keypoints COLUMN")
        features = mark_boxes(features, contents.boxes, contents.box_columns, are_cut, pairs)
        self.features = kaggle_keys(features) if options.names == "kaggle" else features
        have = [spec.name for spec in self.features[len(own) :]]
        unknown = next((old for old, new in (options.rename or {}).items() if new not in have), None)
        if unknown is not None and standing is None:
            names = format_names(have) or "none"
            raise OptionError(f"--rename {unknown}: no sample has such a column. The further columns are {names}")
        self.schema = tuple(spec for spec in self.features[len(own) :] if not spec.is_picture)
        if standing is not None:
            self._check_columns(standing)

    def _grow_classes(
        self, standing: StandingDataset, labels: Counter[Label], said: tuple[str, ...] | None, are_names: bool
    ) -> Classes:
        """Return the classes. Those of the dataset keep their ids, whatever numbers they have in the source."""
        known, fixed = standing.manifest.class_names, self.options.class_names
        own = None if said == fixed else said  # the source has a list itself
        if fixed is None:
            return extend_classes(labels, known, are_names, own)
        fixed = join_names(known, fixed)
        if own is None:
            return make_classes(labels, fixed, are_names)
        return make_classes(extend_classes(labels, (), are_names, own).ids, fixed, are_names=True)

    def _check_columns(self, standing: StandingDataset) -> None:
        """Raise OptionError, naming a value that does not fit, if columns differ from those of the dataset."""
        there = {spec.name: spec for spec in standing.manifest.features}
        missing = there.keys() - {spec.name for spec in self.features}
        statement = "SELECT item FROM inputs WHERE reason = 'bad_column' ORDER BY path LIMIT 1"
        line = self.query(statement).fetchone() if missing else None
        if line is not None:
            odd = decode_item(*line)
            types = ", ".join(f"{name} {there[name].type_text}" for name in sorted(missing))
            raise OptionError(
                f"{odd.path}: {odd.problem and odd.problem[1]}. The dataset has the columns {types}, which no row of "
                "the new images fits. Nothing was changed. Give the new images these types"
            )
        join_features(standing.manifest.features, self.features)

    def sample(self, count: int) -> list[Item]:
        """Return the first `count` inputs of the global order that are to be read."""
        found = self.query(f"SELECT item FROM inputs WHERE reason IS NULL ORDER BY key, {self.ORDER} LIMIT ?", (count,))
        return [self.identify(line) for (line,) in found]

    def iter_inputs(self, split: str) -> Iterator[tuple[Item, int]]:
        """Yield the inputs of a split in the global order, each with the bytes of its path and columns."""
        statement = f"SELECT item, extra FROM inputs WHERE split = ? ORDER BY key, {self.ORDER}"
        for line, extra in self.query(statement, (split,)):
            yield self.identify(line), extra

    def identify(self, line: bytes, classes: Classes | None = None) -> Item:
        """Return an item with the ids of its classes and the values of its columns, as the plan has it.

        `classes` are those of the build, if not given.
        """
        item = decode_item(line)
        ids, name, problem = (classes or self.classes).ids, item.label_name, item.problem
        numbers = tuple[int, ...]()
        if self.several_labels:
            names = name if isinstance(name, tuple) else () if name is None else (name,)
            unknown = [each for each in names if each not in ids]
            if unknown and problem is None:
                problem = bad_label(unknown[0], self.classes)
                if unknown[0] is None:
                    problem = "bad_label", f"one of its {len(names)} labels is missing"
            number, numbers = -1, tuple(ids.get(each, -1) for each in names)
        else:
            number = -1 if isinstance(name, tuple) else ids.get(name, -1)
            is_kept = self.options.unlabelled == "keep" and not isinstance(name, tuple) and is_missing_label(name)
            if self.labelled and number < 0 and problem is None and not is_kept:
                problem = bad_label(None if isinstance(name, tuple) else name, self.classes)
        return msgspec.structs.replace(
            item,
            label_name=None,  # the header says what ids mean, and the task is of one split
            split=None,
            group="",
            values=None,
            problem=problem,
            label=number,
            labels=numbers,
            columns=encode_values(item.values, self.schema) if self.schema else (),
        )


@contextmanager
def take_inventory(source: str, options: ShardOptions, standing: StandingDataset | None = None) -> Iterator[Inventory]:
    """List all inputs of a source, except those that `standing` has, into a file that is removed afterwards.

    Raises:
        OptionError, NoInputsError, SourceError: the source cannot be understood.
        BuildError: the folder for temporary files has no room for them.
    """
    found = find_source(source, options)
    with temporary_folder() as folder:
        try:
            try:
                inventory = Inventory(folder, found, options, standing)
            except (OptionError, SourceError) as error:
                if standing is None:
                    raise
                sides = f"{mask_secrets(found.base)} cannot be appended to {mask_secrets(standing.dataset.url)}"
                raise type(error)(f"{sides}: {error}") from error
            with closing(inventory):
                yield inventory
        except sqlite3.Error as error:
            raise BuildError(
                f"the list of inputs cannot be kept in {folder}: {error}. Nothing was changed. Make room there, or set "
                "TMPDIR to a folder that has some"
            ) from error


def _count_labels(item: Item, labels: Counter[Label], list_lengths: set[int]) -> None:
    """Count the labels of an item, and the length of a list of them."""
    if isinstance(item.label_name, tuple):
        labels.update(item.label_name)
        list_lengths.add(len(item.label_name))
    else:
        labels[item.label_name] += 1


def _check_kept(base: str, options: ShardOptions, several_labels: bool) -> None:
    """Raise OptionError if samples without a label are kept, but would be of no class, like an empty list."""
    if several_labels and options.unlabelled == "keep":
        raise OptionError(
            f"{base}: samples have lists of labels, and one without labels would be of no class. Leave --unlabelled "
            "keep out, and shard unlabelled images as a dataset of their own: --label none"
        )


def _with_size(item: Item) -> Item:
    """Return an item with the size of its image that two of its columns say, if it has such columns."""
    values = item.values or {}
    sides = size_columns(tuple(values))
    if sides is None or any(isinstance(values[side], list) for side in sides):  # lists: of each box
        return item
    height, width = sides
    pixels, wrong = read_size(values[height], values[width])
    problem = item.problem or (("bad_box", f"the columns {width!r} and {height!r} have {wrong}") if wrong else None)
    return msgspec.structs.replace(item, pixels=item.pixels or pixels, problem=problem)


def iter_as_asked(items: Iterator[Item], options: ShardOptions, has_boxes: bool, are_names: bool) -> Iterator[Item]:
    """Return items with their labels and names of columns as the options say. With boxes labels are theirs.

    `are_names` if labels are names of classes, as of folders. Raises OptionError for what they cannot be.
    """
    if options.label_separator is not None:
        items = map(partial(split_label, options.label_separator, has_boxes), items)
    if options.label_type == "number":
        items = map(partial(number_label, options.unlabelled == "keep", are_names), items)
    if options.georeference:
        items = map(add_georeference, items)
    return map(partial(rename_columns, options.rename), items) if options.rename else items


def add_georeference(item: Item) -> Item:
    """Return an item with the column that `SampleMaker` fills. Raises OptionError if the source has such a column."""
    if GEOREFERENCE in (item.values or {}):
        raise OptionError(f"{item.path} has a column {GEOREFERENCE!r} already: leave --georeference out, or rename it")
    return msgspec.structs.replace(item, values={**(item.values or {}), GEOREFERENCE: "{}"})


def number_label(keeps_unlabelled: bool, are_names: bool, item: Item) -> Item:
    """Return an item with its label as the column "label". A missing one is NaN, and a problem unless it is kept.

    Raises OptionError if the name of a class is no number.
    """
    is_missing = item.label_name is None
    if are_names and not is_missing:
        try:
            Declared(NUMBER, "float32").convert(item.label_name)
        except BadValue:
            raise OptionError(
                f"the label of {item.path} is the class {format_value(item.label_name)}, and --label-type number is "
                "for numbers. Leave it out to get classes, or make a table of paths and numbers"
            ) from None
    problem = ("bad_label", "the sample has no label") if is_missing and not keeps_unlabelled else None
    values = {**(item.values or {}), NUMBER: math.nan if is_missing else item.label_name}
    return msgspec.structs.replace(item, label_name=None, values=values, problem=item.problem or problem)


def rename_columns(names: Mapping[str, str], item: Item) -> Item:
    """Return an item whose columns have new names. Raises OptionError if a column has one already."""
    values = {names.get(name, name): value for name, value in (item.values or {}).items()}
    if len(values) < len(item.values or {}):
        old, new = next((old, new) for old, new in names.items() if {old, new} <= (item.values or {}).keys())
        raise OptionError(
            f"{item.path} has columns {old!r} and {new!r}: --rename {old}={new} would join them. Choose another name"
        )
    return msgspec.structs.replace(item, values=values) if values else item


def split_label(separator: str, of_boxes: bool, item: Item) -> Item:
    """Return an item whose label is a text with several labels in it as one with a list of labels.

    A list of labels, as of several rows, becomes one list. Raises OptionError if each of its labels is that of a box.
    """
    is_list = isinstance(item.label_name, tuple)
    labels = list[Label]()
    for label in item.label_name if isinstance(item.label_name, tuple) else (item.label_name,):
        parts = list(filter(None, map(str.strip, label.split(separator)))) if isinstance(label, str) else [label]
        if is_list and of_boxes and len(parts) > 1:
            raise OptionError(
                f"{item.path}: each box has one label, and {label!r} has several with label_separator={separator!r}: "
                "leave it out, or shard the images without boxes"
            )
        labels += parts
    if not is_list and not isinstance(item.label_name, str):
        return item
    return msgspec.structs.replace(item, label_name=tuple(labels if of_boxes else dict.fromkeys(labels)))


def format_identity(item: Item, base: str = "") -> str:
    """Return a text that identifies an item and its fate. `base` is the base of its source."""
    line = f"{item.path}\0{item.bytes}\0{item.version}\0{item.label}"
    if item.file or item.columns or item.problem or item.images:
        # A web server may word its refusal differently each time.
        problem = None if item.problem is None else (item.problem[0], url_identity(item.problem[1]))
        if problem is not None and problem[0] == UNREACHABLE:
            problem = (UNREACHABLE, "")
        place = place_of(files_of(item)[0]) if item.file else ""
        line += f"\0{identity_of(base, place)}\0{item.offset}\0{item.columns}\0{problem}"
        line += "".join(
            f"\0{identity_of(base, place_of(image))}\0{image.bytes}\0{image.version}\0{image.offset}"
            for image in item.images
        )
    if item.outlines:
        line += f"\0{hashlib.blake2b(msgspec.msgpack.encode(item.outlines), digest_size=16).hexdigest()}"
    if item.labels:
        line += f"\0{item.labels}"
    return line if item.pixels is None else f"{line}\0{item.pixels}"


def _group_of(item: Item, columns: Sequence[str]) -> str | None:
    """Return the group of an item that lies in one split. A reject may be alone. Raises SourceError, naming it."""
    if not columns:
        return None
    try:
        return group_of(columns, item.values or {}, item.path)
    except SourceError as error:
        if item.problem is not None:
            return item.path
        raise SourceError(f"{item.path} {error}") from None


def to_line(
    item: Item, seed: int, shares: dict[str, float] | None, base: str | None, held: str | None = None
) -> tuple[Any, ...]:
    """Return a line of the database, with the encoded item at its end. Raises SourceError if a text is not UTF-8.

    `shares` are None if items have splits. With the `base` of a table its rows are dealt to splits by their files.
    Items of one group `held` lie in one split.
    """
    try:
        path_bytes = len(item.path.encode())
        try:
            encoded = msgspec.msgpack.encode(item)
        except OverflowError:
            encoded = msgspec.msgpack.encode(msgspec.structs.replace(item, values=long_as_text(item.values or {})))
    except UnicodeEncodeError as error:
        if error.object == item.path:
            raise SourceError(f"the file name {item.path!r} is not UTF-8. Rename it") from None
        of_source = error.object in (item.version, item.label_name, item.split, item.file)
        place = "the source" if of_source else "a further column of the source"
        raise SourceError(f"{error.object!r} in {place} is not UTF-8. Correct it") from None
    label, reason, rest, values = item.label_name, None, "", ""
    labels = json.dumps(label) if isinstance(label, tuple) else None
    if item.problem is not None or labels is not None or item.images or item.values is not None or item.pixels:
        # Texts that sort several rows of one path, whatever their order in the source.
        reason = item.problem and item.problem[0]
        values = "" if item.values is None else as_text(item.values)
        images = [(image.file, image.bytes, image.version, image.offset) for image in item.images]
        problem, further, pixels = (json.dumps(each) if each else "" for each in (item.problem, images, item.pixels))
        rest = "\1".join((values, problem, labels or "", further, pixels))
    if shares is None:
        split = str(item.split)
    elif len(shares) == 1:
        (split,) = shares
    else:
        path = item.path if base is None or not item.file else identity_of(base, item.file)
        split = split_of(path if held is None else held, shares)
    return (
        # An external sort of ten million names by this digest gives the same order.
        hashlib.blake2b(f"{seed}\0{item.group or item.path}".encode(), digest_size=16, person=b"order").digest(),
        split,
        path_bytes + len(values),
        item.bytes + sum(image.bytes for image in item.images),
        item.path,
        item.bytes,
        item.version,
        None if labels is not None else label,
        item.file,
        item.offset,
        rest,
        labels,
        reason,
        item.row is not None,
        held,
        encoded,
    )


def split_of(path: str, splits: dict[str, float]) -> str:
    """Return the split of a path. It stays the same when files are added."""
    digest = hashlib.blake2b(f"None\0{path}".encode(), digest_size=16, person=b"split").digest()
    point = int.from_bytes(digest[:8], "big") / 2**64
    for name, stop in zip(splits, itertools.accumulate(splits.values()), strict=True):
        if point < stop:
            return name
    return list(splits)[-1]
