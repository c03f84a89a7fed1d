import importlib.util
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.measure.xspaces import (
    PEAK_TFLOPS,
    TFLOPS,
    Op,
    Step,
    encode_xspace,
    host_plane,
    nested,
    step,
    tensor_core,
    text,
    write_profile,
)
from tpufeed.errors import DamageError, MissingExtraError, OptionError
from tpufeed.measure.xplane import ProfileReport, read_profile

FIGURES = (
    "step_ms", "infeed_percent", "idle_percent", "input_percent",
    "duty_cycle_percent", "mxu_percent", "mfu_percent",
)  # fmt: skip


def one_core(*steps: Step, mxu_percent: float | None = None) -> bytes:
    return encode_xspace(tensor_core(0, steps), host_plane(mxu_percent))


def read(logdir: Path, **hosts: bytes) -> ProfileReport:
    return read_profile(write_profile(logdir, "2026_11_22_03_00_00", **hosts))


@pytest.mark.all
@pytest.mark.parametrize("idle", [0.0, 0.5])
def test_known_idle(tmp_path: Path, idle: float) -> None:
    report = read(tmp_path, vm=one_core(*[step(40, idle)] * 12))
    assert report.idle_percent == pytest.approx(100 * idle, abs=0.5)
    assert report.input_percent == pytest.approx(100 * idle, abs=0.5)
    assert report.infeed_percent == 0
    assert report.step_ms == pytest.approx(40, abs=0.1)
    assert (report.devices, report.device_type) == (1, "TPU v5e")


@pytest.mark.all
def test_steps_of_all_lengths_with_gaps_anywhere(tmp_path: Path) -> None:
    draw = random.Random(8)
    steps = []
    for _ in range(40):
        ops, at = [], 0.0
        for _ in range(draw.randrange(1, 9)):
            at += draw.uniform(0, 9)
            ms = draw.uniform(0.1, 12)
            ops.append(Op(at, ms))
            at += ms
        steps.append(Step(at + draw.uniform(0, 30), tuple(ops)))
    report = read(tmp_path, vm=one_core(*steps))
    whole = steps[1:-1]
    length = sum(s.ms for s in whole)
    assert report.steps == 38
    assert report.idle_percent == pytest.approx(100 * (1 - sum(op.ms for s in whole for op in s.ops) / length), abs=0.5)
    assert report.step_ms == pytest.approx(length / 38, rel=0.001)


@pytest.mark.all
@pytest.mark.parametrize(
    ("idle", "infeed", "band"),
    [
        (0.04, 0.0, "not input-bound"),
        (0.03, 0.03, "moderately input-bound"),
        (0.15, 0.06, "highly input-bound"),
    ],
)
def test_the_verdict_goes_by_idle_and_infeed_together(tmp_path: Path, idle: float, infeed: float, band: str) -> None:
    report = read(tmp_path, vm=one_core(*[step(100, idle, infeed)] * 6))
    assert report.verdict.startswith(f"{band}: the TPU waits for its host during {100 * (idle + infeed):.1f} %")
    assert report.infeed_percent == pytest.approx(100 * infeed, abs=0.1)


@pytest.mark.all
def test_the_first_and_the_last_step_may_be_cut(tmp_path: Path) -> None:
    full = step(100, 0.3)
    cut = Step(100, full.ops[:1])  # 65 % idle, as far as this capture knows
    assert read(tmp_path / "ends", vm=one_core(cut, *[full] * 5, cut)).idle_percent == pytest.approx(30, abs=0.5)
    inside = read(tmp_path / "inside", vm=one_core(full, cut, *[full] * 4, full))
    assert inside.idle_percent == pytest.approx(37, abs=0.5)  # not dropped: the test above can fail
    report = read(tmp_path / "two", vm=one_core(cut, full))
    assert (report.steps, report.idle_percent) == (2, pytest.approx(47.5, abs=0.5))


@pytest.mark.all
def test_steps_that_no_marker_encloses_are_left_out(tmp_path: Path) -> None:
    outside = replace(step(100, 0.9), marked=False)
    report = read(tmp_path, vm=one_core(outside, *[step(100, 0.2)] * 6, outside))
    assert (report.steps, report.idle_percent) == (4, pytest.approx(20, abs=0.5))


