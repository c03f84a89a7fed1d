"""Read from a profile, with xprof's tables, how long a TPU waits for its host.

torch_xla, JAX and TensorFlow write the same files, `LOGDIR/plugins/profile/RUN/HOST.xplane.pb`. xprof runs in its own
process, `xprof_tables`: it is native code that takes gigabytes for a large profile, always logs to stderr, and can
kill its process when it fails. It also writes its results to the folder that it reads, whatever `use_saved_result`
says, so it gets links in a temporary folder.
"""

import importlib.util
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tpufeed.errors import DamageError, MissingExtraError, OptionError
from tpufeed.measure import xprof_tables
from tpufeed.measure.clock import MODERATE_PERCENT, idle_band

_SUFFIX = ".xplane.pb"
_CAPTURE = (
    "torch_xla.debug.profiler.start_trace, jax.profiler.start_trace or tf.profiler.experimental.start, "
    "in the process that trains"
)
# These columns add up to a step. "tcIdleTimeMs" includes transfers that involve the host.
_STEP_COLUMNS = (
    "tcComputeTimeMs", "tcInfeedTimeMs", "tcOutfeedTimeMs", "tcIdleTimeMs", "scv0ComputeTimeMs", "scv0InfeedTimeMs",
)  # fmt: skip

# Tables in the format of Google Charts: {"cols": [...], "rows": [...], "p": {...}}.
Tables = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReport:
    """Figures of a profile. None means that the profile does not contain the figure.

    With several hosts, `host` and the figures after it are those of the host whose TPU waits longest: xprof's own sums
    over hosts combine the longest step with another host's idle time. Among one host's cores, `infeed_percent` is the
    highest, and `input_percent` is that of the core that computes least.

    Attributes:
        devices: number of TensorCores of all hosts.
        device_type: the TPU's own name: "TPU v5e".
        steps: number of steps measured. The first and the last may be cut short, so they do not count if there are
            three or more.
        step_ms: mean length of a step.
        infeed_percent: share of a step in infeed ops. TensorFlow's TPU loops have them, JAX and torch_xla do not.
        idle_percent: share of a step without any op on the TensorCore. JAX and torch_xla wait here for a batch, or for
            the host to trace and dispatch.
        input_percent: infeed and idle together. It decides the verdict.
        duty_cycle_percent: share of the whole capture with a program on the TPU.
        mxu_percent: utilisation of the matrix units. None also if xprof says 0.0 %, as it does without their counter.
        mfu_percent: FLOPs as XLA counts them / peak, over the whole capture.
    """

    devices: int
    device_type: str | None = None
    host: str | None = None
    steps: int = 0
    step_ms: float | None = None
    infeed_percent: float | None = None
    idle_percent: float | None = None
    input_percent: float | None = None
    duty_cycle_percent: float | None = None
    mxu_percent: float | None = None
    mfu_percent: float | None = None
    notes: tuple[str, ...] = ()
    verdict: str = ""


def read_profile(logdir: str | Path) -> ProfileReport:
    """Read the newest profile under `logdir`. Nothing is written there.

    Args:
        logdir: the folder that the profiler wrote to, the folder of one run, or one `.xplane.pb`.

    Raises:
        OptionError: there is no profile, it cannot be read, or `logdir` is a URL.
        DamageError: a profile is empty, cut short, or not a profile.
        MissingExtraError: xprof is not installed.
    """
    try:
        paths = _find(logdir)
        for path in paths:
            if path.stat().st_size == 0:  # xprof would accept it
                raise DamageError(f"{path} is empty: the capture was interrupted; capture again")
    except OSError as error:
        raise OptionError(f"{error.filename or logdir} cannot be read: {error.strerror or error}") from error
    names = [path.name.removesuffix(_SUFFIX) for path in paths]
    reports = [_host_report(name, tables) for name, tables in zip(names, convert(paths), strict=True)]
    hosts = [report for report in reports if report.devices]
    if not hosts:
        kinds = ", ".join(sorted({report.device_type or "none" for report in reports}))
        verdict = f"no TPU in this profile: its devices are {kinds}; capture on the TPU VM with {_CAPTURE}"
        notes = tuple(note for report in reports for note in report.notes)
        return ProfileReport(devices=0, notes=notes, verdict=verdict)
    worst = max(hosts, key=lambda report: -1.0 if report.input_percent is None else report.input_percent)
    notes = tuple(f"{report.host}{_SUFFIX} has no TPU and does not count" for report in reports if not report.devices)
    known = [(report.input_percent, report.host) for report in hosts if report.input_percent is not None]
    if len(hosts) > 1 and known:
        (least, calm), (most, busy) = min(known), max(known)
        notes += (f"the TPUs of {len(known)} hosts wait for {least:.1f} % ({calm}) to {most:.1f} % ({busy}) of a step",)
    waits, tpu = worst.input_percent, "the TPU" if len(hosts) == 1 else f"the TPU of {worst.host}"
    if waits is None:
        verdict = (
            f"no whole step in this profile: capture at least ten steps, with {_CAPTURE}; if the steps are not marked, "
            "mark them (torch_xla: StepTrace, JAX: StepTraceAnnotation, TensorFlow: Trace)"
        )
    else:
        verdict = (
            f"{idle_band(waits)}: {tpu} waits for its host during {waits:.1f} % of a step of {worst.step_ms:.1f} ms"
        )
        verdict += (
            "; a faster loader cannot gain more than that"
            if waits < MODERATE_PERCENT
            else ", for a batch or for tracing and dispatch: StepClock tells them apart, and `tpufeed doctor` "
            "names the stage that binds"
        )
    devices = sum(report.devices for report in hosts)
    return replace(worst, devices=devices, notes=notes + worst.notes, verdict=verdict)


