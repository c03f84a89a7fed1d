"""Sources that a loader draws samples from: a dataset, or several mixed in exact shares, with joined classes."""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from tpufeed.dataset.index import Index
from tpufeed.dataset.manifest import Split
from tpufeed.dataset.order import EpochOrder, Ints
from tpufeed.dataset.reader import Dataset, open_dataset, reopen_dataset
from tpufeed.errors import OptionError, RecordError, mask_secrets
from tpufeed.options import Whole, checked, is_number

if TYPE_CHECKING:
    from tpufeed.loaders.options import LoaderOptions

JoinBy = Literal["by_name", "offset", "as_is"]
Stop = Literal["shortest", "longest", "never"]

_KEPT_ORDERS = 3  # epochs of a source that lanes are in at the same time
_OPENED_AT_ONCE = 16
_LEAST_WEIGHT = 2.0**-26  # share of all: a block would have more than 67 million numbers
_WEIGHTED = re.compile(r"(.+?)=(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)(?:,|$)", re.DOTALL)


class ClassList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Classes of a mixture: a label is a place among `names`.

    Attributes:
        names: names of the classes.
        owners: the root of the source of each class (see `TrainedSource`) if they were joined by "offset"; else empty.
    """

    names: tuple[str, ...] = ()
    owners: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinedClasses:
    """Classes of a mixture as one of its sources knows them.

    Attributes:
        names: names of all sources' classes.
        ids: the mixture's id for each id of the source, int64; None if these are equal.
    """

    names: tuple[str, ...]
    ids: Ints | None

    def join(self, labels: Any, where: str) -> Ints:
        """Return the mixture's ids of labels of the source. Raises RecordError for a label that is no class."""
        found = np.asarray(labels, np.int64)
        if self.ids is None:
            return found
        if found.size and not 0 <= found.min() <= found.max() < len(self.ids):
            raise RecordError(f"{where}: a label of {found.tolist()} is no class; the source has {len(self.ids)}")
        joined: Ints = self.ids[found]
        return joined


@dataclass(frozen=True, slots=True)
class SampleSource:
    """A split of a dataset that a loader draws samples from.

    Attributes:
        dataset: the dataset.
        split: the name of the split.
        classes: its classes in a mixture; None outside of one.
        salt: distinguishes its random numbers from those of a mixture's other sources, see `salt_of`.
    """

    dataset: Dataset
    split: str
    classes: JoinedClasses | None = None
    salt: int = 0

    @property
    def entry(self) -> Split:
        """The split in the manifest."""
        return self.dataset.split(self.split)

    def epoch_orders(self, options: "LoaderOptions", lanes: int) -> Callable[[int], EpochOrder]:
        """Return a function that gives the order of an epoch, and keeps those of the last few."""
        seed, shuffle = options.seed ^ self.salt, options.shuffle
        records = [[shard.records for shard in variant.shards] for variant in self.entry.variants]
        return lru_cache(_KEPT_ORDERS)(
            lambda epoch: EpochOrder(records[epoch % len(records)], seed, epoch, lanes, shuffle)
        )

    @property
    def label(self) -> str:
        """The dataset's URL without secrets, for messages."""
        return mask_secrets(self.dataset.url)


def salt_of(root: int) -> int:
    """Return the salt of a source's order and ops by its number in the training, which its later versions keep.

    Sources of equal shards would otherwise have one order, and equal ids the same crops. The first source has the
    random numbers that it has alone.
    """
    return int.from_bytes(hashlib.blake2b(b"source %d" % root, digest_size=7).digest(), "little") if root else 0


