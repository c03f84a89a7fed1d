"""What a TPU's profile says of its steps: for how much of one the TPU waits for its host.

torch_xla, JAX and TensorFlow write the same files, `LOGDIR/plugins/profile/RUN/HOST.xplane.pb`; xprof reads them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tpufeed.errors import OptionError
from tpufeed.profiling.conversion import Tables, convert
from tpufeed.profiling.verdicts import MODERATE_PERCENT, idle_band
from tpufeed.profiling.xspace import XSpace, read_xspace

_SUFFIX = ".xplane.pb"
_CAPTURE = (
    "torch_xla.debug.profiler.start_trace, jax.profiler.start_trace or tf.profiler.experimental.start, "
    "in the process that trains"
)
# These add up to a step. Transfers that the host takes part in are in "tcIdleTimeMs" already.
_STEP_COLUMNS = (
    "tcComputeTimeMs", "tcInfeedTimeMs", "tcOutfeedTimeMs", "tcIdleTimeMs", "scv0ComputeTimeMs", "scv0InfeedTimeMs",
)  # fmt: skip
_COUNTER = "matrix_unit_utilization_percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReport:
    """What a profile says. None is what it does not tell.

    Of several hosts, the figures from `steps` on are those of the host whose TPU waits longest: xprof's own sums over
    hosts pair the longest step with another host's idle time. Of one host's cores, `infeed_percent` is the most of any
    and `input_percent` that of the core that computes least.

    Attributes:
        run: the capture's name.
        hosts: that have a TPU in this profile.
        devices: TensorCores, of all hosts.
        device_type: as the TPU calls itself: "TPU v5e".
        host: whose figures these are.
        steps: that the figures are of. The first and the last of a capture may be cut: of three or more they are left
            out.
        step_ms: average.
        step_ms_lowest: of a step.
        step_ms_highest: of a step.
        infeed_percent: of a step in infeed ops, which TensorFlow's TPU loops have, JAX and torch_xla do not.
        idle_percent: of a step without any op on the TensorCore: where JAX and torch_xla wait for a batch, or for the
            host to trace and dispatch.
        input_percent: both together; the verdict goes by it.
        duty_cycle_percent: of the whole capture with a program on the TPU.
        mxu_percent: how busy the matrix units were, where the profile has their counter.
        mfu_percent: FLOPs as XLA counts them per peak, over the whole capture.
        recommendation: xprof's, where there are infeed ops; it knows no other input.
        notes: what else the profile or xprof says, as sentences.
        verdict: a sentence.
    """

    run: str
    hosts: int
    devices: int
    device_type: str | None = None
    host: str | None = None
    steps: int = 0
    step_ms: float | None = None
    step_ms_lowest: float | None = None
    step_ms_highest: float | None = None
    infeed_percent: float | None = None
    idle_percent: float | None = None
    input_percent: float | None = None
    duty_cycle_percent: float | None = None
    mxu_percent: float | None = None
    mfu_percent: float | None = None
    recommendation: str | None = None
    notes: tuple[str, ...] = ()
    verdict: str = ""


def read_profile(logdir: str | Path) -> ProfileReport:
    """What the newest profile under `logdir` says. Nothing is written there.

    Args:
        logdir: what a profiler was given; or a run's folder, or one `.xplane.pb`.

    Raises:
        OptionError: there is no profile, it cannot be read, or `logdir` is a URL.
        DamageError: a profile that is cut short, or none at all.
        MissingExtraError: xprof is not installed; not raised where there is no TPU in the profile.
    """
    try:
        run, paths = _find(logdir)
        spaces = {path: read_xspace(path) for path in paths}
    except OSError as error:
        raise OptionError(f"{error.filename or logdir} cannot be read: {error.strerror or error}") from error
    with_tpu = [path for path, space in spaces.items() if space.tensor_cores]
    devices = sum(space.tensor_cores for space in spaces.values())
    notes = _notes_on(spaces)
    if not with_tpu:
        names = sorted({plane.name for space in spaces.values() for plane in space.planes})
        verdict = f"no TPU in this profile: its planes are {', '.join(names)}; capture on the TPU VM with {_CAPTURE}"
        return ProfileReport(run=run, hosts=0, devices=0, notes=notes, verdict=verdict)
    hosts = [
        _host_report(run, path.name.removesuffix(_SUFFIX), spaces[path], tables)
        for path, tables in zip(with_tpu, convert(with_tpu), strict=True)
    ]
    worst = max(hosts, key=lambda host: -1.0 if host.input_percent is None else host.input_percent)
    whole = replace(worst, hosts=len(hosts), devices=devices, notes=notes + _spread(hosts) + worst.notes)
    return replace(whole, verdict=_verdict(whole))


def _find(logdir: str | Path) -> tuple[str, list[Path]]:
    """The newest run's name, and its files, one a host."""
    if "://" in str(logdir):
        raise OptionError(
            f"profiles are read from local folders, not from {logdir}: copy the run first, "
            "for example `gcloud storage cp -r URL/plugins/profile/RUN .`"
        )
    root = Path(logdir)
    if root.is_file():
        return root.parent.name if root.name.endswith(_SUFFIX) else root.name, [root]
    if not root.is_dir():
        raise OptionError(f"there is no folder {root}; expected is the folder that the profiler was given")
    runs: dict[Path, list[Path]] = {}
    for path in sorted(root.rglob(f"*{_SUFFIX}")):
        runs.setdefault(path.parent, []).append(path)
    if not runs:
        raise OptionError(
            f"there is no profile under {root}: expected is plugins/profile/RUN/HOST{_SUFFIX}; "
            f"capture one on the TPU VM with {_CAPTURE}"
        )
    newest = max(runs, key=lambda run: _captured(run, runs[run]))
    return newest.resolve().name, runs[newest]


