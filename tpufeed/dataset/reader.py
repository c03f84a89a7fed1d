"""Open a dataset, one of its versions, a view of its samples, or a reader of its records."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from tpufeed.dataset.manifest import Manifest, Split, decode_manifest
from tpufeed.dataset.naming import MANIFEST, PLAN, VERSIONS, version_name
from tpufeed.dataset.order import Ints
from tpufeed.dataset.records import Reader
from tpufeed.dataset.scan import Labels, read_labels
from tpufeed.dataset.selection import Chosen, Samples, Selection, Where, select
from tpufeed.dataset.tfrecord_files import adopt_advice, is_tfrecord_name
from tpufeed.display.summary import Summary
from tpufeed.errors import (
    DatasetNotFoundError,
    ManifestError,
    ObjectChangedError,
    ObjectNotFoundError,
    OptionError,
    RecordError,
    TpufeedError,
    advised,
    mask_secrets,
)
from tpufeed.images.header import format_of_name
from tpufeed.options import Count, Names, a_list, checked
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.local import is_file
from tpufeed.storage.reading import read_certain
from tpufeed.storage.store import Store, open_store
from tpufeed.tfrecord.example import Feature, decode_example

_LISTED = 1000  # names to look at for the advice in an error
_TRIES = 5  # to read a manifest while builds publish others


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Summary):
    """A dataset that exists.

    Attributes:
        store: store of manifest and index.
        manifest: what the dataset holds.
        version: version of the manifest as a local file, or "" for other stores. The version of the dataset is
            `number`.
        grown: loaders continue from the state of an older version, with the next epoch.
        selection: the samples of a view, or None for the whole dataset.
    """

    store: Store
    manifest: Manifest
    version: str = ""
    grown: bool = False
    selection: Selection | None = None
    _labels: dict[str, Labels] = field(default_factory=dict)  # read so far, by split, shared by views
    _whole: "Dataset | None" = field(default=None)  # which the view was selected from
    # Other versions of the file that hold this same manifest.
    _same: set[str] = field(default_factory=set, init=False)

    @cached_property
    def shards(self) -> Store:
        """Store of the shards: `store`, unless the dataset was adopted from elsewhere."""
        return self.store if self.manifest.data_url is None else open_store(self.manifest.data_url)

    @cached_property
    def is_remote(self) -> bool:
        """True if shards are not local files."""
        return self.shards.local_path("x") is None

    def __reduce__(self) -> tuple[Any, ...]:
        """Let other processes open it themselves: a manifest may be long, and connections cannot be pickled."""
        if self._whole is not None:  # views of one dataset have it in common, also in a pickle
            return _view, (self._whole, self.selection, self.grown)
        return reopen_dataset, (self.url, self.manifest.content_digest, self.number, self.grown)

    @property
    def url(self) -> str:
        """URL of the dataset."""
        return self.store.url

    @property
    def number(self) -> int:
        """Number of the version, or 1 for a dataset that has not grown."""
        return self.manifest.number

    @property
    def label(self) -> str:
        """The URL without secrets, and what a view selects, for messages."""
        selected = "" if self.selection is None else f" ({self.selection.text})"
        return mask_secrets(self.url) + selected

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes. A label is an index into them."""
        names, selection = self.manifest.class_names, self.selection
        if selection is None or selection.classes is None:
            return names
        return tuple(names[number] for number in selection.classes) if names else ()

    def label_of(self, stored: int) -> int:
        """Return the label for a stored one: a view may renumber its classes, and has -1 for all others."""
        return stored if self._numbers is None else self._numbers.get(stored, -1)

    @cached_property
    def _numbers(self) -> dict[int, int] | None:
        classes = None if self.selection is None else self.selection.classes
        return None if classes is None else {stored: number for number, stored in enumerate(classes)}

    @cached_property
    def content_digest(self) -> str:
        """Digest of the content, see `Manifest.content_digest`. Views with the same samples have the same."""
        digest = self.manifest.content_digest
        return digest if self.selection is None else self.selection.digest(digest)

    @cached_property
    def past_digests(self) -> tuple[str, ...]:
        """Content digests of all versions before this one, oldest first. For a view, of the same view of each."""
        past, selection = self.manifest.past_digests, self.selection
        if selection is None:
            return past
        return tuple(selection.digest(digest, self.manifest.records_of(digest)) for digest in past)

    def records_of(self, content_digest: str) -> dict[str, int] | None:
        """Return the samples of each split in the earlier version with this content, or None without such a version."""
        if self.selection is None:
            return self.manifest.records_of(content_digest)
        older = dict(zip(self.past_digests, self.manifest.past_digests, strict=True)).get(content_digest)
        records = None if older is None else self.manifest.records_of(older)
        if records is None:
            return None
        chosen = {name: self.chosen(name) for name in records}
        return {
            name: count if (each := chosen[name]) is None else int(each.count_before(np.array([count]))[0])
            for name, count in records.items()
        }

    def check_current(self) -> None:
        """Raise ObjectChangedError if a folder no longer holds this dataset.

        A build with --overwrite removes the manifest first, and its shards may have the same names and sizes, as a raw
        cache's always do. A dataset that is copied over itself stays the same.
        """
        found = self.store.stat(MANIFEST) if self.version else None
        if not self.version or (found is not None and found.version in (self.version, *self._same)):
            return
        present = find_dataset(self.store)
        if present is not None and present.number > self.number:
            with suppress(DatasetNotFoundError):  # it has grown since, and may still have this version
                older = _open_older(self.store, self.number, present)
                present = Dataset(self.store, older.manifest, present.version)
        if present is not None and present.number > self.number:
            keep = advised("prune", self.url, "--keep", "N")
            raise ObjectChangedError(
                f"version {self.number} of {self.url} was pruned while it was read, or the dataset was rebuilt. It is "
                f"version {present.number} now. Open it again, and keep versions in use: {keep}"
            )
        if present is None or present.content_digest != self.manifest.content_digest:
            what = "removed" if present is None else "rebuilt"
            raise ObjectChangedError(
                f"{self.url} was {what} while it was read. Open it again once no build is running there. Rebuild "
                "datasets in use in another place"
            )
        self._same.add(present.version)

    def split(self, name: str) -> Split:
        """Return the split `name`. Raises OptionError with the names of the existing splits."""
        found = self.manifest.splits.get(name) if isinstance(name, str) else None
        if found is None:
            raise OptionError(f"{self.url} has no split {name!r}. It has {', '.join(self.manifest.splits) or 'none'}")
        chosen = self.chosen(name)
        return found if chosen is None else msgspec.structs.replace(found, records=len(chosen), class_counts=())

    @checked()
    def select(  # noqa: PLR0913  # the ways to select
        self,
        *,
        classes: Annotated[Sequence[str | int], a_list("names or ids")] | None = None,
        keep_ids: bool | None = None,
        samples: Samples | None = None,
        drop: Samples | None = None,
        fold: tuple[int, int] | None = None,
        without_fold: tuple[int, int] | None = None,
        stratify: bool = False,
        group: str | Sequence[str] | None = None,
        where: Where | None = None,
        columns: Names = (),
        split: str | None = None,
    ) -> "Dataset":
        """Return a view: the dataset with fewer samples, for everything that takes a dataset.

        A view reads no record that it leaves out. Its order, lanes and states are those of a dataset with its samples
        alone. Each sample keeps its id, the column "sample", and with it its random numbers. A view takes a bit per
        sample of the dataset. Several ways to select are joined by "and". So is a view of a view.

        Args:
            classes: names or ids of classes: keep the samples that have one of them. The labels of all records are read
                once per machine, and kept in the user's cache folder.
            keep_ids: True keeps the ids of the classes. By default a label is an index into `classes`. Lists of labels
                keep their ids.
            samples: keep these samples of a split: their ids, or the names of their files (`image/filename`, read from
                all records). A list, an array, or a file: .npy, text with one per line, or .csv with a column `sample`
                or `filename`, and maybe `keep` (1 or 0) for `samples`.
            drop: leave out these samples, given like `samples`.
            fold: (number, folds): keep this one of k parts of about equal size, drawn by the ids. A sample stays in its
                fold when the dataset grows.
            without_fold: (number, folds): keep all other folds, to train on them.
            stratify: give each fold its share of each class. A sample stays in its fold when the dataset grows.
            group: a column, or several, whose equal values stay in one fold, as of a patient: all records are read. A
                group stays in its fold when the dataset grows, but not with `stratify`: both together make the folds of
                scikit-learn's StratifiedGroupKFold, in which groups may move.
            where: a function of `columns` that returns which samples to keep. It is called once, here, with a dict of
                arrays of some thousand samples at a time, and returns an array of bool.
            columns: the columns for `where`, by the short names that loaders take. All records are read. Labels are
                the dataset's, also in a view that renumbers them.
            split: the split to select from, by default each split. Other splits stay whole, but if labels become
                indexes into `classes`, they keep only these classes as well.

        Raises:
            OptionError: a class, split, sample or column is missing, a fold is impossible, or the view would be empty.
            RecordError, ShardError, StoreError: the records cannot be read.
        """
        if columns and where is None:
            raise OptionError("columns are for where. Give a function that looks at them")
        ways: dict[str, Any] = {
            "classes": classes,
            "samples": samples,
            "drop": drop,
            "fold": fold,
            "without_fold": without_fold,
            "stratify": stratify or None,
            "group": group,
        }
        ways |= {"where": where, "columns": columns}
        return select(self, split, keep_ids, {name: value for name, value in ways.items() if value is not None})

    def view(self, selection: Selection) -> "Dataset":
        """Return the view of the dataset, or of the one that this is a view of, with these samples."""
        return replace(self, selection=selection, _whole=self._whole or self)

    def chosen(self, split: str) -> Chosen | None:
        """Return the samples of a split that a view keeps, or None for all of them."""
        return None if self.selection is None else self.selection.splits.get(split)

    def samples(self, split: str) -> Ints:
        """Return the ids of all samples of a split, int64, in the order of the dataset."""
        self.split(split)
        chosen = self.chosen(split)
        return np.arange(self.manifest.splits[split].records) if chosen is None else chosen.samples()

    def labels(self, split: str) -> Labels:
        """Return the labels of all samples stored in a split, including samples that a view leaves out.

        Raises as `split` and `read_labels`.
        """
        self.split(split)
        return self._labels.get(split) or self._labels.setdefault(split, read_labels(self, split))

    def class_counts(self, split: str) -> tuple[int, ...]:
        """Return the number of samples of each class of `class_names`. A view counts its own. Raises as `labels`."""
        found, chosen = self.split(split), self.chosen(split)
        if chosen is None or not self.manifest.labelled:
            own = self.selection.classes if self.selection is not None and found.class_counts else None
            return found.class_counts if own is None else tuple(found.class_counts[each] for each in own)
        labels, kept = self.labels(split), chosen.samples()
        classes = len(self.manifest.splits[split].class_counts)
        if labels.starts is None:
            found_labels = labels.values[kept]
            counts = np.bincount(found_labels[found_labels >= 0], minlength=classes).tolist()
        else:
            lengths = np.diff(labels.starts)
            is_kept = np.repeat(np.isin(np.arange(len(lengths)), kept), lengths)
            owners = np.repeat(np.arange(len(lengths)), lengths)
            # A sample counts once in each of its classes.
            pairs = np.unique((owners * classes + labels.values)[is_kept])
            counts = np.bincount(pairs % classes, minlength=classes).tolist()
        assert self.selection is not None, "it chose"
        return tuple(counts if self.selection.classes is None else [counts[each] for each in self.selection.classes])

    def shard_records(self, split: str, variant: int = 0) -> list[int]:
        """Return the number of samples to read from each shard of a variant."""
        records = [shard.records for shard in self.manifest.splits[split].variants[variant].shards]
        if (chosen := self.chosen(split)) is None:
            return records
        counts: list[int] = np.diff(chosen.count_before(np.cumsum([0, *records]))).tolist()
        return counts

    def class_weights(self, split: str) -> dict[int, float]:
        """Return weights by class that balance the classes. Keras' `fit` takes them as class_weight.

        A weight is `n / (classes * count)`, scikit-learn's "balanced", for n samples and all classes that have samples:
        the weights of all samples add up to n. A class without samples has 1.0, Keras' default, so the dict holds every
        label of the dataset.

        Raises:
            OptionError: there is no such split, it has no samples, or samples have no labels.
        """
        counts = self.class_counts(split)
        if not self.manifest.labelled:
            raise OptionError(f"{self.url} has no labels that are classes, so none to weigh")
        if not any(counts):
            raise OptionError(f"split {split!r} of {self.url} has no samples, so no classes to weigh")
        balanced = sum(counts) / sum(count > 0 for count in counts)
        return {label: balanced / count if count else 1.0 for label, count in enumerate(counts)}

    def _facts(self) -> dict[str, Any]:
        view = {} if self.selection is None else {"view": self.selection.text}
        splits = {name: self.split(name).records for name in self.manifest.splits}
        facts = self.manifest._facts() | {"splits": splits, "classes": len(self.class_names) or None}
        return {"url": self.url, **view, **{name: facts[name] for name in ("splits", "classes", "version")}}

    def _details(self) -> dict[str, Any]:
        details, selection = self.manifest._details(), self.selection
        return details if selection is None else {"classes": self.class_names, "features": details["features"]}

    def reader(
        self,
        split: str,
        variant: int = 0,
        copies: LocalCopies | None = None,
        open_shards: int | None = None,
        threads: ThreadPoolExecutor | None = None,
    ) -> Reader:
        """Return a `Reader` of one variant of a split. Raises OptionError if there is no such variant."""
        variants = self.split(split).variants
        if not 0 <= variant < len(variants):
            raise OptionError(f"{self.url}: split {split!r} has {len(variants)} variants, so no number {variant}")
        parts = (self.manifest, variants[variant], self.shards, self.store, self.check_current)
        return Reader(*parts, copies=copies, open_shards=open_shards, threads=threads)

    def iter_examples(self, split: str, variant: int = 0) -> Iterator[dict[str, Feature]]:
        """Yield the features of every sample of a split, in the order of the shards."""
        samples = self.samples(split)
        for sample, payload in zip(samples.tolist(), self.iter_payloads(split, variant), strict=True):
            yield decode_example(payload, f"{self.url}, sample {sample} of split {split!r}")

    def iter_payloads(
        self, split: str, variant: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[memoryview]:
        """Yield the payloads of samples `[start, stop)` of a split, of a view's own if it is one."""
        reader, chosen = self.reader(split, variant), self.chosen(split)
        stop = self.split(split).records if stop is None else stop
        if chosen is None:
            return reader.iter_payloads(start, stop)
        return reader.iter_samples(chosen.samples(np.arange(start, stop)))


def _view(whole: Dataset, selection: Selection, grown: bool) -> Dataset:
    return replace(whole.view(selection), grown=grown)


@checked()
def open_dataset(url: str | Path, version: Count | None = None, *, grown: bool = False) -> Dataset:
    """Return the dataset at `url`, in its newest version or in the one with this number.

    With `grown`, its loader continues from the state of an older version, with the epoch after that of the state.

    Raises:
        DatasetNotFoundError: there is no manifest, or no such version.
        ManifestError: the manifest is damaged, or has another format version.
        StoreError: the store cannot be read.
    """
    store = open_store(url, follow=False)
    found = find_dataset(store)
    if found is None:
        raise DatasetNotFoundError(f"{store.url} holds no dataset: there is no {MANIFEST}. {_how_to_make_one(store)}")
    if version is not None and version != found.number:
        found = _open_older(store, version, found)
    return replace(found, grown=grown)


def _open_older(store: Store, number: int, newest: Dataset) -> Dataset:
    """Return a version that is no longer the newest. Raises DatasetNotFoundError if there is no such version."""
    name = version_name(number)
    with suppress(OptionError):
        found = find_dataset(store, name)
        if found is not None and found.number != number:
            raise ManifestError(f"{store.url}/{name} is version {found.number}. The file was edited. Restore it")
        if found is not None:
            return found
    kept = ", ".join(map(str, find_versions(store, newest)))
    raise DatasetNotFoundError(f"{store.url} has no version {number}. It has {kept}")


def find_versions(store: Store, newest: Dataset) -> list[int]:
    """List the numbers of all versions that can be opened, the newest last."""
    names = (info.name.removeprefix(f"{VERSIONS}/").removesuffix(".json") for info in store.iter_objects(VERSIONS))
    return sorted({newest.number, *(int(name) for name in names if name.isdecimal() and int(name) < newest.number)})


def _how_to_make_one(store: Store) -> str:
    path = store.local_path(MANIFEST)
    if path is not None and is_file(path.parent) and is_tfrecord_name(path.parent.name):
        return adopt_advice(str(path.parent.parent))
    with suppress(TpufeedError):  # another error is on its way
        names = [info.name for info in itertools.islice(store.iter_objects(), _LISTED)]
        if any(map(is_tfrecord_name, names)) and store.stat(PLAN) is None:
            return adopt_advice(store.url)
        if any(map(format_of_name, names)) and store.stat(PLAN) is None:
            return f"It holds images. Make a dataset of them in another place: {advised('shard', store.url, 'DATASET')}"
    return (
        f"Make one with: {advised('shard', 'PHOTOS', store.url)} (an interrupted build has no {MANIFEST} yet: run its "
        "command again)"
    )


def reopen_dataset(url: str, content_digest: str, number: int = 1, grown: bool = False) -> Dataset:
    """Open a version in another process. Raises as `open_dataset`, and ObjectChangedError if it has changed."""
    dataset = open_dataset(url)
    if dataset.number > number:
        dataset = open_dataset(url, number)
    dataset = replace(dataset, grown=grown)
    if dataset.content_digest != content_digest:
        raise ObjectChangedError(
            f"{url} holds another dataset (content digest {dataset.content_digest}) than when it was opened "
            f"({content_digest}): it was rebuilt. Open it again"
        )
    return dataset


def find_dataset(store: Store, name: str = MANIFEST, tries: int = _TRIES) -> Dataset | None:
    """Return the dataset in `store` whose manifest has this name, or None without one. Raises as `open_dataset`."""
    try:
        info = None if store.local_path(name) is None else store.stat(name)
        version = "" if info is None else info.version
        data = read_certain(store, name, version)
    except ObjectNotFoundError:
        return None
    except ObjectChangedError:  # a build has just published another one
        if tries == 1:
            raise
        return find_dataset(store, name, tries - 1)
    return Dataset(store, decode_manifest(data, f"{store.url}/{name}"), version)


@dataclass(frozen=True, slots=True)
class ClassIds:
    """The ids that a loader gives to the labels of one of its datasets.

    Attributes:
        declared: number of classes that the dataset declares. 0 if it has labels without names, which may be any.
        ids: the loader's id for each of them, int64, or None if they are equal.
        names: names of the loader's classes, or None if they are those of the dataset.
        is_mixture: True if the dataset is one of several.
        least: -1 if some samples have no class.
    """

    declared: int
    ids: Ints | None = None
    names: tuple[str, ...] | None = None
    is_mixture: bool = False
    least: int = 0

    def of(self, labels: Any, place: Callable[[int], str]) -> Ints:
        """Return the loader's ids of stored labels.

        Raises:
            RecordError: a label is not one of the declared classes. `place` names the record of label number i.
        """
        # For every framework, and before any sees it: JAX would print `loss nan`, others would train garbage.
        found, count = np.asarray(labels, np.int64), self.declared if self.ids is None else len(self.ids)
        if count and found.size and (found - self.least).view(np.uint64).max() >= count - self.least:  # below: largest
            number = int(((found < self.least) | (found >= count)).argmax())
            raise RecordError(
                f"{place(number)}: its label is {found[number]}, and the dataset declares {count} classes, 0 to "
                f"{count - 1}. Its files or its manifest were changed: build it again, or adopt the files again with "
                "--classes for all of them"
            )
        return (
            found if self.ids is None else np.where(found < 0, -1, self.ids[found]) if self.least else self.ids[found]
        )


def own_ids(dataset: Dataset) -> ClassIds:
    """Return the ids of a dataset that is read alone. Those of a view may not be the dataset's."""
    declared, least = len(dataset.manifest.class_names), -dataset.manifest.has_unlabelled
    if dataset.selection is None or dataset.selection.classes is None:
        return ClassIds(declared, least=least)
    return ClassIds(declared, renumber(dataset), dataset.class_names, least=least)


def renumber(dataset: Dataset, ids: Ints | None = None) -> Ints:
    """Return the id for each stored label, given the ids of a view's classes, with -1 for labels that it leaves out.

    By default classes have their places in the view.
    """
    assert dataset.selection is not None, "it names classes"
    classes = np.asarray(dataset.selection.classes, np.int64)
    table = np.full(max(len(dataset.manifest.class_names), int(classes.max()) + 1), -1, np.int64)
    table[classes] = np.arange(len(classes)) if ids is None else ids
    return table
