"""What a host gives and what a TPU needs, in images a second, as pure functions.

Stages that work at the same time (storage, the transfer to the device, and all that cores do together) are as fast as
the slowest of them. What cores do shares the cores: there the times of an image add up.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tpufeed.errors import OptionError
from tpufeed.profiling.flops import TPUS, Tpu

ACCELERATOR = "accelerator"
STORAGE, READING, DECODING, OPS, ASSEMBLY, TRANSFER = "storage", "reading", "decoding", "ops", "assembly", "transfer"

# The shares of their peak at which the two published runs of `profiling.flops` trained ResNet-50.
LOW_SHARE, HIGH_SHARE = 0.205, 0.375
ASSUMED_TPU, DEFAULT_MODEL = "v3-8", "resnet50"

_ACCELERATOR_TYPE = re.compile(r"(v\d+[a-z]*|tpu7x)-(\d+)")
_COUNTED_IN_CHIPS = ("v5e", "v6e")  # the others count TensorCores, two a chip
_AS_SLOW = 1.1  # storage that is hardly faster than the loader that reads from it is what holds it up


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one stage gives by itself.

    Attributes:
        name: of the stage.
        images_per_second: with all threads of this host; None where it was not measured.
        one_thread: with one.
        detail: what was measured.
        why_not: of None.
    """

    name: str
    images_per_second: float | None = None
    one_thread: float | None = None
    detail: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where records come from.

    Attributes:
        kind: "memory" for the page cache and copies that are staged, which cost nothing but what reading takes.
        bytes_per_second: None where it was not measured.
        every_epoch: whether each epoch reads from there anew; else the first one only.
        room: bytes of what is read from there that a later epoch finds in memory, or staged.
        in_turn: whether the threads that decode wait for it, as they do where nothing is staged: times add up then.
        detail: what was measured.
        why_not: of None.
    """

    kind: Literal["memory", "disk", "remote"]
    bytes_per_second: float | None = None
    every_epoch: bool = False
    room: int = 0
    in_turn: bool = False
    detail: str = ""
    why_not: str = ""

    def limit(self, record_bytes: float) -> float | None:
        """Images a second that it has, of so many bytes each; None where it is no limit, or none that is known."""
        if self.kind == "memory" or self.bytes_per_second is None or record_bytes <= 0:
            return None
        return self.bytes_per_second / record_bytes

    def through(self, images_per_second: float, record_bytes: float) -> float:
        """What a loader that gives so much from memory gives from here."""
        limit = self.limit(record_bytes)
        if not limit or not images_per_second:
            return images_per_second
        return 1 / (1 / limit + 1 / images_per_second) if self.in_turn else min(limit, images_per_second)


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be fed: a TPU that trains `model` and takes `needed` images a second, (low, high)."""

    tpu: str
    model: str
    needed: tuple[float, float]
    devices: int


def needed_rates(tpu: Tpu, flops_per_sample: float | None) -> tuple[float, float]:
    """Images a second that a TPU takes, (low, high): from the table for ResNet-50, which None stands for.

    Of anything else: chips x peak x 20.5 % and 37.5 % / FLOPs, the shares of the peak that ResNet-50 was trained at.
    """
    if flops_per_sample is None:
        return tpu.low, tpu.high
    if not (math.isfinite(flops_per_sample) and flops_per_sample > 0):
        raise OptionError(f"FLOPs a sample are a number above 0, like 24.6e9, not {flops_per_sample}")
    peak = tpu.chips * tpu.peak_tflops * 1e12
    return peak * LOW_SHARE / flops_per_sample, peak * HIGH_SHARE / flops_per_sample


def detect_tpu(environment: Mapping[str, str]) -> Tpu | None:
    """The TPU of this host, as a TPU VM's environment says; of a larger slice the part that this host has."""
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


def predict_idle(fed: float, needed: float) -> float:
    """Percent of its time that a device waits which could take `needed` images a second and gets `fed`."""
    return 100 * max(0.0, 1 - fed / needed) if needed > 0 else 0.0


def predict_band(fed: float, needed: tuple[float, float]) -> tuple[float, float]:
    """`predict_idle` at the low rate and at the high one."""
    return predict_idle(fed, needed[0]), predict_idle(fed, needed[1])


def compose(*rates: float | None) -> float | None:
    """What stages that overlap give together: the least of those that are known; None of none."""
    return min((rate for rate in rates if rate is not None), default=None)


def core_shares(figures: Sequence[Figure], whole: float | None) -> dict[str, float]:
    """What part of an image's time on the cores each stage takes; "assembly" is what the loader takes besides them.

    Args:
        figures: of the stages that cores do, each alone with all threads.
        whole: images a second of the loader, which does all of them.
    """
    seconds = {f.name: 1 / f.images_per_second for f in figures if f.images_per_second}
    if whole:
        seconds[ASSEMBLY] = max(0.0, 1 / whole - sum(seconds.values()))
    total = sum(seconds.values())
    return {name: part / total for name, part in seconds.items()} if total else {}


def find_binding(
    needed: float, overlapping: Mapping[str, float | None], cores: float | None, shares: Mapping[str, float]
) -> str:
    """The stage that binds, or "accelerator" where everything is fast enough for `needed`.

    Args:
        needed: images a second.
        overlapping: storage and transfer: images a second each.
        cores: of all that cores do.
        shares: `core_shares`.
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
