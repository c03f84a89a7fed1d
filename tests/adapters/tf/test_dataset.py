"""to_tf(service=...): a real dispatcher, and two real workers in processes of their own."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.adapters.tf.feeds import tf_feed
from tests.engines.contract import wait_until
from tests.frameworks import lazy
from tpufeed.errors import OptionError, UnavailableError

tf = lazy("tensorflow")

EXAMPLE = Path(__file__).parents[3] / "examples/tfdata_service.py"
FORKS = Path(__file__).parents[1] / "forks.py"
COLUMNS = ["sample", "image", "label"]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("service")) as (target, _):
        yield target


@contextmanager
def serve(folder):
    """Yield the address of examples/tfdata_service.py as a dispatcher with two workers, and the ids of the workers."""
    port, *ports = free_ports(3)
    workers = ",".join(f"localhost:{worker}" for worker in ports)
    commands = [["dispatcher", "--port", port, "--workers", workers]]
    commands += [["worker", "--dispatcher", f"localhost:{port}", "--port", worker] for worker in ports]
    runs = json.dumps([{"command": list(map(str, [EXAMPLE, *command]))} for command in commands])
    program = [sys.executable, FORKS, "tensorflow", runs, folder, "together"]
    process = subprocess.Popen(list(map(str, program)), stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, *workers = json.loads(process.stdout.readline())
        wait_until(lambda: sum("serves on port" in path.read_text() for path in folder.glob("*.out")) == 3)
        yield f"grpc://localhost:{port}", workers
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def samples_of(batches):
    return np.concatenate([np.asarray(samples) for samples, *_ in batches]).tolist()


def test_workers_share_epochs_and_make_the_pixels_of_the_loader(service, cache_url):
    dataset = tpufeed.Loader(cache_url, repeat=True, batch_size=7, columns=COLUMNS).to_tf(service=service)
    assert dataset.element_spec[1].shape == (7, 64, 64, 3)
    batches = list(dataset.take(40).as_numpy_iterator())
    counts = Counter(samples_of(batches))
    # Each worker has up to a batch, and the records that it mixes, of an epoch yet to hand out.
    assert set(counts) == set(range(70))
    assert max(counts.values()) <= 7
    with tpufeed.Loader(cache_url, batch_size=7, columns=COLUMNS) as loader:
        known = {}
        for _ in range(2):  # both variants
            for ids, images, labels in loader:
                for row, sample in enumerate(ids):
                    known.setdefault(int(sample), set()).add((images[row].tobytes(), int(labels[row])))
    for ids, images, labels in batches:
        for row, sample in enumerate(ids):
            assert (images[row].tobytes(), int(labels[row])) in known[int(sample)]


@pytest.mark.parametrize("sharding", ["dynamic", "off", "file"])
def test_an_evaluation_sees_each_sample_once_or_once_a_worker(service, cache_url, sharding):
    given = {"service": service, "sharding": sharding, "shuffle": False, "split": "val", "columns": ["sample", "label"]}
    dataset = tf_feed(cache_url, batch_size=4, remainder="pad", **given)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    for _ in range(2):
        real = [sample for ids, _, mask in dataset.as_numpy_iterator() for sample in ids[mask]]
        assert sorted(real) == sorted(list(range(26)) * (2 if sharding == "off" else 1))


@pytest.mark.long  # a service of its own
def test_a_worker_that_is_killed_costs_no_more_than_what_it_had(cache_url, tmp_path):
    with serve(tmp_path) as (target, workers):
        dataset = tpufeed.Loader(cache_url, repeat=True, batch_size=5, columns=COLUMNS).to_tf(service=target)
        iterator = dataset.as_numpy_iterator()
        before = [next(iterator) for _ in range(6)]
        os.kill(workers[0], signal.SIGKILL)
        after = [next(iterator) for _ in range(60)]
        os.kill(workers[1], 0)  # is there
    assert set(samples_of(before + after)) == set(range(70))  # later epochs bring what was lost with it


def test_what_is_wrong_in_a_worker_is_named_here(service, cache_url, damage):
    damaged = damage(cache_url, 33)
    dataset = tpufeed.Loader(damaged.url, repeat=True, batch_size=5).to_tf(service=service)
    with pytest.raises(tf.errors.OpError, match=f"{damaged.shard}, record {damaged.record}"):
        list(dataset.take(300))


def test_processes_that_train_together_share_a_job_by_its_name(service, cache_url):
    given = {"repeat": True, "batch_size": 5, "columns": ["sample", "label"], "service": f"{service}/run-1"}
    ranks = [iter(tf_feed(cache_url, world=(rank, 2), **given)) for rank in range(2)]
    batches = [next(iterator) for _ in range(14) for iterator in ranks]
    counts = Counter(samples_of(batches))
    assert sum(counts.values()) == 140
    assert max(counts.values()) <= 5  # not as many as if each had all
    with pytest.raises(OptionError, match=f"2 processes.*{service}/my-run-1"):
        tpufeed.Loader(cache_url, world=(0, 2), batch_size=5, repeat=True).to_tf(service=service)


def test_a_service_that_is_not_there_and_options_that_do_not_fit(cache_url):
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        address = f"grpc://localhost:{unused.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=address):
            tpufeed.Loader(cache_url, repeat=True, batch_size=5).to_tf(service=address)
    with pytest.raises(OptionError, match="repeat=True"):
        tpufeed.Loader(cache_url).to_tf(service=address)
    for wrong in ("localhost:5000", "grpc://localhost", "http://localhost:1", "grpc://a:b"):
        with pytest.raises(OptionError, match="grpc://"):
            tpufeed.Loader(cache_url, repeat=True).to_tf(service=wrong)
    with pytest.raises(OptionError, match="service is a text, not 5"):
        tpufeed.Loader(cache_url, repeat=True).to_tf(service=5)
    with pytest.raises(OptionError, match="'data'"):
        tpufeed.Loader(cache_url, repeat=True).to_tf(service=address, sharding="data")
    with pytest.raises(OptionError, match="service="):
        tpufeed.Loader(cache_url).to_tf(sharding="off")
    with pytest.raises(OptionError, match="deterministic=True"):
        tpufeed.Loader(cache_url).to_tf(service=address, deterministic=True)
