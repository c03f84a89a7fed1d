"""What ops on the device spare the host, and what they cost the device.

The host reads batches of whole images, 256x256, from a raw cache and from a JPEG cache, as `iterate(on_device=True)`
gives them to a device, or with the same ops on the host. CPU time is that of all threads: other work on the machine
changes it less than rates. An EMULATED accelerator takes batches at the rate of ResNet-50 on a TPU; it does not count
the work of device ops.

What that work costs is counted, not run. FLOPs are those of the matrix products: for the MXU they count three times,
since the precision "high" takes three passes in bfloat16. Bytes are those that the TPU's own compiler counts, as
`scripts/platforms tpu-compiler` found.

    python benchmarks/run.py bench-device [--photos 4000] [--repeats 5] [--seconds 0.8] [--work FOLDER] [--save]
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tpufeed
from benchmarks.entry import make_parser
from benchmarks.harness import describe, figure, interleave, machine, print_table, write_result
from scripts.make_photos import make_photos
from scripts.proxies.programs.chains import CHAINS, CROP, SIDE
from tpufeed.images import CenterCrop, Resize
from tpufeed.images.device import DeviceOps
from tpufeed.images.protocols import Op
from tpufeed.measure.bench import BenchOptions, Measurement, measure_apart
from tpufeed.measure.tpu import find_tpu, profile

BATCH = 128
JITTER = CHAINS["crop, flip and jitter"]
# Way: (cache, ops on the host, ops on the device). Each cache's first way is what its others are compared with.
HOST: dict[str, tuple[str, Sequence[Op], Sequence[Op]]] = {
    "raw, no ops": ("raw", (), ()),
    "raw, crop and flip on the device": ("raw", (), CROP),
    "raw, crop, flip and jitter on the device": ("raw", (), JITTER),
    "raw, crop and flip on the host": ("raw", CROP, ()),
    "raw, crop, flip and jitter on the host": ("raw", JITTER, ()),
    "JPEG, crop and flip on the host": ("jpeg", CROP, ()),
    "JPEG, crop and flip on the device": ("jpeg", (), CROP),
    "JPEG, no ops": ("jpeg", (), ()),
}
TARGETS = {
    "raw, crop and flip on the device": "CPU at most 1.05",
    "raw, crop, flip and jitter on the device": "CPU at most 1.05",
    "JPEG, crop and flip on the device": "rate at least 1.1",
}
# Profile: the most idle, in percent, that is aimed at.
PROFILES = {"tpu-v3-8-high": 1.0, "tpu-v5e-8-low": 1.0, "tpu-v5e-8-high": 2.0}
DRAINED = "none"
TEXTS = ("RandomResizedCrop(224)", "HorizontalFlip")
COMPILED = Path(__file__).parent / "results/compiled-for-tpus.json"
CHIPS = ("v5e-8", "v6e-8")


def main(arguments: list[str]) -> None:
    parser = make_parser("bench-device", __doc__, repeats=5, photos=4000, keeps=True)
    parser.add_argument("--seconds", type=float, default=1.5, help="CPU time of each measurement of the host")
    parser.add_argument("--feed-seconds", type=float, default=4.0, help="of each feed of an EMULATED accelerator")
    parser.add_argument("--batch", type=int, default=BATCH)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tpufeed-device-") as temporary:
        caches = make_caches(args.work or Path(temporary), args.photos)
        rows = [*measure_host(caches, args), *measure_idle(caches["raw"], args)]
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        about = {"photos": args.photos, "batch_size": args.batch, "programs": count_programs(caches["raw"], args.batch)}
    rows += [{"measurement": "device", "ops": name, **costs(name, ops)} for name, ops in CHAINS.items()]
    report(rows, about)
    if args.save:
        print(write_result(args.save, about, rows))


def make_caches(folder: Path, photos: int) -> dict[str, str]:
    """A dataset of photos, and caches of them whole at one size. What is there already is taken."""
    make_photos(folder / f"photos-{photos}", photos)
    dataset = folder / f"dataset-{photos}"
    tpufeed.shard(folder / f"photos-{photos}", dataset)
    caches = {}
    for encode in ("raw", "jpeg"):
        cache = folder / f"{encode}-{photos}"
        whole = [Resize(SIDE), CenterCrop(SIDE)]
        tpufeed.cache.warmup(dataset, cache, ops=whole, encode=encode)
        caches[encode] = str(cache)
    return caches


# The host


def measure_host(caches: dict[str, str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """CPU time an image and images a second of one thread, in turns; ratios of each round, and their medians."""

    def read(cache: str, ops: Sequence[Op], device_ops: Sequence[Op]) -> tuple[float, float]:
        options = {"ops": ops, "device_ops": device_ops, "processes": 0, "threads": 1, "repeat": True}
        with (
            tpufeed.Loader(caches[cache], batch_size=args.batch, **options) as loader,
            closing(loader.stream.iterate(on_device=True)) as batches,
        ):
            for _ in range(4):
                next(batches)
            start, spent, count = time.perf_counter(), time.process_time(), 0
            while time.process_time() - spent < args.seconds:
                next(batches)
                count += args.batch
            return (time.process_time() - spent) / count * 1e6, count / (time.perf_counter() - start)

    found = interleave({way: partial(read, *given) for way, given in HOST.items()}, args.repeats)
    rows = []
    for way, rounds in found.items():
        first = next(other for other in HOST if HOST[other][0] == HOST[way][0])
        pairs = zip(rounds, found[first], strict=True)
        ratios = [(us / other_us, rate / other) for (us, rate), (other_us, other) in pairs]
        cpu_us, rate = map(statistics.median, zip(*rounds, strict=True))
        cpu_ratio, rate_ratio = map(statistics.median, zip(*ratios, strict=True))
        rows.append({"measurement": "host", "way": way, "cpu_us": cpu_us, "images_per_second": rate,
                     "compared_with": first, "cpu_ratio": cpu_ratio, "rate_ratio": rate_ratio,
                     "target": TARGETS.get(way), "rounds": rounds})  # fmt: skip
    return rows


def measure_idle(cache: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Idle of EMULATED accelerators, in turns, and the rate without one; the middle of each, by idle or by rate."""
    jobs = {
        (device, where): Measurement(
            url=cache,
            loader="numpy",
            options=BenchOptions(
                device=device if device == DRAINED else f"emulated:{device}",
                batch_size=args.batch,
                seconds=args.feed_seconds,
                patience_seconds=0.0,
                **{"device_ops" if where == "device" else "ops": TEXTS},
            ),
        )
        for device in (DRAINED, *PROFILES)
        for where in ("device", "host")
    }
    found = interleave({job: partial(measure_apart, one) for job, one in jobs.items()}, min(3, args.repeats), warm_up=0)
    rows = []
    for (device, where), runs in found.items():
        idle = [run.idle_percent for run in runs]
        problems = [problem for run in runs for problem in run.problems]
        if device != DRAINED and rows[where == "host"]["images_per_second"] < (
            rate := profile(device).images_per_second
        ):
            problems.insert(0, f"it takes {rate:,.0f} images a second, more than this machine gives without a device")
        rows.append({
            "measurement": "idle",
            "device": device if device == DRAINED else f"EMULATED {device}",
            "ops": where,
            "images_per_second": statistics.median(run.images_per_second for run in runs),
            "idle_percent": None if device == DRAINED else statistics.median(idle),
            "repeats": [run.images_per_second for run in runs] if device == DRAINED else idle,
            "target_percent": PROFILES.get(device) if where == "device" else None,
            "problems": problems,
        })  # fmt: skip
    return rows