@pytest.mark.all
def test_the_core_that_computes_least_is_the_hosts_figure(tmp_path: Path) -> None:
    cores = [tensor_core(number, [step(100, idle)] * 6) for number, idle in enumerate((0.1, 0.4, 0.2))]
    report = read(tmp_path, vm=encode_xspace(*cores, host_plane()))
    assert report.devices == 3
    assert report.input_percent == pytest.approx(40, abs=0.5)


def test_the_host_that_waits_longest_gives_the_figures(tmp_path: Path) -> None:
    hosts = {
        "vm-0": encode_xspace(tensor_core(0, [step(300, 0.05)] * 6), tensor_core(1, [step(300, 0.05)] * 6)),
        # its steps have no number in common with the others', which xprof's sum over hosts takes for "no step"
        "vm-1": encode_xspace(tensor_core(0, [step(200, 0.6)] * 7, first=100)),
        "vm-2": encode_xspace(host_plane()),
        "vm-3": one_core(Step(100, (), marked=False)),
    }
    report = read(tmp_path, **hosts)
    assert (report.devices, report.host, report.steps) == (4, "vm-1", 5)
    assert report.input_percent == pytest.approx(60, abs=0.5)
    assert report.step_ms == pytest.approx(200, abs=0.5)
    assert "the TPU of vm-1 waits" in report.verdict
    assert report.notes == (
        "vm-2.xplane.pb has no TPU and does not count",
        "the TPUs of 2 hosts wait for 5.0 % (vm-0) to 60.0 % (vm-1) of a step",
    )


@pytest.mark.all
@pytest.mark.parametrize(("counted", "percent"), [(None, None), (0.0, None), (37.5, 37.5)])
def test_matrix_units_are_known_where_their_counter_is(
    tmp_path: Path, counted: float | None, percent: float | None
) -> None:
    # xprof says 0.0 % of a capture without the counter, too
    assert read(tmp_path, vm=one_core(*[step(100, 0.5)] * 4, mxu_percent=counted)).mxu_percent == percent


@pytest.mark.all
def test_flops_and_duty_cycle(tmp_path: Path) -> None:
    report = read(tmp_path, vm=one_core(*[step(100, 0.5)] * 6))
    assert report.mfu_percent == pytest.approx(100 * 2 * TFLOPS / 0.1 / PEAK_TFLOPS, rel=0.01)
    assert report.duty_cycle_percent == pytest.approx(50, abs=5)
    without = read(tmp_path / "infeed", vm=one_core(*[Step(100, (Op(0, 60, "infeed"),))] * 6))
    assert without.mfu_percent is None


@pytest.mark.all
def test_a_tpu_without_steps(tmp_path: Path) -> None:
    unmarked = [replace(step(100, 0.5), marked=False)] * 4
    report = read(tmp_path / "ops", vm=one_core(*unmarked))
    assert (report.devices, report.steps, report.duty_cycle_percent) == (1, 0, pytest.approx(50, abs=5))
    assert "no whole step in this profile" in report.verdict
    assert report.idle_percent is report.input_percent is report.step_ms is None
    nothing = read(tmp_path / "nothing", vm=one_core(Step(100, (), marked=False)))
    assert [getattr(nothing, name) for name in FIGURES] == [None] * len(FIGURES)


def test_nothing_is_left_in_the_folder_nor_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logdir = write_profile(tmp_path, "run", vm=one_core(*[step(100, 0.5)] * 4))
    stale = logdir / "plugins/profile/run/ALL_HOSTS.op_stats_v2.pb"  # where xprof leaves and finds its results
    stale.write_bytes(b"of another profile")
    before = {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in logdir.rglob("*")}
    assert read_profile(logdir).idle_percent == pytest.approx(50, abs=0.5)
    assert {
        path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in logdir.rglob("*")
    } == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.all
