"""The protocol of engines, and what all of them share."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from tpufeed.errors import TaskError

_DEATHS_ALLOWED = 2  # at one task: a killed worker says little of the task, three in a row do


class Progress(NamedTuple):
    """Work done since the last report; below zero if a worker has died and its work is lost."""

    images: int
    bytes: int
    rejects: int


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
    and returns nothing. It reports progress every few minutes at least, if only zeros: an engine may treat a task that
    reports nothing as hung.

    `reach` is another "module:function", called as `function(context, task)` on each host before the work, if hosts may
    differ. It returns what it sees there of what the task needs, URLs with their versions, and raises if it cannot see
    or write anything.
    """

    entry: str
    context: Any
    reach: str = ""


class Engine(Protocol):
    """Runs each task until it has ended well once."""

    def describe(self) -> str:
        """Return what there is to know before a build; empty if the work is done on this host."""

    def prepare(self, entry: str) -> AbstractContextManager[None]:
        """Start what will run jobs of this entry, as far as that takes time, while a plan is being made.

        This is not needed before `run`. What has not been used is stopped when the context ends.
        """

    def run(self, job: Job, tasks: Sequence[Any]) -> Events:
        """Yield events as they come; each task is `Done` exactly once. Closing the generator stops the work.

        Raises:
            TaskError: a task failed for good; it names the task (its `name`, if it has one).
        """


def task_name(task: Any) -> str:
    """Return the name of a task for messages."""
    return str(getattr(task, "name", task))


def note_death(deaths: Counter[str], name: str, death: str, advice: str) -> None:
    """Count the death of a worker at the task `name`. Raises TaskError if that was once too often.

    Args:
        deaths: counted so far, by task.
        name: of the task.
        death: how the worker ended.
        advice: what to do about it.
    """
    deaths[name] += 1
    if deaths[name] > _DEATHS_ALLOWED:
        raise TaskError(f"{name}: {deaths[name]} worker processes died at it, the last one {death}. {advice}")
