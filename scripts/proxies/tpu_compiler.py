"""TPUs, by their own compiler: it compiles programs on a machine without a TPU, and says what they would cost there."""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from platform_run import ROOT, Platform, call, expect
from programs.chains import CHAINS, IMAGES, ONE, TPUS, USUAL

from tpufeed.measure.machine import machine
from tpufeed.measure.tpu_compiler import ENVIRONMENT

PROGRAMS = Path(__file__).parent / "programs"
RESULTS = ROOT / "benchmarks/results/compiled-for-tpus.json"
MORE_IMAGES = 256
MOST_MB = dict(zip(USUAL, (330, 450, 700), strict=True))  # of JAX's kernel, on a v5e, for 128 images
ABOUT = {
    "what": "compiled for one chip of these TPUs, not run on it",
    "hbm_bytes": "to and from HBM, by the compiled program's text; at least",
    "accessed_bytes": "the compiler's own count, with those that stay in the chip's memory; a kernel declares its own",
    "flops": "by the compiler, which counts none within a kernel; so peak_seconds lacks them",
    "input": "images as they reach the TPU: rows (batch, height, width * channels), pixels, planes, or coefficients",
    "layout": "of the images there, the slowest axis first",
    "only v5e-8": "256 images, unused ways of sending images, and programs of torch_xla, TensorFlow and examples",
    "compile_seconds": "processor time; where the load is above the number of cores, longer than on a quiet machine",
}


def run(platform: Platform) -> None:
    """Compile for each TPU, and put the costs into `RESULTS`. Costs are kept: a second run compiles what is new."""
    venv, texts, rows = platform.work / "venv", platform.work / "texts", list[dict[str, Any]]()
    uv, wanted = (sys.executable, "-m", "uv"), f"{platform.wheel}[tpu-compiler]"
    call([*uv, "venv", "-q", "--clear", "--python", sys.executable, venv], 600)
    call([*uv, "pip", "install", "-q", "--python", venv, "--only-binary", ":all:", wanted], 1800)
    texts.mkdir(exist_ok=True)

    def compiled(tpu: str, images: int, chains: tuple[str, ...], files: Sequence[Path] = ()) -> str:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), **ENVIRONMENT}
        command = [venv / "bin/python", PROGRAMS / "tpu_costs.py", tpu, str(images), "|".join(chains), *files]
        found = list[dict[str, Any]]()
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith('{"program"'):
                    found.append(json.loads(line))
        rows.extend(found)
        expect(process.returncode == 0, f"exit code {process.returncode}")
        for row in found:
            limited = (tpu, images, row["way"]) == (ONE, IMAGES, "JAX, kernel")
            most = MOST_MB.get(row["program"], 0) if limited else 0
            expect(
                not most or row["accessed_bytes"] <= most * 1e6, f"{row['program']}: {row['accessed_bytes']:,} bytes"
            )
        worst = max(found, key=lambda row: row["hbm_bytes"])
        return f"{len(found)} programs; {worst['program']} moves most, {worst['hbm_bytes'] / 1e6:,.0f} MB"

    def of_frameworks() -> str:
        for framework in ("jax", "torch_xla", "tensorflow"):
            call([sys.executable, PROGRAMS / "traces.py", framework, IMAGES, texts], 1800)
        largest_last = sorted(texts.glob("*.mlir"), key=lambda path: path.stat().st_size)
        return compiled(ONE, IMAGES, (), largest_last)

    for tpu in TPUS:
        platform.check(f"ops for {tpu}, {IMAGES} images", partial(compiled, tpu, IMAGES, tuple(CHAINS)))
    platform.check(f"ops for {ONE}, {MORE_IMAGES} images", partial(compiled, ONE, MORE_IMAGES, USUAL))
    platform.check(f"programs of frameworks for {ONE}, {IMAGES} images", of_frameworks)
    if rows:
        about = {**ABOUT, "lacks": [row.check for row in platform.rows if row.result != "ok"]}
        result = {"machine": machine(), "command": "scripts/platforms tpu-compiler", "about": about, "rows": rows}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    platform.about = f"libtpu {rows[0]['compiler']}, compiled for, not run on" if rows else "no program"
