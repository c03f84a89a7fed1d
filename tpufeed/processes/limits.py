"""Limits of cores and memory of this process, and messages for errors that come from a limit of the system.

Linux's control groups, of which containers are made, limit both. A limit of any group above that of the process binds
it as well. A file that is missing, unreadable or not a number limits nothing. Both versions of cgroups are read, since
hosts may have either, or both at once.
"""

import errno
import math
import os
import re
import resource
import traceback
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tpufeed.errors import StoreError, TpufeedError

_HOST = Path("/")
_OWN = re.compile(r"^\d+:([^:]*):(/.*)$", re.MULTILINE)
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) \S* (\S+)$", re.MULTILINE)
# In version 2, then in version 1. Above `memory.high` a process is not killed, but slowed down to next to nothing.
_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_MEMORY_USED = ("memory.current", "memory.usage_in_bytes")
_MEMORY_IDLE = re.compile(r"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)  # the last one: in version 1 `total_`


def available_cores() -> int:
    """Return the number of cores that this process may use: those of its affinity, up to its container's quota of time.

    A quota is rounded up. A task that srun started uses at most its `--cpus-per-task`, since not every Slurm binds
    tasks to processors. A batch script, which has no step, has the cores of all its tasks.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get("SLURM_CPUS_PER_TASK", "") if "SLURM_STEP_NUM_TASKS" in os.environ else ""
    cores = min(cores, int(share)) if share.isdecimal() else cores
    quota = cpu_quota()  # neither `os.process_cpu_count` of Python 3.13 nor psutil knows of it
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def cpu_quota(root: Path = _HOST) -> float | None:
    """Return how many processors' time this process may take, such as 0.5; None if no group limits it.

    Args:
        root: the folder of /proc and /sys.
    """
    quotas = []
    for group in _iter_groups(root, "cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        quota = quota or _read(group / "cpu.cfs_quota_us")
        period = period or _read(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path = _HOST) -> int | None:
    """Return the bytes that this process and others of its groups may take; None if no group limits them.

    Version 1 has a number near 2**63 for no limit.
    """
    limits = [limit for group in _iter_groups(root, "memory") for limit in _numbers(group, _MEMORY_LIMITS)]
    return min(limits, default=None)


def memory_left(root: Path = _HOST) -> int | None:
    """Return the bytes of that limit that are free, or that the kernel would free of its page cache at once."""
    left = []
    for group in _iter_groups(root, "memory"):
        used = sum(_numbers(group, _MEMORY_USED))
        idle = _MEMORY_IDLE.findall(_read(group / "memory.stat"))
        left += [limit - used + int(idle[-1] if idle else 0) for limit in _numbers(group, _MEMORY_LIMITS)]
    return max(0, min(left)) if left else None


def limit_reached(error: BaseException) -> str:
    """Return which limit of the system has caused an error, and what to do; empty if the cause is not a limit."""
    if isinstance(error, StoreError) and error.__cause__ is not None:  # an index that is opened may be the one too many
        return limit_reached(error.__cause__)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return (
            "the system has no room for one more thread. Take fewer worker processes or threads, or raise the limit: "
            "`ulimit -u`, or pids of the container"
        )
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"too many files are open, of {most} at most. Raise `ulimit -n`, or take fewer worker processes"
    return ""


def failure_message(error: Exception) -> str:
    """Return the launcher's message for a task's error; a bug is shown with its traceback."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for it. Try fewer --workers"
    if limit := limit_reached(error):
        return limit
    return str(error) if isinstance(error, TpufeedError) else "".join(traceback.format_exception(error))


def _iter_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process' groups and of those above, from the top, as far as they are mounted."""
    own: dict[str, str] = {}
    for names, group in _OWN.findall(_read(root / "proc/self/cgroup")):
        own |= dict.fromkeys(names.split(","), group)  # version 2 has one group for all controllers, under no name
    for *escaped, kind, options in _MOUNT.findall(_read(root / "proc/self/mountinfo")):
        name = "" if kind == "cgroup2" else controller
        if name not in own or (name and name not in options.split(",")):
            continue
        top, mount = (re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field) for field in escaped)
        place, group = root / mount.lstrip("/"), PurePosixPath(own[name])
        below: tuple[str, ...] = ()  # if a container sees its group alone, and under another name
        if group.is_relative_to(top) and ".." not in group.parts:
            below = group.relative_to(top).parts
        for depth in range(len(below) + 1):
            yield place.joinpath(*below[:depth])


def _numbers(group: Path, names: tuple[str, ...]) -> list[int]:
    texts = [_read(group / name) for name in names]
    return [int(text) for text in texts if text.isdecimal()]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
