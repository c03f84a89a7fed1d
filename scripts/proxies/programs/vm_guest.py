"""Within the virtual machine: runs the functions of a job one after the other, and tells the host what each returns."""

import json
import subprocess
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def run_job(functions: Sequence[Callable[[], Any]]) -> None:
    """Run all, also after one has failed, and write {"name", "fact" or "error"} to the second serial port."""
    with Path("/dev/ttyS1").open("w") as port:
        for function in functions:
            told: dict[str, Any] = {"name": function.__name__}
            try:
                told["fact"] = function()
            except Exception as error:  # noqa: BLE001  # whatever it is, the host says it
                told["error"] = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            print(json.dumps(told), file=port, flush=True)


def sh(line: str) -> str:
    """What a line of bash prints. Raises RuntimeError with it if it fails."""
    done = subprocess.run(
        ["bash", "-e", "-c", line], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stdout[-1500:].strip()}")
    return done.stdout
