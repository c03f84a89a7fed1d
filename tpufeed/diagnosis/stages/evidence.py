"""What a training run has shown already: steps that a clock saved, and profiles."""

from pathlib import Path

from tpufeed.diagnosis.stages.findings import Evidence
from tpufeed.profiling.steps import MODERATE_PERCENT, load_steps
from tpufeed.profiling.xplane import ProfileReport, read_profile


def read_evidence(steps: Path | None, profile: Path | None) -> tuple[Evidence, ...]:
    """Of the files that the user gave.

    Raises:
        OptionError: one cannot be read, or is none; it says what writes such a file.
        DamageError, MissingExtraError: of a profile.
    """
    found = list[Evidence]()
    if steps is not None:
        report = load_steps(steps)
        found.append(Evidence(report.blame, f"{steps}: {report.verdict}"))
    if profile is not None:
        found.append(judge_profile(read_profile(profile), profile))
    return tuple(found)


def judge_profile(report: ProfileReport, path: Path) -> Evidence:
    """A profile cannot tell waiting for a batch from waiting for the host to trace: it blames data for both."""
    figures = {
        "idle": report.idle_percent,
        "MXU": report.mxu_percent,
        "duty cycle": report.duty_cycle_percent,
        "MFU": report.mfu_percent,
    }
    known = ", ".join(f"{name} {'n/a' if value is None else f'{value:.1f} %'}" for name, value in figures.items())
    says = "; ".join((f"{path}: {known}: {report.verdict}", *report.notes))
    if report.input_percent is None:
        return Evidence(None, says)
    return Evidence("data" if report.input_percent >= MODERATE_PERCENT else "accelerator", says)