class Mixture:
    """Several datasets that a loader takes instead of one URL, mixed sample by sample in exact shares.

    `tpufeed.Loader(tpufeed.Mixture({"gs://b/a": 0.7, "gs://b/b": 0.3}), ops=...)`

    A sample keeps its lane: lane l of the mixture draws from lane l of each source, so that each rank reads only its
    share of every source's shards. Which source gives a sample follows from weights, seed, lane and the sample's number
    in the lane: each lane is cut into blocks of at least 1 / least weight samples; at the end of each block every
    source has given its share within one sample, and within a block the order is random. A source is read in its own
    order, without replacement, epoch after epoch; epochs of a cache read its variants.

    Args:
        weights: for each dataset a number above 0; they need not add up to 1. A dataset is a path, a URL, or what
            `tpufeed.open_dataset` returns: a certain version, or with `grown=True` one that continues from a state of
            an older version.
        stop: an epoch of the loader ends when the first source is used up ("shortest"), or when each was read once
            ("longest"; the others continue with their next epochs meanwhile). The next epoch begins with the sample
            after the last one that was given: nothing is left out. "never" makes one iteration endless, as
            `repeat=True` does.
        seed: seed of the draws of sources; by default the loader's.
        classes: how the sources' classes become one list, `loader.class_names`: "by_name" gives equal names one id,
            "offset" keeps the classes of different sources apart, "as_is" takes ids as they are. Ids do not change
            while a training continues from its states: new classes come last.
        reweight: True lets a loader continue from a state that was saved with other weights or sources.

    Raises:
        OptionError: a weight is not a positive number, or an option has an unknown value.
    """

    @checked()
    def __init__(
        self,
        weights: Mapping[str | Path | Dataset, float],
        *,
        stop: Stop = "shortest",
        seed: Whole | None = None,
        classes: JoinBy = "by_name",
        reweight: bool = False,
    ) -> None:
        self.weights = _check_weights(weights)
        self.stop, self.seed, self.classes, self.reweight = stop, seed, classes, reweight

    def open(self, split: str) -> tuple[SampleSource, ...]:
        """Open the split of each source, several at a time.

        Raises:
            DatasetNotFoundError, ManifestError: a source is no dataset that can be read.
            OptionError: a source has no samples in the split; two are the same dataset.
        """
        with ThreadPoolExecutor(_OPENED_AT_ONCE, "tpufeed-open") as executor:
            datasets = executor.map(
                lambda each: each if isinstance(each, Dataset) else open_dataset(each), self.weights
            )
        seen, found = dict[str, str](), list[SampleSource]()
        for dataset in datasets:
            if not dataset.split(split).records:
                raise OptionError(f"{mask_secrets(dataset.url)}: split {split!r} is empty; leave it out of the mixture")
            if dataset.content_digest in seen:
                url, other = mask_secrets(dataset.url), mask_secrets(seen[dataset.content_digest])
                twice = f"{url} is named twice" if url == other else f"{url} and {other} hold the same samples"
                raise OptionError(f"{twice}; name one of them, with the weight of both")
            seen[dataset.content_digest] = dataset.url
            found.append(SampleSource(dataset, split))
        return tuple(found)

    def __repr__(self) -> str:
        weights = {label_of(source): weight for source, weight in self.weights.items()}
        return f"Mixture({weights!r}, stop={self.stop!r})"


def parse_mixture(text: str) -> "str | Mixture":
    """Return the mixture of "URL=0.7,URL=0.3"; return other text, which is one URL, as it is."""
    found = list(_WEIGHTED.finditer(text))
    if len(found) < 2 or "".join(match.group() for match in found) != text:
        return text
    urls = [match.group(1) for match in found]
    if len(set(urls)) < len(urls):
        twice = next(url for url in urls if urls.count(url) > 1)
        raise OptionError(f"{mask_secrets(twice)} stands twice in the mixture; name it once")
    return Mixture({match.group(1): float(match.group(2)) for match in found})


