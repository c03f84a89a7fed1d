"""Worker processes of Loader: the same batches, errors that arrive, and nothing that stays."""

import gc
import itertools
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.engines.contract import processes, wait_until
from tpufeed.errors import LoaderError, ObjectChangedError, OpError, OptionError
from tpufeed.images import CenterCrop, Custom
from tpufeed.processes.channel import Channel
from tpufeed.processes.child import Child
from tpufeed.stream.executor import ThreadExecutor
from tpufeed.stream.workers import prepare


def start_no_thread(manifests):
    """Prepare a fork server as loaders do; no thread can be started in its forks."""
    threading.Thread.start = fail_to_start
    prepare(manifests)


def fail_to_start(_):
    raise RuntimeError("can't start new thread")  # as Python says it


def make(url, **options):
    return tpufeed.Loader(url, **{"batch_size": 10, "processes": 2, "threads": 1} | options)


STRANGERS = set()  # children that this process had when the test began, multiprocessing's resource_tracker, say


def children():
    """Processes of ours that live, by id, fork servers and workers; those that nobody has waited for count, too."""
    found, parents = set(), {os.getpid()}
    while parents:
        parents = {pid for pid, parent, is_ours in processes() if parent in parents and is_ours} - found - STRANGERS
        found |= parents
    return found


def workers():
    """Worker processes of ours, by id: what the fork servers have forked."""
    ours = children()
    return {pid for pid, parent, _ in processes() if pid in ours and parent != os.getpid()}


def open_files():
    return len(os.listdir("/proc/self/fd"))


