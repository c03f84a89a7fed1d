"""docs/containers.md: its commands, programs and script run as they stand, under stand-ins for Docker and Slurm."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.repo.docs.pages import ROOT, blocks, commands, make_photos, ran, run, run_here, run_program
from tests.repo.docs.stand_ins import install

RUNS = {"containers.md": ""}
(SLURM,) = blocks("containers.md")
RAY = (ROOT / "tests/repo/docs/roads/ray_train.py").read_text()


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


def test_a_container_runs_a_program_and_the_image_s_files_are_there(folder: Path, tmp_path: Path) -> None:
    path = install(tmp_path, "docker", "kubectl")
    (folder / "train.py").write_text(blocks("loaders.md")[0])
    for line in commands("containers.md"):
        if line.startswith("docker run "):
            assert "next: epoch 1" in run(line, folder, PATH=path, TPUFEED_PROCESSES="0")
        elif line.startswith(("docker ", "kubectl ")):
            run(line, ROOT, PATH=path)


def test_tasks_of_slurm_find_their_ranks_by_jax(folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text(SLURM)
    (command,) = (line for line in commands("containers.md") if line.startswith("srun --"))
    given = {"PATH": install(tmp_path, "srun"), "JAX_PLATFORMS": "cpu", "TPUFEED_PROCESSES": "0"}
    said = run(command, folder, **given)
    assert sorted(said.splitlines()) == [f"rank {rank} of 4" for rank in range(4)]
    ran(SLURM)


def start_job(folder: Path, tools: Path, port: int, steps: int) -> subprocess.Popen[str]:
    """Submit the page's script for two nodes."""
    given = {"PATH": install(tools, "sbatch", "srun", "scontrol"), "SLURM_JOB_ID": str(port)}
    given |= {"USE_TORCH_XLA": "0", "TPUFEED_PROCESSES": "0"}
    command = ["sbatch", "--nodes=2", "train.sbatch", str(steps)]
    return subprocess.Popen(
        [str(tools / command[0]), *command[1:]],
        cwd=folder,
        env=os.environ | given,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_job_that_is_queued_again_continues_with_the_next_sample(folder: Path, tmp_path: Path) -> None:
    for name in ("train.py", "train.sbatch"):
        shutil.copy(ROOT / "examples/slurm" / name, folder)
    port = free_port()
    with start_job(folder, tmp_path, port, 1_000_000) as job:
        deadline = time.monotonic() + 120
        while not all(taken(folder, rank) for rank in (0, 1)) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(int((folder / "srun.pids").read_text().split()[1]), signal.SIGUSR1)
        assert job.wait(120) == 75
    assert (folder / "requeued").exists()
    (folder / "requeued").unlink()
    steps = len(taken(folder, 0)) // 2 * 2 + 4  # an epoch has 2
    with start_job(folder, tmp_path, port, steps) as job:
        said = job.communicate(timeout=120)[0]
        assert job.returncode == 0
    assert not (folder / "requeued").exists()
    assert all(f"rank {rank} is done\n" in said for rank in (0, 1))
    ranks = [taken(folder, rank) for rank in (0, 1)]
    assert [step for step, *_ in ranks[0]] == [step for step, *_ in ranks[1]] == list(range(1, steps + 1))
    for first in range(0, steps, 2):
        epoch = [sample for rank in ranks for _, *samples in rank[first : first + 2] for sample in samples]
        assert len({*epoch}) == len(epoch) == 32
    ran(*(line for line in commands("containers.md") if line.startswith("sbatch ")))


def free_port() -> int:
    """A port as the script has it: 20000 + the job's number % 10000."""
    for port in range(20_000 + os.getpid() % 9_000, 30_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


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
