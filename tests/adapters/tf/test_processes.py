"""TensorFlow in other processes: how they end, four replicas, and the programs of the pages.

All are forks of one process, as TensorFlow takes five seconds to import.
"""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.adapters.tf.feeds import tf_feed
from tests.frameworks import lazy
from tests.repo.docs.pages import blocks, commands
from tests.repo.docs.pages import ran as note

tf = lazy("tensorflow")

RUNS = {
    "tfdata.md": "",
    "examples/README.md": "--cpu 2 ",
}

pytestmark = pytest.mark.timeout(1800)

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
SAMPLES = 70
STEP = 16  # four replicas of 4
WAYS = ["left", "left direct", "one thread", "gone on", "fit failed"]
GIVEN = [{}, {"repeat": True}, {"deterministic": True}]
SAVED_AFTER, COLUMNS = 5, ["sample", "image"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, dataset_url, cache_url):
    """What the pages say is there."""
    folder = tmp_path_factory.mktemp("processes")
    shutil.copytree(dataset_url, folder / "flowers")
    shutil.copytree(cache_url, folder / "flowers-224")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture(scope="module")
def ran(run_forks, folder, cache_url, dataset_url):
    """By name `(status, stdout, stderr)` of each process."""
    checkpoints = json.dumps([save(cache_url, given, folder / str(number)) for number, given in enumerate(GIVEN)])
    ended = [cache_url, dataset_url, checkpoints, str(folder / "gone-on.json")]
    commands_of = {way: [str(HERE / "ended.py"), way, *ended] for way in WAYS}
    commands_of["replicas"] = [str(HERE / "four_devices.py"), cache_url, dataset_url, str(folder / "replicas.json")]
    runs = [{"command": command} for command in commands_of.values()]
    pages = programs_of_pages(folder)
    runs += [{"command": command, "cwd": str(folder)} for command in pages.values()]
    return dict(zip([*commands_of, *pages], run_forks("keras", runs, folder), strict=True))


def save(url, given, folder):
    """`(path of a checkpoint in the first epoch of `repeat`, else in the second, options of its dataset)`."""
    given = {"batch_size": 5, "columns": COLUMNS, **given}
    dataset = tf_feed(url, **given)
    if "repeat" not in given:
        assert len(list(dataset)) == 14
    iterator = iter(dataset)
    for _ in range(SAVED_AFTER):
        next(iterator)
    return tf.train.Checkpoint(iterator=iterator).save(folder / "state"), given


def programs_of_pages(folder):
    """The programs of docs/tfdata.md joined to one, that of its service, and an example."""
    programs = blocks("tfdata.md")
    (trainer,) = (code for code in programs if "service=" in code)
    rest = [code for code in programs if code != trainer]
    assert len(rest) == 3
    (folder / "program.py").write_text("\n".join(rest))
    (folder / "trainer.py").write_text(trainer)
    (folder / "service.py").write_text(SERVICE)
    python, *arguments = shlex.split(example_command())
    assert python == "python"
    service = ["service.py", *commands("tfdata.md")]
    return {"page": ["program.py"], "command": arguments, "service": service}


def example_command():
    (command,) = (line for line in commands("examples/README.md") if "--cpu 2 " in line)
    return command


# The commands of the page, each in a fork, and then the trainer.
SERVICE = """
import os
import runpy
import shlex
import signal
import sys

servers = []
for line in sys.argv[1:]:
    servers.append(os.fork())
    if not servers[-1]:
        python, *sys.argv = shlex.split(line)
        assert python == "python"
        signal.alarm(200)
        runpy.run_path(sys.argv[0], run_name="__main__")
try:
    runpy.run_path("trainer.py", run_name="__main__")
finally:
    for server in servers:
        os.kill(server, signal.SIGKILL)
"""


# Processes that end


@pytest.mark.parametrize("way", ["left", "left direct", "one thread"])
def test_a_process_ends(ran, way):
    """Though an iteration is open: TensorFlow's threads are in Python then. And if TensorFlow has one thread."""
    assert ran[way][0] == 0, ran[way][2]


def test_a_process_ends_though_fit_was_left_by_an_exception(ran):
    status, _, said = ran["fit failed"]
    assert status == 1
    assert "ValueError: a bug of the user's" in said.splitlines()


def test_a_checkpoint_of_an_iterator_is_exact_in_another_process(ran, cache_url, folder):
    assert ran["gone on"][0] == 0, ran["gone on"][2]
    with tpufeed.Loader(cache_url, batch_size=5, columns=COLUMNS) as loader:
        epochs = [[[ids.tolist(), zlib.crc32(images)] for ids, images in loader] for _ in range(2)]
    for given, found in zip(GIVEN, json.loads((folder / "gone-on.json").read_text()), strict=True):
        assert found == epochs[0 if "repeat" in given else 1][SAVED_AFTER : SAVED_AFTER + 4], given


# Four replicas: experimental_distribute_dataset, which splits a global batch


@pytest.fixture(scope="module")
def found(ran, folder):
    """What four_devices.py wrote down."""
    assert ran["replicas"][0] == 0, ran["replicas"][2]
    return json.loads((folder / "replicas.json").read_text())


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
    script, running = HERE / "two_workers.py", []
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


# The programs of the pages, as they stand


def test_the_programs_of_the_page_are_one_that_runs(ran, folder):
    status, output, said = ran["page"]
    assert status == 0, said[-4000:]
    assert output.count("val_accuracy") == 3
    note((folder / "program.py").read_text())


def test_the_service_of_the_page_serves(ran, folder):
    status, output, said = ran["service"]
    assert status == 0, said[-4000:]
    assert output.splitlines()[-1] == "the service gave (8, 64, 64, 3)"  # after the lines of its servers
    note(*commands("tfdata.md"), (folder / "trainer.py").read_text())


def test_the_example_with_two_replicas_runs(ran):
    assert ran["command"][0] == 0, ran["command"][2][-4000:]
    assert ran["command"][1].strip()
    note(example_command())