def _captured(run: Path, paths: Sequence[Path]) -> float:
    """When: profilers name a run by its time, which copying does not change as it does the files' times."""
    try:
        return datetime.strptime(run.resolve().name, "%Y_%m_%d_%H_%M_%S").timestamp()
    except ValueError:
        return max(path.stat().st_mtime for path in paths)


def _notes_on(spaces: Mapping[Path, XSpace]) -> tuple[str, ...]:
    notes = [f"the capture on {path.name} failed in part: {e}" for path, space in spaces.items() for e in space.errors]
    without = [path.name for path, space in spaces.items() if not space.tensor_cores]
    if len(without) < len(spaces):
        notes += [f"there is no TPU in {name}: left out" for name in without]
    return tuple(notes)


def _host_report(run: str, host: str, space: XSpace, tables: Tables) -> ProfileReport:
    report = ProfileReport(
        run=run,
        hosts=1,
        devices=space.tensor_cores,
        device_type=_properties(tables, "device_type").get("device_type") or None,
        host=host,
        mfu_percent=_mfu(tables),
        notes=_remarks(tables),
    )
    overview = _properties(tables, "device_duty_cycle_percent")
    if any(_COUNTER in plane.stats for plane in space.planes):
        report = replace(report, mxu_percent=_percent(overview.get("mxu_utilization_percent")))
    steps = _steps(tables)
    duty = _percent(overview.get("device_duty_cycle_percent"))
    if duty or steps:  # else xprof saw no op, and its 0.0 % are of nothing
        report = replace(report, duty_cycle_percent=duty)
    return _with_steps(report, steps, tables) if steps else report


