"""What all engines share; `contract` has what each of them must do."""

from collections import Counter

import pytest

from tests.engines.contract import NamedTask
from tpufeed.engines.engine import note_death, task_name
from tpufeed.errors import TaskError


def test_a_task_is_called_by_its_name():
    assert [task_name(task) for task in (NamedTask("train-7"), 7)] == ["train-7", "7"]


def test_the_third_death_at_a_task_is_one_too_many():
    deaths = Counter()
    for name in ("a", "b", "a", "b"):
        note_death(deaths, name, "by SIGKILL", "Try fewer --workers")
    with pytest.raises(TaskError, match=r"^b: 3 .*SIGTERM.*--workers"):
        note_death(deaths, "b", "by SIGTERM", "Try fewer --workers")
