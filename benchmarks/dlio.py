"""MLPerf Storage's engine, DLIO, with its own TF loader and with tpufeed as its data loader: AU as DLIO computes it.

Twice its resnet50 workload of MLPerf Storage (`resnet50_h100`, batches of 400), with 16 files:

    storage   as it is: DLIO's own random bytes, 0.224 s a step, 5 epochs. Nothing is decoded.
    jpeg      photographs instead, decoded and resized to 224 by both, at each of `--step-seconds`

`peers/dlio.py` has the classes that DLIO is given, and what they change. Each run is a process of its own, loaders take
turns, the page cache is warm, and there is one emulated accelerator. A run that took fewer steps than asked for, or has
no AU, is an error. `scripts/setup-peers dlio` makes the environment.

    python benchmarks/run.py dlio [--only storage|jpeg] [--repeats 3] [--work FOLDER] [--save]
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.entry import PEERS, ROOT, make_parser

DLIO = PEERS / "dlio" / "bin" / "dlio_benchmark"
THEIRS, OURS = "DLIO's TF loader", "tpufeed.Loader"
FILES = 16
RUN_SECONDS = 900  # at most, of one run
_OURS = [
    "++workload.reader.data_loader_sampler=iterative",
    "++workload.reader.data_loader_classname=benchmarks.peers.dlio.",
]
# What each loader is given beyond the workload.
LOADERS = {
    "storage": {THEIRS: [], OURS: [_OURS[0], f"{_OURS[1]}TpufeedRecords"]},
    "jpeg": {
        THEIRS: ["++workload.reader.reader_classname=benchmarks.peers.dlio.DecodingTFReader"],
        OURS: [_OURS[0], f"{_OURS[1]}TpufeedLoader"],
    },
}


class DlioError(Exception):
    """DLIO is not there, failed, or has not done what it was asked to; the message says which."""


def main(arguments: list[str]) -> None:
    parser = make_parser("dlio", __doc__, repeats=3, photos=6400, keeps=True)
    parser.add_argument("--only", choices=LOADERS, help="one of the two (default: both)")
    parser.add_argument("--records", type=int, default=1251, help="random ones a file (default: 1251, as MLPerf's)")
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument(
        "--step-seconds",
        type=float,
        nargs="+",
        default=[0.224, 0.3, 0.435],
        metavar="S",
        help="of jpeg: the H100's (0.224), one between the rates of both loaders on 2 cores (0.3), the A100's (0.435)",
    )
    parser.add_argument("--epochs", type=int, default=2, help="of each run of jpeg (default: 2); storage has 5")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="tpufeed-dlio-") as temporary:
            report(measure(options, options.work or Path(temporary)), options.save)
    except DlioError as error:
        sys.exit(f"run.py dlio: {error}")


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Return, by kind of work, what was asked for and each loader's figures, one of each a run."""
    from benchmarks.harness import interleave

    if not DLIO.exists():
        raise DlioError(f"{DLIO} is not there: run scripts/setup-peers dlio")
    result: dict[str, Any] = {"dlio": "2.0.0", "workload": "resnet50_h100", "files": FILES, "batch": options.batch}
    if options.only != "jpeg":
        folder = make_random(work / f"random-{options.records}", options.records)
        ask = partial(run, folder, options.records, options.batch)
        ways = {name: partial(ask, 0.224, 5, given) for name, given in LOADERS["storage"].items()}
        runs = interleave(ways, options.repeats, warm_up=0)
        result["storage"] = {"records_per_file": options.records, "step_seconds": {"0.224": columns(runs)}}
    if options.only != "storage":
        folder = make_photographs(work, options.photos)
        ask = partial(run, folder, options.photos // FILES, options.batch)
        ways = {
            (step, name): partial(ask, step, options.epochs, given)
            for step in options.step_seconds
            for name, given in LOADERS["jpeg"].items()
        }
        runs = interleave(ways, options.repeats, warm_up=0)
        steps = {
            str(step): columns({name: runs[step, name] for name in LOADERS["jpeg"]}) for step in options.step_seconds
        }
        result["jpeg"] = {"photos": options.photos, "epochs": options.epochs, "step_seconds": steps}
    return result


def columns(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, list[Any]]]:
    return {name: {key: [run[key] for run in of] for key in of[0]} for name, of in runs.items()}


