"""From what was measured to a diagnosis: pure."""

from collections.abc import Iterator
from dataclasses import replace

from tpufeed.diagnosis.results import Diagnosis, Stage
from tpufeed.diagnosis.stages.actions import find_actions
from tpufeed.diagnosis.stages.findings import Findings
from tpufeed.diagnosis.stages.rates import (
    ACCELERATOR,
    ASSEMBLY,
    STORAGE,
    TRANSFER,
    Figure,
    Goal,
    compose,
    core_shares,
    find_binding,
    predict_band,
)
from tpufeed.diagnosis.wording import between, whole_percents

_NOT_COUNTED = "; the way to the device is not counted (transfer n/a)"


def diagnose(findings: Findings, goal: Goal, batch_size: int | None = None) -> Diagnosis:
    """What holds up a device that is fed in this way, and what to do about it."""
    fed = fed_rate(findings)
    shares = _shares(findings)
    binding = _binding(findings, goal, shares) if fed is not None else ASSEMBLY
    idle = None if fed is None else predict_band(fed, goal.needed)
    actions = find_actions(findings, goal, batch_size, fed, shares.get(ASSEMBLY, 1.0))
    percents = whole_percents(shares)
    stages = tuple(_stage(figure, percents) for figure in _iter_figures(findings))
    return Diagnosis(
        url=findings.url,
        split=findings.split,
        machine=findings.machine,
        stages=stages,
        fed=fed,
        tpu=goal.tpu,
        model=goal.model,
        needed=goal.needed,
        idle_percent=idle,
        binding=binding,
        verdict=_verdict(findings, goal, fed, binding, percents),
        actions=actions,
        settings=findings.settings,
        notes=(*findings.notes, *_iter_notes(findings, goal)),
    )


def fed_rate(findings: Findings) -> float | None:
    """Images a second that come out at the end of the whole way; None where the loader could not be measured."""
    if findings.loader is None:
        return None
    rate = findings.loader
    if not findings.storage.in_turn:  # else the loader has read from there when it was measured
        rate = findings.storage.through(rate, findings.record_bytes)
    return compose(rate, findings.transfer.images_per_second)


def _binding(findings: Findings, goal: Goal, shares: dict[str, float]) -> str:
    limit = None if findings.storage.in_turn else findings.storage.limit(findings.record_bytes)
    overlapping = {STORAGE: limit, TRANSFER: findings.transfer.images_per_second}
    return find_binding(goal.needed[1], overlapping, findings.loader, shares)


def _shares(findings: Findings) -> dict[str, float]:
    figures = [findings.reading, findings.decoding, findings.ops]
    if findings.storage.in_turn:
        figures.insert(0, Figure(name=STORAGE, images_per_second=findings.storage.limit(findings.record_bytes)))
    return core_shares(figures, findings.loader)


def _iter_figures(findings: Findings) -> Iterator[Figure]:
    storage = findings.storage
    rate = storage.bytes_per_second
    yield Figure(
        name=STORAGE,
        images_per_second=None if rate is None or not findings.record_bytes else rate / findings.record_bytes,
        detail=storage.detail,
        why_not=storage.why_not,
    )
    yield from (findings.reading, findings.decoding, findings.ops, findings.assembly, findings.transfer)


def _stage(figure: Figure, percents: dict[str, int]) -> Stage:
    said = [figure.detail] if figure.detail else []
    if figure.one_thread is not None:
        said.append(f"{figure.one_thread:,.0f} on one thread")
    if figure.name in percents:
        what = "of an image's time goes to handing over" if figure.name == ASSEMBLY else "of an image's time"
        said.append(f"{percents[figure.name]} % {what}")
    known = figure.images_per_second is not None
    return Stage(
        name=figure.name,
        images_per_second=figure.images_per_second,
        detail="; ".join(said),
        why_not="" if known else figure.why_not or "it was not measured",
    )


def _verdict(findings: Findings, goal: Goal, fed: float | None, binding: str, percents: dict[str, int]) -> str:
    who = f"{goal.tpu} with {goal.model}"
    if fed is None:
        return f"no prediction: {findings.why_no_loader or 'the loader could not be measured'}"
    low, high = predict_band(fed, goal.needed)
    lacks_transfer = findings.transfer.images_per_second is None
    if binding == ACCELERATOR:
        said = f"predicted: {who} does not wait for data on this host; nothing binds but the accelerator"
        return said + _NOT_COUNTED * lacks_transfer
    share = f", which takes {percents[binding]} % of an image's time" if binding in percents else ""
    waits = f"waits {between(low, high)} % of its time" if low else f"waits up to {high:.0f} % of its time"
    return f"predicted: {who} {waits} for data; what binds is {binding}{share}{_NOT_COUNTED * lacks_transfer}"


def _iter_notes(findings: Findings, goal: Goal) -> Iterator[str]:
    for evidence in findings.evidence:
        yield evidence.says
    storage = findings.storage
    limit = storage.limit(findings.record_bytes)
    if limit is not None and not storage.every_epoch and findings.loader is not None and limit < findings.loader:
        later = replace(findings, storage=replace(storage, kind="memory"))
        rate = fed_rate(later)
        if rate is not None:
            low, high = predict_band(rate, goal.needed)
            yield (
                f"that is the first epoch; the others read from memory: {rate:,.0f} images a second, predicted idle "
                f"{between(low, high)} %"
            )
