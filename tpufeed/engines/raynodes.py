"""The nodes of a Ray cluster, and whether they can do a job's work."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from tpufeed import __version__
from tpufeed.engines import rayworker
from tpufeed.engines.hosts import HostView, check_host, view_here
from tpufeed.errors import BuildError

_ANSWER_SECONDS = 300.0  # for a node's first answer: the store may have to be waited for, and workers start slowly


class Nodes:
    """The cluster's nodes that have cores, and which of them are known to be able to do the work."""

    def __init__(self, ray: Any, job: bytes, task: bytes, runtime_env: Mapping[str, Any] | None) -> None:
        ray.cloudpickle.register_pickle_by_value(rayworker)
        self.ray, self._first = ray, task
        self.job = ray.put(job)
        self.options = {} if runtime_env is None else {"runtime_env": dict(runtime_env)}
        self.launcher = view_here(job, task)
        if self.launcher.problem:
            raise BuildError(self.launcher.problem)
        self._checked: set[str] = set()

    def cores(self) -> dict[str, float]:
        """Of each node that is there."""
        return {
            node["NodeID"]: node["Resources"]["CPU"]
            for node in self.ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU")
        }

    def check_all(self) -> None:
        """Ask each node, all at the same time, whether it can do the work. Raises BuildError as `check_host` does."""
        self._check(self.cores())

    def check(self, node: str) -> None:
        """Ask a node that has come later."""
        self._check({node} - self._checked)

    def _check(self, nodes: Iterable[str]) -> None:
        asked = {self._ask(node): node for node in nodes}
        deadline = time.monotonic() + _ANSWER_SECONDS
        while asked:
            ready, _ = self.ray.wait(list(asked), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BuildError(
                    f"node {next(iter(asked.values()))} of the Ray cluster has not answered for {_ANSWER_SECONDS:g} s. "
                    "Is it overloaded, or cut off? See: ray status"
                )
            node = asked.pop(ready[0])
            try:
                view = HostView(**self.ray.get(ready[0]))
            except self._gone():
                continue  # no work will come to it
            except self.ray.exceptions.RayError as error:
                raise BuildError(f"Ray cannot start a worker on node {node}: {first_lines(error)}") from error
            check_host(view, self.launcher)
            self._checked.add(node)

    def _ask(self, node: str) -> Any:
        there = self.on(node, soft=False)
        look = self.ray.remote(rayworker.look).options(
            num_cpus=0, max_retries=0, scheduling_strategy=there, **self.options
        )
        return look.remote(__version__, self.job, self._first)

    def _gone(self) -> tuple[type[Exception], ...]:
        found = self.ray.exceptions
        return found.NodeDiedError, found.LocalRayletDiedError, found.TaskUnschedulableError

    def kill(self, node: str, process: int) -> None:
        """End a worker process that does not listen."""
        there = self.on(node, soft=False)
        killing = self.ray.remote(rayworker.kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        killing.remote(process)

    def on(self, node: str, soft: bool) -> Any:
        """The strategy of what is to run on that node; where it is gone and `soft`, on another one."""
        return self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=soft)

    def death(self, error: Exception) -> str | None:
        """How a worker died, by what Ray raises; None where it did not."""
        found = self.ray.exceptions
        if isinstance(error, found.OutOfMemoryError):
            return "killed by Ray, as its host ran out of memory"
        if isinstance(error, (found.NodeDiedError, found.LocalRayletDiedError)):
            return "with its node"
        return "without a word" if isinstance(error, found.WorkerCrashedError) else None


def first_lines(error: Exception) -> str:
    """Of what Ray says, which is long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) or type(error).__name__
