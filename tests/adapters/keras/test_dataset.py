"""to_keras on TensorFlow, and what it refuses; test_programs.py has the other backends."""

import os
import subprocess
import sys

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import OptionError

KerasFeed = lazy("tpufeed.adapters.keras.dataset:KerasFeed")

keras = lazy("keras")


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
    with pytest.raises(OptionError, match="'height'"):
        tpufeed.Loader(cache_url, batch_size=8, columns=["image", "label", "sample", "height"]).to_keras()
    with pytest.raises(OptionError, match="class_weight"):
        tpufeed.Loader(cache_url, batch_size=8, columns=["image"]).to_keras(class_weight={0: 1.0})
    with pytest.raises(OptionError, match="from 0 to 2, not for 3"):
        tpufeed.Loader(cache_url, batch_size=8).to_keras(class_weight={3: 1.0})
    with pytest.raises(OptionError, match=r"weights of 0 or more by class.*nan"):
        tpufeed.Loader(cache_url, batch_size=8).to_keras(class_weight={0: np.nan})


def test_text_is_refused_where_keras_takes_none(cache_url):
    with (
        tpufeed.Loader(cache_url, batch_size=8, columns=["image", "filename"]) as loader,
        pytest.raises(OptionError, match=r"\['filename'\]"),
    ):
        KerasFeed(loader.stream)


def test_a_backend_that_is_not_installed_is_named():
    program = "import sys; sys.modules['tensorflow'] = None; import tpufeed; tpufeed.Loader.to_keras(None)"
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=200)
    assert "OptionError" in done.stderr
    assert "KERAS_BACKEND" in done.stderr
