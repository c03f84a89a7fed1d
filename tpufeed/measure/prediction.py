"""Judge measured rates: find the stage that binds, predict how long a TPU waits, and advise. Pure functions.

Storage, the loader and the transfer to the device work at the same time: together they are as fast as the slowest of
them. Reading, decoding and ops share the cores of the loader, so their times per image add up. The steady state is
judged: if the page cache or the local copies of shards hold the split, storage only limits the first epoch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tpufeed.measure.clock import Blame
from tpufeed.measure.results import Action, Diagnosis, Span, Stage
from tpufeed.measure.tpu import TPUS, Flops, Tpu, find_model, find_tpu, training_flops
from tpufeed.options import checked
from tpufeed.text import format_range, format_rate

ACCELERATOR = "accelerator"
STORAGE, READING, DECODING, OPS, ASSEMBLY, TRANSFER = "storage", "reading", "decoding", "ops", "assembly", "transfer"

# Shares of the peak FLOP/s at which the two published runs of `tpu` trained ResNet-50.
LOW_SHARE, HIGH_SHARE = 0.205, 0.375
LEAST_FACTOR = 1.05  # a smaller gain is within the noise of measurements of a few seconds

_ASSUMED_TPU, _DEFAULT_MODEL = "v3-8", "resnet50"
_ACCELERATOR_TYPE = re.compile(r"(v\d+[a-z]*|tpu7x)-(\d+)")
_COUNTED_IN_CHIPS = ("v5e", "v6e")  # the names of other TPUs count TensorCores, two per chip
_AS_SLOW = 1.1  # if storage is hardly faster than the loader that reads from it, storage binds
_GOOD_BATCH = 128  # per device: fills the sides of its matrix unit, and is enough for batch norm's statistics


@dataclass(frozen=True, slots=True)
class Goal:
    """The TPU and the model to feed.

    Attributes:
        needed: images per second that the TPU takes, (low, high).
        devices: number of devices that share a batch.
        batch_size: batch size of this host, if the user has given one.
    """

    tpu: str
    model: str
    needed: tuple[float, float]
    devices: int
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The storage of the records.

    Attributes:
        room: bytes that the page cache or local copies can hold for later epochs.
        detail: as in `Stage`.
        why_not: as in `Stage`.
    """

    bytes_per_second: float | None = None
    room: float = 0
    detail: str = ""
    why_not: str = ""

    def limit(self, record_bytes: float, total_bytes: float) -> float | None:
        """Return images per second in the steady state, or None if storage is not a limit or its rate is unknown."""
        if total_bytes <= self.room or self.bytes_per_second is None or record_bytes <= 0:
            return None
        return self.bytes_per_second / record_bytes


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to store the same samples, measured with the real loader and the page cache. See also `Action`.

    Attributes:
        record_bytes: mean size of a record.
        total_bytes: size of all records.
        sent: bytes that an image sends to the device, divided by what it sends now.
        span: as in `Stage`.
    """

    do: str
    images_per_second: float
    record_bytes: float
    total_bytes: float
    cost: str = ""
    sent: float = 1.0
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Measurements of a split, or of raw images.

    Attributes:
        record_bytes: mean size of a record.
        total_bytes: size of all records.
        stages: reading, decoding, ops, assembly and transfer by name, as far as they were measured. "assembly" is the
            loader from end to end. It reads local copies if records are remote.
        notes: remarks, as sentences.
    """

    split: str
    record_bytes: float
    total_bytes: float
    storage: Storage
    stages: Mapping[str, Stage]
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()


class Evidence(NamedTuple):
    """Evidence from a training run: what it waited for (None if unknown), and a sentence about it."""

    blames: Blame | None
    says: str


