"""Mixtures: several datasets that a loader mixes in exact shares, and their classes as one list."""

import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.dataset.order import Ints
from tpufeed.dataset.reader import ClassIds, Dataset, open_dataset, renumber
from tpufeed.dataset.selection import views_by_class, weighted_view
from tpufeed.display.summary import Summary, rounded
from tpufeed.errors import OptionError, mask_secrets
from tpufeed.options import Whole, a_dict, checked, is_number
from tpufeed.text import format_value

_Weights = Annotated[Mapping[str, float], a_dict("classes and numbers, like {'cat': 2, 'dog': 1}")]
JoinBy = Literal["by_name", "offset", "as_is"]
Stop = Literal["shortest", "longest", "total", "never"]

OPENED_AT_ONCE = 16  # datasets
_DATASETS_NAMED = 4  # in a description
_LEAST_WEIGHT = 2.0**-26  # as a share of the sum. Below it, blocks would have more than 67 million samples
_WEIGHTED = re.compile(r"(.+?)=(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)(?:,|$)", re.DOTALL)


class ClassList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Classes of a mixture: a label is an index into `names`.

    Attributes:
        names: names of the classes.
        owners: the root of each class's dataset (see `TrainedSource`) if they were joined by "offset", else empty.
    """

    names: tuple[str, ...] = ()
    owners: tuple[int, ...] = ()


class Mixture(Summary):
    """Several datasets that a loader takes instead of one URL, mixed sample by sample in exact shares.

    `tpufeed.Loader(tpufeed.Mixture({"gs://b/a": 0.7, "gs://b/b": 0.3}), ops=...)`

    Lane l of the mixture draws from lane l of each dataset, so that each rank reads only its share of every dataset's
    shards. Weights, seed, lane and the sample's number in the lane decide which dataset gives a sample. Each lane is
    cut into blocks of at least 1 / least share samples. Within a block the order is random. At its end each dataset has
    given its share, give or take one sample. A dataset is read in its own order, without replacement, epoch after
    epoch. Epoch e of a cache with K variants reads variant e mod K.

    Args:
        weights: a number above 0 for each dataset. They need not add up to 1. A dataset is a path, a URL, or what
            `tpufeed.open_dataset` returns: a certain version, or with `grown=True` one that continues from a state of
            an older version.
        stop: each epoch of the loader is as long as the first one, which ends when a dataset is used up ("shortest"),
            or when each was read once ("longest", the others continue with their next epochs meanwhile), or after as
            many samples as all datasets have together ("total"). The next epoch begins with the sample after the last
            one given: nothing is left out. "never" makes one iteration endless, as `repeat=True` does.
        seed: seed that decides which dataset gives each sample. By default the loader's.
        classes: how the datasets' classes become one list, `loader.class_names`: "by_name" gives equal names one id,
            "offset" keeps the classes of different datasets apart, "as_is" takes ids as they are. Ids do not change
            while a training continues from its states: new classes come last.
        reweight: True lets a loader continue from a state that was saved with other weights or datasets.

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
        self._split: str | None = None  # the only split with samples, set by `by_class` and `by_weight`

    @classmethod
    @checked()
    def by_class(
        cls,
        dataset: str | Path | Dataset,
        weights: Literal["equal", "sqrt"] | _Weights = "equal",
        *,
        split: str = "train",
        stop: Stop = "total",
        seed: Whole | None = None,
        reweight: bool = False,
    ) -> "Mixture":
        """Return a mixture of the classes of one dataset, to balance them in exact shares.

        Labels stay those of the dataset. An epoch has as many samples as the classes together, rounded to a multiple
        of the lanes: in it a sample of a rare class comes several times, each time with other random numbers. Samples
        of a common class take turns: some come in one epoch, others in the next.

        Args:
            dataset: a dataset whose samples have one label each, or a view of one.
            weights: "equal" gives all classes the same share, "sqrt" shares in proportion to the square roots of their
                sizes. A dict has a number above 0 for each class by its name: a class without one is left out.
            split: the split whose labels are looked at. They are read once per machine, as in `Dataset.select`.
            stop: as for any mixture.
            seed: as for any mixture.
            reweight: as for any mixture. Needed to continue when a dataset has grown and its shares have changed.

        Raises:
            OptionError: a class in `weights` does not exist or has no samples; samples have several labels or none.
            DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        """
        opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
        views = views_by_class(opened, split)
        if isinstance(weights, Mapping):
            missing = next((name for name in weights if name not in views), None)
            if missing is not None:
                known = missing in opened.class_names
                why = f"has no samples in split {split!r}" if known else f"is no class of it: it has {', '.join(views)}"
                raise OptionError(f"{opened.label}: the weights name {format_value(missing)}, which {why}")
            shares = dict(weights)
        else:
            power = 0.5 if weights == "sqrt" else 0.0
            shares = {name: float(view.split(split).records) ** power for name, view in views.items()}
        mixture = cls({views[name]: share for name, share in shares.items()}, stop=stop, seed=seed, reweight=reweight)
        mixture._split = split
        return mixture

    @classmethod
    @checked()
    def by_weight(
        cls,
        dataset: str | Path | Dataset,
        weights: str | npt.ArrayLike,
        *,
        split: str = "train",
        seed: Whole | None = None,
        reweight: bool = False,
    ) -> "Mixture":
        """Return a mixture that gives one dataset's samples by weight, instead of torch's WeightedRandomSampler.

        If n samples have a weight above 0, a pass has n samples. If these weights add up to W, a sample with weight w
        comes n * w / W times per pass, rounded up or down: over several passes the rate is exact. Each time it has
        other random numbers. Any number of ranks that divides the lanes gives the same samples.

        An epoch has the samples of a pass, rounded to a multiple of the lanes: 48 for a pass of 47 and 16 lanes. It
        then takes a few from the next pass, or leaves a few to the next epoch.

        Args:
            dataset: a dataset, or a view of one.
            weights: the name of a column of numbers, read from all records, or an array: a number of 0 or more for each
                sample that is stored in the split, in the order of their ids, also for samples that a view leaves out.
                0 leaves a sample out.
            split: the split that has these weights.
            seed: as for any mixture.
            reweight: as for any mixture. Needed to continue with other weights.

        Raises:
            OptionError: there is no such column; there is no number for each sample; a weight is negative, infinite or
                NaN, or all are 0.
            DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        """
        opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
        mixture = cls({weighted_view(opened, split, weights): 1.0}, stop="total", seed=seed, reweight=reweight)
        mixture._split = split
        return mixture

    def open(self, split: str) -> list[Dataset]:
        """Open the datasets, several at a time.

        Raises:
            DatasetNotFoundError, ManifestError: there is no dataset that can be read.
            OptionError: a dataset has no samples in the split; two datasets are the same.
        """
        with ThreadPoolExecutor(OPENED_AT_ONCE, "tpufeed-open") as executor:
            opened = executor.map(lambda each: each if isinstance(each, Dataset) else open_dataset(each), self.weights)
            datasets = list(opened)
        if self._split not in (None, split):
            raise OptionError(
                f"the weights are those of split {self._split!r}: to read {split!r}, give by_class or by_weight "
                f"split={split!r}"
            )
        seen = dict[str, str]()
        for dataset in datasets:
            if not dataset.split(split).records:
                raise OptionError(f"{dataset.label}: split {split!r} is empty; leave it out of the mixture")
            if dataset.content_digest in seen:
                url, other = dataset.label, seen[dataset.content_digest]
                twice = f"{url} is named twice" if url == other else f"{url} and {other} hold the same samples"
                raise OptionError(f"{twice}; name one of them, with the weight of both")
            seen[dataset.content_digest] = dataset.label
        return datasets

    def __repr__(self) -> str:
        weights = [f"{label!r}: {weight!r}" for label, weight in islice(self._shares.items(), _DATASETS_NAMED)]
        more = len(self.weights) - len(weights)
        named = ", ".join([*weights, *([f"... {more:,} more"] if more else [])])
        return f"Mixture({{{named}}}, stop={self.stop!r})"

    @property
    def _shares(self) -> dict[str, float]:
        return {_label_of(dataset): rounded(weight) for dataset, weight in self.weights.items()}

    def _facts(self) -> dict[str, Any]:
        return {"weights": self._shares, "stop": self.stop, "seed": self.seed, "classes": self.classes}


