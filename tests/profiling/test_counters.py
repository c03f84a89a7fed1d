import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tpufeed.profiling.counters import TpuCounters, read_counters


def install(monkeypatch: pytest.MonkeyPatch, get_metric: Any) -> None:
    """A libtpu whose monitoring answers with `get_metric`."""
    libtpu, sdk = ModuleType("libtpu"), ModuleType("libtpu.sdk")
    libtpu.sdk = sdk  # type: ignore[attr-defined]
    if get_metric is not None:
        sdk.tpumonitoring = SimpleNamespace(get_metric=get_metric)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "libtpu", libtpu)
    monkeypatch.setitem(sys.modules, "libtpu.sdk", sdk)


def answering(values: Any) -> Any:
    def get_metric(name: str) -> Any:
        return SimpleNamespace(data=lambda: values)

    return get_metric


@pytest.mark.parametrize(
    ("values", "percent"),
    [
        (["10.0", "30.0"], 20.0),
        ([12.5, 13.5, 16.0], 14.0),
        (["42%"], 42.0),
        (["nan", "8.0"], 8.0),
        (["0.00", "0.00"], 0.0),  # a TPU that says it did nothing is known to have done nothing
    ],
)
def test_the_mean_over_the_cores(monkeypatch: pytest.MonkeyPatch, values: Any, percent: float) -> None:
    install(monkeypatch, answering(values))
    assert read_counters().mxu_percent == pytest.approx(percent)


@pytest.mark.parametrize("values", [[], None, ["nan"], ["n/a"], [None], object()])
def test_no_answer_is_none_and_never_zero(monkeypatch: pytest.MonkeyPatch, values: Any) -> None:
    install(monkeypatch, answering(values))
    assert read_counters() == TpuCounters(None, None)


def test_none_where_libtpu_has_no_monitoring(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert read_counters().mxu_percent is None


@pytest.mark.parametrize("error", [RuntimeError("vbar control agent"), AttributeError("old"), ValueError("no metric")])
def test_none_where_libtpu_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def get_metric(name: str) -> Any:
        raise error

    install(monkeypatch, get_metric)
    assert read_counters().mxu_percent is None


ALL = {
    "tensorcore_util": ["10.0", "30.0"],
    "duty_cycle_pct": ["100.0", "80.0"],
}


def telling(metrics: dict[str, Any]) -> Any:
    """Answers those; raises for any other, as libtpu does."""

    def get_metric(name: str) -> Any:
        return SimpleNamespace(data=lambda: metrics[name])

    return get_metric


def test_all_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, telling(ALL))
    assert read_counters() == TpuCounters(20.0, 90.0)


def test_an_older_libtpu_calls_it_monitoring(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    sys.modules["libtpu.sdk"].monitoring = SimpleNamespace(get_metric=telling(ALL))  # type: ignore[attr-defined]
    assert read_counters().duty_cycle_percent == 90


@pytest.mark.parametrize(
    ("missing", "field"),
    [
        ("tensorcore_util", "mxu_percent"),
        ("duty_cycle_pct", "duty_cycle_percent"),
    ],
)
def test_one_that_is_missing_takes_no_other_along(monkeypatch: pytest.MonkeyPatch, missing: str, field: str) -> None:
    install(monkeypatch, telling({name: values for name, values in ALL.items() if name != missing}))
    counters = read_counters()
    unknown = {name for name in TpuCounters.__slots__ if getattr(counters, name) is None}
    assert unknown == {field}


def test_without_libtpu_all_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    assert read_counters() == TpuCounters(None, None)
