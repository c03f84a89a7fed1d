"""The protocol of engines, and the code that all of them share."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from tpufeed.errors import TaskError

_DEATHS_ALLOWED = 2  # per task: one killed worker does not mean that the task is bad, three do


class Progress(NamedTuple):
    """Work done since the last report, negative if a worker has died and its work is lost."""

    images: int
    bytes: int
    rejects: int


NOTHING = Progress(0, 0, 0)


class Done(NamedTuple):
    """The task at index `number` has succeeded."""

    number: int


Event: TypeAlias = Progress | Done
Events: TypeAlias = Generator[Event, None, None]
ReportProgress: TypeAlias = Callable[[Progress], None]
TaskFunction: TypeAlias = Callable[[Any, Any, ReportProgress], None]


@dataclass(frozen=True, slots=True)
class Job:
    """The job of all tasks: `entry` is "module:function", called as `function(context, task, report_progress)`.

    Workers import the function by that name, so it needs nothing from the launcher's memory. Context and tasks are
    small and picklable. The function may run several times for a task, even at the same time. It stores its result
    itself and returns nothing. It reports at least every few minutes, even without progress: an engine may treat a
    silent task as hung.

    `reach` is another "module:function", called as `function(context, task)` on each host before the work, if hosts may
    differ. It returns the versions of the files that the task needs, by URL, as seen there, and raises if it cannot
    read or write there.
    """

    entry: str
    context: Any
    reach: str = ""


class Engine(Protocol):
    """Runs each task until it has succeeded once."""

    def describe(self) -> str:
        """Return what the user should know before a build, empty if the work is done on this host."""

    def prepare(self, entry: str) -> AbstractContextManager[None]:
        """Start workers for this entry in advance, while a plan is being made.

        `run` also works without it. Unused workers are stopped when the context ends.
        """

    def run(self, job: Job, tasks: Sequence[Any]) -> Events:
        """Yield events as they come. Each task is `Done` exactly once. Closing the generator stops the work.

        Raises:
            TaskError: a task failed for good. The message names the task (its `name`, if it has one).
        """


def task_name(task: Any) -> str:
    """Return the name of a task for messages."""
    return str(getattr(task, "name", task))


def note_death(deaths: Counter[str], name: str, death: str, advice: str) -> None:
    """Count the death of a worker at the task `name`. Raises TaskError if too many have died.

    Args:
        deaths: number of deaths so far, by task.
        name: name of the task.
        death: how the worker ended.
        advice: what to do about it.
    """
    deaths[name] += 1
    if deaths[name] > _DEATHS_ALLOWED:
        raise TaskError(f"{name}: {deaths[name]} worker processes died at it, the last one {death}. {advice}")
