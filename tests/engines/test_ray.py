"""Ray, as a cluster of two nodes on this machine."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tpufeed
from tests.engines.contract import (
    PATIENCE_SECONDS,
    ROOT,
    SHARD,
    EngineContract,
    bytes_of,
    done,
    is_running,
    job,
    pids,
    total,
    wait_until,
)
from tests.frameworks import lazy
from tests.gcs_server import GcsServer
from tpufeed import cache
from tpufeed.engines.choice import SerialEngine
from tpufeed.engines.ray import RayEngine
from tpufeed.errors import BuildError, TaskError, install_command
from tpufeed.images import CenterCrop, Custom

ray = lazy("ray")

pytestmark = pytest.mark.uses("ray")


class TestContract(EngineContract):
    # Each run starts new workers. What these show is in the tests of lost workers, of a bucket and of a node below.
    test_shard_makes_the_same_bytes = None
    test_each_task_is_done_once_and_progress_adds_up = None
    test_a_failing_task_is_named_with_its_message = None
    test_leaving_early_leaves_tasks_undone = None
    test_a_poisoned_task_fails_the_build_and_another_engine_goes_on = None
    test_warmup_goes_on_where_another_engine_was_stopped = None

    @pytest.fixture
    def engine(self, connected):
        yield RayEngine("nobody looks at this")
        assert ray.is_initialized()


def test_no_more_tasks_run_at_a_time_than_there_are_workers(connected, tmp_path):
    events = RayEngine(workers=1).run(job("run_for_ever", tmp_path), range(3))
    while not pids(tmp_path):
        next(events)
    for _ in range(2):  # half a second each
        next(events)
    (pid,) = pids(tmp_path)
    events.close()
    wait_until(lambda: not is_running(pid))
    wait_until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])


def test_the_task_of_a_killed_worker_is_done_again(connected, tmp_path, caplog):
    events = list(RayEngine().run(job("die_once", tmp_path), range(5)))
    assert (tmp_path / "died").exists()
    assert done(events) == list(range(5))
    assert total(events) == (3 * 5, 15 * 10, 5)
    traces = {path.name: len(path.read_text().splitlines()) for path in tmp_path.glob("task-*")}
    assert traces == {f"task-{task}": 1 for task in range(5)}
    assert any(message.startswith("2: its worker was lost") for message in caplog.messages)


@pytest.mark.long  # three workers start; those of processes show the same
def test_a_task_at_which_workers_always_die_fails_in_the_end(connected, tmp_path):
    with pytest.raises(TaskError, match=r"^0: 3 .*--workers"):
        list(RayEngine().run(job("die_always", tmp_path), [0]))
    assert (tmp_path / "deaths").read_text() == "xxx"


# Hosts that cannot do the work.


def with_hook(folder, text, **variables):
    """Workers of a Python that runs `text` first."""
    (folder / "sitecustomize.py").write_text(text)
    return RayEngine(runtime_env={"env_vars": {"PYTHONPATH": f"{folder}:{ROOT}", **variables}})


def test_a_worker_without_tpufeed_is_told_what_to_install(connected, built, tmp_path):
    engine = with_hook(tmp_path, "import sys\nsys.modules['tpufeed'] = None\n")
    with pytest.raises(BuildError, match=re.escape(install_command())):
        tpufeed.shard(built.photos, tmp_path / "d", engine=engine, **SHARD)


def test_a_folder_that_workers_do_not_see_is_found_out_before_the_work(connected, built, tmp_path, monkeypatch):
    """The folder is the working folder of each process, which is another one in workers."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(built.photos, tmp_path / "photos")
    own_folder = "/proc/self/cwd"
    unseen_source, unseen_destination = f"{own_folder}/photos", f"{own_folder}/d"
    for source, destination in [(unseen_source, tmp_path / "s"), (built.photos, unseen_destination)]:
        with pytest.raises(BuildError, match=own_folder):
            tpufeed.shard(source, destination, engine=RayEngine(), **SHARD)
        assert not list(tmp_path.glob("*/*.tfrecord"))
    result = tpufeed.shard(built.photos, unseen_destination, engine=SerialEngine(), **SHARD)
    assert result.images == 38
    assert bytes_of(tmp_path / "d") == bytes_of(built.dataset)


def test_workers_that_a_store_refuses_fail_once(connected, built, tmp_path, server, monkeypatch):
    for key, value in server.environment().items():
        monkeypatch.setenv(key, value)
    with GcsServer([], md5=False) as other:
        other.create_bucket("bucket", refuses=403)
        engine = with_hook(tmp_path, "", STORAGE_EMULATOR_HOST=other.url)
        with pytest.raises(BuildError, match=r"gs://bucket/refused/_tpufeed/plan.jsonl") as caught:
            tpufeed.shard(built.photos, "gs://bucket/refused", engine=engine, **SHARD)
        asked = [record for record in other.requests() if "refused" in record.name]
    assert str(caught.value).count("gs://") == 1
    assert 1 <= len(asked) <= 2  # a node each


