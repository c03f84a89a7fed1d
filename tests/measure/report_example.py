"""A diagnosis and runs as `doctor` and `bench` give them, of a machine of two cores, and the page of them."""

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from tpufeed.measure.clock import StepTimes
from tpufeed.measure.report import write_report
from tpufeed.measure.results import Action, BenchRun, Diagnosis, Stage, spread

NASTY = 'gs://bucket/<script>alert("1")</script>&amp;$x_1$|`a`#00f001 id="p1" \x00'


def make_run(label: str, idle: float, steps: int, *, seed: int = 0, **changes: object) -> BenchRun:
    """An emulated run of about so much idle, in percent."""
    rng = np.random.default_rng(seed)
    compute = np.full(steps, 0.137)
    mean = 0.137 * idle / (100 - idle)
    wait = rng.gamma(2.0, mean / 2, steps) if idle > 5 else rng.lognormal(np.log(mean + 1e-5), 1.2, steps)
    wait[0] = 1.9
    ready = np.minimum(2, rng.poisson(0.2 if idle > 5 else 3.0, steps))
    waits = np.percentile(wait[1:], [50, 95, 99]) * 1e3
    wall = float((wait + compute).sum())
    rate = 1024 * steps / wall
    facts: dict[str, object] = {
        "label": label,
        "url": label.partition(",")[0],
        "loader": label.rpartition(" ")[2],
        "source": "shards",
        "device": "EMULATED tpu-v3-8-high",
        "batch_size": 1024,
        "steps": steps,
        "images": 1024 * steps,
        "rates": spread([0.97 * rate, rate, 1.02 * rate]),
        "images_per_second": rate,
        "step_ms": 1e3 * wall / steps,
        "wait_ms_p50": waits[0],
        "wait_ms_p95": waits[1],
        "wait_ms_p99": waits[2],
        "idle_percent": 100 * float(wait[1:].sum()) / wall,
        "au_percent": 100 - idle,
        "oversleep_percent": 0.12,
        "first_batch_seconds": float(wait[0]),
        "wall_seconds": wall,
        "verdict": f"EMULATED tpu-v3-8-high idles {idle:.1f} %.",
        "timeline": StepTimes(
            wait_seconds=tuple(wait.tolist()), compute_seconds=tuple(compute.tolist()), ready=tuple(ready.tolist())
        ),
    }
    return BenchRun(**(facts | changes))  # type: ignore[arg-type]


def make_runs(steps: int = 600) -> list[BenchRun]:
    """The naive loader, tpufeed's from shards, and from a cache."""
    return [
        make_run("photos/flowers, naive", 88.0, steps, seed=1, source="raw files"),
        make_run("gs://my-bucket/flowers-presized-256, numpy", 41.0, steps, seed=2),
        make_run("gs://my-bucket/flowers-224, numpy", 0.4, steps, seed=3, source="cache"),
    ]


def make_xla_run(steps: int = 300) -> BenchRun:
    """A run on a real device whose first step compiles and which traces in every step."""
    rng = np.random.default_rng(5)
    compute, sync = rng.normal(0.021, 0.001, steps), rng.normal(0.012, 0.002, steps)
    compute[0], sync[120] = 14.2, 6.1
    wait = rng.gamma(1.0, 0.0004, steps)
    timeline = StepTimes(
        wait_seconds=tuple(wait.tolist()), sync_seconds=tuple(sync.tolist()), compute_seconds=tuple(compute.tolist())
    )
    facts = {
        "device": "xla-tpu",
        "timeline": timeline,
        "compile_seconds": 14.2,
        "recompilations": 1,
        "mfu_percent": 31.2,
    }
    return make_run("gs://my-bucket/flowers-224, xla", 1.2, steps, **facts, verdict="The step waits on tracing.")


def make_diagnosis() -> Diagnosis:
    """Of presized photos on v3-8: decoding binds."""
    return Diagnosis(
        url="gs://my-bucket/flowers-presized-256",
        split="train",
        machine={
            "cpu": "AMD EPYC 9B14",
            "cores": 2,
            "ram_gib": 23.5,
            "load": 0.4,
            "versions": {"tpufeed": "0.1.0", "numpy": "2.4.0"},
        },
        stages=(
            Stage(name="storage", images_per_second=41_300, detail="1.1 GB/s from the stage in /dev/shm"),
            Stage(name="reading", images_per_second=182_000, detail="CRCs verified, 2 threads"),
            Stage(name="decoding", images_per_second=4_410, detail="2,204 a core"),
            Stage(name="ops", images_per_second=21_900, detail="RandomResizedCrop(224), HorizontalFlip"),
            Stage(name="assembly", images_per_second=57_800),
            Stage(name="transfer", images_per_second=None, why_not="no TPU on this host"),
        ),
        fed=3_480,
        tpu="v3-8",
        model="resnet50",
        needed=(4_100, 7_500),
        idle_percent=(15.1, 53.6),
        binding="decoding",
        verdict="v3-8 will idle 15 to 54 % of the time: decoding holds it back on this host.",
        actions=(
            Action(
                do="Warm a raw cache: tpufeed cache warmup gs://my-bucket/flowers-presized-256 gs://my-bucket/flowers-224",
                factor=11.9,
                images_per_second=41_300,
                idle_percent=(0.0, 0.0),
                cost="9.2 GB, about 12 minutes",
            ),
            Action(do="Use 96 threads in 4 processes", factor=1.3, images_per_second=4_520, idle_percent=(0.0, 39.7)),
            Action(do="Batch 16 a core leaves the MXU idle: 128"),
        ),
        notes=("Page cache warm: the disk was not measured.",),
    )


_VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Elements and texts of a page; every element that opens must close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.captions: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "figcaption":
            self.captions.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open and self._open[-1] == "figcaption":
            self.captions[-1] += data

    def values(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]


def write(folder: Path, *of: Any) -> Page:
    path = folder / "out.html"
    write_report(path, *of)
    return Page(path.read_text())
