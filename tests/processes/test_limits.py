"""What control groups leave a process, read from made-up trees and from a group of this machine."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpufeed.processes import limits

V2_MOUNT = "29 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:31 {top} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
UNLIMITED_V1 = 9223372036854771712


def make_tree(root: Path, own: str, mounts: str, files: Mapping[str, object]) -> Path:
    """A made-up host: `files` lie below /sys/fs/cgroup."""
    proc = root / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(own)
    (proc / "mountinfo").write_text("22 27 0:21 / /proc rw,relatime - proc proc rw\n" + mounts)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("own", "mounts", "files", "quota"),
    [
        pytest.param("0::/\n", V2_MOUNT, {"cpu.max": "50000 100000"}, 0.5, id="v2, a container's own view"),
        pytest.param("0::/\n", V2_MOUNT, {"cpu.max": "max 100000"}, None, id="v2, max"),
        pytest.param("0::/\n", V2_MOUNT, {}, None, id="v2, the root group"),
        pytest.param(
            "0::/a/b/c\n",
            V2_MOUNT,
            {"a/cpu.max": "800000 100000", "a/b/cpu.max": "150000 50000", "a/b/c/cpu.max": "max 100000"},
            3.0,
            id="v2, the least is in the middle",
        ),
        pytest.param(
            "5:cpu,cpuacct:/\n4:cpuset:/\n0::/\n",
            V1_MOUNTS,
            {"cpu,cpuacct/cpu.cfs_quota_us": 150000, "cpu,cpuacct/cpu.cfs_period_us": 100000},
            1.5,
            id="v1",
        ),
        pytest.param(
            "5:cpu,cpuacct:/\n",
            V1_MOUNTS,
            {"cpu,cpuacct/cpu.cfs_quota_us": -1, "cpu,cpuacct/cpu.cfs_period_us": 100000},
            None,
            id="v1, none",
        ),
        pytest.param(
            "5:cpu,cpuacct:/kubepods/pod1/one\n",
            V1_MOUNTS,
            {
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us": 800000,
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us": 100000,
                "cpu,cpuacct/kubepods/pod1/one/cpu.cfs_quota_us": 400000,
                "cpu,cpuacct/kubepods/pod1/one/cpu.cfs_period_us": 100000,
            },
            4.0,
            id="v1, nested",
        ),
        pytest.param(
            "5:cpu,cpuacct:/docker/abc\n",
            V1_MOUNTS.replace("{top}", "/docker/abc"),
            {"cpu,cpuacct/cpu.cfs_quota_us": 200000, "cpu,cpuacct/cpu.cfs_period_us": 100000},
            2.0,
            id="v1, only the container's part is mounted",
        ),
        pytest.param(
            "5:cpu,cpuacct:/docker/abc\n",
            V1_MOUNTS.replace("{top}", "/somewhere/else"),
            {"cpu,cpuacct/cpu.cfs_quota_us": 200000, "cpu,cpuacct/cpu.cfs_period_us": 100000},
            2.0,
            id="v1, another name for what is mounted",
        ),
        pytest.param(
            "5:cpu,cpuacct:/\n0::/\n",
            V1_MOUNTS + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": 100000, "cpu,cpuacct/cpu.cfs_period_us": 100000},
            1.0,
            id="hybrid",
        ),
        pytest.param(
            "0::/a\\x2db.slice\n",
            V2_MOUNT.replace("{top}", "/a\\134x2db.slice"),
            {"cpu.max": "300000 100000"},
            3.0,
            id="an escaped name",
        ),
        pytest.param("0::/../other\n", V2_MOUNT, {"cpu.max": "200000 100000"}, 2.0, id="a group outside its namespace"),
        pytest.param("0::/\n", V2_MOUNT, {"cpu.max": "nonsense"}, None, id="nonsense"),
    ],
)
def test_the_quota_of_a_process(tmp_path: Path, own: str, mounts: str, files: dict[str, object], quota: float) -> None:
    tree = make_tree(tmp_path, own, mounts.replace("{top}", "/"), files)
    assert limits.cpu_quota(tree) == quota


@pytest.mark.parametrize(
    ("own", "mounts", "files", "limit", "left"),
    [
        pytest.param(
            "0::/\n",
            V2_MOUNT,
            {"memory.max": 5000, "memory.current": 3000, "memory.stat": "anon 1\ninactive_file 500"},
            5000,
            2500,
            id="v2: what the kernel would give back counts as free",
        ),
        pytest.param(
            "0::/\n",
            V2_MOUNT,
            {"memory.max": 5000, "memory.high": 4000, "memory.current": 3000},
            4000,
            1000,
            id="v2: above `high` a process is slowed down",
        ),
        pytest.param("0::/\n", V2_MOUNT, {"memory.max": "max", "memory.high": "max"}, None, None, id="v2, max"),
        pytest.param(
            "0::/pod/one\n",
            V2_MOUNT,
            {
                "pod/memory.max": 9000,
                "pod/memory.current": 8900,
                "pod/one/memory.max": 5000,
                "pod/one/memory.current": 1000,
            },
            5000,
            100,
            id="nested: one group has the least limit, another has least left",
        ),
        pytest.param(
            "7:memory:/\n0::/\n",
            V1_MOUNTS,
            {
                "memory/memory.limit_in_bytes": 5000,
                "memory/memory.usage_in_bytes": 3000,
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500",
            },
            5000,
            2500,
            id="v1",
        ),
        pytest.param(
            "7:memory:/a\n",
            V1_MOUNTS,
            {"memory/memory.limit_in_bytes": UNLIMITED_V1, "memory/a/memory.limit_in_bytes": 4000},
            4000,
            4000,
            id="v1, nested, no word of what is used",
        ),
        pytest.param("0::/\n", V2_MOUNT, {"memory.max": 3000, "memory.current": 5000}, 3000, 0, id="more than all"),
        pytest.param("7:memory:/\n", V1_MOUNTS, {}, None, None, id="missing files"),
    ],
)
def test_the_memory_of_a_process(
    tmp_path: Path, own: str, mounts: str, files: dict[str, object], limit: int, left: int
) -> None:
    tree = make_tree(tmp_path, own, mounts.replace("{top}", "/"), files)
    assert (limits.memory_limit(tree), limits.memory_left(tree)) == (limit, left)


def test_page_cache_of_a_group_and_those_below_it_counts_as_free_and_the_machine_sets_a_limit(tmp_path: Path) -> None:
    stat = "inactive_file 1\nactive_file 2\ntotal_inactive_file 300\ntotal_active_file 200"
    files = {"memory/memory.limit_in_bytes": 5000, "memory/memory.usage_in_bytes": 3000, "memory/memory.stat": stat}
    tree = make_tree(tmp_path, "7:memory:/\n", V1_MOUNTS, files)
    assert limits.memory_left(tree) == 2500
    (tree / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       2 kB\nSwapFree:        3 kB\n")
    assert limits.memory_left(tree) == 2048
    assert limits.free_swap(tree) == 3072


def test_why_a_process_was_killed(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, "0::/\n", V2_MOUNT, {"memory.max": 512_000_000})
    (tree / "proc/vmstat").write_text("oom_kill_other 9\noom_kill 3\n")
    assert limits.oom_kills(tree) == 3
    assert limits.oom_kills(tree / "nowhere") == 0
    assert "system has killed it" in limits.why_killed(2, tree)
    assert "system has killed it" not in limits.why_killed(3, tree)
    assert "512 MB" in limits.why_killed(3, tree)
    assert "MB" not in limits.why_killed(0, tree / "nowhere")


def test_a_full_disk_is_said_with_the_room_for_bytes_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimpleNamespace(f_bavail=25, f_frsize=4096, f_files=20, f_favail=0)

    def statvfs(path: Path) -> object:
        path.lstat()  # raises where there is nothing
        return disk

    monkeypatch.setattr(os, "statvfs", statvfs)
    full = OSError(errno.ENOSPC, "No space left on device")
    assert "room for 0.1 MB and 0 files. Make room" in limits.room_left(full, tmp_path / "d/shard")
    disk.f_files = 0  # btrfs does not count files
    assert "room for 0.1 MB. Make room" in limits.room_left(OSError(errno.EDQUOT, "quota"), tmp_path)
    assert limits.room_left(OSError(errno.EACCES, "no right"), tmp_path) == ""


def test_what_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, "0::/a\n", V2_MOUNT.replace("{top}", "/"), {"cpu.max": "200000 100000"})
    for name in ("cpu.max", "memory.max", "memory.high"):  # a folder cannot be read, even by root
        (tree / "sys/fs/cgroup/a" / name).mkdir(parents=True)
    assert limits.cpu_quota(tree) == 2.0
    assert limits.memory_limit(tree) is None
    assert limits.cpu_quota(tree / "nowhere") is None
    assert limits.memory_left(tree / "nowhere") is None


@pytest.mark.parametrize(
    ("quota", "allowed", "cores"), [(0.5, 128, 1), (1.5, 128, 2), (8.0, 128, 8), (None, 96, 96), (8.0, 4, 4)]
)
def test_cores_are_the_least_of_quota_and_affinity(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, allowed: int, cores: int
) -> None:
    monkeypatch.setattr(limits, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    assert limits.available_cores() == cores


@pytest.mark.parametrize(
    ("variables", "cores"),
    [
        ({"SLURM_CPUS_PER_TASK": "12", "SLURM_STEP_NUM_TASKS": "4"}, 12),
        ({"SLURM_CPUS_PER_TASK": "12"}, 96),  # a batch script, which has the cores of all its tasks
        ({"SLURM_CPUS_PER_TASK": "128", "SLURM_STEP_NUM_TASKS": "1"}, 96),
        ({"SLURM_STEP_NUM_TASKS": "4"}, 96),
        ({"SLURM_CPUS_PER_TASK": "", "SLURM_STEP_NUM_TASKS": "4"}, 96),
        ({"SLURM_CPUS_PER_TASK": "0", "SLURM_STEP_NUM_TASKS": "4"}, 1),
    ],
)
def test_a_task_of_slurm_has_no_more_cores_than_it_asked_for(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(limits, "cpu_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)))
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert limits.available_cores() == cores


@pytest.fixture
def half_a_core() -> Iterator[Path]:
    """A control group of this machine that may use half a core."""
    for above in limits._groups(Path("/"), "cpu"):
        group = above / f"tpufeed-test-{os.getpid()}"
        with suppress(OSError):  # it is not this user's, or version 2 does not hand processors on
            group.mkdir()
            try:
                version_2 = (group / "cpu.max").exists()
                name, quota = ("cpu.max", "50000 100000") if version_2 else ("cpu.cfs_quota_us", "50000")
                (group / name).write_text(quota)
                yield group
                return
            finally:
                group.rmdir()
    pytest.skip("no group with a quota can be made here")


def test_a_real_quota_of_half_a_core(half_a_core: Path) -> None:
    program = (
        "import os, pathlib\n"
        f"pathlib.Path({str(half_a_core)!r}, 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from tpufeed.processes.limits import available_cores\n"
        "print(available_cores())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
