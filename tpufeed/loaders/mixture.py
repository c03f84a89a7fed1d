"""Mixtures: several datasets as one stream in exact shares, for any number of ranks."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError, mask_secrets
from tpufeed.loaders.sources import JoinBy, Source, label_of, open_sources
from tpufeed.options import Whole, checked, is_number

Stop = Literal["shortest", "longest", "never"]

_LEAST_WEIGHT = 2.0**-26  # of all: a block would have more than 67 million numbers
_WEIGHTED = re.compile(r"(.+?)=(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)(?:,|$)", re.DOTALL)


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
            `tpufeed.open_dataset` returns: a version of its own, or with `grown=True` one that goes on from a state of
            an older version.
        stop: an epoch of the loader ends when the first source is used up ("shortest"), or when each was read once
            ("longest"; the others continue with their next epochs meanwhile). The next epoch begins with the sample
            after the last one that was given: nothing is left out. "never" makes one iteration endless, as
            `repeat=True` does.
        seed: of the draws of sources; by default the loader's.
        classes: how the sources' classes become one list, `loader.class_names`: "by_name" gives classes of one name one
            id, "offset" keeps the classes of different sources apart, "as_is" takes ids as they are. Ids do not change
            while a training continues from its states: new classes come last.
        reweight: True lets a loader continue from a state that was saved with other weights or sources.

    Raises:
        OptionError: a weight that is not a positive number, or an unknown value of an option.
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

    def open(self, split: str) -> tuple[Source, ...]:
        """Open the split of each source. Raises as `open_sources` does."""
        return tuple(Source(dataset, split) for dataset in open_sources(tuple(self.weights), split))

    def __repr__(self) -> str:
        weights = {label_of(source): weight for source, weight in self.weights.items()}
        return f"Mixture({weights!r}, stop={self.stop!r})"


def parse_mixture(text: str) -> "str | Mixture":
    """Return the mixture that "URL=0.7,URL=0.3" stands for; other text is one URL, and returned as it is."""
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
