"""The protocol of engines, and what all of them share."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from tpufeed.errors import TaskError

DEATHS_ALLOWED = 2  # at one task: a killed worker says little of the task, three in a row do


class Progress(NamedTuple):
    """Work done since the last one; below zero where a worker has died and its work is lost."""

    images: int
    bytes: int
    rejects: int

    def plus(self, other: "Progress") -> "Progress":
        """Return the sum of both."""
        return Progress(*(one + two for one, two in zip(self, other, strict=True)))

    def minus(self, other: "Progress") -> "Progress":
        """Return what this one has more."""
        return Progress(*(one - two for one, two in zip(self, other, strict=True)))


NOTHING = Progress(0, 0, 0)


class Done(NamedTuple):
    """Task number `number` of the sequence has ended well."""

    number: int


Event: TypeAlias = Progress | Done
Events: TypeAlias = Generator[Event, None, None]
ReportProgress: TypeAlias = Callable[[Progress], None]
TaskFunction: TypeAlias = Callable[[Any, Any, ReportProgress], None]


@dataclass(frozen=True, slots=True)
class Job:
    """Job of all tasks: `entry` is "module:function", called as `function(context, task, report_progress)`.

    A worker imports it by that name, so it needs nothing of the launcher's memory. Context and tasks are small and
    picklable. The function may run more than once for a task, also at the same time; it puts its result in place itself
    and returns nothing. It reports progress every few minutes at least, if only of zeros: an engine may take one that
    says nothing for hung.

    `reach` is another "module:function", called as `function(context, task)` on each host before the work, where
    hosts may differ: what it sees there of what the task needs, URLs with their versions. It raises where it cannot
    see or write anything.
    """

    entry: str
    context: Any
    reach: str = ""


class Engine(Protocol):
    """Runs each task until it has ended well once."""

    def describe(self) -> str:
        """Say what there is to know before a build; empty where the work is this host's."""

    def prepare(self, entry: str) -> AbstractContextManager[None]:
        """Start what will run jobs of this entry, as far as that takes time, while a plan is being made.

        Not needed before `run`. What has not been used is stopped when the context ends.
        """

    def run(self, job: Job, tasks: Sequence[Any]) -> Events:
        """Yield events as they come; each task is `Done` exactly once. Closing the generator stops the work.

        Raises:
            TaskError: a task failed for good; it names the task (its `name`, if it has one).
        """


def task_name(task: Any) -> str:
    """Return the name by which messages call a task."""
    return str(getattr(task, "name", task))


class Deaths:
    """Counts them by task."""

    def __init__(self, tasks: Sequence[Any]) -> None:
        self._tasks = tasks
        self._counts = [0] * len(tasks)

    def note(self, number: int, death: str, advice: str) -> str:
        """A worker died at task `number`, in the way that `death` says.

        Returns:
            The task's name.

        Raises:
            TaskError: that was once too often.
        """
        name = task_name(self._tasks[number])
        self._counts[number] += 1
        if self._counts[number] > DEATHS_ALLOWED:
            raise TaskError(
                f"{name}: {self._counts[number]} worker processes died at it, the last one {death}. {advice}"
            )
        return name