def parse_mixture(text: str) -> "str | Mixture":
    """Return the mixture that "URL=0.7,URL=0.3" describes. Any other text is one URL, and is returned unchanged."""
    found = list(_WEIGHTED.finditer(text))
    if len(found) < 2 or "".join(match.group() for match in found) != text:
        return text
    urls = [match.group(1) for match in found]
    if len(set(urls)) < len(urls):
        twice = next(url for url in urls if urls.count(url) > 1)
        raise OptionError(f"{mask_secrets(twice)} is named twice in the mixture; name it once")
    return Mixture({match.group(1): float(match.group(2)) for match in found})


def _check_weights(weights: Mapping[str | Path | Dataset, float]) -> dict[str | Dataset, float]:
    if not isinstance(weights, Mapping) or not weights:
        raise OptionError(
            f"weights are a dict of datasets and numbers, like {{'gs://b/a': 0.7, 'gs://b/b': 0.3}}, not {weights!r}"
        )
    found: dict[str | Dataset, float] = {}
    for given, weight in weights.items():
        dataset = given if isinstance(given, Dataset) else str(given).rstrip("/")
        if not (is_number(weight) and 0 < weight < math.inf):
            raise OptionError(
                f"the weight of {_label_of(dataset)} is a number above 0, not {weight!r}; leave out datasets that "
                "you do not want to read"
            )
        if dataset in found:
            raise OptionError(f"{_label_of(dataset)} is named twice in the mixture; name it once")
        found[dataset] = float(weight)
    least = min(found, key=found.__getitem__)
    if found[least] < _LEAST_WEIGHT * math.fsum(found.values()):
        raise OptionError(f"the weight of {_label_of(least)} is less than 1/67,108,864 of the sum; leave it out")
    return found


