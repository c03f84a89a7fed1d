"""Read what Linux's control groups, of which containers are made, leave this process of processors and memory.

A limit of any group above the process' own binds it as well. What is missing, cannot be read or is not a number limits
nothing. Both versions of cgroups are read, as hosts may have either, or both at once.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_HOST = Path("/")
_OWN = re.compile(r"^\d+:([^:]*):(/.*)$", re.MULTILINE)
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) \S* (\S+)$", re.MULTILINE)
# In version 2, then in version 1. Above `memory.high` a process is not killed, but slowed down to next to nothing.
_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_MEMORY_USED = ("memory.current", "memory.usage_in_bytes")
_MEMORY_IDLE = re.compile(r"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)  # the last one: in version 1 `total_`


def cpu_quota(root: Path = _HOST) -> float | None:
    """Return how many processors' time this process may take, such as 0.5; None where no group limits it.

    Args:
        root: where /proc and /sys lie.
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
    """Return the bytes that this process and others of its groups may take; None where no group limits them.

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


def _iter_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process' groups and of those above, from the top, as far as they are mounted."""
    own: dict[str, str] = {}
    for names, group in _OWN.findall(_read(root / "proc/self/cgroup")):
        own |= dict.fromkeys(names.split(","), group)  # version 2 has one group for all controllers, under no name
    for top, mount, kind, options in _MOUNT.findall(_read(root / "proc/self/mountinfo")):
        name = "" if kind == "cgroup2" else controller
        if name not in own or (name and name not in options.split(",")):
            continue
        place, group = root / _unescape(mount).lstrip("/"), PurePosixPath(own[name])
        below: tuple[str, ...] = ()  # where a container sees its group alone, and under another name
        if group.is_relative_to(_unescape(top)) and ".." not in group.parts:
            below = group.relative_to(_unescape(top)).parts
        for depth in range(len(below) + 1):
            yield place.joinpath(*below[:depth])


def _numbers(group: Path, names: tuple[str, ...]) -> list[int]:
    texts = [_read(group / name) for name in names]
    return [int(text) for text in texts if text.isdecimal()]


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
