"""Measuring in turns: A B A B, so that a machine that grows slower for a while does so for all alike."""

from collections.abc import Callable, Mapping
from typing import TypeVar

Name = TypeVar("Name")
Outcome = TypeVar("Outcome")


def take_turns(
    measurements: Mapping[Name, Callable[[], Outcome]], repeats: int, warm_up: int = 1
) -> dict[Name, list[Outcome]]:
    """What each measurement came to in `repeats` rounds, after `warm_up` rounds whose outcomes are thrown away."""
    found: dict[Name, list[Outcome]] = {name: [] for name in measurements}
    for number in range(-warm_up, repeats):
        for name, measure in measurements.items():
            outcome = measure()
            if number >= 0:
                found[name].append(outcome)
    return found
