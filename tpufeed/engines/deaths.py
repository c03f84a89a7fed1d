"""Worker processes that died at their tasks, and when that was often enough."""

from collections.abc import Sequence
from typing import Any

from tpufeed.engines.engine import task_name
from tpufeed.errors import TaskError

DEATHS_ALLOWED = 2  # at one task: a killed worker says little of the task, three in a row do


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
