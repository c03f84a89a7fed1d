"""Run tasks on the hosts of a Ray cluster.

Each worker is an actor with one core that runs one task after the other. Workers read the stores and write to them.

Workers are not Ray tasks: a build that stops can kill its actors, while `ray.cancel` can crash the launcher (Ray
2.60, a task that is being handed to a worker: "Tried to complete task that was not pending"). Ray's own retries stay
off: Ray takes 15 s to notice that a node is dead, and an actor uses up its retries on that node within 5 s.
"""

import logging
import os
import pickle
import platform
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any

from tpufeed._version import __version__
from tpufeed.engines.engine import NOTHING, Done, Events, Job, Progress, note_death, task_name
from tpufeed.engines.preflight import HostView, check_hosts, view_here
from tpufeed.errors import BuildError, MissingExtraError, OptionError, TaskError
from tpufeed.options import Count, checked

_logger = logging.getLogger(__name__)

AUTO, LOCAL = "auto", "local"
_MEMORY_ADVICE = "Out of memory? Try fewer --workers, or nodes with fewer cores (ray start --num-cpus)"
_LEAST_WORKERS = 16
_LISTEN_SECONDS = 0.5
_STARVING_SECONDS = 30.0
_PREFLIGHT_SECONDS = 300.0  # for a node's answer: stores and the start of workers may be slow
_CONNECT_SECONDS = 5.0
_CLUSTER_ADVICE = (
    "Start one (ray start --head on one host, ray start --address=HOST:6379 on the others, 8265 is the port of the "
    "dashboard), name the right one with --ray-address, or pass --ray-address local for the cores of this host"
)


class RayEngine:
    """An `Engine` of a Ray cluster.

    Attributes:
        address: HOST:PORT of the cluster. "auto" is RAY_ADDRESS, if set, else the cluster that this host is in.
            "local" is a temporary cluster of this host's cores. Ignored if this process is already connected.
        workers: number of parallel tasks, with one core each, or None: all cores of the cluster, also those added
            later, up to twice as many as at the start (at least 16).
        runtime_env: runtime environment of the workers, as `ray.init` takes it.
    """

    @checked()
    def __init__(
        self, address: str = AUTO, workers: Count | None = None, runtime_env: Mapping[str, Any] | None = None
    ) -> None:
        self.address, self.workers, self.runtime_env = address, workers, runtime_env

    def describe(self) -> str:
        return f"engine: the Ray cluster at {self.address!r}. Its nodes need tpufeed {__version__}"

    def prepare(self, entry: str) -> AbstractContextManager[None]:
        return _connected(self.address)

    def run(self, job: Job, tasks: Sequence[Any]) -> Events:
        if not tasks:
            return
        with _connected(self.address) as ray:
            yield from _Build(ray, job, tasks, self.runtime_env).run(self.workers)


