"""What measured rates and published prices come to for large datasets and pods: arithmetic alone, as Markdown.

`scale_page.py` puts it into `benchmarks/scale.md`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.curves import slope_of
from benchmarks.harness import nest, read_result
from benchmarks.scaling import HOSTS as HOSTS_OF_TPUS
from tpufeed.builds.prices import DOLLARS_A, DOLLARS_A_GB, DOLLARS_B
from tpufeed.dataset.order import EpochOrder, World, default_lanes
from tpufeed.measure.tpu import TPUS

# Google's published figures as they stood in November 2026: check before use.
# https://cloud.google.com/storage/docs/request-rate
READS_PER_SECOND, WRITES_PER_SECOND, DOUBLING_SECONDS = 5_000, 1_000, 20 * 60

# Assumed, not measured: hosts, and what lies between them and the bucket.
VCPUS, NIC_BYTES = 16, 2e9
VCPU_OF_A_CORE = 0.6, 1.0  # one of two hyperthreads of a core
PAGE_OBJECTS, PAGE_SECONDS = 1_000, 0.2  # a listing gives so many at a time, one page after the other
CONNECTION_BYTES = 50e6

SHARD_BYTES, RANGE_BYTES, CHUNK_BYTES, BLOCK_BYTES = 128e6, 8 << 20, 32 << 20, 4 << 20
RECORD_BYTES = 500  # of a record, besides the image
TAR_US = 68  # of the launcher for a sample of three members, measured by hand
HOSTS = 1, 4, 16, 40
PODS = 64, 128, 256, 512
BATCH, FIRST_AHEAD = 128, 4
NAME_RANGES = 64


@dataclass(frozen=True, slots=True)
class Dataset:
    """`rate` names the measured rate of the full check; `tars` is how many hold the images, 0 where each is a file."""

    name: str
    images: int
    image_bytes: int
    rate: str
    tars: int = 0

    @property
    def bytes(self) -> float:
        """Of all shards."""
        return float(self.images * (self.image_bytes + RECORD_BYTES))

    @property
    def shards(self) -> int:
        """As `tpufeed shard` would make them."""
        return math.ceil(self.bytes / SHARD_BYTES)


DATASETS = (
    Dataset("ImageNet-21k", 14_200_000, 110_000, "photo"),
    Dataset("LAION-400M at 256 px", 400_000_000, 25_000, "small", tars=40_000),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Images a second a core of the full check, by kind of images, and seconds an image of planning."""

    a_core: dict[str, float]
    plan_seconds: float


def read_results(folder: Path) -> Measured:
    """The figures of `shard.json`, `feed.json` and `scale-plan.json`."""
    shard, feed, plan = (read_result(name, folder) for name in ("shard", "feed", "scale-plan"))
    ways = nest(shard["rows"], "way", value="median")
    built = ways["tpufeed shard (full check, restart markers)"]
    photo, of_decoding = built / shard["machine"]["cores"], built / ways["decoding alone, a process a core"]
    decoding = nest(feed["rows"], "work", value="median", loader="decoding alone")["presized"]
    small = decoding / feed["machine"]["cores"] * of_decoding
    sizes = nest(plan["rows"], "images")
    return Measured({"photo": photo, "small": small}, slope_of(sizes, "cpu_seconds", *sorted(sizes)[-2:]))


def iter_lines(measured: Measured) -> Iterator[str]:
    """The page's figures."""
    for dataset in DATASETS:
        yield from iter_dataset_lines(dataset, measured)
        yield ""
    yield from iter_pod_lines()
    yield ""
    yield from iter_name_lines()


