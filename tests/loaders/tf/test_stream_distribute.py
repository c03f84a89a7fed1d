"""to_tf under tf.distribute: each sample is given to one of four replicas in one process, or of two processes."""

import json
import os
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

SAMPLES = 70
STEP = 16  # four replicas of 4


@pytest.fixture(scope="module")
def found(run_script, cache_url, dataset_url, tmp_path_factory):
    """What four_devices.py wrote down."""
    out = tmp_path_factory.mktemp("distribute") / "found.json"
    run_script("tf/four_devices.py", cache_url, dataset_url, out)
    return json.loads(out.read_text())


def samples_of(epoch):
    """In the order of steps and replicas, without padding."""
    return [
        sample
        for step in epoch
        for _, ids, *mask in step
        for sample, real in zip(ids, mask[0] if mask else [True] * len(ids), strict=True)
        if real
    ]


def check_pixels(epochs, stored, url):
    for epoch, steps in enumerate(epochs):
        checksums = [zlib.crc32(image) for image in stored(url, "train", epoch % 2).pixels]
        for step in steps:
            for images, ids, *_ in step:
                assert images == [checksums[sample] for sample in ids]


def check_shapes(epochs):
    assert {tuple(map(len, replica)) for epoch in epochs for step in epoch for replica in step} in (
        {(4, 4)},
        {(4,) * 3},
    )
    assert {len(step) for epoch in epochs for step in epoch} == {4}


# experimental_distribute_dataset, which splits a global batch


@pytest.mark.parametrize(("remainder", "steps"), [("drop", 4), ("pad", 5)])
def test_a_global_batch_is_split_among_the_replicas(found, remainder, steps, stored, cache_url):
    whole = found["whole"]
    assert found["replicas"] == 4
    assert whole["batch_size"] == STEP
    epochs = whole[remainder]
    check_shapes(epochs)
    check_pixels(epochs, stored, cache_url)
    for epoch in epochs:
        samples = samples_of(epoch)
        assert len(epoch) == steps
        assert len(samples) == len(set(samples)) == {"drop": 64, "pad": SAMPLES}[remainder]
    first, second = map(samples_of, epochs)
    assert first != second


def test_shapes_of_a_replica_are_static(found):
    spec = [[[4, 64, 64, 3]] * 4, [[4]] * 4]
    for way in ("whole", "from function"):
        assert found[way]["drop spec"] == spec
        assert found[way]["pad spec"] == [*spec, [[4]] * 4]
    assert found["whole"]["traced"] == [[[4, 64, 64, 3], [4]]] * 4  # traced once for each replica


# distribute_datasets_from_function, which hands batches over as they are


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_each_replica_takes_a_batch_of_the_function_s_dataset(found, remainder, stored, cache_url):
    """17 or 18 batches are 4 steps of 4: what fills no step is dropped, whatever the remainder."""
    assert found["from function"]["batch_size"] == 4
    epochs = found["from function"][remainder]
    check_shapes(epochs)
    check_pixels(epochs, stored, cache_url)
    for epoch in epochs:
        samples = samples_of(epoch)
        assert len(samples) == len(set(samples)) == 64
    assert samples_of(epochs[0]) != samples_of(epochs[1])


@pytest.mark.parametrize(("remainder", "count"), [("drop", 64), ("pad", SAMPLES)])
def test_rebatched_from_whole_steps_none_is_lost(found, remainder, count, stored, cache_url):
    epochs = found["from function"][f"{remainder} rebatched"]
    check_shapes(epochs)
    check_pixels(epochs, stored, cache_url)
    assert epochs == found["whole"][remainder]
    for epoch in epochs:
        samples = samples_of(epoch)
        assert len(samples) == len(set(samples)) == count


# Two workers, each a process


@pytest.fixture(scope="module")
def workers(dataset_url, tmp_path_factory):
    """What the two processes of two_workers.py wrote down."""
    folder = tmp_path_factory.mktemp("workers")
    with socket.socket() as one, socket.socket() as other:  # both at once, so that their ports differ
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        cluster = {"worker": [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]}
    script, running = Path(__file__).with_name("two_workers.py"), []
    for index in range(2):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        command = [sys.executable, str(script), dataset_url, str(folder / f"{index}.json")]
        environment = os.environ | {"TF_CONFIG": config}
        running.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        outputs = [process.communicate(timeout=150)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], outputs
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(2)]


@pytest.mark.long  # two processes; what makes them share is in test_stream.py
@pytest.mark.parametrize("way", ["whole", "from function"])
def test_workers_share_each_epoch(workers, way):
    """By TF_CONFIG or the context; TensorFlow's own sharding, that would halve each share, is off."""
    assert [found["batch_size"] for found in workers] == [8, 8]
    epochs = list(zip(*(found[way] for found in workers), strict=True))
    for shares in epochs:
        assert [[len(step) for step in share] for share in shares] == [[4] * 8] * 2
        samples = [sample for share in shares for step in share for sample in step]
        assert len(samples) == len(set(samples)) == 64
    assert epochs[0] != epochs[1]


# Keras


@pytest.mark.parametrize("way", ["whole", "from function"])
def test_fit_under_the_strategy_gives_each_replica_its_part(found, way):
    fit = found["fit"][way]
    assert fit["steps"] == 10
    assert len(fit["seen"]) == 40
    orders = []
    for epoch in (fit["seen"][:20], fit["seen"][20:]):
        assert sorted(replica for replica, _ in epoch) == sorted([*range(4)] * 5)
        assert {len(ids) for _, ids in epoch} == {4}
        assert {sample for _, ids in epoch for sample in ids} == set(range(SAMPLES))
        orders.append({tuple(ids) for _, ids in epoch})
    assert orders[0] != orders[1]
    assert np.isfinite(fit["loss"]).all()


def test_evaluation_under_the_strategy_weighs_padding_with_nothing(found):
    right = found["evaluation"]["right"]
    assert len(right) == 26
    assert found["evaluation"]["accuracy"] == pytest.approx(np.mean(right))