def shared_bytes():
    """Of this process' mappings of batches."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if "tpufeed-batches" in line]
    return sum(int(stop, 16) - int(start, 16) for start, stop in ranges)


@pytest.fixture(autouse=True)
def nothing_stays():
    before = open_files()
    STRANGERS.clear()
    STRANGERS.update(pid for pid, parent, _ in processes() if parent == os.getpid())
    yield
    gc.collect()
    assert not children()
    assert shared_bytes() == 0
    assert open_files() <= before


@pytest.mark.all
@pytest.mark.parametrize("kind", ["cache", "JPEG"])
def test_the_batches_of_three_epochs_are_those_of_threads(cache_url, dataset_url, ops, kind):
    url, given = (cache_url, None) if kind == "cache" else (dataset_url, ops)
    options = {"ops": given, "columns": ["image", "label", "sample", "filename"], "remainder": "pad"}
    with make(url, **options) as ours, make(url, **options | {"processes": 0, "threads": 3}) as threads:
        for _ in range(3):
            for found, expected in zip(ours, threads, strict=True):
                for one, other in zip(found, expected, strict=True):
                    assert one.dtype == other.dtype
                    np.testing.assert_array_equal(one, other)
        stats = ours.stats()
    assert (stats.processes, stats.threads, stats.batches) == (2, 2, 3 * 7)


@pytest.mark.all
def test_batches_that_are_kept_stay_what_they_are(cache_url):
    with make(cache_url, processes=1, prefetch=1, columns=["image", "sample"]) as loader:
        kept = [batch for _ in range(3) for batch in loader]
        again = make(cache_url, processes=0, columns=["image", "sample"])
        for (images, samples), (expected, ids) in zip(kept, [b for _ in range(3) for b in again], strict=True):
            np.testing.assert_array_equal(samples, ids)
            np.testing.assert_array_equal(images, expected)
        again.close()
        del images
    address = kept[0][0].ctypes.data
    assert kept[0][0].flags.c_contiguous
    assert address % 64 == 0, "dlpack and XLA take memory of that alignment without a copy"
    kept.clear()


def test_an_op_that_fails_says_what_failed_where(dataset_url, ops):
    failing = Custom("operator:index")
    with (
        make(dataset_url, ops=[*ops, failing]) as loader,
        pytest.raises(OpError, match=r"record \d+: .*operator:index"),
    ):
        next(iter(loader))


def test_a_dataset_that_was_built_anew_is_not_mixed_in(cache_url, flat_url, tmp_path):
    shutil.copytree(cache_url, tmp_path / "data")
    loader = make(tmp_path / "data")
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(flat_url, tmp_path / "data")
    with loader, pytest.raises(ObjectChangedError, match="rebuilt"):
        next(iter(loader))


@pytest.mark.all
@pytest.mark.parametrize("killed", ["worker", "fork server", "all"])
def test_what_is_killed_is_an_error_and_the_next_iteration_has_new_ones(cache_url, killed):
    with make(cache_url, columns=["sample"], shuffle=False, prefetch=1, repeat=True) as loader:
        iterator = iter(loader)
        next(iterator)
        found = {"worker": workers(), "fork server": children() - workers(), "all": children()}[killed]
        assert len(found) == {"worker": 2, "fork server": 1, "all": 3}[killed]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(LoaderError, match=r"pid \d+.*SIGKILL"):
            list(iterator)
        assert not children()
        with pytest.raises(LoaderError, match="failed"):
            next(iterator)
        loader.set_epoch(0)
        assert np.concatenate(list(itertools.islice(loader, 7))).tolist() == list(range(70))


@pytest.mark.all
@pytest.mark.parametrize(
    ("number", "advice"),
    [(signal.SIGKILL, "Out of memory"), (signal.SIGSEGV, "Did native code of an op"), (signal.SIGALRM, "Did an op of")],
)
def test_advice_is_that_of_the_signal(cache_url, number, advice):
    with make(cache_url, prefetch=1, repeat=True) as loader:
        iterator = iter(loader)
        next(iterator)
        os.kill(min(workers()), number)
        with pytest.raises(LoaderError, match=rf"{number.name}.*{advice}"):
            list(iterator)


@pytest.mark.all
@pytest.mark.parametrize("where", ["hang_up", "wait"])
def test_a_close_that_is_interrupted_leaves_no_process(cache_url, monkeypatch, tmp_path, where):
    monkeypatch.setenv("HANGING", str(tmp_path))
    loader = make(cache_url, ops=[CenterCrop(32), Custom(f"{__name__}:hang")])
    loader.stream.start_prefetch()
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    assert len(children()) == 3
    original = getattr(Child, where)

    def press_ctrl_c(*given):
        monkeypatch.setattr(Child, where, original)
        signal.raise_signal(signal.SIGINT)
        return original(*given)

    monkeypatch.setattr(Child, where, press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    assert not children()


def hang(image, rng):
    Path(os.environ["HANGING"], str(os.getpid())).touch()
    time.sleep(1000)


def test_a_start_that_takes_longer_than_the_timeout_is_named(cache_url, monkeypatch):
    monkeypatch.setattr("tpufeed.stream.workers._PREPARE", f"{__name__}:{'x' * 10_000_000}")  # more than a socket holds
    with (
        make(cache_url, timeout_seconds=0.02) as loader,
        pytest.raises(LoaderError, match=r"0\.02 s.*timeout_seconds="),
    ):
        next(iter(loader))
    assert not children()


@pytest.mark.all
def test_a_server_that_fails_to_prepare_is_an_error_that_says_why(cache_url, monkeypatch):
    monkeypatch.setattr("tpufeed.stream.workers._PREPARE", f"{__name__}:divide_by_zero")
    with make(cache_url) as loader, pytest.raises(LoaderError, match="ZeroDivisionError"):
        next(iter(loader))
    assert not children()


@pytest.mark.all
def test_workers_that_send_half_a_message_are_an_error(cache_url, monkeypatch):
    monkeypatch.setattr("tpufeed.stream.workers._PREPARE", f"{__name__}:send_half_of_what_is_to_be_sent")
    monkeypatch.setattr("tpufeed.processes.channel.STALL_SECONDS", 1.0)  # between the parts of a message
    with (
        make(cache_url) as loader,
        pytest.raises(LoaderError, match=r"pid \d+.*message"),
    ):
        next(iter(loader))
    assert not children()


def send_half_of_what_is_to_be_sent(manifests):
    def change():
        Channel.send = lambda self, _: os.write(self.fileno(), b"\0\0\0\x39half")

    os.register_at_fork(after_in_child=change)
    prepare(manifests)


@pytest.mark.all
def test_a_worker_that_neither_answers_nor_ends_may_wait_for_its_disk(cache_url, monkeypatch):
    """As one that reads from an NFS mount whose server has gone."""
    monkeypatch.setattr("tpufeed.stream.workers._PREPARE", f"{__name__}:close_the_socket_and_stay")
    with (
        make(cache_url) as loader,
        pytest.raises(LoaderError, match=r"pid \d+.*socket.*NFS"),
    ):
        next(iter(loader))
    assert not children()


def close_the_socket_and_stay(manifests):
    def change():
        Channel.send = lambda self, _: self.hang_up()
        ThreadExecutor.close = lambda _: time.sleep(600)

    os.register_at_fork(after_in_child=change)
    prepare(manifests)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("processes", [0, 2])
def test_a_default_timeout_of_sockets_is_not_that_of_workers(cache_url, processes):
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    try:
        with make(cache_url, processes=processes) as loader:
            assert len(list(loader)) == 7
    finally:
        socket.setdefaulttimeout(before)


def divide_by_zero(_):
    return 1 / 0


@pytest.mark.all
@pytest.mark.parametrize("which", ["workers", "all"])
def test_processes_that_hang_are_given_up(cache_url, which, monkeypatch):
    monkeypatch.setattr("tpufeed.stream.workers._LEAVE_SECONDS", 0.3)  # those that are stopped never leave
    with make(cache_url, prefetch=1) as loader:
        next(iterator := iter(loader))
        loader.stream.options = replace(
            loader.stream.options, timeout_seconds=0.5
        )  # only now: a start takes longer at times
        for pid in workers() if which == "workers" else children():
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(LoaderError, match=r"0\.5 s"):
            list(iterator)
        assert not children()


@pytest.mark.all
@pytest.mark.parametrize("how", ["closed", "Ctrl-C"])
def test_a_wait_for_workers_that_hang_can_be_ended(cache_url, how, monkeypatch):
    """By closing the loader in another thread, and by Ctrl-C, after which it continues with the next epoch."""
    monkeypatch.setattr("tpufeed.stream.workers._LEAVE_SECONDS", 0.3)
    with make(cache_url, prefetch=1, columns=["sample"]) as loader:
        next(iterator := iter(loader))
        for pid in workers():
            os.kill(pid, signal.SIGSTOP)
        end = loader.close if how == "closed" else lambda: os.kill(os.getpid(), signal.SIGINT)

        def wait():
            threading.Timer(0.3, end).start()
            list(iterator)

        with pytest.raises(LoaderError if how == "closed" else KeyboardInterrupt) as caught:
            wait()
        assert how != "closed" or "closed" in str(caught.value)
        assert not children()
        assert len(list(loader)) == 7
    assert not children()


@pytest.mark.all
def test_shards_that_vanish_under_their_mapping_are_named(cache_url, tmp_path):
    shutil.copytree(cache_url, tmp_path / "cache")
    with make(str(tmp_path / "cache"), processes=1, batch_size=2, prefetch=1, repeat=True) as loader:
        batches = iter(loader)
        next(batches)
        maps = Path(f"/proc/{loader.stream._executor._workers[0].process.pid}/maps").read_text()
        mapped = [shard for shard in (tmp_path / "cache").glob("*.tfrecord") if str(shard) in maps]
        assert mapped
        for shard in mapped:  # as a mount that is gone: the pages cannot be had
            os.truncate(shard, 0)
        with pytest.raises(LoaderError, match=r"SIGBUS.*NFS"):
            list(itertools.islice(batches, 200))


GIVEN_UP = threading.Event()


def test_an_op_that_hangs_in_a_thread_is_given_up_as_well(dataset_url, ops):
    slow = Custom("tests.stream.test_workers:wait_until_given_up")
    loader = make(dataset_url, ops=[*ops, slow], processes=0, batch_size=1, prefetch=1, timeout_seconds=0.3)
    GIVEN_UP.clear()
    with pytest.raises(LoaderError, match=r"0\.3 s"):
        next(iter(loader))
    GIVEN_UP.set()
    for thread in threading.enumerate():
        if thread.name.startswith("tpufeed-decode"):
            thread.join()


def wait_until_given_up(image, _):
    assert GIVEN_UP.wait(60)
    return image


PROGRAM = """
import sys, time
import tpufeed
loader = tpufeed.Loader(sys.argv[1], batch_size=10, processes=2, threads=1)
batches = iter(loader)
next(batches)
print("reading", flush=True)
sys.stdin.readline()
{then}
"""


@contextmanager
def training(then, url):
    """A program that reads, and then does so when it is sent a line; with its fork server and both workers by id."""
    command = [sys.executable, "-c", PROGRAM.format(then=then), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        try:
            assert process.stdout.readline() == "reading\n"
            # The first batch is one worker's. The other one may begin later.
            wait_until(lambda: len(children_of(process.pid)) == 3)
            yield process, children_of(process.pid)
        finally:
            process.kill()


def is_there(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.mark.all
@pytest.mark.parametrize("then", ["raise SystemExit(3)", "time.sleep(600)"], ids=["exit", "kill -9"])
def test_processes_end_with_the_one_that_trains(cache_url, then):
    with training(then, cache_url) as (process, group):
        process.stdin.write("go on\n")
        if "sleep" in then:
            process.kill()
        assert process.wait() == (-signal.SIGKILL if "sleep" in then else 3)
    wait_until(lambda: not any(map(is_there, group)))


@pytest.mark.all
def test_processes_end_with_the_one_that_trains_though_a_fork_lives(cache_url):
    """The fork holds the sockets of all workers open."""
    then = "import os; child = os.fork(); print(child, flush=True) if child else None; time.sleep(600)"
    with training(then, cache_url) as (process, group):
        process.stdin.write("go on\n")
        child = int(process.stdout.readline())
    try:
        wait_until(lambda: not any(map(is_there, group)))
        assert is_there(child)
    finally:
        os.kill(child, signal.SIGKILL)


EPOCH = """
import os, sys, zlib
import tpufeed
with tpufeed.Loader(sys.argv[1], batch_size=10, processes=2, threads=1) as loader:
    found = [zlib.crc32(images) for images, _ in loader]
    (server,) = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    workers = open(f"/proc/{server}/task/{server}/children").read().split()
    streams = [os.readlink(f"/proc/{pid}/fd/{number}") for pid in (server, *workers, "self") for number in range(3)]