def iter_dataset_lines(dataset: Dataset, measured: Measured) -> Iterator[str]:
    """What a dataset costs to build, and an epoch of it to read."""
    yield f"### {dataset.name}"
    yield ""
    yield (
        f"{dataset.images:,} images x ({dataset.image_bytes:,} + {RECORD_BYTES}) bytes = {dataset.bytes / 1e12:.2f} TB"
        f": {dataset.shards:,} shards of {SHARD_BYTES / 1e6:.0f} MB, an index of {8 * dataset.images / 1e6:,.0f} MB."
    )
    yield ""
    listing, planning = listing_seconds(dataset), dataset.images * measured.plan_seconds
    how = (
        f"{dataset.images:,} samples x {TAR_US} us, while {dataset.images * dataset.image_bytes / 1e12:.0f} TB of tars "
        f"come over one connection of {CONNECTION_BYTES / 1e6:.0f} MB/s, the slower of the two"
        if dataset.tars
        else f"{dataset.images:,} / {PAGE_OBJECTS:,} pages x {PAGE_SECONDS} s"
    )
    yield f"- Listing, on one host: {how}: **{hours(listing)}**."
    yield (
        f"- Planning, on one host: {dataset.images:,} x {measured.plan_seconds * 1e6:.1f} us = **{hours(planning)}**."
    )
    a_core = measured.a_core[dataset.rate]
    low, high = (a_core * VCPUS * share for share in VCPU_OF_A_CORE)
    yield (
        f"- Building with the full check: {a_core:,.0f} img/s a core x {VCPUS} vCPUs x {VCPU_OF_A_CORE[0]} to "
        f"{VCPU_OF_A_CORE[1]} = {low:,.0f} to {high:,.0f} img/s a host; a link of {NIC_BYTES / 1e9:.0f} GB/s brings "
        f"{NIC_BYTES / dataset.image_bytes:,.0f}."
    )
    reads = bucket_seconds(dataset.images)
    yield (
        f"- A request an image: {dataset.images:,} at {READS_PER_SECOND:,} a second, doubling every 20 minutes, take "
        f"**{hours(reads)}** at least, on however many hosts."
    )
    yield ""
    yield from _iter_host_lines(dataset, low, high, reads)
    yield ""
    yield from _iter_price_lines(dataset)


def _iter_host_lines(dataset: Dataset, low: float, high: float, reads: float) -> Iterator[str]:
    """Building on more and more hosts of `low` to `high` images a second, over a bucket that takes `reads` seconds."""
    yield "| hosts | by CPUs | by network | by the bucket | building |"
    yield "|---:|---:|---:|---:|---:|"
    for hosts in HOSTS:
        cpus = [dataset.images / hosts / rate for rate in (high, low)]
        network = dataset.images * dataset.image_bytes / hosts / NIC_BYTES
        ends = [hours(max(end, network, reads)) for end in cpus]
        by_cpus = " to ".join(map(hours, cpus))
        yield f"| {hosts} | {by_cpus} | {hours(network)} | {hours(reads)} | {' to '.join(dict.fromkeys(ends))} |"


def _iter_price_lines(dataset: Dataset) -> Iterator[str]:
    puts = 2 + math.ceil(SHARD_BYTES / CHUNK_BYTES)
    lists = math.ceil(dataset.images / PAGE_OBJECTS) if not dataset.tars else math.ceil(dataset.tars / PAGE_OBJECTS)
    a_build = lists + dataset.shards * puts
    scans = math.ceil(dataset.images * dataset.image_bytes / BLOCK_BYTES) if dataset.tars else 0
    b_build = dataset.images + scans + 4 * dataset.shards
    b_epoch = dataset.shards * (math.ceil(SHARD_BYTES / RANGE_BYTES) + 2)
    yield "| | operations A | operations B | dollars | bytes | same region | other region | internet |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    source_bytes = dataset.images * dataset.image_bytes * (2 if dataset.tars else 1)
    rows = (
        ("build", a_build, b_build, source_bytes),
        ("an epoch of the pod, from shards", 0, b_epoch, dataset.bytes),
        ("the same, an object an image", 0, dataset.images, dataset.images * dataset.image_bytes),
    )
    for name, a, b, size in rows:
        egress = ["$0", *(f"${size / 1e9 * price:,.0f}" for price in DOLLARS_A_GB.values())]
        dollars = a * DOLLARS_A + b * DOLLARS_B
        yield f"| {name} | {a:,} | {b:,} | ${dollars:,.2f} | {size / 1e12:.2f} TB | {' | '.join(egress)} |"
    yield ""
    scanned = f" and {scans:,} blocks of 4 MiB of the tars" if dataset.tars else ""
    yield (
        f"A: {lists:,} pages of the listing, and for each shard {puts - 2} chunks, the start of their upload and a "
        f"report. B: {dataset.images:,} images{scanned}, and for each shard its task, its report (twice) and a look at "
        f"it; from shards {math.ceil(SHARD_BYTES / RANGE_BYTES)} ranges of 8 MiB a shard, a look at it and its offsets."
    )


