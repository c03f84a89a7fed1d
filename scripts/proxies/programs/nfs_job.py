"""The job of the platform `nfs`: serves a disk by NFS 4.2 and mounts it as two hosts, which differ in their boot's id.

Each host is a mount namespace, in which /nfs is its own mount. The host "soft" has a soft mount.
"""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from vm_guest import run_job, sh

import tpufeed
from tpufeed.images import CenterCrop, Resize

SERVED = Path("/run/served")
HOSTS = {"a": "hard", "b": "hard", "soft": "soft,timeo=20,retrans=1"}
TPUFEED, BOOT_ID = "/venv/bin/tpufeed", "/proc/sys/kernel/random/boot_id"
WARMUP = ("--size", 64, "--shard-size", "256KB", "--workers", 1)
SHARD = ("shard", "/nfs/photos", "--shards", 12, "--workers", 1)
SECONDS = 600
START = "rpc.nfsd --no-nfs-version 3 --grace-time 10 --lease-time 10 4"


def mounts() -> dict[str, Any]:
    sh(f"""
        modprobe -a virtio_blk veth nfsd nfs nfsv4
        mkdir -p {SERVED} /nfs /var/lib/nfs/rpc_pipefs /var/lib/nfs/v4recovery
        mke2fs -q -t ext4 /dev/vda
        mount /dev/vda {SERVED}
        echo '{SERVED} *(rw,no_root_squash,fsid=0,insecure,no_subtree_check,sync)' > /etc/exports
        mount -t nfsd nfsd /proc/fs/nfsd
        exportfs -ra
        rpc.mountd --no-nfs-version 3 --no-udp
        {START}
        sleep 11""")
    for number, (host, kind) in enumerate(HOSTS.items(), 1):
        # A client of NFS is a name of a host in a network namespace: two of one client would share their delegations.
        sh(f"""
            mkdir -p /run/{host}
            ip netns add {host}
            ip link add to-{host} type veth peer name lan netns {host}
            ip address add 10.0.{number}.1/24 dev to-{host}
            ip link set to-{host} up
            ip -n {host} address add 10.0.{number}.2/24 dev lan
            ip -n {host} link set lan up
            nsenter --net=/run/netns/{host} unshare --uts bash -e -c '
                hostname host-{host}
                mount -t nfs4 -o vers=4.2,nosharecache,{kind} 10.0.{number}.1:/ /run/{host}'
            cat /proc/sys/kernel/random/uuid > /run/boot-{host}""")
    sh("cp -r /shared/photos /run/a/photos")
    clients = sh("cat /proc/fs/nfsd/clients/*/info | grep ^name:").splitlines()
    return {
        "clients": len(set(clients)),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if " nfs4 " in line],
        "boots": [run(host, ["cat", BOOT_ID])[1].strip() for host in "ab"],
        "photos": len(list(SERVED.glob("photos/*/*.jpg"))),
    }


