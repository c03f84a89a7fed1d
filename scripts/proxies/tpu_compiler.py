"""TPUs, by their own compiler: it compiles device ops on a machine without a TPU, and says what they would cost."""

import json
import sys
from pathlib import Path

from platform_run import ROOT, Platform, call, expect

from tpufeed.measure.machine import machine
from tpufeed.measure.tpu_compiler import ENVIRONMENT

PROGRAM = Path(__file__).parent / "programs/tpu_costs.py"
RESULTS = ROOT / "benchmarks/results/compiled-for-tpus.json"
TPUS, BATCHES = ("v4-8", "v5e-8", "v5p-8", "v6e-8"), (128, 256)
SECONDS = 3600  # for one TPU and batch, on two busy cores
MOST_MB = {"crop, flip": 330, "crop, flip, jitter": 450, "RandAugment": 700}  # on a v5e, for 128 images


def run(platform: Platform) -> None:
    """Compile for each TPU, and put the costs into `RESULTS`."""
    venv, rows = platform.work / "venv", list[dict[str, object]]()
    call([sys.executable, "-m", "venv", venv], 120)
    call([venv / "bin/pip", "install", "-q", "--only-binary=:all:", f"{platform.wheel}[tpu-compiler]"], 900)
    for tpu in TPUS:
        for batch in BATCHES:

            def compiled(tpu: str = tpu, batch: int = batch) -> str:
                environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), **ENVIRONMENT}
                text = call([venv / "bin/python", PROGRAM, tpu, "", batch], SECONDS, environment=environment)
                found = [json.loads(line) for line in text.splitlines() if line.startswith('{"program"')]
                rows.extend(found)
                worst = max(found, key=lambda row: row["hbm_bytes"])
                for row in found:
                    most = MOST_MB.get(row["program"]) if (tpu, batch, row["way"]) == ("v5e-8", 128, "kernel") else None
                    expect(most is None or row["hbm_bytes"] <= most * 1e6, f"{row['program']}: {row['hbm_bytes']:,}")
                return f"{len(found)} programs; {worst['program']} moves most, {worst['hbm_bytes'] / 1e6:,.0f} MB"

            platform.check(f"device ops for {tpu}, {batch} images", compiled)
    if all(row.result == "ok" for row in platform.rows):
        write(rows)
    platform.about = f"libtpu {rows[0]['compiler']}, compiled for, not run on" if rows else "no program"


def write(rows: list[dict[str, object]]) -> None:
    about = {
        "what": "compiled for these TPUs, not run on them; a kernel declares its bytes, and its FLOPs are not counted"
    }
    result = {"machine": machine(), "command": "scripts/platforms tpu-compiler", "about": about, "rows": rows}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
