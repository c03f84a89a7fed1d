"""Stand-ins for programs that no machine of the tests has: Docker, kubectl, Slurm, the Hugging Face hub's client.

Each parses what it is given, with only options that the real one has, and does what the rest of a page needs.
"""

import argparse
import fnmatch
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml


def install(folder: Path, *names: str) -> str:
    """Put stand-ins of these names into a folder, and return a PATH that begins with it and with this Python's."""
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({__file__!r})['main']({name!r})\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"


def parser(*options: str) -> argparse.ArgumentParser:
    """A parser of these options, each with a value, or without if the name ends with "?"."""
    made = argparse.ArgumentParser(allow_abbrev=False)
    for option in options:
        made.add_argument(f"--{option.removesuffix('?')}", **({"action": "store_true"} if option[-1] == "?" else {}))
    return made


def docker(verb: str, *words: str) -> int:
    """`run` runs the command, here; `build` wants its files."""
    given = parser(*{"run": ("shm-size", "volume"), "build": ("file", "tag"), "push": ()}[verb])
    given.add_argument("place")
    given.add_argument("command", nargs=argparse.REMAINDER)
    options = given.parse_args(words)
    if verb == "run":
        return subprocess.run(options.command, check=False).returncode
    assert verb == "push" or (Path(options.place).is_dir() and "FROM" in Path(options.file).read_text())
    return 0


def kubectl(verb: str, *words: str) -> int:
    """`apply` wants a JobSet, `logs` a selector."""
    given = parser(*{"apply": ("filename",), "logs": ("follow?", "selector")}[verb]).parse_args(words)
    if verb == "apply":
        assert yaml.safe_load(Path(given.filename).read_text())["kind"] == "JobSet"
    else:
        key, _, name = given.selector.partition("=")
        assert key == "jobset.sigs.k8s.io/jobset-name"
        assert name
    return 0


STEP = ("nodes", "ntasks-per-node", "cpus-per-task")


def srun(*words: str) -> int:
    """Start the tasks of all nodes here, write their ids to srun.pids, and return the largest code."""
    given = parser(*STEP)
    given.add_argument("command", nargs=argparse.REMAINDER)
    options = given.parse_args(words)
    nodes = int(options.nodes or os.environ["SLURM_JOB_NUM_NODES"])
    size = nodes * int(options.ntasks_per_node or 1)
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost", "SLURM_LOCALID": "0"} | os.environ
    step |= {"SLURM_NTASKS": str(size), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_STEP_NUM_NODES": str(nodes)}
    piped = {"stdout": subprocess.PIPE, "text": True}
    tasks = [subprocess.Popen(options.command, env=step | {"SLURM_PROCID": str(rank)}, **piped) for rank in range(size)]
    Path("srun.pids").write_text(" ".join(str(task.pid) for task in tasks))
    with ThreadPoolExecutor(size) as pool:  # whole lines of each task, as Slurm's has it without --unbuffered
        list(pool.map(print_lines, [task.stdout for task in tasks]))
    return max(task.wait() for task in tasks)


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        os.write(1, line.encode())


def sbatch(*words: str) -> int:
    """Run a job's script to its end; options of the command line come before those of the script."""
    given = parser(*STEP, "time", "signal", "requeue?", "open-mode")
    given.add_argument("script")
    given.add_argument("arguments", nargs=argparse.REMAINDER)
    script = Path(given.parse_args(words).script)
    lines = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    options = given.parse_args([*(word for line in lines for word in shlex.split(line)[1:]), *words])
    job = {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": options.nodes}
    return subprocess.run(["bash", script, *options.arguments], env=os.environ | job, check=False).returncode


def scontrol(*words: str) -> int:
    """`show hostnames` prints the hosts; `requeue` writes requeued."""
    match words:
        case ("show", "hostnames", hosts) if hosts:
            print(hosts)
        case ("requeue", job) if job == os.environ["SLURM_JOB_ID"]:
            Path("requeued").touch()
        case _:
            raise SystemExit(f"scontrol: {words}")
    return 0


def hf(verb: str, *words: str) -> int:
    """`download` copies from the folder $HUB, which has the repositories by name."""
    given = parser(*{"download": ("repo-type", "include", "local-dir")}[verb])
    given.add_argument("repository")
    options = given.parse_args(words)
    assert options.repo_type in ("model", "dataset", "space")
    source, taken = Path(os.environ["HUB"]) / options.repository, 0
    for path in filter(Path.is_file, source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if fnmatch.fnmatch(name, options.include):
            target = Path(options.local_dir) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
            taken += 1
    return 0 if taken else 1


def main(name: str) -> None:
    tools = {each.__name__: each for each in (docker, kubectl, srun, sbatch, scontrol, hf)}
    sys.exit(tools[name](*sys.argv[1:]))
