"""What the measured rates of two cores come to on the hosts of TPUs: arithmetic, no measurement. Prints Markdown.

    python benchmarks/run.py scaling [--write]

`--write` puts it into `scaling.md`, between the two marks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.entry import FOLDER, RESULTS, make_parser
from benchmarks.harness import nest, read_result
from tpufeed.measure.tpu import TPUS, Tpu

PAGE = FOLDER / "scaling.md"
MARKS = "<!-- from here on: benchmarks/run.py scaling --write -->", "<!-- up to here -->"
# (vCPUs of the host's largest VM, Gbit/s of its network card)
HOSTS = {
    "v2-8": (96, 100),
    "v3-8": (96, 100),
    "v4-8": (240, 100),
    "v5e-8": (224, 200),
    "v5p-8": (208, 200),
    "v6e-8": (180, 800),
    "v7x-4": (224, 800),
}
SHOWN = ("v3-8", "v5e-8", "v6e-8")

# A vCPU of a TPU VM is one of two hyperthreads of a core; what it does of one of ours is not known, so both ends stand.
VCPU_OF_A_CORE = 0.6, 1.0
PIXELS_BYTES = 224 * 224 * 3
# How often an image's bytes go over the memory bus. Raw: read, written (which reads the line first), read and written
# again on the way to the device. Decoded ones are made in the caches, and written from there.
BUS_PASSES = {"JPEG 500x375": 4, "presized to 256": 4, "raw 224 cache": 5}
JPEG_BYTES = {"JPEG 500x375": 89_000, "presized to 256": 26_000, "raw 224 cache": PIXELS_BYTES}
KINDS = {"JPEG 500x375": "jpeg", "presized to 256": "presized", "raw 224 cache": "raw"}


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: images a second a core, of `Loader`; and what each image takes of the training process.

    Attributes:
        cores: of this machine.
        a_core: by kind of images.
        handing_seconds: processor time an image takes of the training process where worker processes decode.
        host_cores: of the largest host that was at hand.
        on_host: images a second there, by kind.
    """

    cores: int
    a_core: dict[str, float]
    handing_seconds: float
    host_cores: int = 0
    on_host: dict[str, float] = field(default_factory=dict)


def main(arguments: list[str]) -> None:
    parser = make_parser("scaling", __doc__, save=False)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    text = "\n".join(iter_lines(read_results(RESULTS)))
    if options.write:
        write(PAGE, text)
    else:
        print(text)


def read_results(folder: Path) -> Measured:
    """The figures of `feed.json`, `gil.json` and `feed-16.json`."""
    feed, gil, host = (read_result(name, folder) for name in ("feed", "gil", "feed-16"))
    on_host = nest(host["rows"], "work", loader="tpufeed.Loader")
    cores = feed["machine"]["cores"]
    rates = nest(feed["rows"], "work", loader="tpufeed.Loader")
    loaders = {kind: rates[key]["median"] for kind, key in KINDS.items()}
    taken = nest(gil["rows"], "way", work="raw", value="cpu_seconds_an_image")
    return Measured(
        cores,
        {kind: rate / cores for kind, rate in loaders.items()},
        taken["all cores, default"],
        host["machine"]["cores"],
        {kind: on_host[key]["median"] for kind, key in KINDS.items()},
    )


def iter_lines(measured: Measured) -> Iterator[str]:
    """The page's figures."""
    yield f"Measured on {measured.cores} cores:"
    yield ""
    yield "| | img/s a core | bytes stored an image |"
    yield "|---|---:|---:|"
    for kind, rate in measured.a_core.items():
        yield f"| {kind} | {rate:,.0f} | {JPEG_BYTES[kind]:,} |"
    yield ""
    yield (
        "Handing batches of 128 raw images over from worker processes takes the training process "
        f"{measured.handing_seconds * 1e6:.1f} us of a core an image: {_rounded(1 / measured.handing_seconds)} img/s."
    )
    if measured.on_host:
        yield ""
        yield f"Measured on {measured.host_cores} cores ([result](results/feed-16.json)):"
        yield ""
        yield f"| | img/s | img/s a core | to a core of {measured.cores} |"
        yield "|---|---:|---:|---:|"
        for kind, rate in measured.on_host.items():
            a_core = rate / measured.host_cores
            yield f"| {kind} | {rate:,.0f} | {a_core:,.0f} | {a_core / measured.a_core[kind]:.2f} |"
    for name in SHOWN:
        yield ""
        yield from _iter_host_lines(TPUS[name], measured)


def _iter_host_lines(tpu: Tpu, measured: Measured) -> Iterator[str]:
    vcpus, nic_gbps = HOSTS[tpu.name]
    needed = f"ResNet-50 takes {tpu.low:,.0f} to {tpu.high:,.0f} img/s"
    yield f"**{tpu.name}**: {vcpus} vCPUs, {nic_gbps} Gbit/s; {needed}."
    yield ""
    columns = ("CPUs", "handing over", "network, first epoch", "memory bus at the high rate", "fed", "idle, high rate")
    yield f"| from | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for kind, rate in measured.a_core.items():
        cpus = [_rounded(rate * vcpus * share) for share in VCPU_OF_A_CORE]
        network = nic_gbps / 8 * 1e9 / JPEG_BYTES[kind]
        fed = [min(rate * vcpus * share, 1 / measured.handing_seconds) for share in VCPU_OF_A_CORE]
        idle = [idle_percent(images, tpu.high) for images in fed]
        bus = tpu.high * PIXELS_BYTES * BUS_PASSES[kind] / 1e9
        cells = [
            " to ".join(cpus),
            _rounded(1 / measured.handing_seconds),
            _rounded(network),
            f"{bus:.0f} GB/s",
            _range([_rounded(images) for images in fed]),
            _range([f"{percent:.0f} %" for percent in reversed(idle)]),
        ]
        yield f"| {kind} | {' | '.join(cells)} |"


def idle_percent(fed: float, needed: float) -> float:
    """Of a device that takes `needed` images a second and gets `fed`."""
    return 100 * max(0.0, 1 - fed / needed)


def write(page: Path, text: str) -> None:
    """Put the figures between the page's marks."""
    before, _, rest = page.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


def _range(ends: list[str]) -> str:
    return ends[0] if len(set(ends)) == 1 else " to ".join(ends)


def _rounded(value: float) -> str:
    """Two figures: the arithmetic carries no more."""
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):,.0f}"