def _with_steps(report: ProfileReport, steps: Sequence[Mapping[str, float]], tables: Tables) -> ProfileReport:
    lengths = [sum(step[column] for column in _STEP_COLUMNS) for step in steps]
    infeed = 100 * sum(step["tcInfeedTimeMs"] for step in steps) / sum(lengths)
    idle = 100 * sum(step["tcIdleTimeMs"] for step in steps) / sum(lengths)
    conclusion = _plain(_properties(tables, "input_conclusion").get("input_conclusion"))
    return replace(
        report,
        steps=len(steps),
        step_ms=sum(lengths) / len(lengths),
        step_ms_lowest=min(lengths),
        step_ms_highest=max(lengths),
        infeed_percent=infeed,
        idle_percent=idle,
        input_percent=infeed + idle,
        recommendation=conclusion if infeed > 0 and conclusion else None,
    )


def _steps(tables: Tables) -> list[dict[str, float]]:
    """The whole steps, a dict of milliseconds each."""
    steps = [
        {column: float(row.get(column) or 0) for column in _STEP_COLUMNS}
        for table in tables
        for row in _rows(table)
        if "stepnum" in row and "tcIdleTimeMs" in row
    ]
    steps = [step for step in steps if sum(step.values()) > 0]
    return steps[1:-1] if len(steps) > 2 else steps


def _mfu(tables: Tables) -> float | None:
    peak = float(_properties(tables, "peak_flop_rate").get("peak_flop_rate") or 0)
    for table in tables:
        for row in _rows(table):
            if row.get("step") == "Total" and row.get("category") == "Program":
                rate = float(row.get("model_flop_rate") or 0)
                return 100 * rate / peak if rate > 0 and peak > 0 else None
    return None


def _remarks(tables: Tables) -> tuple[str, ...]:
    """What xprof remarks besides the input: on output, eager ops and ops outside of compilation."""
    found = [_properties(tables, "output_conclusion").get("output_conclusion")]
    recommendation = _properties(tables, "statement")
    found += [recommendation.get(f"{what}_statement_html") for what in ("output", "eager", "outside_compilation")]
    return tuple(f"xprof: {text}" for text in dict.fromkeys(map(_plain, found)) if text)


def _properties(tables: Tables, key: str) -> Mapping[str, Any]:
    """Of the first table that has a property of that name."""
    return next((table["p"] for table in tables if key in (table.get("p") or {})), {})


def _rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = [column["id"] for column in table.get("cols") or ()]
    cells = [[cell and cell.get("v") for cell in row["c"]] for row in table.get("rows") or ()]
    return [dict(zip(columns, row, strict=False)) for row in cells]


def _percent(text: str | None) -> float | None:
    try:
        return float(str(text).rstrip(" %"))
    except ValueError:
        return None


def _plain(html: str | None) -> str:
    return re.sub(r"<[^>]*>", "", html or "").strip()


def _spread(hosts: Sequence[ProfileReport]) -> tuple[str, ...]:
    known = [(host.input_percent, host.host) for host in hosts if host.input_percent is not None]
    if len(hosts) < 2 or not known:
        return ()
    (least, calm), (most, worst) = min(known), max(known)
    return (f"the TPUs of {len(known)} hosts wait from {least:.1f} % ({calm}) to {most:.1f} % ({worst}) of a step",)


def _verdict(report: ProfileReport) -> str:
    waits = report.input_percent
    if waits is None or report.step_ms is None:
        return (
            f"no whole step in this profile: capture for as long as ten steps, with {_CAPTURE}; "
            "where no step is marked, mark it (torch_xla: StepTrace, JAX: StepTraceAnnotation, TensorFlow: Trace)"
        )
    tpu = "the TPU" if report.hosts == 1 else f"the TPU of {report.host}"
    said = f"{idle_band(waits)}: {tpu} waits for its host during {waits:.1f} % of a step of {report.step_ms:.1f} ms"
    if waits < MODERATE_PERCENT:
        return f"{said}; a faster loader would gain no more than that"
    return (
        f"{said}, for a batch or for tracing and dispatch: StepClock tells them apart, "
        "and `tpufeed doctor URL` names the stage that holds up a batch"
    )