# The device


def costs(name: str, ops: Sequence[Op]) -> dict[str, Any]:
    """FLOPs of an image, bytes of a batch, and shares of a chip that trains ResNet-50 at its high rate."""
    import jax
    import jax.numpy as jnp

    from tpufeed.adapters.jax.arrays import ARRAYS
    from tpufeed.adapters.jax.sharding import SENDS_ROWS

    device_ops = DeviceOps(ops, (SIDE, SIDE))
    given = (
        jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), jnp.uint8),
        jax.ShapeDtypeStruct((1, device_ops.width), jnp.float32),
    )
    products = sum(iter_product_flops(jax.make_jaxpr(partial(device_ops.apply, arrays=ARRAYS))(*given).jaxpr))
    found: dict[str, Any] = {"numbers": device_ops.width, "of_products_mflop": products / 1e6}
    for row in json.loads(COMPILED.read_text())["rows"]:
        sent = row["way"].startswith("JAX") and row["input"] == ("rows" if SENDS_ROWS else "pixels")
        if row["program"] == name and row["tpu"] in CHIPS and row["batch"] == BATCH and sent:
            tpu = find_tpu(row["tpu"])
            rate = tpu.high / tpu.chips
            found[f"{tpu.name} MB"] = row["hbm_bytes"] / 1e6
            found[f"{tpu.name} MXU %"] = 100 * rate * 3 * products / (tpu.peak_tflops * 1e12)
            found[f"{tpu.name} memory %"] = 100 * rate / BATCH * row["bandwidth_seconds"]
    return found


