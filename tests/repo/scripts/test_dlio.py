import json
import os
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import dlio as bench

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".peers" / "dlio" / "bin" / "python"
needs_dlio = pytest.mark.skipif(not PYTHON.exists(), reason="DLIO is not installed: run scripts/setup-peers dlio")

# Both decoders over the same shards, in order: the labels, and how far their pixels are apart on average.
COMPARE = """
import sys
from pathlib import Path
import numpy as np, tensorflow as tf, tpufeed
from benchmarks.peers.dlio import TpufeedLoader, decode
folder = Path(sys.argv[1])
files = sorted(map(str, folder.glob("*.tfrecord")))
theirs = next(iter(tf.data.TFRecordDataset(files).map(decode).batch(32)))
ours = next(iter(tpufeed.Loader(folder, batch_size=32, shuffle=False, processes=0, **TpufeedLoader.options)))
assert (theirs[1].numpy() == ours[1]).all() and len(set(ours[1])) > 1
print(np.abs(theirs[0].numpy().astype(int) - ours[0]).mean(), ours[0].std())
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("skimage", "sklearn"):
        pytest.importorskip(package)
    folder: Path = bench.make_photographs(tmp_path_factory.mktemp("dlio"), 64)
    return folder


def write_output(folder: Path, **changed: Any) -> None:
    """Write what DLIO writes for two epochs of three steps."""
    metric = {"train_au_percentage": [90.0, 80.0], "train_throughput_samples_per_second": [100.0, 120.0]}
    metric |= {key: value for key, value in changed.items() if key in metric}
    steps = changed.get("steps", [3, 3])
    output = {str(epoch): {"proc": {"block1": [0.1] * taken}} for epoch, taken in enumerate(steps, 1)}
    (folder / "summary.json").write_text(json.dumps({"metric": metric}))
    (folder / "0_output.json").write_text(json.dumps(output))


def test_the_figures_are_dlios_own(tmp_path: Path) -> None:
    write_output(tmp_path)
    assert bench.read_outcome(tmp_path, 2, 3) == {
        "au_percent": 85.0,
        "epochs_au_percent": [90.0, 80.0],
        "samples_per_second": 110.0,
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": [3, 2]}, r"took \[3, 2\] steps"),
        ({"steps": [3]}, "no steps or no AU"),
        ({"train_au_percentage": [90.0]}, "AU of 2 epochs"),
        ({"train_au_percentage": [90.0, float("nan")]}, "AU of 2 epochs"),
        ({"train_au_percentage": [90.0, 0.0]}, "AU of 2 epochs"),
    ],
)
def test_a_run_that_read_less_or_has_no_au_is_an_error(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    write_output(tmp_path, **changed)
    with pytest.raises(bench.DlioError, match=message):
        bench.read_outcome(tmp_path, 2, 3)


def test_a_run_without_output_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(bench.DlioError, match="no steps or no AU"):
        bench.read_outcome(tmp_path, 1, 3)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(bench.DlioError, match="give a multiple"):
        bench.make_photographs(tmp_path, 17)
    monkeypatch.setattr(bench, "DLIO", tmp_path / "absent")
    with pytest.raises(bench.DlioError, match="setup-peers dlio"):
        bench.measure(Namespace(), tmp_path)


@needs_dlio
@pytest.mark.long  # DLIO imports TensorFlow for 5 s a run
def test_dlio_runs_both_loaders(photographs: Path) -> None:
    options = Namespace(only=None, photos=64, records=4, batch=16, step_seconds=[0.01], repeats=1, epochs=2)
    found = bench.measure(options, photographs.parent)
    for kind, step, epochs in (("storage", "0.224", 5), ("jpeg", "0.01", 2)):
        loaders = found[kind]["step_seconds"][step]
        assert set(loaders) == {bench.THEIRS, bench.OURS}
        for figures in loaders.values():
            assert 0 < figures["au_percent"][0] <= 100.5
            assert len(figures["epochs_au_percent"][0]) == epochs


@needs_dlio
@pytest.mark.long
def test_dlio_that_gets_fewer_batches_than_it_asks_for_is_an_error(photographs: Path) -> None:
    with pytest.raises(bench.DlioError):
        bench.run(photographs, 8, 16, 0.01, 1, bench.LOADERS["jpeg"][bench.OURS])  # twice what is there


@needs_dlio
@pytest.mark.long
def test_both_loaders_hand_over_the_same_photographs(photographs: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [str(PYTHON), "-c", COMPARE, str(photographs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    apart, contrast = map(float, done.stdout.split())
    assert apart < 3
    assert contrast > 10
