"""TPUs, by their own compiler: it compiles programs on a machine without a TPU, and says what they would cost there."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from platform_run import ROOT, Platform, call, expect
from programs.chains import CHAINS, USUAL

from tpufeed.measure.machine import machine
from tpufeed.measure.tpu_compiler import ENVIRONMENT

PROGRAMS = Path(__file__).parent / "programs"
RESULTS = ROOT / "benchmarks/results/compiled-for-tpus.json"
TPUS, ONE, IMAGES, MORE_IMAGES = ("v5e-8", "v4-8", "v5p-8", "v6e-8"), "v5e-8", 128, 256
SECONDS = 3600  # for one TPU, on two busy cores
MOST_MB = dict(zip(USUAL, (330, 450, 700), strict=True))  # of JAX's kernel, on a v5e, for 128 images
ABOUT = {
    "what": "compiled for one chip of these TPUs, not run on it",
    "bytes": "by the compiler; a kernel (Pallas) declares its own, which are those of its images",
    "flops": "by the compiler, which counts none within a kernel; so peak_seconds lacks them",
    "input": "images as they reach the TPU: rows (batch, height, width * channels), pixels, planes, or coefficients",
    "layout": "of the images there, the slowest axis first",
    "only v5e-8": "256 images, and programs of torch_xla, TensorFlow and examples: compiling takes minutes",
}


def run(platform: Platform) -> None:
    """Compile for each TPU, and put the costs into `RESULTS`."""
    venv, texts, rows = platform.work / "venv", platform.work / "texts", list[dict[str, Any]]()
    call([sys.executable, "-m", "venv", venv], 120)
    call([venv / "bin/pip", "install", "-q", "--only-binary=:all:", f"{platform.wheel}[tpu-compiler]"], 900)
    texts.mkdir(exist_ok=True)
    for framework in ("jax", "torch_xla", "tensorflow"):
        call([sys.executable, PROGRAMS / "traces.py", framework, IMAGES, texts], 600)

    def compiled(tpu: str, images: int, chains: tuple[str, ...], files: list[Path]) -> str:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), **ENVIRONMENT}
        command = [venv / "bin/python", PROGRAMS / "tpu_costs.py", tpu, images, "|".join(chains), *files]
        text = call(command, SECONDS, environment=environment)
        found = [json.loads(line) for line in text.splitlines() if line.startswith('{"program"')]
        rows.extend(found)
        for row in found:
            limited = (tpu, images, row["way"]) == (ONE, IMAGES, "JAX, kernel")
            most = MOST_MB.get(row["program"], 0) if limited else 0
            expect(not most or row["hbm_bytes"] <= most * 1e6, f"{row['program']}: {row['hbm_bytes']:,} bytes")
        worst = max(found, key=lambda row: row["hbm_bytes"])
        return f"{len(found)} programs; {worst['program']} moves most, {worst['hbm_bytes'] / 1e6:,.0f} MB"

    files = sorted(texts.glob("*.mlir"))
    for tpu, images, chains, more in (
        *((tpu, IMAGES, tuple(CHAINS), files if tpu == ONE else []) for tpu in TPUS),
        (ONE, MORE_IMAGES, USUAL, []),
    ):
        platform.check(f"for {tpu}, {images} images", partial(compiled, tpu, images, chains, more))
    if all(row.result == "ok" for row in platform.rows):
        result = {"machine": machine(), "command": "scripts/platforms tpu-compiler", "about": ABOUT, "rows": rows}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    platform.about = f"libtpu {rows[0]['compiler']}, compiled for, not run on" if rows else "no program"