open(sys.argv[2], "w").write(f"{found}\\n{streams}")
"""


@pytest.mark.all
def test_standard_streams_that_are_closed(cache_url, tmp_path):
    """No socket and no batch's memory gets their numbers, to which libraries print."""
    command = ["bash", "-c", 'exec "$0" -c "$@" <&- >&- 2>&-', sys.executable, EPOCH, cache_url, tmp_path / "found"]
    assert subprocess.run(command, check=False, timeout=200).returncode == 0
    found, streams = (tmp_path / "found").read_text().splitlines()
    assert len(eval(streams)) == 12
    assert "socket" not in streams
    assert "memfd" not in streams
    with make(cache_url) as loader:
        assert found == str([zlib.crc32(images) for images, _ in loader])


def children_of(parent):
    """Its children, and theirs."""
    try:
        found = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return []
    return found + [pid for child in found for pid in children_of(child)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("processes", [0, 2])
def test_a_limit_of_threads_is_named(cache_url, monkeypatch, processes):
    with make(cache_url, processes=processes) as loader:
        if processes:
            monkeypatch.setattr("tpufeed.stream.workers._PREPARE", f"{__name__}:start_no_thread")
        else:
            monkeypatch.setattr(threading.Thread, "start", fail_to_start)
        with pytest.raises(LoaderError, match="ulimit -u"):
            next(iter(loader))
        monkeypatch.undo()
        assert len(next(iter(loader))) == 2


@pytest.mark.all
@pytest.mark.parametrize("left", range(5))
def test_a_limit_of_files_is_named(cache_url, left):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with make(cache_url) as loader:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + left, most[1]))
        try:
            with pytest.raises(LoaderError, match=rf"{free + left}"):
                next(iter(loader))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
        assert not children()
        assert len(next(iter(loader))) == 2


