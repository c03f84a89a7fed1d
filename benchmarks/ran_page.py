"""Make docs/what-has-run.md: what has met real hardware and services, and what only stood in for them.

    python benchmarks/run.py ran-page [--write]

A subject has run if a result says so: a page of `scripts/check-tpu`, saved as results/tpu-NAME.json; a result of a
machine of that kind; or a row of results/by-hand.json, of what a person ran: subject, date, machine, command, outcome.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.entry import RESULTS, ROOT, make_parser

PAGE = ROOT / "docs/what-has-run.md"
BY_HAND, PLATFORMS = "by-hand", "platforms"
WHOLE = "all of it"  # the row of a platform that says what stood in

Results = Mapping[str, Any]


class Subject(NamedTuple):
    """Something that may have run or not, and what stood in for it."""

    name: str
    stand_in: str
    found: Callable[[Results], Iterator[str]] = lambda _: iter(())


def main(arguments: list[str]) -> None:
    parser = make_parser("ran-page", __doc__, save=False)
    parser.add_argument("--write", action="store_true", help="write the page")
    text = make_page(RESULTS)
    if parser.parse_args(arguments).write:
        PAGE.write_text(text)
    else:
        print(text, end="")


def make_page(folder: Path) -> str:
    """Return the page that the results in a folder make."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    by_hand = results.get(BY_HAND, {}).get("rows", [])
    unknown = {run["subject"] for run in by_hand} - {subject.name for subject in SUBJECTS}
    if unknown:
        raise ValueError(f"{folder / BY_HAND}.json names {sorted(unknown)}, which are no subjects of ran_page.py")
    runs = {subject.name: [*subject.found(results), *_said(subject, by_hand)] for subject in SUBJECTS}
    lines = [
        "# What has run where",
        "",
        "Made by `python benchmarks/run.py ran-page --write`. Please run what has not run, and send",
        "the results: of `python scripts/check-tpu --out benchmarks/results/tpu-NAME.json` on a TPU VM, of",
        "`./scripts/test --all` elsewhere.",
        "",
        "## Has not run",
        "",
        "| subject | what ran instead |",
        "|---|---|",
        *(f"| {each.name} | {each.stand_in} |" for each in SUBJECTS if not runs[each.name]),
        "",
        "## Has run",
        "",
        "| subject | where and when |",
        "|---|---|",
        *(f"| {each.name} | {'; '.join(runs[each.name])} |" for each in SUBJECTS if runs[each.name]),
        "",
        "## Packages and platforms",
        "",
        "`scripts/package-matrix` trains with the wheel in an empty environment per extra",
        "([results](../benchmarks/results/packages.json)). `scripts/platforms NAME` imitates a platform on one machine",
        "([what stood in and what each check saw](../benchmarks/results/platforms.json)):",
        "",
        *_platforms(results.get(PLATFORMS, {}).get("rows", ())),
        "",
        *_unsettled(results.get(PLATFORMS, {}).get("rows", ())),
    ]
    return "\n".join(lines) + "\n"


def _said(subject: Subject, by_hand: list[dict[str, str]]) -> Iterator[str]:
    for run in by_hand:
        if run["subject"] == subject.name:
            yield f"{run['date']}, {run['machine']}: {run['outcome']}"


def _platforms(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["platform"], []).append(row)
    for name, checks in found.items():
        counts = Counter(row["result"] for row in checks if row["check"] != WHOLE)
        said = ", ".join(f"{counts[result]} {word}" for result, word in RESULT_WORDS.items() if counts[result])
        yield f"- **{name}**: {said} ({checks[0]['date']})"


