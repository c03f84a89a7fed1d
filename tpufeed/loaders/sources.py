"""The datasets that a loader draws its samples from: one, or those of a mixture with their classes joined."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tpufeed.dataset.manifest import Manifest, Split
from tpufeed.dataset.order import Ints
from tpufeed.dataset.reader import Dataset, open_dataset, reopen_dataset
from tpufeed.errors import OptionError, RecordError, mask_secrets
from tpufeed.storage.registry import open_store

JoinBy = Literal["by_name", "offset", "as_is"]
_OPENED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class JoinedClasses:
    """Classes of a mixture as one of its sources knows them.

    Attributes:
        names: of all sources' classes.
        ids: for each id of the source that of the mixture, int64; None where these are equal.
    """

    names: tuple[str, ...]
    ids: Ints | None

    def join(self, labels: Any, where: str) -> Ints:
        """Return the ids in the mixture of some labels of the source. Raises RecordError for one of no class."""
        found = np.asarray(labels, np.int64)
        if self.ids is None:
            return found
        if found.size and not 0 <= found.min() <= found.max() < len(self.ids):
            raise RecordError(f"{where}: a label of {found.tolist()} is no class; the source has {len(self.ids)}")
        joined: Ints = self.ids[found]
        return joined


@dataclass(frozen=True, slots=True)
class Source:
    """A split of a dataset, and what its classes are in the mixture; None outside of one."""

    dataset: Dataset
    split: str
    classes: JoinedClasses | None = None

    @property
    def entry(self) -> Split:
        """The split in the manifest."""
        return self.dataset.split(self.split)

    @property
    def label(self) -> str:
        """Its URL without secrets, for messages."""
        return mask_secrets(self.dataset.url)


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """What a worker process is told of a source, beside its manifest. `version` is that of the manifest's file."""

    url: str
    version: str
    split: str
    classes: JoinedClasses | None

    @classmethod
    def of(cls, source: Source) -> "SourceAddress":
        """Return the address of an open source."""
        return cls(source.dataset.url, source.dataset.version, source.split, source.classes)

    def open(self, manifest: Manifest) -> Source:
        """Open it in another process."""
        return Source(Dataset(open_store(self.url), manifest, self.version), self.split, self.classes)


def open_sources(urls: Sequence[str], split: str, join: JoinBy) -> tuple[Source, ...]:
    """Open the datasets of a mixture, several at a time, and join their classes.

    Raises:
        DatasetNotFoundError, ManifestError: one of them is no dataset that can be read.
        OptionError: one has no samples in the split; two are the same dataset; their classes cannot be joined.
    """
    with ThreadPoolExecutor(_OPENED_AT_ONCE, "tpufeed-open") as executor:
        datasets = list(executor.map(open_dataset, urls))
    seen: dict[str, str] = {}
    for dataset in datasets:
        if not dataset.split(split).records:
            raise OptionError(f"{mask_secrets(dataset.url)}: split {split!r} is empty; leave it out of the mixture")
        if dataset.content_digest in seen:
            url, other = mask_secrets(dataset.url), mask_secrets(seen[dataset.content_digest])
            twice = f"{url} is named twice" if url == other else f"{url} and {other} hold the same samples"
            raise OptionError(f"{twice}; name one of them, with the weight of both")
        seen[dataset.content_digest] = dataset.url
    classes = join_classes(datasets, join)
    return tuple(Source(dataset, split, each) for dataset, each in zip(datasets, classes, strict=True))


def check_sources(sources: Sequence[Source]) -> None:
    """Raise ObjectChangedError where a dataset was built anew since it was opened."""
    remote = list[Dataset]()
    for source in sources:
        source.dataset.check_current()
        if not source.dataset.version:  # the check above has nothing to go by
            remote.append(source.dataset)
    if remote:
        with ThreadPoolExecutor(_OPENED_AT_ONCE, "tpufeed-open") as executor:
            list(executor.map(lambda found: reopen_dataset(found.url, found.content_digest, found.number), remote))


def join_classes(datasets: Sequence[Dataset], join: JoinBy) -> list[JoinedClasses]:
    """Join the classes of several datasets; those without labels have none.

    Args:
        datasets: in the order of the mixture.
        join: "by_name" gives classes of one name one id; "offset" appends the classes of each dataset to those before,
            also where names are equal; "as_is" takes ids as they are.

    Raises:
        OptionError: by name, a dataset has labels without names; as they are, two datasets have different names for one
            id.
    """
    names, tables = list[str](), list[Ints | None]()
    owner: dict[int, str] = {}
    for dataset in datasets:
        own, where, labelled = dataset.manifest.class_names, mask_secrets(dataset.url), dataset.manifest.labelled
        table: Ints | None = None
        if join == "by_name":
            if labelled and not own:
                raise OptionError(
                    f"{where} has labels without names, which cannot be joined by name with those of "
                    f"{mask_secrets(datasets[0].url)}; give classes='as_is' if an id stands for the same class in "
                    "all sources, else classes='offset'"
                )
            names += [name for name in own if name not in set(names)]
            places = {name: place for place, name in enumerate(names)}
            table = np.array([places[name] for name in own], np.int64)
        elif join == "offset":
            table = np.arange(len(own), dtype=np.int64) + len(names)
            names += own
        else:
            for number, name in enumerate(own):
                if number < len(names) and names[number] != name:
                    raise OptionError(
                        f"class {number} is {names[number]!r} in {owner[number]} and {name!r} in {where}; give "
                        "classes='by_name', or 'offset' to keep them apart"
                    )
                owner.setdefault(number, where)
            names += own[len(names) :]
        equal = table is None or not labelled or bool((table == np.arange(len(table))).all())
        tables.append(None if equal else table)
    return [JoinedClasses(tuple(names), table) for table in tables]
