"""`tpufeed bench`: a table that says EMULATED on every line, JSON, files, and what it refuses."""

import json
import re
from pathlib import Path

import pytest

from tpufeed.cli.bench import _iter_verdicts
from tpufeed.measure.results import BenchRun

DEVICE = ("--step-ms", "1", "--batch", "4", "--steps", "24", "--repeats", "1", "--warm-up", "0")
EVERY_LINE = "EMULATED"


@pytest.fixture(scope="module")
def done(run, cache_url, tmp_path_factory):
    """One run of two loaders, with a file of its result; and that file."""
    path = tmp_path_factory.mktemp("bench") / "result.json"
    done = run("bench", cache_url, "--loader", "numpy", "--loader", "naive", *DEVICE, "--save", path)
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


@pytest.mark.all
def test_every_line_says_that_the_device_is_emulated(done, cache_url):
    lines = [line for line in done[0].stdout.splitlines() if re.search(r"\w", line)]
    assert len(lines) >= 6
    assert [line for line in lines if EVERY_LINE not in line] == []
    assert [line for line in done[0].stderr.splitlines() if EVERY_LINE not in line] == []
    for loader in ("numpy", "naive"):
        assert any(f"EMULATED {Path(cache_url).name}, {loader} " in line for line in lines)  # of the table
        assert any(line.startswith(f"EMULATED {cache_url}, {loader}: ") for line in lines)  # verdict, or why not
    assert "idle %" in done[0].stdout
    assert "AU %" in done[0].stdout
    assert "cores" in lines[-1]
    assert "batches of 4, 1 repeat" in lines[0]
    assert "repeats" not in lines[0]


def test_the_saved_result_is_all_of_it(done, cache_url):
    result = done[1]
    assert result["machine"]["cores"] >= 1
    assert result["options"]["steps"] == 24
    assert [place["url"] for place in result["places"]] == [cache_url]
    assert [run["loader"] for run in result["runs"]] == ["numpy", "naive"]
    for run in result["runs"]:
        assert run["device"] == "EMULATED 1ms-step"
        assert (run["steps"], run["images"]) == (24, 96)
        assert run["rates"]["values"] == [run["images_per_second"]]
        assert run["mxu_percent"] is None
        assert len(run["timeline"]["wait_seconds"]) == 24
        assert bool(run["verdict"]) != bool(run["problems"])


def test_what_all_rows_have_in_common_is_said_once() -> None:
    runs = [
        BenchRun(label=label, url="u", loader="numpy", source="shards", device="none", batch_size=4, steps=2, images=8,
            problems=problems)
        for label, problems in (("a", ("few batches",)), ("b", ("few batches", "woken late")))
    ]  # fmt: skip
    assert list(_iter_verdicts(runs)) == ["no verdict for any row: few batches", "b: no verdict: woken late"]
    assert list(_iter_verdicts(runs[:1])) == ["a: no verdict: few batches"]


@pytest.mark.all
def test_rows_with_device_ops_say_so(run, cache_url):
    done = run("bench", cache_url, *DEVICE, "--device-op", "HorizontalFlip", "--device-op", "Grayscale")
    assert done.returncode == 0, done.stderr
    assert f"EMULATED {Path(cache_url).name}, numpy, device ops " in done.stdout
    assert f"EMULATED {cache_url}, numpy, device ops: " in done.stdout


@pytest.mark.all
@pytest.mark.uses("matplotlib")
def test_json_and_a_report(run, cache_url, tmp_path):
    page = tmp_path / "out.html"
    done = run("bench", cache_url, "--device", "none", *DEVICE[2:], "--json", "--report", page)
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)["runs"]
    assert (measured["device"], measured["loader"]) == ("none", "numpy")
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "emulated:tpu-v3"), "did you mean tpu-v3-8"),
        (("--batch", "500"), "fewer than a batch of 500"),
        (("--save", "none/result.json"), "none/result.json: there is no folder none"),
        (("--save", "."), ". is a folder; give the name of a file"),
        (("--report", "out.pdf"), "must end in .html"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(run, cache_url, arguments, said):
    done = run("bench", cache_url, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "feeding" not in done.stderr
