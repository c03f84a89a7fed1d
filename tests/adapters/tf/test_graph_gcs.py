"""to_tf(direct=True) over gs://: TensorFlow's own client reads from the tests' GCS, in another process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.gcs_server import GcsServer
from tpufeed.dataset.reader import open_dataset

PROGRAM = """
import gc, json, logging, os, sys
gc.disable()  # collections take a second beside TensorFlow
logging.basicConfig(stream=sys.stderr)
import tpufeed
from tpufeed.adapters.tf.dataset import _GCS_SETTINGS
result = {}
for name in ("set", "cut"):
    epochs, errors = [], []
    dataset = tpufeed.Loader(f"gs://bucket/{name}", batch_size=10, columns=["image", "sample"]).to_tf(direct=True)
    for epoch in range(2):
        try:
            found = {int(n): images[row].numpy().tobytes() for images, ids in dataset for row, n in enumerate(ids)}
        except Exception as raised:
            found = {}
            errors.append(str(raised))
        epochs.append(found)
    with tpufeed.Loader(sys.argv[1], batch_size=10, columns=["image", "sample"]) as loader:
        same = [
            found == {int(n): images[row].tobytes() for images, ids in loader for row, n in enumerate(ids)}
            for found in epochs
        ]
    result[name] = {"same": same, "errors": errors}
    print(f"END OF {name}", file=sys.stderr)
    for setting in _GCS_SETTINGS:  # as if TensorFlow had been imported before
        os.environ.pop(setting, None)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def served(cache_url):
    """`(server, what the program found, what it logged of each dataset, damaged objects of the second)`."""
    with GcsServer() as server:
        for file in Path(cache_url).iterdir():
            if file.is_file():
                for name in ("set", "cut"):
                    server.put("bucket", f"{name}/{file.name}", file.read_bytes())
        variants = open_dataset(cache_url).split("train").variants
        shard, damaged = f"cut/{variants[0].shards[0].name}", f"cut/{variants[1].shards[1].name}"
        cut = int(np.load(Path(cache_url) / variants[0].index.name)[variants[0].shards[0].records - 1])
        server.put("bucket", shard, server.get("bucket", shard)[:cut])
        data = bytearray(server.get("bucket", damaged))
        data[2000] ^= 0x10
        server.put("bucket", damaged, bytes(data))
        server.fault("status", operation="read", name="set/train-v0-00001*", status=503)
        server.fault("reset_midway", operation="read", name="set/train-v0-00002*")
        server.fault("stall", operation="read", name="set/train-v1-00001*", seconds=4)
        settings = {"GCS_REQUEST_IDLE_TIMEOUT_SECS": "1", "GCS_READ_CACHE_BLOCK_SIZE_MB": "1"}
        environment = os.environ | server.environment() | server.tensorflow_environment() | settings
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, cache_url],
            env=environment | {"GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000"},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        yield server, json.loads(done.stdout.splitlines()[-1]), done.stderr.split("END OF set"), (shard, damaged)


def test_faults_are_waited_out_and_pixels_are_those_of_the_source(served):
    server, found, (said, _), _ = served
    assert found["set"] == {"same": [True, True], "errors": []}
    assert "TensorFlow was imported before" not in said
    for name, fault in [("v0-00001", "status"), ("v0-00002", "reset_midway"), ("v1-00001", "stall")]:
        pattern = f"set/train-{name}*.tfrecord"
        deadline = time.monotonic() + 60  # a read that stalls is in the log when it ends
        while not server.requests(operation="read", name=pattern, fault=fault) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(server.requests(operation="read", name=pattern, fault=fault)) == 1
        assert server.requests(operation="read", name=pattern, fault="", status=206)
    assert server.requests(operation="read", name="*.tfrecord", range="bytes=0-1048575")  # the user's setting


def test_a_shard_that_is_cut_a_damaged_record_and_settings_that_come_too_late(served):
    _, found, (_, said), (shard, damaged) = served
    assert f"gs://bucket/{shard}" in found["cut"]["errors"][0]
    assert f"gs://bucket/{damaged}, record 0" in found["cut"]["errors"][1]
    assert found["cut"]["same"] == [False, False]
    assert "TensorFlow was imported before" in said
    assert "GCS_READ_CACHE_BLOCK_SIZE_MB=8" in said
