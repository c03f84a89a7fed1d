import argparse
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import feed as bench
from benchmarks import grain
from benchmarks.peers import Source, measure

ROOT = Path(__file__).parents[3]
MEASURED = ("tf.data, parallelism 2", "torch DataLoader + PIL")
OURS = ("tpufeed.grain_source",)
ABSENT = "no_such_peer:2"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    for package in ("tensorflow", "torch", "skimage", "sklearn"):
        pytest.importorskip(package)
    from benchmarks.peers.sources import make_sources

    return make_sources(tmp_path_factory.mktemp("feed"), 140)


@pytest.mark.long  # each loader is a process with its framework
def test_loaders_are_measured_and_compared_and_absent_ones_say_so(sources: dict[str, Any]) -> None:
    options = argparse.Namespace(repeats=1, seconds=0.01, beside=1)
    found = bench.summary("presized", bench.measure(sources["presized"], [*MEASURED, *OURS, ABSENT], options))
    loaders = found["loaders"]
    for name in (*MEASURED, *OURS):
        assert loaders[name].get("why_not") is None
        assert loaders[name]["images_per_second"] == [loaders[name]["median"]]
    assert found["best_peer"] == max(MEASURED, key=lambda name: loaders[name]["median"])
    assert loaders[found["best_peer"]]["to_best_peer"] == 1
    assert loaders[ABSENT] == {"why_not": "not installed: run scripts/setup-peers no_such_peer"}
    assert all(len(bench.row(name, figures, found)) == 9 for name, figures in loaders.items())


@pytest.mark.long
def test_grain_is_measured_over_both_sources(sources: dict[str, Any]) -> None:
    found = grain.measure(sources["presized"], 1, 1)
    assert set(found) == set(grain.WAYS)
    assert all(microseconds > 0 for (microseconds,) in found.values())


def test_a_loader_that_cannot_do_the_work_or_fails_says_why() -> None:
    source = Source("raw", *[Path("/nowhere")] * 4)
    assert bench.run("decoding", source, 0.01)["why_not"] == "not measured: it does no raw work"
    assert "DatasetNotFoundError" in bench.run("ours:numpy", source, 0.01)["why_not"]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((128, 3, 224, 224), np.uint8), np.arange(128), "not 128 contiguous uint8 images"),
        (np.zeros((128, 224, 224, 3), np.float32), np.arange(128), "not 128 contiguous uint8 images"),
        (np.zeros((128, 224, 224, 3), np.uint8), np.zeros(128, int), "no labels of shuffled classes"),
        (np.zeros((128, 224, 224, 3), np.uint8), np.arange(128), "not photographs"),
    ],
)
def test_a_batch_that_is_not_what_all_hand_over_is_refused(
    images: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        measure.check((images, labels))


def test_setup_peers_names_the_peers_that_there_are() -> None:
    command = [str(ROOT / "scripts" / "setup-peers"), "no_such_peer"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert all(
        name in done.stderr for name in ("webdataset", "mosaic", "litdata", "spdl", "dali", "ffcv", "dlio", "bands")
    )