def make_random(folder: Path, records: int) -> Path:
    """Have DLIO make its own data, and put a manifest of tpufeed over it; an earlier run's is taken as it is."""
    if (folder / "manifest.json").exists():
        return folder
    # DLIO calls DALI's tfrecord2idx for each index that is missing. Only its DALI loaders read these.
    indexes = folder / "index" / "train"
    indexes.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        (indexes / f"img_{number:02}_of_{FILES}.tfrecord.idx").touch()
    start(folder, records, ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"], folder)
    put_manifest(folder, records)
    return folder


def put_manifest(folder: Path, records: int) -> None:
    """Make a dataset of DLIO's files. `tpufeed adopt` refuses them, rightly: random bytes are no images."""
    from crc32c import crc32c

    import tpufeed
    from tpufeed.adoption.keys import make_features
    from tpufeed.adoption.scan import Keys, Totals, scan_shard
    from tpufeed.dataset.index import encode_index
    from tpufeed.dataset.manifest import IndexFile, Manifest, Shard, Split, Variant, encode_manifest
    from tpufeed.storage.store import open_store

    source, keys, totals = open_store(folder / "train"), Keys("image"), Totals()
    infos = sorted(source.iter_objects(), key=lambda info: info.name)
    scans = [scan_shard(source, keys, 0, info) for info in infos]
    if [scan.records for scan in scans] != [records] * FILES:
        raise DlioError(
            f"{folder}: DLIO made {[scan.records for scan in scans]} records, not {records} in {FILES} files"
        )
    for scan in scans:
        totals.merge(scan.totals)
    index = encode_index([scan.offsets for scan in scans])
    (folder / "train.index.npy").write_bytes(index)
    shards = tuple(Shard(scan.info.name, scan.info.size_bytes, scan.crc32c, scan.records, None) for scan in scans)
    variant = Variant(shards, IndexFile("train.index.npy", len(index), crc32c(index)))
    manifest = Manifest(
        run_id="dlio",
        tool_version=tpufeed.__version__,
        splits={"train": Split(records * FILES, (), (variant,))},
        class_names=(),
        features=make_features(keys, totals.tallies, records * FILES)[0],
        options={"command": "benchmarks/run.py dlio"},
        input_digest="",
        rejects={},
        images={"unknown": records * FILES},
        odd={},
        data_url=source.url,
    )
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))


def make_photographs(work: Path, photos: int) -> Path:
    """Make photographs and shard them, byte for byte; DLIO finds the shards in train/ and misses no valid/."""
    import tpufeed
    from scripts.make_photos import make_photos

    if photos < FILES or photos % FILES:
        raise DlioError(f"--photos {photos}: DLIO takes the same number for each of {FILES} files; give a multiple")
    folder = work / f"jpeg-{photos}"
    if not (folder / "manifest.json").exists():
        files = make_photos(work / f"photos-{photos}", photos)
        tpufeed.shard(files, folder, shards=FILES, images=tpufeed.Images(check="header", encode="exact"))
    split = tpufeed.open_dataset(folder).split("train")
    names = [shard.name for shard in split.variants[0].shards]
    if split.records != photos or len(names) != FILES:
        raise DlioError(f"{folder} holds {split.records} photos in {len(names)} shards, not {photos} in {FILES}")
    for name in ("train", "valid"):
        (folder / name).mkdir(exist_ok=True)
    for name in names:
        (folder / "train" / name).unlink(missing_ok=True)
        (folder / "train" / name).symlink_to(Path("..") / name)
    return folder


