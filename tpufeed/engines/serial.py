"""Tasks one after the other in this process: for small builds, debugging, and stores that no other process sees."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tpufeed.engines.engine import Done, Event, Job, Progress, failure_message, task_name
from tpufeed.errors import TaskError


class SerialEngine:
    """An `Engine` without parallelism."""

    def describe(self) -> str:
        return ""

    def prepare(self, entry: str) -> AbstractContextManager[None]:
        return nullcontext()

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Event]:
        function = job.load()
        for index, task in enumerate(tasks):
            progress: list[Progress] = []
            try:
                function(job.context, task, progress.append)
            except Exception as error:  # a bug, too, as it would in a worker
                raise TaskError(f"{task_name(task)}: {failure_message(error)}") from error
            yield from progress
            yield Done(index)