def iter_product_flops(jaxpr: Any) -> Iterator[float]:
    """Yield the FLOPs of each matrix product of a traced function."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            yield 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
        for inner in equation.params.values():
            if hasattr(inner, "jaxpr"):
                yield from iter_product_flops(inner.jaxpr)


def count_programs(cache: str, batch_size: int) -> int:
    """How many programs the device ops of `to_jax` are after two epochs: how often they were traced."""
    with (
        patch.object(DeviceOps, "apply", autospec=True, side_effect=DeviceOps.apply) as traced,
        tpufeed.Loader(cache, batch_size=batch_size, ops=(), device_ops=JITTER, processes=0) as loader,
    ):
        feed = loader.to_jax()
        for _ in range(2):
            for _ in feed:
                pass
    return traced.call_count


def report(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
    host, idle, device = (
        [row for row in rows if row["measurement"] == kind] for kind in ("host", "idle", "device")
    )  # fmt: skip
    cells = [
        [row["way"], *(figure(row[key], digits) for key, digits in
         (("cpu_us", 1), ("images_per_second", 0), ("cpu_ratio", 3), ("rate_ratio", 3))), row["target"] or ""]
        for row in host
    ]  # fmt: skip
    columns = ["one thread; ratios are to each cache's first row", "CPU us", "img/s", "CPU", "rate", "target"]
    print_table(f"The host, batches of {about['batch_size']} of {SIDE}x{SIDE}: an image", columns, cells)
    cells = [
        [row["device"], row["ops"], figure(row["images_per_second"], 0), figure(row["idle_percent"]),
         figure(row["target_percent"])]
        for row in idle
    ]  # fmt: skip
    title = "Fed from the raw cache, crop and flip on device or host"
    print_table(title, ["device", "ops on", "img/s", "idle %", "at most"], cells, text_columns=2)
    for row in idle:
        if row["problems"]:
            print(f"  {row['device']}, ops on the {row['ops']}: no verdict: {row['problems'][0]}")
    keys = {"MFLOP of products": ("of_products_mflop", 1)}
    keys |= {f"{name[:3]} {what}": (f"{name} {what}", 2) for name in CHIPS for what in ("MB", "MXU %", "memory %")}
    cells = [[row["ops"], *(figure(row.get(key), digits) for key, digits in keys.values())] for row in device]
    title = f"The device: {BATCH} images of {SIDE}x{SIDE}, and shares of a chip that trains ResNet-50 at its high rate"
    print_table(title, ["ops, compiled for TPUs", *keys], cells)
    print(f"programs of two epochs of to_jax: {about['programs']}")
    print(describe(machine()))
