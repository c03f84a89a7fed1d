"""Tasks on the hosts of a Ray cluster, one Ray task each.

Workers read the stores and write to them. Through Ray go the job, once, references to tasks, and how far they are.
"""

import logging
import pickle
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tpufeed import __version__
from tpufeed.engines import rayworker
from tpufeed.engines.deaths import SILENCE_SECONDS, Deaths, silent_death
from tpufeed.engines.engine import NOTHING, Done, Event, Job, Progress, task_name
from tpufeed.engines.hosts import HostView, check_host
from tpufeed.engines.raycluster import AUTO, connected
from tpufeed.engines.raynodes import Nodes, first_lines
from tpufeed.errors import BuildError, OptionError, TaskError

_logger = logging.getLogger(__name__)

_LISTEN_SECONDS = 0.5
_SURVEY_SECONDS = 2.0  # how often to ask which nodes there are
_STARVING_SECONDS = 30.0
_LEAVE_SECONDS = 4.0  # for tasks to hear that they should go, to remove what is temporary, and to be gone
_EXIT_SECONDS = 5.0  # for those that had to be killed
_TELL_SECONDS = 0.5  # how often an attempt says how far it is: where there are many, less often
_WORDS_A_SECOND = 1000
_LEAST_AHEAD = 16
_MEMORY_ADVICE = "Out of memory? Try fewer --workers, or nodes with fewer cores (ray start --num-cpus)"
_SILENCE_ADVICE = (
    "Does a drive or the network not answer, or an op of yours not return? Where one image takes so long, take "
    "engine=RayEngine(silence_seconds=...)"
)


class RayEngine:
    """An `Engine` of a Ray cluster.

    Attributes:
        address: HOST:PORT of the cluster; "auto" is the one that this host is in, or RAY_ADDRESS; "local" one of this
            host's cores, for as long as it is needed. Where this process is connected already, it is not looked at.
        workers: tasks that run at a time, a core each; None is all cores of the cluster, also those that come later.
        silence_seconds: a task of which nothing is heard for so long is given to another worker.
        runtime_env: of the workers, as `ray.init` takes it.
    """

    def __init__(
        self,
        address: str = AUTO,
        workers: int | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise OptionError(f"workers are at least 1, not {workers}")
        self.address, self.workers = address, workers
        self.silence_seconds, self.runtime_env = silence_seconds, runtime_env

    def describe(self) -> str:
        """What there is to say of it before a build."""
        return f"engine: the Ray cluster at {self.address!r}; its nodes need tpufeed {__version__}"

    def prepare(self, entry: str) -> AbstractContextManager[None]:
        return connected(self.address)

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Event]:
        if not tasks:
            return
        data, first = pickle.dumps(job), pickle.dumps(tasks[0])
        with connected(self.address) as ray:
            nodes = Nodes(ray, data, first, self.runtime_env)
            nodes.check_all()
            with _Pool(nodes, tasks, self.silence_seconds).open() as pool:
                while pool.submit_waiting(self.workers):
                    yield from pool.receive()


@dataclass(slots=True)
class _Attempt:
    """At a task: in which process of which node it runs once it has begun, how far it is, how often it has said so,
    and for how long it has not."""

    task: int
    ref: Any
    node: str = ""
    process: int = 0
    reports: int = -1
    totals: Progress = NOTHING
    silent_seconds: float = 0.0


