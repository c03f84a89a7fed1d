import json

import pytest

from tpufeed.builds.destination import Destination, Owner, Reject, Report
from tpufeed.builds.rejects import Rejects, allowed_rejects
from tpufeed.dataset.naming import PLAN
from tpufeed.errors import OptionError, TooManyRejectsError
from tpufeed.storage.memory import MemoryStore


@pytest.mark.parametrize(
    ("text", "inputs", "allowed"),
    [
        (None, 0, 10),
        (None, 1000, 10),
        (None, 1_000_000, 10_000),
        (0, 1000, 0),
        ("0", 1000, 0),
        (20, 5, 20),
        (" 20 ", 5, 20),
        ("1%", 1000, 10),
        ("1%", 99, 0),
        ("0.5 %", 1000, 5),
        ("100%", 7, 7),
        ("0%", 7, 0),
        *((f"{percent}%", 100, percent) for percent in (7, 28, 29, 55, 57, 58)),  # 0.29 * 100 < 29
    ],
)
def test_what_a_budget_allows(text, inputs, allowed):
    assert allowed_rejects(text, inputs) == allowed


@pytest.mark.parametrize(
    "text", ["", "%", "-1", "-1%", "101%", "1.5", "one", "1%%", "1e3", "nan%", "٣", pytest.param("9" * 5000, id="9s")]
)
def test_what_is_no_budget(text):
    with pytest.raises(OptionError, match="1% or 20"):
        allowed_rejects(text, 0)


def own(store):
    """Give the store to a run."""
    return Destination(store, Owner("run", store.put(PLAN, b"", store.stat(PLAN)).version))


def report(task, *reasons):
    rejects = tuple(Reject(f"{task}/{n}.jpg", reason, f"because {n}") for n, reason in enumerate(reasons))
    return Report(task, (), (), {}, rejects)


@pytest.fixture
def store(tmp_path):
    return MemoryStore(f"memory://{tmp_path.name}")


def test_rejects_stand_in_the_order_of_the_tasks(store):
    rejects = Rejects(own(store), 100, 10)
    for done in (report(2, "truncated"), report(0, "unreadable", "truncated"), report(1)):
        rejects.add(done)
    rejects.check()
    put = rejects.put()
    lines = [json.loads(line) for line in store.read("rejects.jsonl").splitlines()]
    assert [line["path"] for line in lines] == ["0/0.jpg", "0/1.jpg", "2/0.jpg"]
    assert lines[0] == {"path": "0/0.jpg", "reason": "unreadable", "message": "because 0"}
    assert [reject.reason for reject in put] == ["unreadable", "truncated", "truncated"]


def test_one_reject_more_than_allowed_is_too_many(store):
    rejects = Rejects(own(store), 1000, 2)
    rejects.add(report(5, "truncated", "truncated"))
    rejects.check()
    assert store.stat("rejects.jsonl") is None
    rejects.add(report(4, "zero_bytes", "zero_bytes"))
    with pytest.raises(TooManyRejectsError, match="4 of 1,000") as raised:
        rejects.check()
    assert raised.value.exit_code == 1
    assert len(store.read("rejects.jsonl").splitlines()) == 4


def test_an_earlier_list_is_replaced(store):
    store.put("rejects.jsonl", b"old\n")
    Rejects(own(store), 5, 0).put()
    assert store.read("rejects.jsonl") == b""