class _Worker:
    """The actor. Pickled by value: a node with no tpufeed, or another version, can then report it."""

    def __init__(self, launcher: str, job: bytes) -> None:
        self._launcher, self._job = launcher, job
        for name in ("OPENCV_FOR_THREADS_NUM", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")  # a worker has one core

    def look(self, task: bytes) -> dict[str, Any]:
        """Return the fields of a `HostView` of this host."""
        view: dict[str, Any] = {"host": socket.gethostname(), "python": platform.python_version(), "tpufeed": None}
        try:
            from tpufeed._version import __version__ as found
        except ImportError as error:
            return {**view, "problem": str(error)}
        if found != self._launcher:
            return {**view, "tpufeed": found}
        from tpufeed.engines.preflight import view_here

        return asdict(view_here(self._job, task))

    def run(self, task: bytes) -> tuple[str | None, tuple[int, ...]]:
        """Run a task. Return the message of its failure or None, and its progress."""
        from tpufeed.engines.preflight import run_pickled

        reports: list[tuple[int, ...]] = [(0, 0, 0)]  # threads append to it
        failure = run_pickled(self._job, task, reports.append)
        return failure, tuple(map(sum, zip(*reports, strict=True)))


class _Build:
    """The tasks of a job, and the workers that run them."""

    def __init__(self, ray: Any, job: Job, tasks: Sequence[Any], runtime_env: Mapping[str, Any] | None) -> None:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        data = pickle.dumps(job)
        self._ray, self._tasks, self._first = ray, tasks, pickle.dumps(tasks[0])
        self._launcher = view_here(data, self._first)
        if self._launcher.problem:
            raise BuildError(self._launcher.problem)
        # By reference, or each actor's arguments would contain the whole job.
        self._arguments = __version__, ray.put(data)
        self._actor = ray.remote(_Worker)
        self._options = {} if runtime_env is None else {"runtime_env": dict(runtime_env)}
        self._workers: list[Any] = []

    def run(self, most: int | None) -> Events:
        """Check each node, then each worker (its node may have joined later), and give the workers tasks."""
        cores = {n["NodeID"]: n["Resources"].get("CPU", 0.0) for n in self._ray.nodes() if n["Alive"]}
        # Start twice as many: the waiting half tells the autoscaler to add nodes.
        most = most or max(_LEAST_WORKERS, int(2 * sum(cores.values())))
        try:
            self._preflight([node for node, count in cores.items() if count])
            self._workers = [self._start({"num_cpus": 1}) for _ in range(min(most, len(self._tasks)))]
            yield from self._give_tasks()
        finally:
            for worker in self._workers:
                self._ray.kill(worker)

    def _start(self, options: Mapping[str, Any]) -> Any:
        return self._actor.options(**options, **self._options).remote(*self._arguments)

    def _preflight(self, nodes: Sequence[str]) -> None:
        """Check all nodes at the same time. Raises BuildError if one cannot do the work."""
        place = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        # The actors need no core: a node answers even if all its cores are busy.
        self._workers = [self._start({"num_cpus": 0, "scheduling_strategy": place(node, soft=False)}) for node in nodes]
        asked = {worker.look.remote(self._first): node for worker, node in zip(self._workers, nodes, strict=True)}
        ready, silent = self._ray.wait(list(asked), num_returns=len(asked), timeout=_PREFLIGHT_SECONDS)
        if silent:
            raise BuildError(
                f"node {asked[silent[0]]} of the Ray cluster has not answered for {_PREFLIGHT_SECONDS:g} s. Is it "
                "overloaded, or cut off? See: ray status"
            )
        views = []
        for ref in ready:
            try:
                views.append(HostView(**self._ray.get(ref)))
            except self._ray.exceptions.RayError as error:
                # A node that has died since it was listed gets no work. A live node that starts no worker is an error.
                if any(node["NodeID"] == asked[ref] and node["Alive"] for node in self._ray.nodes()):
                    raise BuildError(
                        f"Ray cannot start a worker on node {asked[ref]}: {_first_lines(error)}"
                    ) from error
        check_hosts(views, self._launcher)
        for worker in self._workers:
            self._ray.kill(worker)

    def _give_tasks(self) -> Events:
        look = len(self._tasks)  # used like a task's number, for the check of a new worker
        waiting, done, deaths = deque(range(look)), 0, Counter[str]()
        under_way = {worker.look.remote(self._first): (worker, look) for worker in self._workers}
        heard = time.monotonic()
        while done < len(self._tasks):
            ready, _ = self._ray.wait(list(under_way), timeout=_LISTEN_SECONDS)
            if not ready:
                if time.monotonic() - heard > _STARVING_SECONDS and {n for _, n in under_way.values()} == {look}:
                    heard = time.monotonic()
                    _logger.warning("the Ray cluster has had no free core for %g s. Waiting", _STARVING_SECONDS)
                yield NOTHING
            for ref in ready:
                heard = time.monotonic()
                worker, number = under_way.pop(ref)
                name = "the start of a worker" if number == look else task_name(self._tasks[number])
                try:
                    result = self._ray.get(ref)
                except self._ray.exceptions.RayActorError as error:
                    note_death(deaths, name, f"as Ray reports: {_first_lines(error)}", _MEMORY_ADVICE)
                    _logger.warning("%s: its worker was lost. Another one starts over", name)
                    if number != look:
                        waiting.appendleft(number)
                    self._ray.kill(worker)  # it may be alive but unreachable
                    self._workers.append(self._start({"num_cpus": 1}))
                    under_way[self._workers[-1].look.remote(self._first)] = self._workers[-1], look
                    continue
                except self._ray.exceptions.RayError as error:
                    raise BuildError(f"Ray cannot run a worker: {_first_lines(error)}") from error
                if number == look:
                    check_hosts([HostView(**result)], self._launcher)
                else:
                    failure, progress = result
                    if failure is not None:
                        raise TaskError(f"{name}: {failure}")
                    done += 1
                    yield Progress(*progress)
                    yield Done(number)
                if waiting:
                    number = waiting.popleft()
                    under_way[worker.run.remote(pickle.dumps(self._tasks[number]))] = worker, number
                else:
                    self._ray.kill(worker)  # the replacement of a lost worker may need its core


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connect this process to the cluster, and yield `ray`. An existing connection is used and stays open.

    Raises:
        MissingExtraError: Ray is not installed.
        OptionError: there is no cluster, or it has another version of Ray or Python.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    if ray.is_initialized():
        yield ray
        return
    found = os.environ.get("RAY_ADDRESS") or address if address == AUTO else address
    if found not in (AUTO, LOCAL):  # Ray itself would try for two minutes
        host, colon, port = found.removeprefix("ray://").rpartition(":")
        if not colon or not port.isdecimal():
            raise OptionError(f"--ray-address {address!r} is not an address. Write it like 10.0.0.5:6379, or auto")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            named = address if address == found else f"{address} ({found})"
            raise OptionError(f"no Ray cluster answers at {named}: {error}. {_CLUSTER_ADVICE}") from error
    on_main_thread = threading.current_thread() is threading.main_thread()
    sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise OptionError(f"Ray at {address!r}: {' '.join(str(error).split())}. {_CLUSTER_ADVICE}") from error
    finally:
        if on_main_thread:  # Ray installs its own handler, but the command has set one
            signal.signal(signal.SIGTERM, sigterm)
    try:
        yield ray
    finally:
        ray.shutdown()


def _first_lines(error: Exception) -> str:
    """Return the first lines of Ray's long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) or type(error).__name__
