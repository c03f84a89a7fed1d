"""States: plain data that says where in which sequence of samples a training is."""

import operator
from collections.abc import Mapping
from typing import Any

from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.errors import DatasetNotFoundError, OptionError, mask_secrets
from tpufeed.options import shown

VERSION = 2  # of the order: 1 did not rotate shards
LAST = 1 << 62  # number of an epoch, or of a sample in a stream


def identity_of(dataset: Dataset | None, split: str, seed: int, shuffle: bool) -> dict[str, Any]:
    """Return what a state and the loader that it is loaded into must have in common.

    The dataset is None for a mixture, whose states say otherwise what it draws from.
    """
    content = {} if dataset is None else {"content_digest": dataset.content_digest}
    number = {} if dataset is None or dataset.number == 1 else {"dataset_version": dataset.number}
    return {"version": VERSION, **content, **number, "split": split, "seed": seed, "shuffle": shuffle}


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any], owner: str, url: str) -> None:
    """Raise OptionError where a state is of another dataset, split, seed, order or version.

    Args:
        state: the state to be loaded.
        identity: of what it is loaded into.
        owner: what that is, a loader or a sampler.
        url: of its dataset.
    """
    version = state.get("version")
    if version != VERSION:
        found = f"the state's version is {shown(version)}, this {owner}'s {VERSION}"
        if version is None or "epoch" not in state:
            raise OptionError(f"{found}: it is not what state_dict() gives")
        epoch = shown(state["epoch"])
        raise OptionError(
            f"{found}: it is of another tpufeed, which has the samples of an epoch in another order, so the rest of "
            f"epoch {epoch} is unknown here. Begin it again, with set_epoch({epoch}), or go on with the tpufeed that "
            "gave the state"
        )
    for name, value in identity.items():
        if state.get(name) != value:
            raise OptionError(
                f"the state's {name} is {state.get(name)!r}, this {owner}'s {value!r}: it is of another dataset, split "
                f"or order than {url} here. Load it into a {owner} made as the one that gave it"
            )


def grow_state(state: Mapping[str, Any], dataset: Dataset) -> Mapping[str, Any]:
    """Return a state as it is in this version of its dataset: one of an older version is moved to its next epoch.

    An epoch of which no sample was given is still to come.

    Raises:
        OptionError: it is of an older version, and the dataset was not opened with `grown`.
    """
    digest, past = state.get("content_digest"), dataset.manifest.past_digests
    if digest == dataset.content_digest or digest not in past:
        return state
    if not dataset.grown:
        raise has_grown_since(dataset, past.index(digest) + 1)
    epoch, samples = (state_number(state, name, 0, LAST) for name in ("epoch", "samples"))
    now = {"content_digest": dataset.content_digest, "dataset_version": dataset.number}
    return {**state, **now, "epoch": epoch + (samples > 0), "samples": 0}


def has_grown_since(dataset: Dataset, number: int) -> OptionError:
    """Return what to raise for a state of an older version of a dataset, `number`."""
    url = mask_secrets(dataset.url)
    try:
        open_dataset(dataset.url, number)
        kept = f"tpufeed.open_dataset({url!r}, version={number})"
    except DatasetNotFoundError:
        kept = "pruned since"
    return OptionError(
        f"the state is of version {number} of {url}, which has grown: this is version {dataset.number}. To continue "
        f"exactly where it was, read that version ({kept}); to continue with the next epoch of this one, give "
        f"tpufeed.open_dataset({url!r}, grown=True)"
    )


def state_number(state: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return a number of a state; checkpoints may hand it back as an array's element. Raises OptionError."""
    value = state.get(name)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # anything but a whole number raises
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= most:
        raise OptionError(f"the state's {name} is {shown(value)}, not a whole number between {least} and {most}")
    return number