def test_the_newest_run_a_runs_folder_and_a_single_file(tmp_path: Path) -> None:
    for run, idle in (("2026_11_22_03_00_00", 0.1), ("2026_11_23_01_00_00", 0.2), ("2025_12_31_23_00_00", 0.4)):
        write_profile(tmp_path, run, vm=one_core(*[step(100, idle)] * 4))
    runs = tmp_path / "plugins/profile"
    newest = read_profile(str(tmp_path))  # by name: the last one was written last
    assert newest.idle_percent == pytest.approx(20, abs=0.5)
    older = read_profile(runs / "2026_11_22_03_00_00")
    assert older.idle_percent == pytest.approx(10, abs=0.5)
    assert read_profile(runs / "2025_12_31_23_00_00/vm.xplane.pb").idle_percent == pytest.approx(40, abs=0.5)
    write_profile(tmp_path, "named", vm=one_core(*[step(100, 0.5)] * 4))
    os.utime(runs / "named/vm.xplane.pb", (4e9, 4e9))
    assert read_profile(tmp_path).idle_percent == pytest.approx(50, abs=0.5)


def test_no_profile(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"plugins/profile/RUN/HOST.xplane.pb"):
        read_profile(tmp_path)
    with pytest.raises(OptionError, match="missing"):
        read_profile(tmp_path / "missing")
    with pytest.raises(OptionError, match="copy"):
        read_profile("gs://bucket/logs")


def test_a_profile_that_is_gone_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "vm.xplane.pb").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OptionError, match=r"vm\.xplane\.pb"):
        read_profile(tmp_path)


@pytest.mark.all
def test_files_that_are_no_profile(tmp_path: Path) -> None:
    good = one_core(*[step(100, 0.5)] * 4)
    path = tmp_path / "vm.xplane.pb"
    for damaged, said in (
        (b"", " is empty"),
        (good[:-1], ": xprof cannot read this profile"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), ": xprof cannot read this profile"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DamageError, match=f"vm.xplane.pb{said}"):
            read_profile(path)


@pytest.mark.all
def test_damage_within_a_plane_is_xprofs_to_find(tmp_path: Path) -> None:
    line = nested(3, text(2, "Steps") + b"\x22\xff")
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(encode_xspace(host_plane()) + nested(1, text(2, "/device:TPU:0") + line))
    with pytest.raises(DamageError, match=r"vm.xplane.pb: .*\(Read less bytes than requested\)"):
        read_profile(tmp_path)


def test_xprof_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "site" / "xprof"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import os\nos.abort()\n")
    monkeypatch.syspath_prepend(broken.parent)
    for name in [name for name in sys.modules if name.partition(".")[0] == "xprof"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(DamageError, match="xprof"):
        read(tmp_path / "log", vm=one_core(*[step(100, 0.5)] * 4))


def test_without_xprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xprof" else found(name))
    with pytest.raises(MissingExtraError, match=r"\[profile\]"):
        read(tmp_path / "tpu", vm=one_core(*[step(100, 0.5)] * 4))


@pytest.mark.all
def test_what_went_wrong_while_capturing_is_told(tmp_path: Path) -> None:
    report = read(tmp_path, vm=encode_xspace(host_plane(), errors=["another profiler is active"]))
    assert report.notes == ("the capture on vm.xplane.pb failed in part: another profiler is active",)


JAX = """
import sys
import jax

step = jax.jit(lambda x: x @ x)
with jax.profiler.trace(sys.argv[1]):
    for number in range(3):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            step(jax.numpy.ones((8, 8))).block_until_ready()
"""


@pytest.mark.all
@pytest.mark.uses("jax")
def test_jax_on_a_cpu_gives_no_figure(tmp_path: Path) -> None:
    command = [sys.executable, "-c", JAX, str(tmp_path / "log")]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}, timeout=120)
    assert_no_tpu(read_profile(tmp_path / "log"))


@pytest.mark.all
def test_torch_xla_on_a_cpu_gives_no_figure() -> None:
    # Captured with torch_xla 2.9 on a CPU, three steps within StepTrace: to capture one here would take 10 seconds.
    assert_no_tpu(read_profile(Path(__file__).parent / "torch_xla_cpu.xplane.pb"))


def assert_no_tpu(report: ProfileReport) -> None:
    assert report.verdict.startswith("no TPU in this profile: its devices are CPU; ")
    assert "capture on the TPU VM with torch_xla.debug.profiler.start_trace, jax" in report.verdict
    assert (report.devices, report.steps) == (0, 0)
    assert [getattr(report, name) for name in FIGURES] == [None] * len(FIGURES)
