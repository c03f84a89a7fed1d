"""Compiling under JAX, told apart: in the first step, in later ones, between epochs."""

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

from tpufeed.profiling.clock import StepClock
from tpufeed.profiling.compiling import Compiling, XlaCounts


def batches(rows: list[int]) -> list[np.ndarray[Any, Any]]:
    return [np.ones((row, 3), np.float32) for row in rows]


@pytest.fixture
def step() -> Callable[[Any], Any]:
    @jax.jit
    def step(values: Any) -> Any:
        return jnp.tanh(values).sum()

    return step


def test_the_first_step_compiles_and_the_others_do_not(step: Callable[[Any], Any]) -> None:
    clock = StepClock()
    for batch in clock(batches([4] * 6)):
        step(batch).block_until_ready()
    report = clock.report()
    assert report.compile_seconds is not None
    assert report.first_compute_seconds is not None
    assert 0 < report.compile_seconds < report.first_compute_seconds
    assert (report.recompilations, report.recompile_seconds) == (0, 0)
    assert report.tracing_percent == 0
    assert (report.sync_percent, report.notes) == (None, ())


def test_shapes_that_change_compile_again_and_that_is_said(step: Callable[[Any], Any]) -> None:
    clock = StepClock()
    for batch in clock(batches([4, 5, 6, 7, 8])):
        step(batch).block_until_ready()
    report = clock.report()
    assert report.recompilations == 4
    assert report.blame == "tracing"
    assert any("recompiled 4 times after step 1" in note and "pad batches" in note for note in report.notes)


def test_what_is_compiled_between_epochs_is_not_of_the_loop(step: Callable[[Any], Any]) -> None:
    clock = StepClock()
    for rows in (11, 12):
        for batch in clock(batches([10] * 3)):
            step(batch).block_until_ready()
        step(batches([rows])[0]).block_until_ready()
    assert clock.report().recompilations == 0


def test_where_nothing_was_compiled_nothing_is_known() -> None:
    clock = StepClock()
    list(clock(batches([4] * 3)))  # another framework may train here
    report = clock.report()
    assert (report.compile_seconds, report.recompilations, report.tracing_percent) == (None, None, None)
    assert "of which compiling n/a" in report.summary()


def test_listeners_of_clocks_that_are_gone_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    register, unregister = [], []
    monkeypatch.setattr(monitoring, "register_event_duration_secs_listener", register.append)
    monkeypatch.setattr(monitoring, "unregister_event_duration_listener", unregister.append)
    clock = StepClock()
    list(clock([1, 2]))
    assert (len(register), unregister) == (1, [])
    del clock
    gc.collect()
    assert unregister == register
    register[0]("/jax/core/compile/backend_compile_duration", 1.0)  # and harmless where it cannot be taken away


def test_listeners_that_somebody_cleared_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def unregister(listener: Any) -> None:
        tried.append(listener)
        raise AssertionError

    monkeypatch.setattr(monitoring, "register_event_duration_secs_listener", lambda _: None)
    monkeypatch.setattr(monitoring, "unregister_event_duration_listener", unregister)
    clock = StepClock()
    list(clock([1, 2]))
    del clock
    gc.collect()
    assert len(tried) == 1


def test_frameworks_in_one_process_are_judged_apart() -> None:
    torch = XlaCounts(compilations=3, compile_seconds=1.0)
    assert Compiling(3, 1.0, torch).advice(10) == torch.advice(10)
    both = Compiling(8, 6.0, torch).advice(10)
    assert "recompiled 5 times after step 1, 5.0 s" in both[0]
    assert "recompiled 3 times after step 1, 1.0 s" in both[1]
    assert Compiling(2, 1.0, None).advice(10) == ()
    assert (Compiling(1, 1.0, torch) + Compiling(2, 2.0)).xla == torch
