"""Compiling under JAX, told apart: in the first step, in later ones, between epochs."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frameworks import lazy
from tpufeed.measure.clock import StepClock

jax = lazy("jax")
jnp = lazy("jax.numpy")
monitoring = lazy("jax:monitoring")


def batches(rows: list[int]) -> list[np.ndarray[Any, Any]]:
    return [np.ones((row, 3), np.float32) for row in rows]


@pytest.fixture
def step() -> Callable[[Any], Any]:
    @jax.jit
    def step(values: Any) -> Any:
        return jnp.tanh(values).sum()

    return step


@pytest.mark.uses("jax")
def test_the_first_step_compiles_and_the_others_do_not(step: Callable[[Any], Any]) -> None:
    clock = StepClock()
    for _ in range(2):
        for batch in clock(batches([4] * 6)):
            step(batch).block_until_ready()
        step(batches([len(clock.timeline().wait_seconds)])[0]).block_until_ready()  # between epochs: not of the loop
    report = clock.report()
    assert report.compile_seconds is not None
    assert report.first_compute_seconds is not None
    assert 0 < report.compile_seconds < report.first_compute_seconds
    assert (report.recompilations, report.tracing_percent) == (0, 0)
    assert (report.sync_percent, report.notes) == (None, ())


@pytest.mark.uses("jax")
def test_shapes_that_change_compile_again_and_that_is_said(step: Callable[[Any], Any]) -> None:
    clock = StepClock()
    for batch in clock(batches([4, 5, 6, 7, 8])):
        step(batch).block_until_ready()
    report = clock.report()
    assert report.recompilations == 4
    assert report.blame == "tracing"
    assert any("recompiled 4 times after step 1" in note and "Pad batches" in note for note in report.notes)


def test_where_nothing_was_compiled_nothing_is_known() -> None:
    clock = StepClock()
    list(clock(batches([4] * 3)))  # another framework may train here
    report = clock.report()
    assert (report.compile_seconds, report.recompilations, report.tracing_percent) == (None, None, None)
    assert "of which compiling n/a" in report.summary()


@pytest.mark.uses("jax")
def test_a_listener_of_a_clock_that_is_gone_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(monitoring, "register_event_duration_secs_listener", registered.append)
    clock = StepClock()
    for _ in clock([1, 2]):
        registered[0]("/jax/core/compile/backend_compile_duration", 1.0, fun_name="step")
    list(clock([1, 2]))
    (listener,) = registered
    report = clock.report(1)
    assert (report.compile_seconds, report.recompilations) == (1.0, 1)
    alive = weakref.ref(clock)
    del clock
    gc.collect()
    assert alive() is None
    listener("/jax/core/compile/backend_compile_duration", 1.0)
