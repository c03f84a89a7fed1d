"""README.md and pages on loaders, torch, torch_xla, device ops and resume: commands and programs run.

All that one process with one device can run is run by one, as to import the frameworks takes longer than the programs.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.quick_xla import QUICK
from tests.repo.docs.pages import blocks, commands, make_photos, ran, run, run_here, run_program

RUNS = {
    "README.md": "^tpufeed |import keras|import torch_xla",
    "index.md": "",
    "examples/README.md": "^tpufeed shard photos|^tpufeed cache warmup",
    "concepts.md": "",
    "loaders.md": "",
    "resume.md": "",
    "device_ops.md": "",
    "torch.md": "",
    "xla.md": "",
    "security.md": "^tpufeed ",
    "kaggle.md": "torch_xla.launch",
}
PROJECT_SCRIPTS = ("./scripts/", "pip install")  # run by CI itself, and by .venv's installation
TOLD = 143
# A program a page, but each of the README's is one. torch_xla has to be imported before TensorFlow.
ONE_DEVICE = """
import functools
import sys

import torch_xla

torch_xla.launch = functools.partial(torch_xla.launch, debug_single_process=True)
for name in sys.argv[1:]:
    print(f"== {name}", flush=True)
    with open(name) as file:
        exec(compile(file.read(), name, "exec"), {"__name__": "__main__"})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos`, and what the commands of README.md and of concepts.md make of them; the other pages begin there."""
    folder = tmp_path_factory.mktemp("programs")
    make_photos(folder, 100, "160x120")
    of_examples = [line for line in commands("examples/README.md") if re.match("tpufeed cache warmup", line)]
    own = [line for line in commands("README.md") if not line.startswith(PROJECT_SCRIPTS)]
    assert {line.split()[1] for line in own} == {"shard", "show", "cache", "info", "verify", "doctor", "bench"}
    run_here(
        [*own, *commands("concepts.md"), *commands("device_ops.md"), *commands("security.md"), *of_examples], folder
    )
    return folder


def test_the_commands_of_the_first_pages_leave_what_they_say(folder: Path) -> None:
    assert (folder / "sheet.png").stat().st_size > 1000
    assert "<svg" in (folder / "bench.html").read_text()


@pytest.fixture(scope="module")
def outputs(folder: Path) -> dict[str, str]:
    """What each program printed that needs one device."""
    programs = {"xla": [code for code in blocks("xla.md") if not re.search("torch_xla.launch|use_spmd", code)]}
    programs |= {name: blocks(f"{name}.md") for name in ("torch", "loaders")}
    programs["device_ops"] = blocks("device_ops.md")
    programs["resume"] = blocks("resume.md")[:2]
    assert len(blocks("README.md")) == 3  # that for JAX runs with docs/jax.md
    for name in ("keras", "torch_xla"):
        (code,) = (code for code in blocks("README.md") if f"import {name}\n" in code)
        programs[f"readme_{name}"] = [code]
    for name, parts in programs.items():
        (folder / name).write_text("\n".join(parts))
    (folder / "one_device.py").write_text(ONE_DEVICE)
    # Worker processes start slowly.
    given = {"TPUFEED_PROCESSES": "0", "XLA_FLAGS": QUICK}
    output = run([sys.executable, "one_device.py", *programs], folder, **given)
    ran(*(code for parts in programs.values() for code in parts))
    parts = re.split(r"^== (\w+)\n", output, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", ["keras", "torch_xla"])
def test_the_loop_of_the_readme_trains(outputs: dict[str, str], name: str) -> None:
    assert re.search(r"accuracy|loss", outputs[f"readme_{name}"])


def test_loaders_and_states(outputs: dict[str, str]) -> None:
    assert "next: epoch 1" in outputs["loaders"]
    assert '"samples": 12' in outputs["resume"]


def test_torch(outputs: dict[str, str]) -> None:
    assert outputs["torch"].count("right, 9 steps") == 2
    assert "of 21 right" in outputs["torch"]


def test_torch_xla_on_one_device(outputs: dict[str, str]) -> None:
    assert outputs["xla"].count("after 9 steps") == 2


def test_device_ops_of_jax_and_tensorflow(outputs: dict[str, str]) -> None:
    told = r"uint8 \(16, 224, 224, 3\)\nmean -?\d\.\d+\n"
    assert re.fullmatch(told, outputs["device_ops"])


def test_torch_xla_on_four_devices_and_under_spmd(folder: Path) -> None:
    """The program that launches starts a process for the devices; then that for SPMD runs in its own."""
    (launch,) = (program for program in blocks("xla.md") if "torch_xla.launch" in program)
    (spmd,) = (program for program in blocks("xla.md") if "use_spmd" in program)
    (folder / "spmd.py").write_text(spmd)
    (cell,) = (program for program in blocks("kaggle.md") if "torch_xla.launch" in program)
    (folder / "cell.py").write_text(cell)
    then = "    import runpy\n\n    runpy.run_path('cell.py')\n    runpy.run_path('spmd.py')\n"
    output = run_program(launch + then, folder, CPU_NUM_DEVICES="4", TPUFEED_PROCESSES="0")
    ran(spmd, cell)
    ranks = re.findall(r"rank (\d) of 4: 4 batches, the first \[(.*)\]; (\d) samples of val", output)
    assert sorted(rank for rank, _, _ in ranks) == ["0", "1", "2", "3"]
    assert len({sample for _, first, _ in ranks for sample in first.split(", ")}) == 16
    assert sum(int(real) for _, _, real in ranks) == 21
    assert sorted(re.findall(r"^core (\d) of 4 holds \(2, 64, 64, 3\)$", output, re.MULTILINE)) == list("0123")
    assert "on 4 devices" in output
    assert output.splitlines()[-1] == "{devices=[4]0,1,2,3}"


def test_torch_in_two_processes(folder: Path) -> None:
    (command,) = commands("torch.md")
    (folder / "train.py").write_text(blocks("torch.md")[0])
    output = run(command, folder)
    assert output.count("of 21 right, 4 steps") == 4


def test_builds_that_are_killed_go_on(folder: Path) -> None:
    outputs = [run(command, folder) for command in commands("resume.md")]
    assert outputs[-1] == "the same bytes\n"


def train(folder: Path, number: signal.Signals) -> tuple[list[str], int]:
    """What the training of resume.md prints until it ends, and how; all its processes get a signal after 15 steps."""
    with subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"TPUFEED_PROCESSES": "1"},
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)  # some 50 steps: it cannot run away from its reader
        lines = []
        for line in process.stdout:
            lines.append(line.decode())
            if len(lines) == 15:
                os.killpg(process.pid, number)
        return [line for line in lines if line.endswith("\n")], process.wait()


def test_a_training_that_is_killed_takes_the_same_steps(folder: Path) -> None:
    (folder / "train.py").write_text(blocks("resume.md")[2])
    (killed, code), (told, end) = train(folder, signal.SIGKILL), train(folder, signal.SIGTERM)
    assert (code, end) == (-signal.SIGKILL, TOLD)
    by_step = {int(line.split()[1].rstrip(":")): line for line in [*killed, *told]}
    assert by_step.keys() == set(range(1, len(by_step) + 1))
    assert set(by_step.values()) == {*killed, *told}  # steps that were taken again had the same losses
    ran(blocks("resume.md")[2])
    with np.load(folder / "checkpoint.npz") as saved:
        done, state = int(saved["done"]), json.loads(str(saved["loader"]))
    assert done == len(by_step) > 15
    options = {"batch_size": 8, "columns": ["sample"], "repeat": True}
    with tpufeed.Loader(folder / "flowers-64", **options) as loader:
        for step, samples in zip(range(1, done + 1), loader, strict=False):
            assert by_step[step].endswith(f"samples {samples.tolist()}\n")
        assert loader.state_dict() == state