def run(folder: Path, per_file: int, batch: int, step: float, epochs: int, given: list[str]) -> dict[str, Any]:
    """Return what DLIO says of one run, the CPU seconds of all its processes, and the load before it.

    Raises DlioError.
    """
    load, before = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="tpufeed-dlio-out-") as out:
        given = [
            f"++workload.reader.batch_size={batch}",
            f"++workload.train.computation_time={step}",
            f"++workload.train.epochs={epochs}",
            *given,
        ]
        start(folder, per_file, given, Path(out))
        found = read_outcome(Path(out), epochs, per_file * FILES // batch)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**found, "cpu_seconds": round(cpu, 2), "load": round(load, 2)}


def start(folder: Path, per_file: int, given: list[str], out: Path) -> None:
    """Run DLIO over a data folder, its output into `out`. Raises DlioError."""
    workload = [
        f"++workload.dataset.num_files_train={FILES}",
        f"++workload.dataset.num_samples_per_file={per_file}",
        f"++workload.dataset.data_folder={folder.resolve()}",
        f"++workload.output.folder={out}",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [str(DLIO), "workload=resnet50_h100", *workload, *given, f"hydra.run.dir={out}"]
    try:
        done = subprocess.run(
            command, env=environment, cwd=out, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DlioError(f"not done after {RUN_SECONDS} s: {' '.join(command)}") from error
    if done.returncode:
        raise DlioError(f"exit status {done.returncode} of {' '.join(command)}\n{done.stderr[-2000:]}")


def read_outcome(out: Path, epochs: int, steps: int) -> dict[str, Any]:
    """Return DLIO's AU in per cent and samples a second, means over `epochs` epochs of `steps` steps each.

    Raises:
        DlioError: an epoch is missing or has fewer steps, or there is no AU.
    """
    try:
        metric = json.loads((out / "summary.json").read_text())["metric"]
        output = json.loads((out / "0_output.json").read_text())
        taken = [len(output[str(epoch)]["proc"]["block1"]) for epoch in range(1, epochs + 1)]
        au, rates = metric["train_au_percentage"], metric["train_throughput_samples_per_second"]
    except (OSError, ValueError, KeyError) as error:
        raise DlioError(f"DLIO's output has no steps or no AU: {error!r}") from error
    if taken != [steps] * epochs:
        raise DlioError(f"DLIO took {taken} steps in its epochs, not {steps} in each of {epochs}")
    if len(au) != epochs or not all(math.isfinite(each) and 0 < each <= 100.5 for each in au):
        raise DlioError(f"DLIO's AU of {epochs} epochs is {au}, no percentages")
    return {"au_percent": sum(au) / epochs, "epochs_au_percent": au, "samples_per_second": sum(rates) / epochs}


def report(result: dict[str, Any], save: str | None) -> None:
    """Print the tables, and write the result file where asked for."""
    from benchmarks.harness import describe, figure, flatten, machine, print_table, spread, write_result

    titles = {"storage": "DLIO, resnet50_h100 as it is: random bytes, nothing decoded", "jpeg": "DLIO, JPEGs decoded"}
    for kind, title in titles.items():
        rows = []
        for step, loaders in result.get(kind, {}).get("step_seconds", {}).items():
            for name, found in loaders.items():
                au = found["epochs_au_percent"][0] if kind == "storage" else found["au_percent"]
                of = spread(au)
                medians = [spread(found[key]).median for key in ("samples_per_second", "cpu_seconds", "load")]
                rows.append([step, name, figure(of.median), figure(min(au)), figure(max(au)), *map(figure, medians)])
        if rows:
            heads = ["step s", "loader", "AU %", "lowest", "highest", "samples/s", "CPU s", "load"]
            print_table(f"{title} (batches of {result['batch']}, EMULATED)", heads, rows, text_columns=2)
    print(describe(machine()))
    if save:
        found = {kind: result.pop(kind) for kind in titles if kind in result}
        about = result | {
            kind: {key: value for key, value in each.items() if key != "step_seconds"} for kind, each in found.items()
        }
        steps = {kind: each["step_seconds"] for kind, each in found.items()}
        print(write_result(save, about, flatten(steps, "work", "step_seconds", "loader")))