def predict(
    measured: Measurements, goal: Goal, url: str, machine: dict[str, Any], evidence: Sequence[Evidence] = ()
) -> Diagnosis:
    """Return the stage that binds, how much of its time the device waits, and advice."""
    stages = {name: measured.stages.get(name, Stage(name)) for name in (READING, DECODING, OPS, ASSEMBLY, TRANSFER)}
    storage, size = measured.storage, measured.record_bytes
    loader, transfer = stages[ASSEMBLY].images_per_second, stages[TRANSFER].images_per_second
    limit = storage.limit(size, measured.total_bytes)
    at_storage = storage.bytes_per_second / size if storage.bytes_per_second and size else None
    fed = None if loader is None else compose(loader, limit, transfer)
    span = _limit_span(stages[ASSEMBLY].span, limit, transfer)
    # The share of each stage in an image's time on the cores, as if all threads did only that. The loader has the rest.
    seconds = {name: 1 / rate for name in (READING, DECODING, OPS) if (rate := stages[name].images_per_second)}
    if loader:
        seconds[ASSEMBLY] = max(0.0, 1 / loader - sum(seconds.values()))
    total = sum(seconds.values())
    shares = {name: part / total for name, part in seconds.items()} if total else {}
    binding, notes = ASSEMBLY, measured.notes
    if fed is None:
        idle = None
        verdict = f"no prediction: {stages[ASSEMBLY].why_not}"
    else:
        overlapping = {name: rate for name, rate in ((STORAGE, limit), (TRANSFER, transfer)) if rate is not None}
        slowest = min(overlapping, key=overlapping.__getitem__, default="")
        idle, who = predict_band(fed, goal.needed), f"predicted: {goal.tpu} with {goal.model}"
        waited = idle_span(fed, span, goal.needed)
        if fed >= goal.needed[1]:
            binding = ACCELERATOR
            verdict = f"{who} does not wait for data on this host; only the accelerator binds"
            lowest = f". At the lowest rate that was measured it waits up to {waited[1]:.0f} % of its time"
            verdict += lowest if round(waited[1]) else ""
        else:
            if slowest and overlapping[slowest] <= (loader or 0) * _AS_SLOW:
                binding = slowest
            else:
                binding = max(shares, key=shares.__getitem__)
            waits = format_range(*waited) if waited[0] else f"up to {waited[1]:.0f}"
            verdict = f"{who} waits {waits} % of its time for data; the stage that binds is {binding}"
            if binding in shares:
                verdict += f", which takes {100 * shares[binding]:.0f} % of an image's time"
        if transfer is None:
            verdict += "; the transfer to the device is not counted (n/a)"
        if at_storage is not None and at_storage < min(fed, goal.needed[1]):
            slow, then = format_rate(at_storage), format_range(*predict_band(at_storage, goal.needed))
            notes += (f"the first epoch waits for storage: {slow} images a second, predicted idle {then} %",)
    described = [Stage(STORAGE, at_storage, storage.detail, storage.why_not)]
    for name, stage in stages.items():
        said = [stage.detail] if stage.detail else []
        if name in shares:
            spent = " is spent handing batches over" if name == ASSEMBLY else ""
            said.append(f"{100 * shares[name]:.0f} % of an image's time{spent}")
        why_not = "" if stage.images_per_second is not None else stage.why_not or "it was not measured"
        described.append(replace(stage, detail="; ".join(said), why_not=why_not))
    return Diagnosis(
        url=url,
        split=measured.split,
        machine=machine,
        stages=tuple(described),
        fed=fed,
        tpu=goal.tpu,
        model=goal.model,
        needed=goal.needed,
        idle_percent=idle,
        binding=binding,
        verdict=verdict,
        actions=_advise(measured, goal, fed, transfer, evidence),
        notes=(*notes, *(one.says for one in evidence)),
        fed_span=span,
    )


def _advise(
    measured: Measurements, goal: Goal, fed: float | None, transfer: float | None, evidence: Sequence[Evidence]
) -> tuple[Action, ...]:
    """Return the advice that applies, the largest gain first."""
    gains = list[Action]()
    for one in measured.alternatives:
        limit = measured.storage.limit(one.record_bytes, one.total_bytes)
        sending = None if transfer is None else transfer / one.sent
        rate = compose(one.images_per_second, limit, sending) or 0.0
        if fed and rate < fed * LEAST_FACTOR:
            continue
        cost = one.cost
        if rate < one.images_per_second / LEAST_FACTOR:
            holder = "the transfer" if rate == sending else "storage"
            rate_in_memory = format_rate(one.images_per_second, one.span)
            cost += f"; {holder} limits it to that rate, from memory it is {rate_in_memory}"
        gain = rate / fed if fed else None
        span = _limit_span(one.span, limit, sending)
        idle = idle_span(rate, span, goal.needed)
        gains.append(Action(do=one.do, factor=gain, images_per_second=rate, idle_percent=idle, cost=cost, span=span))
    gains.sort(key=lambda action: (-(action.images_per_second or 0.0), action.do))
    tracing = (
        "your step waits for tracing, not for data: keep shapes fixed (remainder='drop' or 'pad'), compile or trace it "
        "once, and read no value from the device in it (.item(), print)"
    )
    actions = [Action(do=tracing, cost=one.says) for one in evidence if one.blames == "tracing"]
    if fed is None or fed < goal.needed[1]:
        actions += gains
    elif not actions and any(one.blames == "data" for one in evidence):
        do = (
            "look at the run rather than at the data: it waited, although this host can feed it. Time its loop with "
            "StepClock and give --clock, which tells waiting for a batch from tracing. Check what else uses its cores"
        )
        actions.append(Action(do=do))
    if goal.batch_size is not None and (each := goal.batch_size / goal.devices) < _GOOD_BATCH / 2:
        do = (
            f"a batch of {each:.4g} per core leaves the MXU idle: use {_GOOD_BATCH} "
            f"({_GOOD_BATCH * goal.devices:,} on this host)"
        )
        actions.append(Action(do=do, cost="adapt the learning rate; it takes more memory of the device"))
    return tuple(actions)