def disk() -> dict[str, Any]:
    """Hard links, times and locks, as two hosts see them."""
    a, b = Path("/run/a/probe"), Path("/run/b/probe")
    a.mkdir()
    (a / "file").write_text("1")
    (a / "link").hardlink_to(a / "file")
    times = [(folder / "file").stat().st_mtime_ns for folder in (a, b)]
    links = (b / "link").stat().st_nlink
    locks = {}
    for what, name, flags in (("folder", "", os.O_RDONLY), ("file", "file", os.O_RDWR)):
        first, second = (os.open(folder / name, flags) for folder in (a, b))
        fcntl.flock(first, fcntl.LOCK_EX)
        locks[what] = "refused"
        with suppress(OSError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locks[what] = "granted"
        os.close(second)
        os.close(first)
    return {"times": times, "links": links, "locks": locks}


def build() -> dict[str, Any]:
    built = run("a", [TPUFEED, *SHARD, "/nfs/d"])
    return {"end": built, "verify": verify("b/d"), "same": same(SERVED / "d", "local")}


def reads() -> list[Any]:
    return [read("b", "d", processes)[:2] for processes in (0, 1)]


def two_builds() -> list[Any]:
    """Both hosts build one dataset in one place, the second 0, 2 and 5 seconds later."""
    rounds = []
    for number, later in enumerate((0, 2, 5)):
        folder, command = SERVED / f"two{number}", [TPUFEED, *SHARD, f"/nfs/two{number}"]
        first = start("a", command)
        time.sleep(later)
        ends = [finish(process) for process in (first, start("b", command))]
        rounds.append(
            {
                "ends": ends,
                "verify": verify(f"a/{folder.name}"),
                "same": same(folder, "local"),
                "left": left(folder),
            }
        )
    return rounds


def overwrites() -> dict[str, Any]:
    """Both hosts replace a dataset at once, with another seed each."""
    command = [TPUFEED, *SHARD, "/nfs/two0", "--overwrite", "--seed"]
    both = [start(host, [*command, seed]) for seed, host in enumerate("ab", 1)]
    ends = [finish(process) for process in both]
    return {"ends": ends, "verify": verify("a/two0"), "left": left(SERVED / "two0")}


def killed_build() -> dict[str, Any]:
    return killed([*SHARD, "/nfs/k"], "k", "local")


def killed_warmup() -> dict[str, Any]:
    return killed(["cache", "warmup", "/nfs/d", "/nfs/c", *WARMUP], "c", "cache")


def killed(command: Sequence[object], name: str, local: str) -> dict[str, Any]:
    """Kill a build of host a in the middle of a task, after its first shard; host b continues, then a day passes."""
    process, folder = start("a", [TPUFEED, *command]), SERVED / name
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and process.poll() is None:
        made = list(folder.glob("*.tfrecord"))
        writing = [path for path in folder.glob("_tpufeed/tmp/*/shard-*") if path.stat().st_size]
        if made and writing:
            break
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    code, said = finish(process)
    seen: dict[str, Any] = {"code": code, "said": said, "made": len(list(folder.glob("*.tfrecord")))}
    seen |= {"left": left(folder), "finished": (folder / "manifest.json").exists()}
    seen["continued"] = run("b", [TPUFEED, *command])
    seen |= {"same": same(folder, local), "verify": verify(f"a/{name}"), "stays": left(folder)}
    day_ago = time.time() - 90_000
    for path in [*folder.glob("_tpufeed/tmp/*"), *folder.glob("_tpufeed/tmp/*/*")]:
        os.utime(path, (day_ago, day_ago))
    (folder / "manifest.json").unlink()  # a build that has work to do
    seen["again"] = run("b", [TPUFEED, *command])
    return seen | {"day_later": left(folder), "same_again": same(folder, local)}


def soft_stop() -> list[Any]:
    return [read("soft", "d", processes, stop_server, start_server) for processes in (0, 1)]


def removed() -> list[Any]:
    """Host a removes the shards while host b reads; then host b begins once more."""
    seen = []
    for processes in (0, 1):
        sh(f"rm -rf {SERVED}/gone; cp -r {SERVED}/d {SERVED}/gone")
        remove = partial(sh, "rm /run/a/gone/*.tfrecord; echo 3 > /proc/sys/vm/drop_caches")
        seen.append([read("b", "gone", processes, remove), read("b", "gone", processes)])
    return seen


def attributes() -> dict[str, Any]:
    """How long host b misses a dataset, which it has looked for, after host a has finished it."""
    command = [sys.executable, "-P", __file__, "look", "/nfs/late"]
    with start("b", command) as process:
        assert process.stdout is not None
        first = process.stdout.readline().strip()
        ended = run("a", [TPUFEED, *SHARD, "/nfs/late"])
        code, said = finish(process)
    finished = (SERVED / "late/manifest.json").stat().st_mtime
    return {"first": first, "build": ended, "code": code, "said": said, "seconds": float(said.split()[-1]) - finished}


def run(host: str, command: Sequence[object]) -> tuple[int, str]:
    return finish(start(host, command))


def start(host: str, command: Sequence[object]) -> "subprocess.Popen[str]":
    """Start a program on a host."""
    script = f'mount --bind /run/{host} /nfs; mount --bind /run/boot-{host} {BOOT_ID}; hostname host-{host}; exec "$@"'
    words = ["unshare", "--mount", "--uts", "bash", "-e", "-c", script, host, *map(str, command)]
    out = subprocess.PIPE
    return subprocess.Popen(
        words, text=True, stdin=out, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        env=os.environ | {"COLUMNS": "500"},
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit code and the end of what it has said."""
    try:
        said, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = f"killed after {SECONDS} s; " + process.communicate()[0]
    return process.returncode, said[-500:].strip()


def verify(place: str) -> int:
    """Number of records of a dataset, through a host's mount. Raises if anything is wrong with it."""
    return tpufeed.verify(f"/run/{place}").records


def read(
    host: str,
    name: str,
    processes: int,
    event: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> tuple[int, str, float]:
    """Read an epoch, with an event in the middle. Returns exit code, last line, and seconds since the event."""
    process = start(host, [sys.executable, "-P", __file__, "read", f"/nfs/{name}", processes])
    assert process.stdout is not None
    first = process.stdout.readline()
    event()
    began = time.monotonic()
    code, said = finish(process)
    seconds = round(time.monotonic() - began, 1)
    after()
    return code, said or first, seconds


def stop_server() -> None:
    sh("rpc.nfsd 0; echo 3 > /proc/sys/vm/drop_caches")


def start_server() -> None:
    sh(f"{START}; sleep 11")


def left(folder: Path) -> list[str]:
    """The temporary folders of builds in a dataset's folder."""
    return sorted(path.name for path in folder.glob("_tpufeed/tmp/*"))


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of the dataset, but those that tell of the run."""
    files = [path for path in folder.glob("*") if path.is_file() and path.name != "manifest.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def same(folder: Path, local: str) -> bool:
    """Whether a dataset has the bytes of one that was built on the host's own disk."""
    expected = digests(Path("/shared") / local)
    assert len(expected) > 1, local
    return digests(folder) == expected


def read_epoch(url: str, processes: int) -> None:
    """Read half an epoch, wait for a line, and read the rest."""
    samples: list[int] = []
    options: dict[str, Any] = {"batch_size": 8, "ops": [Resize(64), CenterCrop(64)], "columns": ["image", "sample"]}
    loader = tpufeed.Loader(url, "train", processes=processes, prefetch=2, threads=1, timeout_seconds=60, **options)
    try:
        for _, numbers in loader:
            samples += numbers.tolist()
            if len(samples) == 80:
                print("half", flush=True)
                sys.stdin.readline()
    except Exception as error:  # noqa: BLE001  # the host judges it
        print(json.dumps({"error": type(error).__name__, "text": str(error), "samples": len(samples)}))
    else:
        print(json.dumps({"samples": len(samples), "distinct": len(set(samples))}))


def look(url: str) -> None:
    """Look for a dataset until it is there."""
    looks = 0
    while True:
        try:
            tpufeed.open_dataset(url)
        except tpufeed.errors.TpufeedError as error:
            if not looks:
                print(type(error).__name__, flush=True)
        else:
            print(looks, time.time())
            return
        looks += 1
        time.sleep(0.2)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["read", url, processes]:
            read_epoch(url, int(processes))
        case ["look", url]:
            look(url)
        case _:
            run_job([
                mounts, disk, build, reads, two_builds, overwrites, killed_build, killed_warmup,
                removed, attributes, soft_stop,
            ])  # fmt: skip
