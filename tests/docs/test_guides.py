"""The pages for users on concepts, torch, torch_xla and resume: their commands and programs run as they stand."""

import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tpufeed

ROOT = Path(__file__).parents[2]
TOLD = 143


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def environment(**variables: str) -> dict[str, str]:
    given = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PJRT_DEVICE": "CPU"}
    given |= {"USE_TORCH_XLA": "0", "CPU_NUM_DEVICES": "4"} | variables
    # jax sets the latter for good, and torch_xla stumbles over it
    return {name: value for name, value in given.items() if name not in ("PYTHONPATH", "TPU_SKIP_MDS_QUERY")}


def run(command: str | list[str], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env=environment(**variables),
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def run_program(code: str, folder: Path, name: str = "program.py", **variables: str) -> str:
    (folder / name).write_text(code)
    return run([sys.executable, name], folder, **variables)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of concepts.md make of a folder with photos; the other pages begin there."""
    folder = tmp_path_factory.mktemp("guides")
    run([sys.executable, str(ROOT / "scripts/make_photos.py"), "photos", "--count", "100", "--size", "160x120"], folder)
    (commands,) = blocks("concepts.md", "bash")
    for command in commands.splitlines():
        assert run(command, folder).strip(), command
    return folder


def test_concepts(folder: Path) -> None:
    output = run_program("\n".join(blocks("concepts.md")), folder)
    assert "'samples': 8" in output
    assert "idle" in output


def test_torch_lightning_and_accelerate_in_one_process(folder: Path) -> None:
    output = run_program("\n".join(blocks("torch.md")), folder)
    assert output.count("right, 9 steps") == 2
    assert "of 21 right" in output
    assert re.findall(r"^(12|18) .*'samples': (\d+)", output, re.MULTILINE) == [("12", "24"), ("18", "72")]
    assert output.splitlines()[-1] == "5 batches were left"


@pytest.mark.long
def test_torch_in_two_processes(folder: Path) -> None:
    (command,) = (line for block in blocks("torch.md", "bash") for line in block.splitlines())
    (folder / "train.py").write_text(blocks("torch.md")[0])
    output = run(command, folder)
    assert output.count("of 21 right, 4 steps") == 4


def test_torch_xla_on_one_device_and_on_four(folder: Path) -> None:
    """The program for four devices starts a process for them; then those for one run in its own, to save another."""
    programs = blocks("xla.md")
    (launch,) = (program for program in programs if "torch_xla.launch" in program)
    (folder / "one.py").write_text("\n".join(p for p in programs if p != launch and "use_spmd" not in p))
    then = ["import os, runpy", 'os.environ["CPU_NUM_DEVICES"] = "1"', 'runpy.run_path("one.py")']
    output = run_program(launch + "".join(f"    {line}\n" for line in then), folder)
    ranks = re.findall(r"rank (\d) of 4: 4 batches, the first \[(.*)\]; (\d) samples of val", output)
    assert sorted(rank for rank, _, _ in ranks) == ["0", "1", "2", "3"]
    assert len({sample for _, first, _ in ranks for sample in first.split(", ")}) == 16
    assert sum(int(real) for _, _, real in ranks) == 21
    assert output.count("after 9 steps") == 2
    assert "8 batches are left of epoch 2" in output


def test_torch_xla_under_spmd(folder: Path) -> None:
    (program,) = (program for program in blocks("xla.md") if "use_spmd" in program)
    output = run_program(program, folder)
    assert "on 4 devices" in output
    assert output.splitlines()[-1] == "{devices=[4]0,1,2,3}"


def test_builds_that_are_killed_go_on(folder: Path) -> None:
    (commands,) = blocks("resume.md", "bash")
    for command in commands.splitlines():
        output = run(command, folder)
    assert output == "the same bytes\n"


def test_states_go_on_in_another_world(folder: Path) -> None:
    assert '"samples": 12' in run_program("\n".join(blocks("resume.md")[:2]), folder)


def train(folder: Path, number: signal.Signals) -> tuple[list[str], int]:
    """What the training of resume.md prints until it ends, and how; all its processes get a signal after 15 steps."""
    with subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=folder,
        env=environment(TPUFEED_PROCESSES="1"),
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
    saved = torch.load(folder / "checkpoint.pt")
    assert saved["done"] == len(by_step) > 15
    options = {"batch_size": 8, "columns": ["sample"], "repeat": True}
    with tpufeed.numpy_loader(folder / "flowers-64", **options) as loader:
        for step, samples in zip(range(1, saved["done"] + 1), loader, strict=False):
            assert by_step[step].endswith(f"samples {samples.tolist()}\n")
        assert loader.state_dict() == saved["loader"]