class _Pool:
    """Attempts under way, and the tasks that wait for one."""

    def __init__(self, nodes: Nodes, tasks: Sequence[Any], silence_seconds: float) -> None:
        self._nodes, self._ray, self._tasks = nodes, nodes.ray, tasks
        self._silence_seconds = silence_seconds
        self._waiting = deque(range(len(tasks)))
        self._deaths = Deaths(tasks)
        self._attempts: dict[int, _Attempt] = {}
        self._by_ref: dict[Any, int] = {}
        self._begun = 0
        self._mailbox: Any = None
        self._letters: Any = None
        self._surveyed = self._asked = self._heard = self._fed = time.monotonic()
        self._cores = nodes.cores()

    @contextmanager
    def open(self) -> "Iterator[_Pool]":
        here = self._nodes.on(self._ray.get_runtime_context().get_node_id(), soft=True)
        mailbox = self._ray.remote(rayworker.Mailbox).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        self._mailbox = mailbox.remote()
        self._work = self._ray.remote(rayworker.work)
        try:
            yield self
        finally:
            self._stop()

    def submit_waiting(self, workers: int | None) -> bool:
        """Hand waiting tasks to Ray, no more than it has work for; False when nothing is left to wait for."""
        most = workers or max(_LEAST_AHEAD, int(2 * sum(self._cores.values())))
        while self._waiting and len(self._attempts) < most:
            number, self._begun = self._waiting.popleft(), self._begun + 1
            task = self._tasks[number]
            work = self._work.options(num_cpus=1, max_retries=0, name=task_name(task), **self._nodes.options)
            telling = self._mailbox, self._begun, max(_TELL_SECONDS, most / _WORDS_A_SECOND)
            ref = work.remote(__version__, telling, self._nodes.job, pickle.dumps(task))
            self._attempts[self._begun] = _Attempt(number, ref)
            self._by_ref[ref] = self._begun
        return bool(self._attempts)

    def receive(self) -> Iterator[Event]:
        """What has happened since the last time, within half a second."""
        if self._letters is None and time.monotonic() - self._asked >= _LISTEN_SECONDS:
            self._letters, self._asked = self._mailbox.collect.remote(), time.monotonic()
        refs = [*self._by_ref, *([] if self._letters is None else [self._letters])]
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(refs, timeout=_LISTEN_SECONDS)
        for ref in ready:
            if ref == self._letters:
                yield from self._read_letters()
            elif ref in self._by_ref:  # not given up in this same round
                yield from self._end(self._by_ref[ref], ref)
        if time.monotonic() - self._surveyed >= _SURVEY_SECONDS:
            yield from self._survey()

    def _end(self, number: int, ref: Any) -> Iterator[Event]:
        """An attempt has ended, one way or another."""
        attempt, name = self._attempts[number], task_name(self._tasks[self._attempts[number].task])
        try:
            result = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            death = self._nodes.death(error)
            if death is None:
                raise BuildError(f"{name}: Ray could not run it: {first_lines(error)}") from error
            yield self._bury(number, death)
            return
        if "view" in result:
            check_host(HostView(**result["view"]), self._nodes.launcher)
        if not result:
            raise BuildError(f"{name}: Ray has interrupted it")
        if result["failure"] is not None:
            self._nodes.check(result["node"])  # of a node that cannot do any work there is more to say
            raise TaskError(f"{name}: {result['failure']}")
        self._forget(number)
        self._fed = time.monotonic()
        yield Progress(*result["totals"]).minus(attempt.totals)
        yield Done(attempt.task)

    def _read_letters(self) -> Iterator[Event]:
        letters, self._letters = self._letters, None
        try:
            said = self._ray.get(letters)
        except self._ray.exceptions.RayError:  # it is being started again elsewhere; that is nobody's silence
            return
        # No more than that, however long this process stood still.
        passed, self._heard = min(time.monotonic() - self._heard, 2 * _LISTEN_SECONDS), time.monotonic()
        for number, attempt in list(self._attempts.items()):
            reports = attempt.reports
            if number in said:
                (attempt.node, attempt.process), attempt.reports, totals = said[number]
                before, attempt.totals = attempt.totals, Progress(*totals)
                yield attempt.totals.minus(before)
            attempt.silent_seconds = attempt.silent_seconds + passed if attempt.reports == reports else 0.0
            if attempt.node and attempt.silent_seconds >= self._silence_seconds:
                self._mailbox.drop.remote(number)
                self._nodes.kill(attempt.node, attempt.process)
                yield self._bury(number, silent_death(self._silence_seconds), _SILENCE_ADVICE)

    def _survey(self) -> Iterator[Event]:
        """Attempts on nodes that are gone; Ray itself may take minutes to say so."""
        self._surveyed, self._cores = time.monotonic(), self._nodes.cores()
        for number, attempt in list(self._attempts.items()):
            if attempt.node and attempt.node not in self._cores:
                yield self._bury(number, "with its node")
        if any(attempt.node for attempt in self._attempts.values()):
            self._fed = time.monotonic()
        elif time.monotonic() - self._fed >= _STARVING_SECONDS:
            self._fed = time.monotonic()
            _logger.warning(
                "the Ray cluster has had no free core for %g s; waiting. See: ray status", _STARVING_SECONDS
            )

    def _bury(self, number: int, death: str, advice: str = _MEMORY_ADVICE) -> Progress:
        """Give the task of an attempt that has died to another worker.

        Returns:
            Its progress, taken back.

        Raises:
            TaskError: that has been tried often enough.
        """
        attempt = self._forget(number)
        name = self._deaths.note(attempt.task, death, advice)
        _logger.warning("%s: a worker process was lost, %s; another one begins anew", name, death)
        self._waiting.appendleft(attempt.task)
        return NOTHING.minus(attempt.totals)

    def _forget(self, number: int) -> _Attempt:
        attempt = self._attempts.pop(number)
        del self._by_ref[attempt.ref]
        return attempt

    def _stop(self) -> None:
        """End what runs, and what waits for a core; tasks remove what is temporary first."""
        left = list(self._by_ref)
        with suppress(self._ray.exceptions.RayError, ConnectionError):
            self._mailbox.close.remote()
            if left:
                _, left = self._ray.wait(left, num_returns=len(left), timeout=_LEAVE_SECONDS)
            for ref in left:
                attempt = self._attempts[self._by_ref[ref]]
                if attempt.node in self._cores:
                    self._nodes.kill(attempt.node, attempt.process)
            if left:
                self._ray.wait(left, num_returns=len(left), timeout=_EXIT_SECONDS)
            self._ray.kill(self._mailbox)