def _label_of(dataset: str | Dataset) -> str:
    """Return a dataset's URL without secrets, and its version if it is open."""
    if isinstance(dataset, str):
        return mask_secrets(dataset)
    return f"{dataset.label} version {dataset.number}"


def join_classes(
    datasets: Sequence[Dataset], join: JoinBy, roots: Sequence[int], known: ClassList
) -> tuple[ClassList, list[ClassIds]]:
    """Join the classes of a mixture's datasets with the classes that a training has already, whose ids stay.

    Args:
        datasets: the datasets. A dataset without labels has no classes.
        join: as in `Mixture`. New classes come last.
        roots: root of each dataset, as in `TrainedSource`.
        known: classes of earlier parts of the training.

    Raises:
        OptionError: a dataset has labels without names, which only "as_is" accepts; or two datasets have different
            names for one id, which "as_is" does not accept.
    """
    names, owners, tables = list(known.names), list(known.owners), list[Ints | None]()
    places, owner = {name: place for place, name in enumerate(names)}, ["the state"] * len(names)
    for dataset, root in zip(datasets, roots, strict=True):
        own, where, labelled = dataset.class_names, dataset.label, dataset.manifest.labelled
        if labelled and not own and join != "as_is":
            raise OptionError(
                f"{where} has labels without names, which cannot be joined with those of "
                f"{mask_secrets(datasets[0].url)}; give classes='as_is' if an id stands for the same class in "
                "all datasets"
            )
        table: Ints | None = None
        if join == "by_name":
            for name in own:
                places.setdefault(name, len(places))
            names = list(places)
            table = np.array([places[name] for name in own], np.int64)
        elif join == "offset":
            found = [place for place, owner in enumerate(owners) if owner == root]
            new = own[len(found) :]  # a dataset that grows appends classes to its own
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
        if dataset.selection is not None and dataset.selection.classes is not None:
            table = renumber(dataset, table)
        equal = table is None or not labelled or bool((table == np.arange(len(table))).all())
        tables.append(None if equal else table)
    joined = ClassList(tuple(names), tuple(owners))
    manifests = (dataset.manifest for dataset in datasets)
    return joined, [
        ClassIds(len(each.class_names), table, joined.names, is_mixture=True, least=-each.has_unlabelled)
        for each, table in zip(manifests, tables, strict=True)
    ]


DatasetLike: TypeAlias = str | Path | Dataset | Mixture