def compose(*rates: float | None) -> float | None:
    """Return the rate of stages that overlap: the lowest known rate, or None."""
    return min((rate for rate in rates if rate is not None), default=None)


def _limit_span(span: Span | None, *limits: float | None) -> Span | None:
    """Return the span of a loader's rate below these limits."""
    if span is None:
        return None
    low, high = (compose(end, *limits) or 0.0 for end in span)
    return (low, high) if low < high else None


def idle_span(fed: float, span: Span | None, needed: Span) -> Span:
    """Return the least and the most percentage that a device waits: over its own rates, and over those of the host."""
    rates = (fed, *(span or ()))
    return predict_band(max(rates), needed)[0], predict_band(min(rates), needed)[1]


def predict_band(fed: float, needed: tuple[float, float]) -> tuple[float, float]:
    """Return the percentages of time that a device waits if it gets `fed` images per second but takes (low, high)."""
    low, high = (100 * max(0.0, 1 - fed / rate) if rate > 0 else 0.0 for rate in needed)
    return low, high


def find_goal(
    tpu: str | None,
    model: str | None,
    flops_per_sample: float | None,
    batch_size: int | None,
    environ: Mapping[str, str],
) -> tuple[Goal, tuple[str, ...]]:
    """Return the goal, and notes on what was assumed. Raises OptionError, which names the nearest TPU or model."""
    notes: tuple[str, ...] = ()
    found = detect_tpu(environ) if tpu is None else find_tpu(tpu)
    if found is None:
        found, notes = find_tpu(_ASSUMED_TPU), (f"no TPU was given (--tpu) or found, so {_ASSUMED_TPU} is assumed",)
    elif tpu is None:
        notes = (f"{found.name} is the TPU of this host",)
    name = find_model(model or _DEFAULT_MODEL)
    if flops_per_sample is not None:
        name = f"{flops_per_sample / 1e9:,.4g} GFLOPs per sample"
    elif name != _DEFAULT_MODEL:
        flops_per_sample = training_flops(name)
    return Goal(found.name, name, needed_rates(found, flops_per_sample), found.devices, batch_size), notes


@checked()
def needed_rates(tpu: Tpu, flops_per_sample: Flops | None) -> tuple[float, float]:
    """Return the images per second that a TPU takes, (low, high). None means ResNet-50: its rates are in the table.

    For other models: chips x peak x 20.5 % and 37.5 % / FLOPs, the shares of the peak at which ResNet-50 was trained.
    """
    if flops_per_sample is None:
        return tpu.low, tpu.high
    peak = tpu.chips * tpu.peak_tflops * 1e12
    return peak * LOW_SHARE / flops_per_sample, peak * HIGH_SHARE / flops_per_sample


def detect_tpu(environ: Mapping[str, str]) -> Tpu | None:
    """Return the TPU of this host from a TPU VM's environment, or this host's part of a larger slice, or None."""
    for name in ("TPU_ACCELERATOR_TYPE", "ACCELERATOR_TYPE"):
        found = _ACCELERATOR_TYPE.fullmatch(environ.get(name, "").strip().lower().replace("litepod", "e"))
        if found is None:
            continue
        generation = found[1].replace("tpu7x", "v7x")
        known = next((tpu for tpu in TPUS.values() if tpu.name.partition("-")[0] == generation), None)
        if known is None:
            continue
        count = int(found[2])
        chips = min(known.chips, max(1, count if generation in _COUNTED_IN_CHIPS else count // 2))
        if chips == known.chips:
            return known
        part = chips / known.chips
        devices = max(1, round(known.devices * part))
        low, high = known.low * part, known.high * part
        return replace(known, name=f"{generation}-{count}", chips=chips, devices=devices, low=low, high=high)
    return None
