"""tf_dataset(direct=True) over gs://: TensorFlow's own client against the tests' GCS, in a process of its own."""

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

pytest.importorskip("google.cloud.storage")

PROGRAM = """
import json, logging, sys
logging.basicConfig(stream=sys.stderr)
import tpufeed
url = "gs://bucket/set"
epochs, errors = [], []
dataset = tpufeed.tf_dataset(url, direct=True, batch_size=10, columns=["image", "sample"])
for epoch in range(2):
    try:
        found = {int(n): images[row].numpy().tobytes().hex() for images, ids in dataset for row, n in enumerate(ids)}
    except Exception as raised:
        found = {}
        errors.append(str(raised))
    epochs.append(found)
with tpufeed.numpy_loader("SOURCE", batch_size=10, columns=["image", "sample"]) as loader:
    same = [
        found == {int(n): images[row].tobytes().hex() for images, ids in loader for row, n in enumerate(ids)}
        for found in epochs
    ]
print(json.dumps({"same": same, "errors": errors}))
"""


@pytest.fixture
def server(cache_url):
    with GcsServer() as server:
        for file in Path(cache_url).iterdir():
            if file.is_file():
                server.put("bucket", f"set/{file.name}", file.read_bytes())
        yield server


def run(server, cache_url, program=PROGRAM, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program.replace("SOURCE", cache_url)],
        env={
            **os.environ,
            **server.environment(),
            **server.tensorflow_environment(),
            "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_faults_are_waited_out_and_pixels_are_those_of_the_source(server, cache_url):
    server.fault("status", operation="read", name="set/train-v0-00001*", status=503)
    server.fault("reset_midway", operation="read", name="set/train-v0-00002*")
    server.fault("stall", operation="read", name="set/train-v1-00001*", seconds=4)
    found, said = run(server, cache_url, GCS_REQUEST_IDLE_TIMEOUT_SECS="1", GCS_READ_CACHE_BLOCK_SIZE_MB="1")
    assert found == {"same": [True, True], "errors": []}
    assert "TensorFlow was imported before" not in said
    for name, fault in [("v0-00001", "status"), ("v0-00002", "reset_midway"), ("v1-00001", "stall")]:
        pattern = f"set/train-{name}*.tfrecord"
        deadline = time.monotonic() + 20  # a read that stalls is in the log when it ends
        while not server.requests(operation="read", name=pattern, fault=fault) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(server.requests(operation="read", name=pattern, fault=fault)) == 1
        assert server.requests(operation="read", name=pattern, fault="", status=206)
    assert server.requests(operation="read", name="*.tfrecord", range="bytes=0-1048575")  # the user's setting


def test_a_shard_that_is_cut_a_damaged_record_and_settings_that_come_too_late(server, cache_url):
    variants = open_dataset(cache_url).split("train").variants
    shard, name = variants[0].shards[0], f"set/{variants[0].shards[0].name}"
    cut = int(np.load(Path(cache_url) / variants[0].index.name)[shard.records - 1])
    server.put("bucket", name, server.get("bucket", name)[:cut])
    other = f"set/{variants[1].shards[1].name}"
    data = bytearray(server.get("bucket", other))
    data[2000] ^= 0x10
    server.put("bucket", other, bytes(data))
    found, said = run(server, cache_url, "import tensorflow\n" + PROGRAM)
    assert f'input file "gs://bucket/{name}" has body length' in found["errors"][0]
    assert f"gs://bucket/{other}, record 0: it cannot be read" in found["errors"][1]
    assert found["same"] == [False, False]
    assert "TensorFlow was imported before" in said
    assert "GCS_READ_CACHE_BLOCK_SIZE_MB=8" in said
    assert server.requests(operation="read", name="*.tfrecord", range=f"bytes=0-{(64 << 20) - 1}")