def listing_seconds(dataset: Dataset) -> float:
    """By pages; tars are read through."""
    if not dataset.tars:
        return math.ceil(dataset.images / PAGE_OBJECTS) * PAGE_SECONDS
    return max(dataset.images * TAR_US / 1e6, dataset.images * dataset.image_bytes / CONNECTION_BYTES)


def bucket_seconds(requests: float) -> float:
    """How long a bucket takes for so many reads, whose rate grows as it may: the integral of 5,000 * 2^(t / 20 min)."""
    return DOUBLING_SECONDS * math.log2(1 + requests * math.log(2) / READS_PER_SECOND / DOUBLING_SECONDS)


def iter_pod_lines() -> Iterator[str]:
    """Requests of pods that start at one second, and while they train."""
    tpu, dataset = TPUS["v5e-8"], DATASETS[0]
    a_host = tpu.low * (dataset.image_bytes + RECORD_BYTES)
    vcpus, _ = HOSTS_OF_TPUS[tpu.name]
    yield "### Pods"
    yield ""
    yield (
        f"{tpu.name} hosts of {vcpus} vCPUs, and as many worker processes by default. Until the first batch is "
        f"there {vcpus} processes and two more read the manifest, and each asks for the offsets of up to four "
        f"shards; the {BATCH} records of each batch are (1 + {FIRST_AHEAD}) x {BATCH} = {(1 + FIRST_AHEAD) * BATCH:,} "
        f"more. Then ranges of 8 MiB: {dataset.name}, "
        f"{tpu.low:,.0f} img/s x {dataset.image_bytes + RECORD_BYTES:,} bytes = {a_host / 1e9:.2f} GB/s a host."
    )
    yield ""
    yield "| hosts | lanes | first batch: requests | it takes | training: GB/s | ranges/s | minutes of doubling |"
    yield f"|{'---:|' * 7}"
    for hosts in PODS:
        requests = hosts * start_requests(hosts, vcpus)
        cells = [f"{requests:,}", hours(bucket_seconds(requests))]
        ranges = hosts * a_host / RANGE_BYTES
        minutes = max(0.0, DOUBLING_SECONDS / 60 * math.log2(ranges / READS_PER_SECOND))
        cells += [f"{hosts * a_host / 1e9:,.0f}", f"{ranges:,.0f}", f"{minutes:.0f}"]
        yield f"| {hosts} | {default_lanes(World(0, hosts)):,} | {' | '.join(cells)} |"


def start_requests(hosts: int, processes: int) -> int:
    """Of a host, at the most: one for each record that adjoins no other, and one for each part of the index."""
    offsets = 2 * default_lanes(World(0, hosts)) // hosts
    return 2 + processes + max(1, processes) * offsets + BATCH * (1 + FIRST_AHEAD)


def iter_name_lines() -> Iterator[str]:
    """Where among all names the shards lie that a pod reads at once."""
    yield "### Names"
    yield ""
    yield (
        f"The names of {DATASETS[0].shards:,} shards in order, cut into {NAME_RANGES} ranges of equal length; what all "
        "hosts together read at one moment, beside an equal share, mean of 20 epochs:"
    )
    yield ""
    yield "| hosts | shards being read | busiest range, to its share | busiest with shuffle=False |"
    yield "|---:|---:|---:|---:|"
    for hosts in PODS:
        lanes = default_lanes(World(0, hosts))
        shuffled = np.mean([_busiest(lanes, epoch, True) for epoch in range(20)])
        yield f"| {hosts} | {lanes:,} | {shuffled:.1f} | {_busiest(lanes, 0, False):.1f} |"


def _busiest(lanes: int, epoch: int, shuffle: bool) -> float:
    shards = DATASETS[0].shards
    order = EpochOrder([1] * shards, 0, epoch, lanes, shuffle)
    reading = order.places_at(np.arange(lanes, dtype=np.int64) + lanes * (shards // lanes // 2)).shard
    return float(np.bincount(reading * NAME_RANGES // shards, minlength=NAME_RANGES).max() / (lanes / NAME_RANGES))


def hours(seconds: float) -> str:
    """A time in two figures."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.2g} {unit}" if seconds < 100 * length else f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.2g} s"
