"""Beam: its own runner, with one and with several threads, and a job server, as other runners have one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tpufeed
from tests.engines.contract import (
    ROOT,
    SHARD,
    TASKS,
    EngineContract,
    bytes_of,
    done,
    is_running,
    job,
    pids,
    total,
    wait_until,
)
from tests.faults.remote import QUICK, objects
from tests.gcs_server import GcsServer
from tpufeed.engines import beam, preflight
from tpufeed.engines.beam import BeamEngine
from tpufeed.engines.engine import Job
from tpufeed.errors import BuildError, MissingExtraError, OptionError, TaskError
from tpufeed.storage.gcs import GcsStore

pytestmark = pytest.mark.uses("apache_beam")

IN_MEMORY = ("--runner=DirectRunner",)
PARALLEL = (*IN_MEMORY, "--direct_running_mode=multi_threading", "--direct_num_workers=2")


@pytest.fixture(scope="module")
def kept_engine():
    """One process of Beam, for the tests that leave it running."""
    engine = BeamEngine(IN_MEMORY)
    with engine.prepare(f"{TASKS}:note"):
        yield engine


class TestContract(EngineContract):
    # After each of these a process of Beam starts, for seconds. The tests below show the same: a build in a bucket, a
    # runner elsewhere, leaving early.
    test_shard_makes_the_same_bytes = None
    test_a_failing_task_is_named_with_its_message = None
    test_leaving_early_leaves_tasks_undone = None
    test_a_poisoned_task_fails_the_build_and_another_engine_goes_on = None
    test_warmup_goes_on_where_another_engine_was_stopped = None

    @pytest.fixture
    def engine(self, kept_engine):
        return kept_engine


def processes():
    """Return the process group of each process that works for Beam, by its id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            command = (folder / "cmdline").read_bytes()
        except OSError:  # gone in between
            continue
        if state not in "ZX" and (b"sdk_worker_main" in command or b"tpufeed.engines.beampipeline" in command):
            found[int(folder.name)] = int(group)
    return found


def group_of(pid):
    return {each for each, group in processes().items() if group == os.getpgid(pid)}


def test_worker_threads_make_the_same_bytes_in_a_bucket_that_fails_now_and_then(built, monkeypatch):
    monkeypatch.setattr(GcsStore.__init__, "__defaults__", (QUICK,))
    with GcsServer(process=True, md5=False) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        for photo in sorted(built.photos.rglob("*.jpg")):
            server.put("bucket", f"photos/{photo.relative_to(built.photos)}", photo.read_bytes())
        faults = [("read", "*.jpg"), ("write", "d/*.tfrecord"), ("write", "d/*/000001.json")]
        for operation, name in faults:
            server.fault(operation=operation, name=name, action="status", status=503, calls=(1,), retry_after=0.05)
        result = tpufeed.shard("gs://bucket/photos", "gs://bucket/d", engine=BeamEngine(PARALLEL), **SHARD)
        assert all(any(r.fault for r in server.requests(operation=op, name=name)) for op, name in faults)
        assert objects(server, "d") == bytes_of(built.dataset)
    assert result.manifest.content_digest == tpufeed.open_dataset(built.dataset).content_digest
    assert result.retries


def test_leaving_early_stops_the_process_in_mid_task(tmp_path):
    events = BeamEngine(PARALLEL).run(job("run_for_ever", tmp_path), range(4))
    while not pids(tmp_path):
        next(events)
    group = group_of(pids(tmp_path)[0])
    assert set(pids(tmp_path)) <= group
    events.close()
    wait_until(lambda: not group & processes().keys())


def test_all_leaves_when_the_launcher_is_killed(tmp_path):
    program = (
        "from tpufeed.engines.beam import BeamEngine\nfrom tpufeed.engines.engine import Job\n"
        f"list(BeamEngine({IN_MEMORY}).run(Job('{TASKS}:run_for_ever', {str(tmp_path)!r}), range(2)))"
    )
    launcher = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    wait_until(lambda: pids(tmp_path))
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not any(map(is_running, pids(tmp_path))))


