"""What to do next, and what it would come to: pure."""

import math
from collections.abc import Iterator
from dataclasses import replace

from tpufeed.diagnosis.results import Action
from tpufeed.diagnosis.stages.findings import Findings, Way
from tpufeed.diagnosis.stages.rates import Goal, compose, predict_band

LEAST_FACTOR = 1.05  # less is within the noise of a few seconds
_LEAST_OF_WORKERS = 1.25  # likewise of other processes and threads, whose cores others may use at the time
_GOOD_BATCH = 128  # of a device: the sides of its matrix unit, and batch norm's statistics


def find_actions(
    findings: Findings, goal: Goal, batch_size: int | None, fed: float | None, assembly: float = 1.0
) -> tuple[Action, ...]:
    """The best first; those whose effect is not known come last.

    Args:
        findings: what was measured.
        goal: what is to be fed.
        batch_size: of this host, where the user has one.
        fed: images a second now.
        assembly: the share of an image's time that handing over takes.
    """
    blamed = tuple(_iter_blamed(findings))
    if fed is not None and fed >= goal.needed[1]:
        return (*blamed, *_look_at_the_run(findings), *_batch(goal, batch_size))
    found = [(_try(way, findings, goal, fed), way) for way in findings.ways]
    measured = [action for action, way in found if action.factor is None or _is_gain(action.factor, way, assembly)]
    measured.sort(key=lambda action: (-(action.factor or 0.0), action.do))
    return (*blamed, *measured, *(Action(do=hint) for hint in findings.hints), *_batch(goal, batch_size))


def _is_gain(factor: float, way: Way, assembly: float) -> bool:
    """Whether it is more than noise, and no more than the stages leave room for."""
    if way.kind != "workers":
        return factor >= LEAST_FACTOR
    most = 1 / (1 - assembly) if way.saves and assembly < 1 else math.inf
    return most >= _LEAST_OF_WORKERS <= factor <= most * _LEAST_OF_WORKERS


def reach(way: Way, findings: Findings) -> float:
    """Images a second that a way gives with the storage and the device that there are."""
    stored = findings.storage.through(way.images_per_second, way.record_bytes)
    return compose(stored, findings.transfer.images_per_second) or stored


def _try(way: Way, findings: Findings, goal: Goal, fed: float | None) -> Action:
    storage, cost = findings.storage, way.cost
    stays = not storage.every_epoch if way.total_bytes is None else way.total_bytes <= storage.room
    from_memory = replace(findings, storage=replace(storage, kind="memory"))
    first = rate = reach(way, findings)
    later = reach(way, from_memory) if stays else first
    fed_later = fed if storage.every_epoch else compose(findings.loader, findings.transfer.images_per_second)
    if fed and fed_later and later / fed_later > first / fed:
        rate, fed = later, fed_later
        cost = f"{cost}; what is read for the first time comes at {first:,.0f}".removeprefix("; ")
    if rate < way.images_per_second / LEAST_FACTOR:
        limit = "storage" if rate < (findings.transfer.images_per_second or rate + 1) else "the transfer"
        cost = f"{cost}; {limit} holds it at that, from memory it is {way.images_per_second:,.0f}".removeprefix("; ")
    return Action(
        do=way.do,
        factor=rate / fed if fed else None,
        images_per_second=rate,
        idle_percent=predict_band(rate, goal.needed),
        cost=cost,
    )


def _iter_blamed(findings: Findings) -> Iterator[Action]:
    for evidence in findings.evidence:
        if evidence.blames == "tracing":
            yield Action(
                do="your step waits on tracing, not on data: keep shapes fixed (remainder='drop' or 'pad'), compile or "
                "trace the step once, and read no value of the device within it (.item(), print)",
                cost=evidence.says,
            )


def _look_at_the_run(findings: Findings) -> tuple[Action, ...]:
    """Where a run has waited for what this host has plenty of."""
    blamed = {evidence.blames for evidence in findings.evidence}
    if "data" not in blamed or "tracing" in blamed:
        return ()
    return (
        Action(
            do="look at the run rather than at the data: it waited, though this host can feed it. Time its loop with "
            "StepClock and give --clock, which tells waiting for a batch from tracing; see what else takes its cores"
        ),
    )


def _batch(goal: Goal, batch_size: int | None) -> tuple[Action, ...]:
    if batch_size is None:
        return ()
    each = batch_size / goal.devices
    if each >= _GOOD_BATCH / 2:
        return ()
    good = f"{_GOOD_BATCH} ({_GOOD_BATCH * goal.devices:,} on this host)"
    return (
        Action(
            do=f"batch {each:.4g} a core leaves the MXU idle: {good}",
            cost="a learning rate that fits, and memory of the device",
        ),
    )