@pytest.mark.all
def test_workers_serve_on_when_a_machine_that_shuts_down_tells_all_processes(cache_url):
    with make(cache_url) as loader:
        iterator = iter(loader)
        for _ in range(3):  # all workers have begun
            next(iterator)
        for pid in children():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(pid, number)
        time.sleep(0.2)
        assert len(list(iterator)) == len(loader) - 3
    assert not children()


@pytest.mark.all
def test_the_environment_says_how_many(cache_url, monkeypatch):
    monkeypatch.setenv("TPUFEED_PROCESSES", "three")
    with pytest.raises(OptionError, match="TPUFEED_PROCESSES"):
        make(cache_url, processes=None)
    monkeypatch.setenv("TPUFEED_PROCESSES", "1")
    with make(cache_url, processes=None) as loader:
        next(iter(loader))
        assert len(workers()) == 1


@pytest.mark.all
def test_a_fork_has_workers_of_its_own_and_leaves_its_parents_alone(cache_url):
    """Leaving a `with`, dropping kept batches and iterating again in the child must not reach the parent's workers."""
    with make(cache_url, columns=["image", "sample"]) as loader, make(cache_url, processes=0) as threads:
        iterator = iter(loader)
        kept = [next(iterator) for _ in range(2)]
        before = [images.copy() for images, _ in kept]
        next(iter(threads))
        child = os.fork()
        if not child:
            status = 1
            try:
                with pytest.raises(LoaderError):
                    next(iterator)
                loader.set_epoch(3)
                assert len(list(loader)) == len(list(threads)) == 7
                kept.clear()
                gc.collect()
                loader.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for (images, _), copied in zip(kept, before, strict=True):
            np.testing.assert_array_equal(images, copied)
        assert len(list(iterator)) == 5
        del images, kept, iterator


