"""How often and how long frameworks compiled, as far as those that are loaded tell: torch_xla and JAX."""

import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tpufeed.profiling.xlametrics import USUAL_COMPILATIONS, XlaCounts, xla_counts

# Of jax.monitoring. Tracing is left out: a function that calls others would be counted with each of them again.
_JAX_COMPILE = "/jax/core/compile/backend_compile_duration"
_JAX_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"


@dataclass(frozen=True, slots=True)
class Compiling:
    """Between two times, in this process.

    Attributes:
        compilations: of all frameworks that tell.
        compile_seconds: of those.
        xla: all that torch_xla counted; None where it is not loaded.
    """

    compilations: int = 0
    compile_seconds: float = 0.0
    xla: XlaCounts | None = None

    def __add__(self, other: "Compiling") -> "Compiling":
        """Of both."""
        known = [part.xla for part in (self, other) if part.xla is not None]
        xla = known[0] if len(known) == 1 else known[0] + known[1] if known else None
        return Compiling(self.compilations + other.compilations, self.compile_seconds + other.compile_seconds, xla)

    def advice(self, steps: int) -> tuple[str, ...]:
        """What is wrong with `steps` steps after the first, in which this was counted, as sentences."""
        torch = XlaCounts() if self.xla is None else self.xla
        compilations, seconds = self.compilations - torch.compilations, self.compile_seconds - torch.compile_seconds
        if compilations <= USUAL_COMPILATIONS:
            return torch.advice(steps)
        said = (
            f"recompiled {compilations} times after step 1, {seconds:.1f} s in all: shapes, dtypes, shardings or "
            "static arguments change; pad batches, or drop the remainder"
        )
        return (said, *torch.advice(steps))


class CompileWatch:
    """Tells the first step's compiling from that of the later ones, and leaves out what is between two epochs."""

    def __init__(self) -> None:
        self._jax: _JaxTally | None = None
        self._xla = XlaCounts()
        self._running = False
        self._first: Compiling | None = None
        self._later: Compiling | None = None

    def begin(self) -> None:
        """An epoch begins."""
        self._running = True
        self._take()

    def settle(self) -> None:
        """The first step is over; what follows is of the later ones."""
        self._first = self._take()

    def end(self) -> None:
        """The epoch is over."""
        self._later_now()
        self._running = False

    def told(self) -> tuple[Compiling | None, Compiling | None]:
        """Of the first step, and of those after it.

        None where no framework that tells has compiled or run anything: another one may be in use.
        """
        parts = self._first, self._later_now()
        known = [part for part in parts if part is not None]
        if not any(part.compilations or (part.xla is not None and part.xla.executions) for part in known):
            return None, None
        return parts

    def _later_now(self) -> Compiling | None:
        more = self._take() if self._running else None
        if more is not None:
            self._later = more + (self._later or Compiling())
        return self._later

    def _take(self) -> Compiling | None:
        """Since the last time. A framework that was imported meanwhile has compiled in this time only, if at all."""
        if self._jax is None:
            self._jax = _listen_to_jax()
        jax, xla = self._jax, xla_counts()
        if jax is None and xla is None:
            return None
        compilations, seconds = (0, 0.0) if jax is None else jax.take()
        if xla is None:
            return Compiling(compilations, seconds)
        counted, self._xla = xla - self._xla, xla
        return Compiling(compilations + counted.compilations, seconds + counted.compile_seconds, counted)


class _JaxTally:
    """What JAX compiled since the last time, in this process."""

    def __init__(self) -> None:
        self.compilations = 0
        self.seconds = 0.0

    def add(self, event: str, seconds: float) -> None:
        """One event of jax.monitoring."""
        if event in (_JAX_COMPILE, _JAX_LOWER):
            self.compilations += event == _JAX_COMPILE
            self.seconds += seconds

    def take(self) -> tuple[int, float]:
        """Compilations and seconds since the last time."""
        taken = self.compilations, self.seconds
        self.compilations, self.seconds = 0, 0.0
        return taken


def _listen_to_jax() -> _JaxTally | None:
    """None where JAX is not loaded. Releases before 0.5 have no way to end it: what stays of it then does nothing."""
    monitoring: Any = getattr(sys.modules.get("jax"), "monitoring", None)
    register = getattr(monitoring, "register_event_duration_secs_listener", None)
    if register is None:
        return None
    tally = _JaxTally()
    weak = weakref.ref(tally)

    def listener(event: str, seconds: float, **_: Any) -> None:
        alive = weak()
        if alive is not None:
            alive.add(event, seconds)

    register(listener)
    unregister = getattr(monitoring, "unregister_event_duration_listener", None)
    if unregister is not None:
        weakref.finalize(tally, _forget, unregister, listener).atexit = False
    return tally


def _forget(unregister: Any, listener: Any) -> None:
    with suppress(AssertionError, ValueError):  # somebody has cleared all listeners
        unregister(listener)
