"""scripts/check-tpu on CPU devices, and the table of TPUs in the docs."""

import json
import os
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tpufeed.measure.tpu import TPUS

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts/check-tpu"


def run(page, *options):
    command = [sys.executable, SCRIPT, "--framework", "torchtpu", "--seconds", 0.1, "--out", page, *options]
    # On a busy machine, threads of torch that wait for one another make device ops ten times slower.
    environment = os.environ | {"TPUFEED_PROCESSES": "0", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)


def test_on_cpu_devices_all_is_checked_and_the_page_says_so(tmp_path):
    pytest.importorskip("torch")
    done = run(tmp_path / "page.json", "--cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    page = json.loads((tmp_path / "page.json").read_text())
    assert page["devices"] == "CPU, in place of TPUs"
    assert page["host"]["cores"] >= 1
    (found,) = page["frameworks"].values()
    names = ["order", "labels", "uint8 pixels", "float pixels", "device ops"]
    assert found["checks"] == dict.fromkeys(names, True)
    assert found["device ops"]["windows"]["largest difference"] <= 2
    for ops in ("windows", "colours"):
        assert found["device ops"][ops]["ok"]
        assert found["device ops"][ops]["mean difference"] < 1
        assert found["device ops"][ops]["microseconds per image"] > 0
        assert f"device ops, {ops}: ok: at most" in done.stdout
    assert found["fed"]["idle_percent"] is not None
    assert set(found["counters"]) == {"mxu_percent", "duty_cycle_percent"}


def load_script():
    loader = SourceFileLoader("check_tpu", str(SCRIPT))
    module = module_from_spec(spec_from_loader("check_tpu", loader))
    loader.exec_module(module)
    return module


def test_a_framework_that_is_not_there_is_named_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_tpu", None)
    found = load_script().check("torchtpu", "nowhere", cpu=False, seconds=1)
    assert found["result"] == "n/a"
    assert found["reason"].startswith("torch_tpu is not installed")


def test_the_page_has_the_figures_of_the_doctor(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from scaling import HOSTS

    rows = re.findall(
        r"^\| (v\S+)[^|]*\| ([\d,]+) \|[^|]*\|[^|]*\| ([\d,]+) to ([\d,]+) \|",
        (ROOT / "docs/which-tpu.md").read_text(),
        re.MULTILINE,
    )
    expected = [(tpu.name, str(HOSTS[tpu.name][0]), f"{tpu.low:,}", f"{tpu.high:,}") for tpu in TPUS.values()]
    assert rows == expected
