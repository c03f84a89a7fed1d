"""The clock and torch_xla's counts under real torch_xla on a CPU device; xla_clock.py writes down what they say.

And every program of docs/measuring.md on the step clock runs, one after the other as on the page.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tpufeed
from tests.quick_xla import QUICK
from tests.repo.docs.pages import ran
from tpufeed.measure.compiling import compile_advice, xla_counts

# Another process uses them, so these need not share one with the tests of a framework.
pytestmark = [pytest.mark.uses("torch_xla", "keras", "jax"), pytest.mark.xdist_group("measure/test_compiling.py")]

RUNS = {"measuring.md": "StepClock|read_counters"}

PAGE = (Path(__file__).parents[2] / "docs/measuring.md").read_text()
SYNC, LOOK, COMPUTE = 3.0, 2.0, 5.0
LOADERS = ("MpDeviceLoader", "XlaFeed")


@pytest.fixture(scope="module")
def found(photo_files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("clock")
    photo = next(file for file in photo_files if file.suffix == ".jpg").read_bytes()
    for number in range(40):
        target = folder / "photos" / "abcde"[number % 5] / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(photo)
    tpufeed.shard(folder / "photos", folder / "flowers", images=tpufeed.Images(presize=32), workers=1)
    blocks = re.findall(
        r"```python\n(.*?)```", PAGE.partition("\n## The step clock\n")[2].partition("\n## ")[0], re.DOTALL
    )
    assert len(blocks) == 3
    (folder / "page.py").write_text("\n".join(blocks))
    # jax sets the last of these for good, and torch_xla stumbles over it.
    environment = {name: value for name, value in os.environ.items() if name != "TPU_SKIP_MDS_QUERY"}
    environment |= {"PJRT_DEVICE": "CPU", "TPUFEED_PROCESSES": "0", "KERAS_BACKEND": "jax", "XLA_FLAGS": QUICK}
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "xla_clock.py", "found.json", "page.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ran(*blocks)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("loader", ["MpDeviceLoader", "PerDeviceLoader"])
def test_the_sync_inside_next_is_no_wait(found: Any, loader: str) -> None:
    seen = found["exact"][loader]
    # There is a sync before the first step, one after each, and torch_xla syncs twice at the end.
    assert seen["times"] == [[LOOK] * 5, [2 * SYNC, SYNC, SYNC, SYNC, 2 * SYNC], [COMPUTE] * 5]
    wait = 4 * LOOK + LOOK  # the last one finds out that there is no more
    sync = 3 * SYNC + 2 * SYNC  # those around the first step are left out
    assert seen["wall"] == wait + sync + 4 * COMPUTE
    assert seen["idle"] == pytest.approx(100 * wait / seen["wall"])
    assert seen["sync"] == pytest.approx(100 * sync / seen["wall"])
    assert seen["first"] == COMPUTE + 2 * SYNC


def test_batches_per_execution_is_honoured(found: Any) -> None:
    assert found["exact"]["every second"]["times"] == [[LOOK] * 5, [SYNC, 0, SYNC, 0, 2 * SYNC], [COMPUTE] * 5]


def test_of_our_loader_the_first_wait_is_a_sync(found: Any) -> None:
    seen = found["exact"]["XlaFeed"]
    assert seen["times"] == [[SYNC, *[LOOK] * 4], [SYNC] * 5, [COMPUTE] * 5]
    assert seen["first"] == COMPUTE + SYNC


def test_images_and_bytes_on_a_device(found: Any) -> None:
    for seen in found["exact"].values():
        assert seen["images"] == 40
        assert seen["bytes"] == pytest.approx(4 * (8 * 16 + 8) * 4 / seen["wall"])


def test_the_first_step_of_an_epoch_of_one_has_its_sync_at_the_end(found: Any) -> None:
    seen = found["two epochs of one"]
    assert seen["first"] == COMPUTE + 3 * SYNC
    assert seen["wall"] == (LOOK + SYNC + COMPUTE) + 2 * LOOK + 2 * SYNC


def test_step_trace_syncs_in_the_step(found: Any) -> None:
    assert found["traced"] == [[LOOK] * 4, [SYNC, 0, 0, SYNC], [COMPUTE + SYNC] * 4]


def test_what_the_device_still_computes_at_the_end_is_counted(found: Any) -> None:
    for seen in found["not waited"]:
        assert seen["share"] > 0.8  # of the time until the device was done
    assert "xm.wait_device_ops()" in found["not waited"][0]["notes"][0]
    assert found["not waited"][1]["notes"] == []


def test_leaving_early_takes_the_clock_out_of_the_loader(found: Any) -> None:
    assert found["left early"] == {"steps": 1, "rest": False, "short": []}


def test_the_failure_that_torch_xla_takes_for_the_end_is_told(found: Any) -> None:
    seen = found["short"]
    assert (seen["given"], seen["said"]) == (4, ["rotten"])
    assert seen["short"] == [[1, 4, 9]]
    assert "gave 4 batches, len() says 9" in seen["notes"][0]


@pytest.mark.parametrize("loader", LOADERS)
def test_a_slow_loader_is_waited_for(found: Any, loader: str) -> None:
    seen = found[loader]["slow"]
    assert seen["blame"] == "data"
    assert seen["idle"] > seen["sync"]
    assert seen["recompilations"] <= 2


@pytest.mark.parametrize("loader", LOADERS)
def test_a_step_that_is_traced_anew_is_no_wait(found: Any, loader: str) -> None:
    seen = found[loader]["changing"]
    assert seen["blame"] == "tracing"
    assert "your step waits on tracing and compiling" in seen["verdict"]
    assert seen["sync"] > seen["idle"]
    assert seen["tracing"] <= 100
    assert seen["recompilations"] >= 3
    assert any("after step 1" in note and "Pad batches" in note for note in seen["notes"])


def test_every_count_says_what_happened(found: Any) -> None:
    seen = found["counted"]
    assert seen["item_calls"] == 3
    assert seen["host_syncs"] == 3 + 2  # .cpu() and nonzero wait as well
    assert {name: count for name, count in seen.items() if name.startswith("aten::")} == {"aten::nonzero": 1}
    assert seen["compilations"] >= 1
    assert seen["executions"] >= seen["compilations"] + 2  # the same sum again
    assert seen["compile_ns"] > 0
    assert "5 times in 3 steps (3 by .item() or float())" in seen["advice"][0]
    assert "aten::nonzero 1 times" in seen["advice"][1]


def test_without_torch_xla_nothing_is_known_and_nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch_xla", raising=False)
    assert xla_counts() is None
    assert "torch_xla" not in sys.modules


def test_a_loop_in_order_gets_no_advice() -> None:
    assert compile_advice(Counter(compilations=2, executions=100, host_syncs=3), 100) == ()


def test_the_programs_of_the_page_say_what_it_says(found: Any) -> None:
    output = found["page"]
    assert output.count("5 steps: idle") == 2  # numpy, torch_xla
    assert len(re.findall(r"^sync \d", output, re.MULTILINE)) == 1  # torch_xla alone
    assert "of which compiling n/a" in output  # numpy compiles nothing
    assert re.search(r"^(data|accelerator) \d+\.\d+ True$", output, re.MULTILINE)
    assert "recompilations after step 1: 0\n" in output
    assert "None None\n" in output  # no TPU
    assert float(output.splitlines()[-1]) > 0  # MFU
