"""What idle time means: xprof's bands, and MLPerf Storage's floor."""

from tpufeed.profiling.steps import HIGH_PERCENT, MODERATE_PERCENT

__all__ = ["AU_FLOOR_PERCENT", "HIGH_PERCENT", "MODERATE_PERCENT", "few_steps", "idle_band", "say_verdict"]

_FEWEST_STEPS = 20
AU_FLOOR_PERCENT = 90.0  # MLPerf Storage, for ResNet-50


def idle_band(idle_percent: float) -> str:
    """In xprof's words."""
    if idle_percent >= HIGH_PERCENT:
        return "highly input-bound"
    return "moderately input-bound" if idle_percent >= MODERATE_PERCENT else "not input-bound"


def few_steps(steps: int) -> tuple[str, ...]:
    """Why figures of so few steps after the first one say little, as sentences."""
    if steps >= _FEWEST_STEPS:
        return ()
    were = "step was" if steps == 1 else "steps were"
    return (f"{steps} {were} measured after the first one, {_FEWEST_STEPS} are the fewest that say anything",)


def say_verdict(idle_percent: float) -> str:
    """A sentence on an emulated accelerator: of nominal times, AU is what idle time leaves."""
    utilisation = 100 - idle_percent
    passes = "passes" if utilisation >= AU_FLOOR_PERCENT else "is below"
    return (
        f"idle {idle_percent:.1f} %: {idle_band(idle_percent)}; AU {utilisation:.1f} % {passes} MLPerf Storage's floor "
        f"of {AU_FLOOR_PERCENT:.0f} %"
    )
