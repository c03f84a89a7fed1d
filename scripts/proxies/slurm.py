"""Slurm: the daemons of two nodes on this machine, with the program of docs/containers.md and examples/slurm."""

import json
import platform as this_machine
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chroot as below
import smoke
from chroot import SHARED, Chroot
from platform_run import ROOT, CheckError, Platform, expect

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "python3-torch")
PROGRAMS = Path(__file__).parent / "programs"
VENV = "/var/tmp/venv"
# Debian's torch has no libuv.
VARIABLES = {"PATH": f"{VENV}/bin:{below.VARIABLES['PATH']}", "USE_LIBUV": "0", "JAX_PLATFORMS": "cpu"}
PHOTOS = 480
STEPS = PHOTOS // 16  # of an epoch; the page's program has batches of 8
TWO = "--nodes=2 --ntasks-per-node=1 --cpus-per-task=1"
DAEMONS = """
install -d -o munge /run/munge && install -d /var/spool/slurmctld /var/spool/slurmd.n1 /var/spool/slurmd.n2 &&
setpriv --reuid=munge --regid=munge --clear-groups munged --force && sleep 1 && munge -n | unmunge &&
slurmctld -c && slurmd -c -N n1 && slurmd -c -N n2
"""
SCRIPT, TRAINING = ((ROOT / "examples/slurm" / name).read_text() for name in ("train.sbatch", "train.py"))
(RANKS, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/containers.md").read_text(), re.DOTALL)


def run(platform: Platform) -> None:
    folder = platform.work / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with below.debian("trixie", platform.work / "debian", folder, PACKAGES) as chroot:
        wheel = chroot.copy(platform.wheel, f"/var/tmp/{platform.wheel.name}")
        chroot.venv(VENV, [f"{wheel}[jax]"], system=True)
        chroot.call([f"{VENV}/bin/pip", "install", "-q", "--no-deps", "--force-reinstall", wheel])  # of an earlier run
        start_daemons(chroot)
        slurm = chroot.call("sinfo --version").strip()
        torch = chroot.call([f"{VENV}/bin/python", "-c", "import torch; print(torch.__version__)"]).strip()
        platform.about = f"{below.version(chroot)}, {slurm}, torch {torch}, 2 nodes by 2 slurmd"
        cluster = Cluster(chroot, folder)
        platform.check("one build by two tasks", cluster.build)
        platform.check("cache warmup by srun", cluster.warm_up)
        platform.check("no framework, no world", cluster.without_world)
        platform.check("world= from Slurm's variables", lambda: cluster.shared("world"))
        platform.check("JAX: ranks by jax.distributed", cluster.jax)
        platform.check("cores per task", cluster.cores)
        platform.check("scancel --signal=USR1, requeue, exact resume", cluster.requeue)
        platform.check("sbatch --signal=USR1@20 before the time limit", cluster.time_limit)
        platform.check("scancel", cluster.cancel)
        platform.check("scancel --full --signal=TERM", cluster.cancel_full)


def start_daemons(chroot: Chroot) -> None:
    """Start munge, a controller and two nodes, which end with the chroot."""
    host = this_machine.node()
    with (chroot.root / "etc/hosts").open("a") as hosts:
        hosts.write(f"127.0.0.1 n1 n2 {host}\n")
    settings = (PROGRAMS / "slurm.conf").read_text().replace("HOST", host)
    (chroot.root / "etc/slurm/slurm.conf").write_text(settings)
    chroot.call(["bash", "-c", DAEMONS], 60)
    wait(lambda: chroot.call("sinfo -h -N -o %T").split() == ["idle", "idle"], 60, "two idle nodes")


def wait(condition: Callable[[], Any], seconds: float, what: str, seen: Callable[[], str] = str) -> float:
    """Wait for the condition, and return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise CheckError(f"no {what} within {seconds} s\n{seen()}")
        time.sleep(0.2)
    return time.monotonic() - began


class Job(NamedTuple):
    """A job of the page's script, in a folder of its own."""

    chroot: Chroot
    number: int
    folder: Path

    def field(self, name: str) -> str:
        """A field of what Slurm knows about it."""
        said = self.chroot.call(["scontrol", "show", "job", self.number, "-o"])
        return re.search(rf"(?<!\S){name}=(\S*)", said)[1]  # type: ignore[index]

    def said(self) -> str:
        return (self.folder / "out").read_text() if (self.folder / "out").exists() else ""

    def steps(self, rank: int = 0) -> list[list[int]]:
        """The number of each step, and the ids of its samples."""
        path = self.folder / f"samples-rank{rank}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [[*map(int, line.split())] for line in lines if line.endswith("\n")]

    def saved(self, rank: int) -> list[str]:
        return re.findall(rf"rank {rank} saved step (\d+)", self.said())

    def wait_for_steps(self, count: int) -> float:
        return wait(lambda: len(self.steps()) >= count, 120, f"{count} steps", self.said)

    def wait_for_end(self, state: str, seconds: float = 120) -> float:
        """Wait until it has ended in this state, and nothing of it runs."""
        took = wait(lambda: not self.chroot.call("squeue -h"), seconds, f"end of the job {self.number}", self.said)
        expect(self.field("JobState") == state, f"the job is {self.field('JobState')}, not {state}: {self.said()}")
        expect(not pythons(self.chroot), f"after the job still run {pythons(self.chroot)}")
        return took

    def check_exact(self, steps: int) -> str:
        """Each restart came after the step that was saved, each rank took each step once, each epoch each sample."""
        epochs: dict[int, list[int]] = {}
        for rank in (0, 1):
            begun = re.findall(rf"rank {rank} of 2 continues after step (\d+)", self.said())
            expect(begun == ["0", *self.saved(rank)], f"rank {rank} continues elsewhere: {self.said()}")
            numbers = [step for step, *_ in self.steps(rank)]
            expect(numbers == list(range(1, steps + 1)), f"rank {rank} has taken other steps: {self.said()}")
            for step, *samples in self.steps(rank):
                epochs.setdefault((step - 1) // STEPS, []).extend(samples)
        wrong = [epoch for epoch, samples in epochs.items() if sorted(samples) != list(range(PHOTOS))]
        expect(not wrong, f"epochs {wrong} of {len(epochs)} had not each sample once: {self.said()}")
        restarts = int(self.field("Restarts"))
        expect(restarts == len(begun) - 1 > 0, f"Slurm counts {restarts} restarts: {self.said()}")
        return f"restarts after step {' and '.join(begun[1:])}; in {len(epochs)} epochs each of {PHOTOS} samples once"


def pythons(chroot: Chroot) -> list[str]:
    """Processes of Python within the chroot."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if (entry / "root").resolve() == chroot.root.resolve() and b"python" in words[0]:
                found.append(b" ".join(words).decode())
        except OSError:
            continue
    return found


class Cluster:
    """The two nodes; all paths are below the folder, which is /shared within."""

    def __init__(self, chroot: Chroot, folder: Path) -> None:
        self.chroot, self.folder = chroot, folder
        self.pace = 20.0  # steps per second
        smoke.PHOTOS = PHOTOS
        smoke.make_photos(folder / "photos")
        chroot.copy(PROGRAMS / "slurm_task.py", f"{SHARED}/slurm_task.py")
        (folder / "ranks.py").write_text(RANKS)

    def call(self, line: str, seconds: float = 180) -> str:
        return self.chroot.call(f"cd {SHARED} && {line}", seconds, VARIABLES)

    def tasks(self, options: str, kind: str) -> list[dict[str, Any]]:
        """What each task of a step has written, in their order."""
        for path in self.folder.glob("task-*.json"):
            path.unlink()
        self.call(f"srun {options} python slurm_task.py {kind}")
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("task-*.json"))]

    def build(self) -> str:
        shard, options = "tpufeed shard photos", "--shards 6"
        said = self.call(f"srun {TWO} --label {shard} flowers {options}")
        ended = re.findall(r"^(\d): .*dataset: ", said, re.MULTILINE)
        expect(sorted(ended) == ["0", "1"], f"not both tasks have built: {said}")
        self.call(f"{shard} alone {options}")
        self.call("diff -r --exclude=_tpufeed --exclude=manifest.json flowers alone")
        shards = len([*(self.folder / "flowers").glob("train-*.tfrecord")])
        expect(shards == 6, f"{shards} shards instead of 6")
        return f"both succeed, and make the bytes that one task makes; {self.verify('flowers')}"

    def verify(self, name: str) -> str:
        said = self.call(f"tpufeed verify {name}")
        expect(said.startswith("sound: "), said)
        return said.splitlines()[0]

    def warm_up(self) -> str:
        self.call("srun --nodes=1 --ntasks=1 --cpus-per-task=2 tpufeed cache warmup flowers flowers-64 --size 64")
        return self.verify("flowers-64")

    def without_world(self) -> str:
        tasks = self.tasks(TWO, "none")
        for task in tasks:
            expect(sorted(task["samples"]) == list(range(PHOTOS)), f"task {task['task']} has not read all: {task}")
            warned = f"task {task['task']} of 2 of this Slurm step reads everything"
            expect(warned in "".join(task["warnings"]), f"no warning: {task['warnings']}")
        expect(len(tasks) == 2, f"{len(tasks)} tasks")
        return f"each of 2 tasks reads all {PHOTOS}, and warns"

    def shared(self, kind: str) -> str:
        """The tasks are the ranks 0 and 1 of 2, and share the epoch."""
        tasks = self.tasks(TWO, kind)
        worlds = [task["world"] for task in tasks]
        expect(worlds == [[0, 2], [1, 2]], f"ranks are {worlds}")
        counts = [len(task["samples"]) for task in tasks]
        samples = sorted(sample for task in tasks for sample in task["samples"])
        expect(counts == [PHOTOS // 2] * 2 and samples == list(range(PHOTOS)), f"{counts}, {len({*samples})} different")
        expect(not any(task["warnings"] for task in tasks), f"{tasks[0]['warnings']}")
        return f"ranks 0 and 1 of 2: {counts[0]} + {counts[1]}, disjoint, all {PHOTOS}"

    def jax(self) -> str:
        said = self.call(f"srun {TWO} python ranks.py")
        ranks = sorted(line for line in said.splitlines() if line.startswith("rank "))
        expect(ranks == ["rank 0 of 2", "rank 1 of 2"], f"docs/containers.md's program said {said}")
        return "docs/containers.md's program too; " + self.shared("jax")

    def cores(self) -> str:
        cases = {"--ntasks=1 --cpus-per-task=1": 1, "--ntasks=1 --cpus-per-task=2": 2, "--ntasks=2 --cpu-bind=none": 2}
        seen = []
        for options, cores in cases.items():
            tasks = self.tasks(f"--nodes=1 {options}", "none")
            taken = [[task[name] for name in ("cores", "processes", "threads")] for task in tasks]
            expect(taken == [[cores] * 3] * int(options[9]), f"{options}: cores, processes, threads are {taken}")
            seen.append(f"{options}: {cores} of 2")
        return ", ".join(seen) + " cores, and as many worker processes, for each task"

    def submit(self, name: str, steps: int, *options: str, script: str = SCRIPT) -> Job:
        """Queue the page's script with its program; options of the command line go before those of the script."""
        self.call("scancel --user=root")  # what a check that failed has left
        wait(lambda: not self.call("squeue -h"), 60, "empty queue")
        folder = self.folder / name
        folder.mkdir()
        (folder / "flowers-64").symlink_to("../flowers-64")
        (folder / "train.py").write_text(TRAINING)
        (folder / "train.sbatch").write_text(script)
        given = " ".join(["--parsable --nodes=2 --cpus-per-task=1 --time=10 --output=out", *options])
        said = self.call(f"cd {name} && sbatch {given} train.sbatch {steps}")
        return Job(self.chroot, int(said.split()[-1]), folder)

    def requeue(self) -> str:
        job = self.submit("requeue", 20 * STEPS)
        job.wait_for_steps(3 * STEPS + 10)
        self.call(f"scancel --signal=USR1 {job.number}")
        wait(lambda: job.saved(0) and job.saved(1), 60, "state saved", job.said)
        saved = len(job.steps())
        waited = job.wait_for_steps(saved + 1)
        self.pace = (20 * STEPS - saved) / job.wait_for_end("COMPLETED")
        return f"continues after {waited:.0f} s; {job.check_exact(20 * STEPS)}"

    def time_limit(self) -> str:
        # The signal comes after some 40 s. A job is up to 5 times as fast as `pace`, which counts its start.
        steps = max(2, int(self.pace * 200 / STEPS)) * STEPS
        job = self.submit("time-limit", steps, "--time=1 --signal=USR1@20")
        job.wait_for_end("COMPLETED", 900)
        return job.check_exact(steps)

    def end(self, name: str, scancel: str, state: str, script: str = SCRIPT) -> tuple[list[str], float]:
        """End a job that would take hours: the steps that its ranks saved, and how many seconds it took to end."""
        job = self.submit(name, 10_000 * STEPS, script=script)
        job.wait_for_steps(50)
        expect(len(pythons(self.chroot)) > 2, f"no worker processes: {pythons(self.chroot)}")
        self.call(f"scancel {scancel} {job.number}")
        took = job.wait_for_end(state)
        expect(job.field("Restarts") == "0", f"it began again: {job.said()}")
        saved, steps = job.saved(0) + job.saved(1), [str(len(job.steps(rank))) for rank in (0, 1)]
        expect(saved in ([], steps), f"saved {saved} of {steps} steps: {job.said()}")
        expect((job.folder / "checkpoint.pt").exists() == bool(saved), f"{saved} saved: {job.said()}")
        return saved, took

    def cancel(self) -> str:
        seen = []
        for name, option, state in (("cancel", "", "CANCELLED"), ("term", "--signal=TERM", "FAILED")):
            saved, took = self.end(name, option, state)
            expect(len(saved) == 2, f"scancel {option}: saved {saved}")
            seen.append(f"{option or 'SIGTERM within KillWait'}: saved step {saved[0]}, {state} after {took:.0f} s")
        return "; ".join(seen) + "; no process is left"

    def cancel_full(self) -> str:
        """SIGTERM to srun itself: it kills the tasks, also if the script ignores the signal."""
        line = "srun python train.py"
        ignoring = SCRIPT.replace(line, f"trap '' TERM\n{line}")
        expect(ignoring != SCRIPT, f"train.sbatch has no line {line}")
        for name, script in (("full", SCRIPT), ("full-ignoring", ignoring)):
            saved, _ = self.end(name, "--full --signal=TERM", "FAILED", script)
            expect(not saved, f"{name}: saved {saved}: docs/containers.md says otherwise")
        return "as said in docs/containers.md: nothing is saved, even if the script ignores it; no process is left"
