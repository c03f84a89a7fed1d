"""docs/containers.md: its programs run as they stand, in two processes with Slurm's variables and in Ray Train."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.repo.docs.pages import blocks, make_photos, run_here, run_program

SLURM, TORCH, RAY = blocks("containers.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("containers")
    make_photos(folder, 40, "80x60")
    run_here(
        [
            "tpufeed shard photos flowers --splits train=0.8,val=0.2",
            "tpufeed cache warmup flowers flowers-64 --op 'Resize(size=64)' --op 'CenterCrop(size=64)'",
        ],
        folder,
    )
    return folder


def test_tasks_of_slurm_find_their_ranks_by_jax(folder: Path) -> None:
    (folder / "slurm.py").write_text(SLURM)
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
    }
    step |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "JAX_PLATFORMS": "cpu", "TPUFEED_PROCESSES": "0"}
    tasks = start_tasks(["slurm.py"], folder, step)
    assert [task.communicate(timeout=120)[0] for task in tasks] == ["rank 0 of 2\n", "rank 1 of 2\n"]


def start_tasks(arguments: list[str], folder: Path, variables: dict[str, str]) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=os.environ | variables | {"SLURM_PROCID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]


def test_a_job_that_is_queued_again_continues_with_the_next_sample(folder: Path) -> None:
    (folder / "train.py").write_text(TORCH)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    step = {"SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    step |= {"USE_TORCH_XLA": "0", "TPUFEED_PROCESSES": "0"}
    tasks = start_tasks(["train.py", "1000000"], folder, step)
    deadline = time.monotonic() + 120
    while not all(taken(folder, rank) for rank in (0, 1)) and time.monotonic() < deadline:
        time.sleep(0.05)
    tasks[1].send_signal(signal.SIGUSR1)
    for task in tasks:
        task.communicate(timeout=120)
    assert [task.returncode for task in tasks] == [75, 75]
    steps = len(taken(folder, 0)) // 2 * 2 + 4  # an epoch has 2
    tasks = start_tasks(["train.py", str(steps)], folder, step)
    said = [task.communicate(timeout=120)[0] for task in tasks]
    assert [said[rank].endswith(f"rank {rank} is done\n") for rank in (0, 1)] == [True, True]
    ranks = [taken(folder, rank) for rank in (0, 1)]
    assert [step for step, *_ in ranks[0]] == [step for step, *_ in ranks[1]] == list(range(1, steps + 1))
    for first in range(0, steps, 2):
        epoch = [sample for rank in ranks for _, *samples in rank[first : first + 2] for sample in samples]
        assert len({*epoch}) == len(epoch) == 32


def taken(folder: Path, rank: int) -> list[list[int]]:
    """Return number and samples of each step."""
    log = folder / f"samples-rank{rank}"
    return [list(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.long
def test_workers_of_ray_train_share_an_epoch(folder: Path) -> None:
    run_program(RAY, folder, USE_TORCH_XLA="0", TPUFEED_PROCESSES="1")
    ranks = [list(map(int, (folder / f"flowers-64-rank{rank}").read_text().split())) for rank in (0, 1)]
    assert [len(rank) for rank in ranks] == [16, 16]
    assert len({*ranks[0], *ranks[1]}) == 32
