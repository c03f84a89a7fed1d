"""States of loaders and samplers: plain data that says where a training loop is, and in what."""

import operator
from collections.abc import Mapping
from typing import Any

from tpufeed.dataset.partition import World, default_lanes
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError
from tpufeed.images.parameters import shown

_VERSION = 2  # of the order: 1 did not rotate shards


def identity_of(dataset: Dataset, split: str, seed: int, shuffle: bool) -> dict[str, Any]:
    """Return what a state and the loader that it is loaded into must have in common."""
    return {
        "version": _VERSION,
        "content_digest": dataset.content_digest,
        "split": split,
        "seed": seed,
        "shuffle": shuffle,
    }


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any], owner: str, url: str) -> None:
    """Raises OptionError where a state is of another dataset, split, seed, order or version.

    Args:
        state: that is to be loaded.
        identity: of what it is loaded into.
        owner: what that is, a loader or a sampler.
        url: of its dataset.
    """
    version = state.get("version")
    if version != _VERSION:
        found = f"the state's version is {shown(version)}, this {owner}'s {_VERSION}"
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


def check_state_lanes(lanes: int, world: World) -> None:
    """Raises OptionError where a state's lanes cannot be dealt to the ranks."""
    if not lanes or lanes % world.size:
        raise OptionError(
            f"the state's {lanes} lanes cannot be dealt to {world.size} ranks; go on with a number of ranks that "
            f"divides {lanes}"
        )


def check_lanes(lanes: int, world: World) -> None:
    """Raises OptionError, with a proposal, where lanes that were asked for cannot be dealt to the ranks."""
    if lanes % world.size:
        raise OptionError(
            f"{lanes} lanes cannot be dealt to {world.size} ranks; give lanes={default_lanes(world)}, or another "
            "multiple of the ranks"
        )


def state_number(state: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A number of a state; checkpoints may hand it back as an array's element. Raises OptionError."""
    value = state.get(name)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # whatever is no whole number raises
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= most:
        raise OptionError(f"the state's {name} is {shown(value)}, not a whole number between {least} and {most}")
    return number