# Faults during a build.


def test_a_build_in_a_bucket_with_faults_makes_the_same_bytes(connected, built, server, monkeypatch):
    for key, value in server.environment().items():
        monkeypatch.setenv(key, value)
    for photo in sorted(built.photos.rglob("*.jpg")):
        server.put("bucket", f"photos/{photo.relative_to(built.photos)}", photo.read_bytes())
    places = [
        ("read", "photos/*.jpg"),
        ("write", "d/*.tfrecord"),
        ("write", "d/*/reports/*"),
        ("read", "d/*plan.jsonl"),
    ]
    for operation, name in places:
        server.fault("status", operation=operation, name=name, status=503, calls=(2,))
    heard = []
    result = tpufeed.shard("gs://bucket/photos", "gs://bucket/d", engine=RayEngine(), listener=heard.append, **SHARD)
    assert result.manifest.content_digest == tpufeed.open_dataset(built.dataset).content_digest
    assert (heard[-1].images, heard[-1].rejects) == (38, 2)
    met = {(record.operation, record.name.rpartition(".")[2]) for record in server.requests(fault="status")}
    assert met == {("read", "jpg"), ("write", "tfrecord"), ("write", "json"), ("read", "jsonl")}
    ends = (".tfrecord", ".npy", "rejects.jsonl")
    found = {n.removeprefix("d/"): server.get("bucket", n) for n in server.names("bucket") if n.startswith("d/")}
    assert {name: data for name, data in found.items() if name.endswith(ends)} == bytes_of(built.dataset)
    assert not [name for name in found if "probe" in name]


OPS = ["CenterCrop(48)", "tests.engines.ray_tasks:gate@1"]


@pytest.fixture(scope="module")
def gated(built):
    """A cache with an op that waits at a gate on the cluster, made without one."""
    folder = built.photos.parent / "gated"
    cache.warmup(built.dataset, folder, engine=SerialEngine(), **gated_options())
    return folder


def gated_options():
    return {"ops": [CenterCrop(48), Custom("tests.engines.ray_tasks:gate", "1")], "shard_bytes": "40KB"}


def held(gates):
    """Return node and process of each worker that is held at the gate."""
    return [path.name.rpartition("-")[::2] for path in gates.glob("*-*")]


@pytest.fixture
def gate(gates):
    (gates / "gate").touch()
    yield gates / "gate"
    (gates / "gate").unlink(missing_ok=True)
    for path in gates.glob("*-*"):
        path.unlink()


@pytest.mark.long  # it needs another cluster; signals have tests in faults/
def test_the_command_goes_on_where_ctrl_c_has_stopped_it(cluster, gated, gates, gate, tmp_path):
    command = [Path(sys.executable).with_name("tpufeed"), "cache", "warmup", gated.with_name("dataset"), tmp_path / "c"]
    command += ["--op", OPS[0], "--op", OPS[1], "--shard-size", "40KB"]
    command += ["--engine", "ray", "--ray-address", cluster.address, "--workers", "2"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    process = subprocess.Popen([*map(str, command)], **how)
    wait_until(lambda: len(held(gates)) == 2 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, said
    assert said[1].splitlines()[-1] == "interrupted. Run the same command again to continue"
    for _, pid in held(gates):
        wait_until(lambda pid=pid: not is_running(pid))  # the command has left the cluster
    gate.unlink()
    command[command.index("--ray-address") + 1] = "auto"
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    again = subprocess.run([*map(str, command)], check=False, env=environment, **how)
    assert again.returncode == 0, again.stderr
    assert bytes_of(tmp_path / "c") == bytes_of(gated)


def test_a_node_is_killed_in_mid_build(connected, gated, gates, gate, tmp_path):
    """This test is the last one: afterwards the cluster lacks a node."""
    node = connected.list_all_nodes()[-1]
    results = []

    def build():
        results.append(cache.warmup(gated.with_name("dataset"), tmp_path / "c", engine=RayEngine(), **gated_options()))

    thread = threading.Thread(target=build, daemon=True)
    thread.start()
    wait_until(lambda: node.node_id in [place for place, _ in held(gates)])
    (pid,) = [int(pid) for place, pid in held(gates) if place == node.node_id]
    (raylet,) = [info.process.pid for info in node.all_processes["raylet"]]
    assert is_running(pid)
    os.kill(raylet, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    connected.remove_node(node, allow_graceful=False)
    gate.unlink()
    thread.join(PATIENCE_SECONDS)
    (result,) = results
    assert result.images == 38
    assert bytes_of(tmp_path / "c") == bytes_of(gated)
