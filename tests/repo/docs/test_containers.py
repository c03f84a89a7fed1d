"""docs/containers.md: its programs run as they stand, in two processes with Slurm's variables and in Ray Train."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.docs.pages import blocks, make_photos, run_here, run_program

SLURM, RAY = blocks("containers.md")


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
    tasks = [
        subprocess.Popen(
            [sys.executable, "slurm.py"],
            cwd=folder,
            env=os.environ | step | {"SLURM_PROCID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    assert [task.communicate(timeout=120)[0] for task in tasks] == ["rank 0 of 2\n", "rank 1 of 2\n"]


@pytest.mark.long
def test_workers_of_ray_train_share_an_epoch(folder: Path) -> None:
    run_program(RAY, folder, USE_TORCH_XLA="0", TPUFEED_PROCESSES="1")
    ranks = [list(map(int, (folder / f"flowers-64-rank{rank}").read_text().split())) for rank in (0, 1)]
    assert [len(rank) for rank in ranks] == [16, 16]
    assert len({*ranks[0], *ranks[1]}) == 32