def convert(profiles: Sequence[Path]) -> list[Tables]:
    """Return the tables of xprof's overview page and roofline model, for each profile separately.

    Raises:
        MissingExtraError: xprof is not installed.
        DamageError: xprof cannot read one of the profiles.
    """
    if importlib.util.find_spec("xprof") is None:
        raise MissingExtraError("xprof", "profile")
    with tempfile.TemporaryDirectory(prefix="tpufeed-profile-") as scratch:
        folders = [Path(scratch, str(number)) for number in range(len(profiles))]
        for folder, profile in zip(folders, profiles, strict=True):
            folder.mkdir()
            (folder / xprof_tables.PROFILE).symlink_to(profile.resolve())
        # With -P and PYTHONPATH the child finds the same modules as this process, never those in the current folder.
        variables = {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path), "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run(
            [sys.executable, "-P", "-m", xprof_tables.__name__, *map(str, folders)],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        lines = [line.rpartition("] ")[2].strip() for line in done.stderr.decode("utf-8", "replace").splitlines()]
        results = list[Tables]()
        for folder, profile in zip(folders, profiles, strict=True):
            if not (folder / xprof_tables.RESULT).exists():
                last = next((line for line in reversed(lines) if line), "it printed nothing")
                last = last.replace(str(folder / xprof_tables.PROFILE), str(profile))
                raise DamageError(f"{profile}: xprof cannot read this profile ({last}); copy it or capture it again")
            results.append(json.loads((folder / xprof_tables.RESULT).read_text()))
        return results


def _find(logdir: str | Path) -> list[Path]:
    """Return the files of the newest run, one per host."""
    if "://" in str(logdir):
        raise OptionError(
            f"profiles are read from local folders, not from {logdir}: copy the run first, "
            "for example with `gcloud storage cp -r URL/plugins/profile/RUN .`"
        )
    root = Path(logdir)
    try:  # `Path.is_dir` and `rglob` see an unreadable folder as empty
        if stat.S_ISREG(root.stat().st_mode):
            return [root]
        os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        raise OptionError(f"there is no folder {root}; give the folder that the profiler wrote to") from None
    except OSError as error:
        raise OptionError(f"{root} cannot be read: {error.strerror}; it should contain a profile") from error
    runs: dict[Path, list[Path]] = {}
    for path in sorted(root.rglob(f"*{_SUFFIX}")):
        runs.setdefault(path.parent, []).append(path)
    if not runs:
        raise OptionError(
            f"there is no profile under {root}: expected plugins/profile/RUN/HOST{_SUFFIX}; capture one on the TPU VM "
            f"with {_CAPTURE}"
        )

    def captured(run: Path) -> float:
        # Profilers name a run after its time. Copying changes the files' times, but not the name.
        try:
            return datetime.strptime(run.resolve().name, "%Y_%m_%d_%H_%M_%S").timestamp()
        except ValueError:
            return max(path.stat().st_mtime for path in runs[run])

    return runs[max(runs, key=captured)]


def _host_report(host: str, tables: Tables) -> ProfileReport:
    """Return the figures of one host's profile, or without a TPU only its device type and xprof's messages."""
    told: dict[str, Any] = {}
    for table in reversed(tables):  # the first table that has a property wins
        told |= table.get("p") or {}
    rows = list[dict[str, Any]]()
    for table in tables:
        columns = [column["id"] for column in table.get("cols") or ()]
        for row in table.get("rows") or ():
            rows.append(dict(zip(columns, [cell and cell.get("v") for cell in row["c"]], strict=False)))
    errors = [row["message"] for row in rows if row.get("severity") == "ERROR"]
    notes = [f"the capture on {host}{_SUFFIX} failed in part: {error}" for error in errors]
    if told.get("hardware_type") != "TPU":
        return ProfileReport(devices=0, device_type=told["device_type"], host=host, notes=tuple(notes))
    texts = (f"{what}_statement_html" for what in ("output", "eager", "outside_compilation"))
    for name in ("output_conclusion", *texts):
        remark = re.sub(r"<[^>]*>", "", told.get(name) or "").strip()
        notes += [f"xprof: {remark}"] if remark else []
    steps = [{column: float(row.get(column) or 0) for column in _STEP_COLUMNS} for row in rows if "tcIdleTimeMs" in row]
    steps = [step for step in steps if sum(step.values()) > 0]
    steps = steps[1:-1] if len(steps) > 2 else steps  # a capture may begin and end in the middle of a step
    milliseconds = sum(sum(step.values()) for step in steps)

    def share(column: str) -> float | None:
        return 100 * sum(step[column] for step in steps) / milliseconds if steps else None

    def percent(name: str) -> float | None:
        try:
            return float(str(told.get(name)).rstrip(" %"))
        except ValueError:
            return None

    # xprof also says 0.0 % if it saw no op.
    duty = percent("device_duty_cycle_percent")
    program = [row for row in rows if (row.get("step"), row.get("category")) == ("Total", "Program")]
    rate, peak = (float(value or 0) for value in (program and program[0]["model_flop_rate"], told["peak_flop_rate"]))
    infeed, idle = share("tcInfeedTimeMs"), share("tcIdleTimeMs")
    return ProfileReport(
        devices=int(told["device_core_count"]),
        device_type=told["device_type"] or None,
        host=host,
        steps=len(steps),
        step_ms=milliseconds / len(steps) if steps else None,
        infeed_percent=infeed,
        idle_percent=idle,
        input_percent=None if infeed is None or idle is None else infeed + idle,
        duty_cycle_percent=duty if duty or steps else None,
        mxu_percent=percent("mxu_utilization_percent") or None,
        mfu_percent=100 * rate / peak if rate > 0 and peak > 0 else None,
        notes=tuple(dict.fromkeys(notes)),
    )