def _check_weights(weights: Mapping[str | Path | Dataset, float]) -> dict[str | Dataset, float]:
    if not isinstance(weights, Mapping) or not weights:
        raise OptionError(
            f"weights are a dict of datasets and numbers, like {{'gs://b/a': 0.7, 'gs://b/b': 0.3}}, not {weights!r}"
        )
    found: dict[str | Dataset, float] = {}
    for given, weight in weights.items():
        source = given if isinstance(given, Dataset) else str(given).rstrip("/")
        if not (is_number(weight) and 0 < weight < math.inf):
            raise OptionError(
                f"the weight of {label_of(source)} is a number above 0, not {weight!r}; leave out what is not to be "
                "read"
            )
        if source in found:
            raise OptionError(f"{label_of(source)} stands twice in the mixture; name it once")
        found[source] = float(weight)
    least = min(found, key=found.__getitem__)
    if found[least] < _LEAST_WEIGHT * math.fsum(found.values()):
        raise OptionError(f"the weight of {label_of(least)} is less than 1/67,108,864 of all; leave it out")
    return found


def label_of(source: str | Dataset) -> str:
    """Return a source of a mixture in words: its URL without secrets, and the version if it is open."""
    if isinstance(source, str):
        return mask_secrets(source)
    return f"{mask_secrets(source.url)} version {source.number}"


def check_sources(sources: Sequence[SampleSource]) -> None:
    """Raise ObjectChangedError if a dataset was rebuilt since it was opened.

    Raises ShardError or StoreError if the index of a local dataset does not fit its manifest: a forged manifest may
    count any number of records, and their order would take memory.
    """
    remote = list[Dataset]()
    for source in sources:
        source.dataset.check_current()
        if not source.dataset.is_remote:
            Index(source.dataset.store, source.dataset.split(source.split).variants[0]).offsets([])
        if not source.dataset.version:  # the check above could not tell
            remote.append(source.dataset)
    if remote:
        with ThreadPoolExecutor(_OPENED_AT_ONCE, "tpufeed-open") as executor:
            list(executor.map(lambda found: reopen_dataset(found.url, found.content_digest, found.number), remote))


def join_classes(
    datasets: Sequence[Dataset], join: JoinBy, roots: Sequence[int], known: ClassList
) -> tuple[ClassList, list[JoinedClasses]]:
    """Join the classes of a mixture's datasets with those that a training knows already, whose ids stay.

    Args:
        datasets: the datasets; those without labels have no classes.
        join: as in `Mixture`. New classes come last.
        roots: root of each dataset, as in `TrainedSource`.
        known: classes of earlier parts of the training.

    Raises:
        OptionError: a dataset has labels without names, which only "as_is" takes; or two datasets have different names
            for one id, which "as_is" does not take.
    """
    names, owners, tables = list(known.names), list(known.owners), list[Ints | None]()
    places, owner = {name: place for place, name in enumerate(names)}, ["the state"] * len(names)
    for dataset, root in zip(datasets, roots, strict=True):
        own, where, labelled = dataset.manifest.class_names, mask_secrets(dataset.url), dataset.manifest.labelled
        if labelled and not own and join != "as_is":
            raise OptionError(
                f"{where} has labels without names, which cannot be joined with those of "
                f"{mask_secrets(datasets[0].url)}; give classes='as_is' if an id stands for the same class in "
                "all sources"
            )
        table: Ints | None = None
        if join == "by_name":
            for name in own:
                places.setdefault(name, len(places))
            names = list(places)
            table = np.array([places[name] for name in own], np.int64)
        elif join == "offset":
            found = [place for place, owner in enumerate(owners) if owner == root]
            new = own[len(found) :]  # a source that grows adds classes behind its own
            table = np.array([*found, *range(len(names), len(names) + len(new))][: len(own)], np.int64)
            names += new
            owners += [root] * len(new)
        else:
            for number, (name, here) in enumerate(zip(names, own, strict=False)):
                if name != here:
                    raise OptionError(
                        f"class {number} is {name!r} in {owner[number]} and {here!r} in {where}; give "
                        "classes='by_name', or 'offset' to keep them apart"
                    )
            owner += [where] * (len(own) - len(names))
            names += own[len(names) :]
        equal = table is None or not labelled or bool((table == np.arange(len(table))).all())
        tables.append(None if equal else table)
    joined = ClassList(tuple(names), tuple(owners))
    return joined, [JoinedClasses(joined.names, table) for table in tables]