@pytest.mark.all
def test_who_keeps_many_batches_needs_few_descriptors(cache_url):
    with make(cache_url, processes=1, batch_size=1, prefetch=1, repeat=True) as loader:
        batches = iter(loader)
        kept = [next(batches)]
        before = open_files()
        kept += [next(batches) for _ in range(300)]
        assert open_files() <= before + 8
        assert len({images.ctypes.data for images, _ in kept}) == 301
        del kept, batches


@pytest.mark.all
def test_iterators_may_be_given_up_in_any_thread_while_another_is_read(cache_url):
    with make(cache_url, prefetch=4, columns=["sample"]) as loader:
        for _ in range(5):
            given_up = iter(loader)
            next(given_up)
            thread = threading.Thread(target=given_up.close)
            loader.set_epoch(1)
            thread.start()
            assert sorted(np.concatenate(list(loader))) == list(range(70))
            thread.join()


@pytest.mark.all
def test_a_worker_that_takes_no_orders_is_given_up(cache_url):
    """Orders for batches of 3000 samples fill the socket of a worker that does not read it."""
    with make(cache_url, batch_size=3000, remainder="repeat", prefetch=30, timeout_seconds=2, processes=1) as loader:
        iterator = iter(loader)
        wait_until(workers)  # its id is 0 until then, and a signal to that stops this process and all of its group
        os.kill(min(workers()), signal.SIGSTOP)
        with pytest.raises(LoaderError, match="batch for 2 s"):
            next(iterator)