def test_a_process_that_dies_is_named_with_how_it_ended(tmp_path):
    with pytest.raises(BuildError, match="SIGKILL"):
        list(BeamEngine(IN_MEMORY).run(job("die_always", tmp_path), [0]))
    assert (tmp_path / "deaths").read_text() == "x"


def test_a_process_that_does_not_begin_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tpufeed.engines.beam._START_SECONDS", 0.001)
    with pytest.raises(BuildError, match=r"0\.001 s"):
        list(BeamEngine(IN_MEMORY).run(job("note", tmp_path), [0]))
    assert not list(tmp_path.iterdir())


def test_another_version_on_workers_is_one_failure_that_names_both(kept_engine, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "__version__", "0.0.7")
    with pytest.raises(BuildError, match=rf"{tpufeed.__version__} .*0\.0\.7"):
        list(kept_engine.run(job("note", tmp_path), range(4)))
    assert not list(tmp_path.iterdir())


def test_what_a_host_does_not_see_is_said_before_the_first_task(kept_engine, tmp_path):
    with pytest.raises(BuildError, match=r"tests\.engines\.nothing"):
        list(kept_engine.run(Job("tests.engines.nothing:note", str(tmp_path)), range(4)))


def test_arguments_are_looked_at_before_anything_is_changed(built, tmp_path):
    with pytest.raises(OptionError, match="--workers=3"):
        tpufeed.shard(built.photos, tmp_path / "d", engine=BeamEngine([*IN_MEMORY, "--workers=3"]), **SHARD)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("arguments", [[], ["--region=x"], ["--runner"]])
def test_a_runner_has_to_be_named(arguments):
    with pytest.raises(OptionError, match="--runner=DataflowRunner"):
        BeamEngine(arguments)


def test_beam_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(beam.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"\[beam\]'"):
        BeamEngine(IN_MEMORY)


def test_a_description_says_what_workers_need():
    assert "on this host" in BeamEngine(IN_MEMORY).describe()
    version = f"tpufeed {tpufeed.__version__} on Python {sys.version_info.major}.{sys.version_info.minor}"
    bare = BeamEngine(["--runner=DataflowRunner"]).describe()
    assert version in bare
    assert "docker push" in bare
    given = BeamEngine(["--runner=DataflowRunner", "--sdk_container_image=me/it"]).describe()
    assert version in given
    assert "--sdk_container_image=me/it" in given
    assert "docker" not in given


@pytest.fixture(scope="module")
def job_server(tmp_path_factory):
    """The folder of a running `beam_server`."""
    folder = tmp_path_factory.mktemp("server")
    command = [sys.executable, "-m", "tests.engines.beam_server", str(folder)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as server:
        wait_until((folder / "port").exists)
        yield folder
        server.kill()


@pytest.fixture
def remote(job_server):
    """An engine whose runner is another process; its tasks run in the one in which Beam works for the launcher."""
    port = (job_server / "port").read_text()
    return BeamEngine(["--runner=PortableRunner", f"--job_endpoint=localhost:{port}", "--environment_type=LOOPBACK"])


def test_a_runner_elsewhere_tells_by_its_metrics(remote, tmp_path):
    with remote.prepare(f"{TASKS}:note"):
        events = list(remote.run(job("note", tmp_path), range(5)))
        assert done(events) == list(range(5))
        assert total(events) == (3 * 5, 15 * 10, 5)
        with pytest.raises(TaskError, match=r"^3: .*fire"):
            list(remote.run(job("refuse_third", tmp_path), range(5)))


def test_a_pipeline_elsewhere_is_cancelled_when_the_launcher_leaves(remote, job_server, tmp_path):
    events = remote.run(job("run_for_ever", tmp_path), range(2))
    while not pids(tmp_path):
        next(events)
    assert not list(job_server.glob("cancelled-*"))
    events.close()
    assert len(list(job_server.glob("cancelled-*"))) == 1
    assert not any(map(is_running, pids(tmp_path)))
