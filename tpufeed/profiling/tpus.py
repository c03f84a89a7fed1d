"""The TPUs that there are: chips and cores of one host, what they can compute and what they can be fed."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from tpufeed.errors import OptionError


@dataclass(frozen=True, slots=True)
class Tpu:
    """The TPU of one host.

    Attributes:
        name: as Google writes it, without "tpu-": v5e-8.
        chips: of one host.
        devices: what a framework sees of them: the TensorCores of v2, v3 and v7x are devices each, others are one.
        peak_tflops: bf16 TFLOP/s of a chip, as Google publishes them.
        low: images a second of ResNet-50 training, for all chips.
        high: likewise, of a well tuned one.
        vcpus: of the host's largest VM.
        ram_gb: likewise.
        nic_gbps: of the host.
    """

    name: str
    chips: int
    devices: int
    peak_tflops: float
    low: float
    high: float
    vcpus: int
    ram_gb: int
    nic_gbps: int


# `low` and `high` scale two published runs on v3 by peak FLOP/s: 1.05 M img/s on 1024 chips (Ying et al. 2018), 480 k
# img/s on 256 chips (MLPerf's reference code). They are 20.5 % and 37.5 % of the peak; larger MXUs are filled less
# well, so that `high` is an upper bound for v6e and v7x.
TPUS = {
    tpu.name: tpu
    for tpu in (
        Tpu("v2-8", 4, 8, 45, 1_500, 2_744, 96, 335, 100),
        Tpu("v3-8", 4, 8, 123, 4_100, 7_500, 96, 340, 100),
        Tpu("v4-8", 4, 4, 275, 9_167, 16_768, 240, 407, 100),
        Tpu("v5e-8", 8, 8, 197, 13_133, 24_024, 224, 384, 200),
        Tpu("v5p-8", 4, 4, 459, 15_300, 27_988, 208, 448, 200),
        Tpu("v6e-8", 8, 8, 918, 61_200, 111_951, 180, 1440, 800),
        Tpu("v7x-4", 4, 8, 2307, 76_900, 140_671, 224, 960, 800),
    )
}


def find_tpu(name: str) -> Tpu:
    """The TPU of that name, with or without "tpu-". Raises OptionError, which names the nearest."""
    return TPUS[nearest(name.removeprefix("tpu-"), TPUS, "TPU")]


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """`name`, which is one of `known`. Raises OptionError that names the nearest of them."""
    names = list(known)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
    raise OptionError(f"there is no {what} {name!r}; did you mean {near}? All: {', '.join(names)}")
