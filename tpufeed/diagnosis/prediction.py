"""Predict from measured rates what binds and how long a TPU waits. Pure functions.

Stages that work at the same time (storage, the transfer to the device, and all that cores do together) are as fast as
the slowest of them. What cores do shares the cores: there the times of an image add up.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tpufeed.diagnosis.results import Diagnosis, Stage
from tpufeed.diagnosis.wording import between, whole_percents
from tpufeed.errors import OptionError
from tpufeed.profiling.tpu import TPUS, Tpu

ACCELERATOR = "accelerator"
STORAGE, READING, DECODING, OPS, ASSEMBLY, TRANSFER = "storage", "reading", "decoding", "ops", "assembly", "transfer"

# The shares of their peak at which the two published runs of `profiling.tpu` trained ResNet-50.
LOW_SHARE, HIGH_SHARE = 0.205, 0.375

_ACCELERATOR_TYPE = re.compile(r"(v\d+[a-z]*|tpu7x)-(\d+)")
_COUNTED_IN_CHIPS = ("v5e", "v6e")  # the others count TensorCores, two a chip
_AS_SLOW = 1.1  # storage that is hardly faster than the loader that reads from it is what holds it up


@dataclass(frozen=True, slots=True)
class Goal:
    """Device and model that are to be fed.

    Attributes:
        tpu: its name.
        model: that it trains.
        needed: images a second that it takes, (low, high).
        devices: cores that take batches of their own.
        batch_size: of this host, where the user has one.
    """

    tpu: str
    model: str
    needed: tuple[float, float]
    devices: int
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Storage of the records.

    Attributes:
        kind: "memory" for the page cache and staged copies, which cost nothing but what reading takes.
        bytes_per_second: None where it was not measured.
        every_epoch: each epoch reads from there again; else only the first one does.
        room: bytes that later epochs can find in memory, or staged.
        in_turn: the threads that decode wait for it, as they do where nothing is staged: times add up then.
        detail: how it was measured.
        why_not: the reason why `bytes_per_second` is None.
    """

    kind: Literal["memory", "disk", "remote"]
    bytes_per_second: float | None = None
    every_epoch: bool = False
    room: int = 0
    in_turn: bool = False
    detail: str = ""
    why_not: str = ""

    def limit(self, record_bytes: float) -> float | None:
        """Return images a second, of so many bytes each; None where storage is no limit, or none that is known."""
        if self.kind == "memory" or self.bytes_per_second is None or record_bytes <= 0:
            return None
        return self.bytes_per_second / record_bytes

    def through(self, images_per_second: float, record_bytes: float) -> float:
        """Return the rate from here of a loader that gives `images_per_second` from memory."""
        limit = self.limit(record_bytes)
        if not limit or not images_per_second:
            return images_per_second
        return 1 / (1 / limit + 1 / images_per_second) if self.in_turn else min(limit, images_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to store or load the same samples, measured with the real loader, from memory.

    Attributes:
        kind: what is changed.
        do: a sentence in the imperative, with the command or the option.
        images_per_second: of the loader.
        record_bytes: mean size of a record on its storage.
        total_bytes: size of all records, where it is not that of now.
        cost: what it takes.
    """

    kind: Literal["workers", "presize", "raw", "shard"]
    do: str
    images_per_second: float
    record_bytes: float
    total_bytes: float | None = None
    cost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Measurements of a split, or of raw images.

    Attributes:
        split: its name.
        record_bytes: mean size of a record.
        storage: where records come from.
        stages: reading, decoding, ops, assembly and transfer, by name. "assembly" is the loader from end to end; it
            reads from memory where storage is remote and shards are staged.
        alternatives: measured on the same samples.
        hints: other things to do, whose effect is not known.
        notes: what was noticed, as sentences.
    """

    split: str
    record_bytes: float
    storage: Storage
    stages: Mapping[str, Stage]
    alternatives: tuple[Alternative, ...] = ()
    hints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def stage(self, name: str) -> Stage:
        """Return a stage, which may be one that was not measured."""
        return self.stages.get(name, Stage(name=name))

    @property
    def loader(self) -> float | None:
        """Images a second of the loader from end to end."""
        return self.stage(ASSEMBLY).images_per_second

    @property
    def transfer(self) -> float | None:
        """Images a second from this host to its devices."""
        return self.stage(TRANSFER).images_per_second

    @property
    def limit(self) -> float | None:
        """Images a second of storage that works beside the loader; None where that is no limit."""
        # Where threads read in turn, the loader has read from there when it was measured.
        return None if self.storage.in_turn else self.storage.limit(self.record_bytes)

    @property
    def fed(self) -> float | None:
        """Images a second that arrive at the device in the first epoch; None where the loader was not measured."""
        return None if self.loader is None else compose(self.loader, self.limit, self.transfer)

    @property
    def fed_later(self) -> float | None:
        """Images a second of the epochs after it, which may read from memory."""
        return self.fed if self.loader is None or self.storage.every_epoch else compose(self.loader, self.transfer)

    @property
    def shares(self) -> dict[str, float]:
        """The share of an image's time that each thing takes that cores do, see `core_shares`."""
        on_cores = [self.stage(name) for name in (READING, DECODING, OPS)]
        if self.storage.in_turn:  # threads wait for it: its time is a part of an image's
            on_cores.append(Stage(name=STORAGE, images_per_second=self.storage.limit(self.record_bytes)))
        return core_shares(on_cores, self.loader)


def predict(measured: Measurements, goal: Goal, url: str, machine: dict[str, Any]) -> Diagnosis:
    """Return what binds, and for how much of its time the device waits; what to do about it is left to `advice`."""
    fed, later, shares = measured.fed, measured.fed_later, measured.shares
    percents, notes = whole_percents(shares), measured.notes
    if fed is None or later is None:
        idle, binding = None, ASSEMBLY
        verdict = f"no prediction: {measured.stage(ASSEMBLY).why_not or 'the loader could not be measured'}"
    else:
        idle = predict_band(fed, goal.needed)
        overlapping = {STORAGE: measured.limit, TRANSFER: measured.transfer}
        binding = find_binding(goal.needed[1], overlapping, measured.loader, shares)
        (low, high), who = idle, f"predicted: {goal.tpu} with {goal.model}"
        if binding == ACCELERATOR:
            verdict = f"{who} does not wait for data on this host; nothing binds but the accelerator"
        else:
            waits = between(low, high) if low else f"up to {high:.0f}"
            verdict = f"{who} waits {waits} % of its time for data; what binds is {binding}"
            if binding in percents:
                verdict += f", which takes {percents[binding]} % of an image's time"
        if measured.transfer is None:
            verdict += "; the way to the device is not counted (transfer n/a)"
        if not measured.storage.every_epoch and measured.limit is not None and measured.limit < (measured.loader or 0):
            then = between(*predict_band(later, goal.needed))
            notes += (
                f"that is the first epoch; the others read from memory: {later:,.0f} images a second, predicted idle "
                f"{then} %",
            )
    return Diagnosis(
        url=url,
        split=measured.split,
        machine=machine,
        stages=_describe_stages(measured, percents),
        fed=fed,
        tpu=goal.tpu,
        model=goal.model,
        needed=goal.needed,
        idle_percent=idle,
        binding=binding,
        verdict=verdict,
        notes=notes,
    )


def _describe_stages(measured: Measurements, percents: Mapping[str, int]) -> tuple[Stage, ...]:
    """Return all stages in the order in which an image passes them, with all that is known in their details."""
    storage, size = measured.storage, measured.record_bytes
    rate = None if storage.bytes_per_second is None or not size else storage.bytes_per_second / size
    first = Stage(name=STORAGE, images_per_second=rate, detail=storage.detail, why_not=storage.why_not)
    described = []
    for stage in (first, *map(measured.stage, (READING, DECODING, OPS, ASSEMBLY, TRANSFER))):
        said = [stage.detail] if stage.detail else []
        if stage.one_thread is not None:
            said.append(f"{stage.one_thread:,.0f} on one thread")
        if stage.name in percents:
            what = "of an image's time goes to handing over" if stage.name == ASSEMBLY else "of an image's time"
            said.append(f"{percents[stage.name]} % {what}")
        why_not = "" if stage.images_per_second is not None else stage.why_not or "it was not measured"
        described.append(replace(stage, detail="; ".join(said), why_not=why_not))
    return tuple(described)


def attribute(rates: Mapping[str, tuple[float, float]], encoded: bool, has_ops: bool) -> dict[str, Stage]:
    """Return the rates of reading, decoding and ops, of which only some can be measured alone.

    Args:
        rates: images a second of (one thread, all threads): of "reading", of "all" three together, and of "decoding"
            where images are encoded.
        encoded: images have to be decoded.
        has_ops: there are ops.
    """

    def left_over(*parts: str) -> tuple[float, float] | None:
        """Return the rates of what "all" does besides these parts; None where no time is left for it."""
        seconds = [1 / rates["all"][n] - sum(1 / rates[part][n] for part in parts) for n in (0, 1)]
        return (1 / seconds[0], 1 / seconds[1]) if min(seconds) > 0 else None

    def stage(name: str, of: tuple[float, float], detail: str) -> Stage:
        return Stage(name=name, one_thread=of[0], images_per_second=of[1], detail=detail)

    rest = left_over("reading", "decoding") if encoded else left_over("reading")
    copied = ", pixels copied" if not encoded and not has_ops else ""
    reading = stage(READING, rates["reading"], f"CRCs verified{copied}")
    if not encoded:
        decoding = Stage(name=DECODING, why_not="raw pixels need none")
        lost = "too little to be told from reading"
    elif has_ops and rest is None:
        # A crop lets a JPEG be decoded at a smaller size, so that both together are faster than decoding in full.
        what = "with the ops, which let it be done at a smaller size"
        decoding = stage(DECODING, left_over("reading") or rates["all"], what)
        lost = "cannot be told from decoding, which they make cheaper"
    else:
        decoding, lost = stage(DECODING, rates["decoding"], "at full size"), ""
    if has_ops and rest is not None:
        ops = stage(OPS, rest, "")
    else:
        ops = Stage(name=OPS, why_not=lost if has_ops else "there are none")
    return {READING: reading, DECODING: decoding, OPS: ops}


def core_shares(stages: Sequence[Stage], whole: float | None) -> dict[str, float]:
    """Return the share of an image's time on the cores that each stage takes; "assembly" is the loader's own share.

    Args:
        stages: those that cores do, each alone with all threads.
        whole: images a second of the loader, which does all of them.
    """
    seconds = {stage.name: 1 / stage.images_per_second for stage in stages if stage.images_per_second}
    if whole:
        seconds[ASSEMBLY] = max(0.0, 1 / whole - sum(seconds.values()))
    total = sum(seconds.values())
    return {name: part / total for name, part in seconds.items()} if total else {}


def find_binding(
    needed: float, overlapping: Mapping[str, float | None], cores: float | None, shares: Mapping[str, float]
) -> str:
    """Return the stage that binds, or "accelerator" where everything is fast enough for `needed`.

    Args:
        needed: images a second.
        overlapping: storage and transfer: images a second each.
        cores: images a second of all that cores do.
        shares: see `core_shares`.
    """
    known = {name: rate for name, rate in overlapping.items() if rate is not None}
    fed = compose(cores, *known.values())
    if fed is None or fed >= needed:
        return ACCELERATOR
    if known:
        slowest = min(known, key=known.__getitem__)
        if cores is None or known[slowest] <= cores * _AS_SLOW:
            return slowest
    return max(shares, key=shares.__getitem__, default=ASSEMBLY)


def compose(*rates: float | None) -> float | None:
    """Return the rate of stages that overlap: the least of those that are known; None of none."""
    return min((rate for rate in rates if rate is not None), default=None)


def predict_band(fed: float, needed: tuple[float, float]) -> tuple[float, float]:
    """Return the percent of its time that a device waits which gets `fed` images a second, at (low, high) need."""
    low, high = (100 * max(0.0, 1 - fed / rate) if rate > 0 else 0.0 for rate in needed)
    return low, high


def needed_rates(tpu: Tpu, flops_per_sample: float | None) -> tuple[float, float]:
    """Return images a second that a TPU takes, (low, high): from the table for ResNet-50, which None stands for.

    For other models: chips x peak x 20.5 % and 37.5 % / FLOPs, the shares of the peak at which ResNet-50 was trained.
    """
    if flops_per_sample is None:
        return tpu.low, tpu.high
    if not (math.isfinite(flops_per_sample) and flops_per_sample > 0):
        raise OptionError(f"FLOPs a sample are a number above 0, like 24.6e9, not {flops_per_sample}")
    peak = tpu.chips * tpu.peak_tflops * 1e12
    return peak * LOW_SHARE / flops_per_sample, peak * HIGH_SHARE / flops_per_sample


def detect_tpu(environment: Mapping[str, str]) -> Tpu | None:
    """Return the TPU of this host, as a TPU VM's environment says; of a larger slice this host's part."""
    for name in ("TPU_ACCELERATOR_TYPE", "ACCELERATOR_TYPE"):
        found = _ACCELERATOR_TYPE.fullmatch(environment.get(name, "").strip().lower().replace("litepod", "e"))
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