def _unsettled(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row["result"] != "ok":
            first = row["seen"].partition("\n")[0]
            yield f"- **{row['platform']}**, {row['check']}: {RESULT_WORDS[row['result']]} ({first})"


def _machine(result: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = result.get("machine") or result.get("host") or {}
    return found


def _on_tpu(framework: str, counters: bool = False) -> Callable[[Results], Iterator[str]]:
    def found(results: Results) -> Iterator[str]:
        for name, page in results.items():
            if not name.startswith("tpu-") or page["devices"] != "TPU":
                continue
            checked = page["frameworks"].get(framework, {"result": "n/a"})
            counted = [value for value in (checked.get("counters") or {}).values() if value is not None]
            if checked["result"] != "n/a" and (counted or not counters):
                yield f"{page['host']['date']}, {name}: {checked['result']}"

    return found


def _device_ops_on_tpu(results: Results) -> Iterator[str]:
    for name, page in results.items():
        if name.startswith("tpu-") and page["devices"] == "TPU":
            for framework, checked in page["frameworks"].items():
                if later := checked.get("device ops"):
                    ok = all(found["ok"] for found in later.values())
                    yield f"{page['host']['date']}, {name}: {framework} {'ok' if ok else 'failed'}"


def _on_machine(wanted: Callable[[Mapping[str, Any]], bool]) -> Callable[[Results], Iterator[str]]:
    def found(results: Results) -> Iterator[str]:
        for name, result in results.items():
            machine = _machine(result)
            if "date" in machine and wanted(machine):
                yield f"{machine['date']}, {name}: {_cores(machine)}"

    return found


def _soaked(results: Results, seconds: float) -> Iterator[str]:
    found = results.get("soak", {"about": {}})["about"]
    if found.get("seconds", 0) >= seconds:
        date = results["soak"]["machine"]["date"]
        yield f"{date}, soak: {found['batches']:,} batches, wrong: {found['wrong'] or 'none'}"


def _cores(machine: Mapping[str, Any]) -> str:
    return f"{machine['cores']} core{'s' if machine['cores'] != 1 else ''}"


def _nodes(machine: Mapping[str, Any]) -> int:
    first = str(machine.get("numa", "")).split(" ")[0]
    return int(first) if first.isdecimal() else 1


RESULT_WORDS = {"ok": "ok", "FAILED": "failed", "n/a": "not run"}
SUBJECTS = (
    Subject("JAX on a TPU", "8 virtual devices on a CPU, an emulated TPU", _on_tpu("jax")),
    Subject("torch_xla on a TPU", "4 CPU devices of torch_xla, an emulated TPU", _on_tpu("torch_xla")),
    Subject("TorchTPU on a TPU", "the CPU through the same calls of torch", _on_tpu("torchtpu")),
    Subject("TensorFlow and Keras on a TPU", "TensorFlow's CPU, and its strategies on it", _on_tpu("tensorflow")),
    Subject("device ops on a TPU", "CPU devices of each framework", _device_ops_on_tpu),
    Subject("libtpu's counters", "values that tests make up", _on_tpu("jax", counters=True)),
    Subject("a pod: several TPU hosts", "several processes on one machine"),
    Subject(
        "more than 2 cores",
        "2 cores, arithmetic beyond (benchmarks/scaling.md)",
        _on_machine(lambda machine: machine["cores"] > 2),
    ),
    Subject(
        "2 NUMA nodes and more",
        "a kernel in qemu that has two (`scripts/platforms numa`)",
        _on_machine(lambda machine: _nodes(machine) > 1),
    ),
    Subject(
        "an Arm host",
        "qemu (`scripts/platforms arm64`)",
        _on_machine(lambda machine: machine.get("architecture") in ("aarch64", "arm64")),
    ),
    Subject("Google Cloud Storage itself", "a server of our own, which real clients talk to"),
    Subject("a Rapid (zonal) bucket", "a server of our own, to which Google's gRPC client talks"),
    Subject("a GCSFuse mount", "rclone's mounts (`scripts/platforms rclone`)"),
    Subject("the Hugging Face hub", "a server of our own for the hub's client"),
    Subject("Ray on several hosts", "a Ray cluster on one machine"),
    Subject("Dataflow, Flink and Spark", "Beam's DirectRunner"),
    Subject("the image of examples/gke", "a sandbox with a read-only root"),
    Subject("NFS between machines, Filestore", "a kernel in qemu that serves and mounts it (`scripts/platforms nfs`)"),
    Subject("GKE and JobSet", "a sandbox with a read-only root"),
    Subject("Slurm on several machines", "its daemons, of two nodes on one machine (`scripts/platforms slurm`)"),
    Subject(
        "an hour of feeding with faults",
        "20 minutes (`soak.json`), and 20 s in each run of the tests",
        lambda results: _soaked(results, 3600),
    ),
    Subject("the long tests", "their short forms, in each run of the tests"),
)
