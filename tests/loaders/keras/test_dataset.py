"""to_keras on each backend of Keras; what all backends share of TensorFlow's is in tests/loaders/tf."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import tpufeed
from tests.quick_xla import QUICK
from tpufeed.errors import OptionError
from tpufeed.loaders.keras.dataset import KerasFeed

PROGRAM = Path(__file__).parent / "without_tensorflow.py"


def run(*command, **variables):
    environment = os.environ | variables
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, check=False, capture_output=True, text=True, timeout=200
    )


@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.long)])
def test_fit_evaluate_and_predict_without_tensorflow(dataset_url, cache_url, tmp_path, backend):
    devices = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {QUICK}", "TPUFEED_PROCESSES": "0"}
    done = run(PROGRAM, dataset_url, cache_url, tmp_path, KERAS_BACKEND=backend, **devices)
    assert done.stdout == "ok\n", done.stderr[-3000:]


def test_on_tensorflow_it_is_to_tf_with_weights_of_samples(dataset_url, cache_url):
    assert keras.backend.backend() == "tensorflow"
    plain = tpufeed.Loader(cache_url, batch_size=7).to_keras()
    assert [len(batch) for batch in plain] == [2] * 10
    weights = {0: 2.0, 1: 0.5}
    feed = tpufeed.Loader(cache_url, "val", batch_size=8, remainder="pad", shuffle=False).to_keras(class_weight=weights)
    found, labels, given = 0, [], []
    for _, label, weight in feed:
        labels += label.numpy().tolist()
        given += weight.numpy().tolist()
        found += 1
    records = tpufeed.open_dataset(cache_url).split("val").records
    assert given == [weights.get(label, 1.0) for label in labels[:records]] + [0.0] * (8 * found - records)
    alone = tpufeed.Loader(cache_url, "val", batch_size=8, remainder="pad", columns=["image"]).to_keras()
    assert {tuple(batch.shape) for batch in alone} == {(8, 64, 64, 3)}


def test_what_keras_cannot_take_is_refused(cache_url):
    with pytest.raises(OptionError, match=r"columns=\['image', 'label', 'sample', 'height'\]"):
        tpufeed.Loader(cache_url, batch_size=8, columns=["image", "label", "sample", "height"]).to_keras()
    with pytest.raises(OptionError, match="class_weight is for batches of an image and one label"):
        tpufeed.Loader(cache_url, batch_size=8, columns=["image"]).to_keras(class_weight={0: 1.0})
    with pytest.raises(OptionError, match=r"a weight of 0 or more for classes from 0 to 2, not 1\.0 for 3"):
        tpufeed.Loader(cache_url, batch_size=8).to_keras(class_weight={3: 1.0})
    with pytest.raises(OptionError, match="not nan for 0"):
        tpufeed.Loader(cache_url, batch_size=8).to_keras(class_weight={0: np.nan})


def test_text_is_refused_where_keras_takes_none(cache_url):
    with (
        tpufeed.Loader(cache_url, batch_size=8, columns=["image", "filename"]) as loader,
        pytest.raises(OptionError, match=r"\['filename'\] are text: leave them out"),
    ):
        KerasFeed(loader)


def test_a_backend_that_is_not_installed_is_named():
    program = "import sys; sys.modules['tensorflow'] = None; import tpufeed; tpufeed.Loader.to_keras(None)"
    done = run("-c", program, KERAS_BACKEND="tensorflow")
    assert "OptionError: Keras cannot be imported" in done.stderr
    assert "set KERAS_BACKEND" in done.stderr
