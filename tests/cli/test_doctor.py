"""`tpufeed doctor`, and the commands of its page."""

import importlib.util
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.measure.report_example import make_diagnosis
from tests.measure.xspaces import encode_xspace, host_plane, step, tensor_core, write_profile
from tests.repo.docs.pages import commands, ran
from tpufeed.cli.doctor import _print
from tpufeed.measure.clock import SavedSteps, StepReport, StepTimes

RUNS = {"doctor.md": ""}

COMMANDS = commands("doctor.md")


@pytest.fixture(scope="module")
def place(photo_folder, dataset_url, cache_url, tmp_path_factory):
    """A folder in which the page's commands find what they name."""
    folder = tmp_path_factory.mktemp("doctor")
    for name, target in (("photos", photo_folder), ("flowers", dataset_url), ("flowers-64", cache_url)):
        (folder / name).symlink_to(target)
    page = Path(__file__).parents[2] / "docs" / "doctor.md"
    found = re.search(r"(?s)## Your own step.*?```python\n(.*?)```", page.read_text())
    (folder / "train.py").write_text(found[1])
    report = StepReport(steps=9, idle_percent=30.0, tracing_percent=1.0, wall_seconds=2.0)
    saved = SavedSteps("tpufeed-steps", 1, report, StepTimes())
    (folder / "run.json").write_bytes(msgspec.json.encode(saved))
    return folder


def test_the_page_has_commands():
    assert len(COMMANDS) == 6
    assert all(command.startswith("tpufeed doctor ") for command in COMMANDS)


@pytest.mark.all
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_run_as_they_stand(run, place, monkeypatch, command):
    if "--step" in command and importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed")
    monkeypatch.chdir(place)
    done = run(*shlex.split(command, comments=True)[1:], "--seconds", 1)
    assert done.returncode == 0, done.stderr
    ran(command)
    if "--json" in command:
        found = json.loads(done.stdout)
        assert found["model"] == "8 GFLOPs per sample"
        assert found["fed"] > 0
        return
    for line in ("needed: ", "fed: ", "predicted idle: ", "binds: "):
        assert re.search(f"^{line}", done.stdout, re.MULTILINE), done.stdout
    for stage in ("storage", "reading", "decoding", "ops", "assembly", "transfer"):
        assert re.search(rf"^ *{stage} +(n/a|[\d,]+( to [\d,]+)?) ", done.stdout, re.MULTILINE), done.stdout
    if "--report" in command:
        assert "run.json: highly input-bound" in done.stdout
        assert "redicted" in (place / "doctor.html").read_text()


@pytest.mark.uses("xprof")
def test_a_profile_s_figures_and_verdict_are_shown(run, cache_url, tmp_path):
    core = tensor_core(0, [step(40, 0.3)] * 12)
    logs = write_profile(tmp_path, "2026_11_22_03_00_00", vm=encode_xspace(core, host_plane(31.0)))
    done = run("doctor", cache_url, "--seconds", 1, "--profile", logs, "--flops-per-sample", 1e15)
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stdout.splitlines() if line.startswith(f"note: {logs}: ")]
    assert ": idle 30.0 %, MXU 31.0 %, duty cycle " in said
    assert "highly input-bound: the TPU waits for its host during 30.0 % of a step of 40.0 ms" in said
    assert "look at the run rather than at the data" in done.stdout  # 1e15 FLOPs a sample need no fast host


@pytest.mark.all
def test_damaged_records_are_one_note(run, dataset_url, tmp_path):
    damaged = shutil.copytree(dataset_url, tmp_path / "damaged")
    shard = min(damaged.glob("train-*.tfrecord"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    done = run("doctor", damaged, "--seconds", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^note: 1 of \d+ records .* damaged, .*tpufeed verify ", done.stdout, re.M)


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--tpu", "v5e9"], "did you mean v5e-8"), (["--report", "report.txt"], ".html")]
)
def test_what_cannot_be_asked_is_said_in_a_line(run, dataset_url, arguments, said):
    done = run("doctor", dataset_url, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flops", "said"), [(1, "predicted idle: 100 % at either rate"), (1e15, "predicted idle: 0 % at either rate")]
)
def test_idle_that_is_the_same_at_both_rates_is_one_figure(run, cache_url, flops, said):
    printed = run("doctor", cache_url, "--seconds", 1, "--flops-per-sample", flops).stdout
    assert said in printed
    assert re.search(r"^cores: \d+ here. The loader needs [\d,]+( to [\d,]+)? such cores", printed, re.M)


def test_the_table_is_at_most_100_columns_wide_in_a_pipe(run, cache_url):
    lines = run("doctor", cache_url, "--seconds", 1).stdout.splitlines()
    table = lines[: next(number for number, line in enumerate(lines) if line.startswith("needed: "))]
    assert max(map(len, table)) <= 100


def test_a_host_under_load_gets_ranges(capsys):
    found = make_diagnosis()
    (assembly,) = (stage for stage in found.stages if stage.name == "assembly")
    varied = tuple(replace(stage, span=(3210.0, 3876.0)) if stage is assembly else stage for stage in found.stages)
    _print(replace(found, stages=varied, fed_span=(3210.0, 3876.0)))
    printed = capsys.readouterr().out
    assert re.search(r"^ *assembly +3,200 to 3,900 ", printed, re.M)
    assert re.search(r"^ *storage +41,300 ", printed, re.M)
    assert "\nfed: 3,200 to 3,900 images a second\n" in printed
    assert "\npredicted idle: 5 to 22 % at its low rate, 48 to 57 % at its high rate\n" in printed
    assert "\n   predicted: 12x, 41,300 images a second, no idle\n" in printed
    _print(found)
    assert "fed: 3,480 images a second\n" in capsys.readouterr().out
