import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
MACHINE = {"cpu": "A processor", "cores": 2, "date": "2026-11-21"}
FEED = {
    "machine": MACHINE,
    "jpeg": {
        "work": "JPEG & more",
        "loaders": {
            "decoding alone": {"images_per_second": [1800.0, 1810.0, 1790.0]},
            "tpufeed.numpy_loader": {"images_per_second": [1500.0, 1600.0, 1550.0]},
            "SPDL": {"why_not": "failed"},
        },
    },
}
BENCH = {
    "machine": MACHINE,
    "runs": [
        {"label": "flowers, numpy", "device": "EMULATED tpu-v3-8", "rates": {"values": [7000.0, 7500.0]}},
        {"label": "flowers, naive", "device": "EMULATED tpu-v3-8", "images_per_second": 400.0, "rates": None},
    ],
}


def plot(folder, *arguments):
    command = [sys.executable, ROOT / "benchmarks/plot.py", *arguments, "--results", folder, "--out", folder / "plots"]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plot")
    for name, result in (("feed", FEED), ("bench", BENCH), ("other", {"machine": MACHINE, "seconds": 3})):
        (folder / f"{name}.json").write_text(json.dumps(result))
    return folder


def test_results_become_charts_with_text_that_stays_text(results):
    done = plot(results)
    assert done.returncode == 0, done.stderr
    charts = {path.name: path.read_text() for path in (results / "plots").iterdir()}
    assert set(charts) == {"feed-jpeg.svg", "bench.svg"}
    texts = {name: "\n".join(ElementTree.fromstring(chart).itertext()) for name, chart in charts.items()}
    for said in ("JPEG & more", "tpufeed.numpy_loader", "1,550", "1,800", "A processor, 2 cores, 2026-11-21"):
        assert said in texts["feed-jpeg.svg"]
    assert "SPDL" not in texts["feed-jpeg.svg"]
    for said in ("EMULATED tpu-v3-8", "flowers, numpy", "7,250", "400"):
        assert said in texts["bench.svg"]
    assert max(map(len, charts.values())) < 40_000
    again = plot(results, "feed")
    assert again.returncode == 0, again.stderr
    assert (results / "plots/feed-jpeg.svg").read_text() == charts["feed-jpeg.svg"]


def test_a_result_that_is_not_there_or_has_no_rates_is_named(results):
    unknown = plot(results, "fed")
    assert unknown.returncode == 2
    assert "there are bench, feed, other" in unknown.stderr
    other = plot(results, "other")
    assert other.returncode == 2
    assert "no images a second" in other.stderr
