"""Limits of cores and memory of this process, and messages for errors that a limit of the system causes.

Linux's control groups limit both. Containers use them. A process is also bound by the limits of all groups above its
own. A file that is missing, unreadable or not a number sets no limit. Both versions of cgroups are read, because hosts
may have either, or both at once.
"""

import errno
import math
import os
import re
import resource
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath

from tpufeed.errors import StoreError, TpufeedError

FULL = {errno.ENOSPC, errno.EDQUOT}
_HOST = Path("/")
_OWN = re.compile(r"^\d+:([^:]*):(/.*)$", re.MULTILINE)
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) \S* (\S+)$", re.MULTILINE)
# Names in version 2, then in version 1. Above `memory.high` a process is not killed, but almost stops.
_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_NO_LIMIT = 1 << 62  # without one, version 1 has a number near 2**63
_MEMORY_USED = ("memory.current", "memory.usage_in_bytes")
# Page cache. Version 1 also has numbers without `total_`, of the group without those below it, which come first.
_MEMORY_CACHE = re.compile(r"^(?:total_)?((?:in)?active_file) (\d+)$", re.MULTILINE)
_MEMORY_AVAILABLE = re.compile(r"^MemAvailable: +(\d+) kB$", re.MULTILINE)
_SWAP_FREE = re.compile(r"^SwapFree: +(\d+) kB$", re.MULTILINE)
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def available_cores() -> int:
    """Return the number of cores that this process may use: those of its affinity mask, up to its container's quota.

    A quota is rounded up. A task that srun started uses at most its `--cpus-per-task`, because not every Slurm binds
    tasks to processors. A batch script has no step, but the cores of all its tasks.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get("SLURM_CPUS_PER_TASK", "") if "SLURM_STEP_NUM_TASKS" in os.environ else ""
    cores = min(cores, int(share)) if share.isdecimal() else cores
    quota = cpu_quota()  # neither `os.process_cpu_count` of Python 3.13 nor psutil knows it
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def cpu_quota(root: Path = _HOST) -> float | None:
    """Return the CPU time per second that this process may use, such as 0.5, or None if no group limits it.

    Args:
        root: the folder that contains /proc and /sys.
    """
    quotas = []
    for group in _groups(root, "cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        quota = quota or _read(group / "cpu.cfs_quota_us")
        period = period or _read(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path = _HOST) -> int | None:
    """Return the bytes that this process and the others in its groups may use, or None if no group limits them."""
    limits = [limit for group in _groups(root, "memory") for limit in _numbers(group, _MEMORY_LIMITS)]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def memory_left(root: Path = _HOST) -> int | None:
    """Return the bytes that are free, or page cache, of that limit and of the machine, or None if neither is known."""
    left = [int(kilobytes) << 10 for kilobytes in _MEMORY_AVAILABLE.findall(_read(root / "proc/meminfo"))]
    for group in _groups(root, "memory"):
        used = sum(_numbers(group, _MEMORY_USED))
        cache = sum(map(int, dict(_MEMORY_CACHE.findall(_read(group / "memory.stat"))).values()))
        left += [limit - used + cache for limit in _numbers(group, _MEMORY_LIMITS)]
    return max(0, min(left)) if left else None


def free_swap(root: Path = _HOST) -> int:
    """Return the bytes of swap that are free."""
    return sum(int(kilobytes) << 10 for kilobytes in _SWAP_FREE.findall(_read(root / "proc/meminfo")))


def oom_kills(root: Path = _HOST) -> int:
    """Return the number of processes that the system has killed because memory ran out, here or in a container."""
    return sum(map(int, _OOM_KILLS.findall(_read(root / "proc/vmstat"))))


def why_killed(kills_before: int, root: Path = _HOST) -> str:
    """Return whether memory ran out, for the message about a process that SIGKILL has ended.

    Args:
        kills_before: `oom_kills` when that process still ran.
        root: as in `cpu_quota`.
    """
    limit = memory_limit(root)
    most = "" if limit is None else f" The limit of memory here is {limit / 1e6:,.0f} MB."
    if oom_kills(root) > kills_before:
        return f"Out of memory: the system has killed it for that.{most}"
    return f"Out of memory?{most}"


def limit_reached(error: BaseException) -> str:
    """Return a message about the system limit that caused an error, empty if no limit did."""
    if isinstance(error, StoreError) and error.__cause__ is not None:  # the open file too many may be an index
        return limit_reached(error.__cause__)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return (
            "the system has no room for one more thread. Use fewer worker processes or threads, or raise the limit: "
            "`ulimit -u`, or pids of the container"
        )
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"too many files are open. The limit is {most}. Raise `ulimit -n`, or use fewer worker processes"
    return ""


def room_left(error: OSError, path: str | Path) -> str:
    """Return what a full disk has room for and what to do, to follow the system's text, empty for other errors.

    Args:
        error: of a write to `path`.
        path: path of a file. It and the folders above it need not exist.
    """
    if error.errno not in FULL:
        return ""
    for folder in (Path(path), *Path(path).absolute().parents):
        with suppress(OSError):
            disk = os.statvfs(folder)
            files = f" and {disk.f_favail:,} files" if disk.f_files else ""  # not every file system counts them
            room = f". It has room for {disk.f_bavail * disk.f_frsize / 1e6:,.1f} MB{files}"
            return f"{room}. Make room and run the same command again"
    return ""


def failure_message(error: Exception) -> str:
    """Return the launcher's message for a task's error. A bug has its traceback in it."""
    if isinstance(error, MemoryError):
        return "there is not enough memory. Try fewer --workers"
    if limit := limit_reached(error):
        return limit
    return str(error) if isinstance(error, TpufeedError) else "".join(traceback.format_exception(error))


@cache  # a process stays in its groups
def _groups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process' groups and of those above, from the top, as far as they are mounted."""
    own, found = dict[str, str](), list[Path]()
    for names, group in _OWN.findall(_read(root / "proc/self/cgroup")):
        own |= dict.fromkeys(names.split(","), group)  # version 2 has one group for all controllers, with an empty name
    for *escaped, kind, options in _MOUNT.findall(_read(root / "proc/self/mountinfo")):
        name = "" if kind == "cgroup2" else controller
        if name not in own or (name and name not in options.split(",")):
            continue
        top, mount = (re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field) for field in escaped)
        place, group = root / mount.lstrip("/"), PurePosixPath(own[name])
        below: tuple[str, ...] = ()  # if a container only sees its own group, under another name
        if group.is_relative_to(top) and ".." not in group.parts:
            below = group.relative_to(top).parts
        found += [place.joinpath(*below[:depth]) for depth in range(len(below) + 1)]
    return found


def _numbers(group: Path, names: tuple[str, ...]) -> list[int]:
    texts = [_read(group / name) for name in names]
    return [int(text) for text in texts if text.isdecimal()]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
