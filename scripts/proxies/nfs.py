"""NFS and Filestore: two hosts and a soft mount of one disk, in a virtual machine whose kernel serves and mounts it."""

import json
from signal import SIGBUS
from typing import Any

from platform_run import Platform, expect
from vm import PHOTOS, installed, machine

JOB_SECONDS, TIMEOUT_SECONDS = 900, 60
# As in programs/nfs_job.py.
SHARD = ("--shards", 12, "--workers", 1)
WARMUP = ("--size", 64, "--shard-size", "256KB", "--workers", 1)


def run(platform: Platform) -> None:
    with installed(platform) as chroot:
        chroot.call(["/venv/bin/tpufeed", "shard", "/shared/photos", "/shared/local", *SHARD])
        chroot.call(["/venv/bin/tpufeed", "cache", "warmup", "/shared/local", "/shared/cache", *WARMUP])
        disk = platform.work / "shared" / "disk"
        with disk.open("wb") as file:
            file.truncate(2 << 30)
        options = ("-smp", 2, "-drive", "file=/shared/disk,if=virtio,format=raw")
        with machine(chroot, "nfs_job.py", *options) as host:

            def check(what: str, name: str, judge: Any) -> None:
                platform.check(what, lambda: judge(host.fact(name, JOB_SECONDS)))

            check("two hosts mount one disk", "mounts", mounted)
            check("hard links, times and locks", "disk", shared_disk)
            check("a build, against one on a local disk", "build", built)
            check("epochs, 0 and 1 worker processes", "reads", read)
            check("two hosts build one dataset at once", "two_builds", built_twice)
            check("two hosts replace a dataset at once", "overwrites", overwritten)
            check("a build killed in a task, continued by the other", "killed_build", continued)
            check("a cache killed in a task, continued by the other", "killed_warmup", continued)
            check("the other host removes shards in mid-epoch", "removed", removed)
            check("a dataset that the other host has just built", "attributes", seen_late)
            check("the server stops in mid-epoch, soft mount", "soft_stop", stopped_soft)


def mounted(seen: dict[str, Any]) -> str:
    expect(len(seen["mounts"]) == 3 and len(set(seen["boots"])) == 2 and seen["clients"] == 3, str(seen))
    expect(seen["photos"] == PHOTOS, str(seen))
    return f"NFS 4.2, three clients, ids of two boots, {PHOTOS} photographs"


def shared_disk(seen: dict[str, Any]) -> str:
    expect(seen["links"] == 2 and len(set(seen["times"])) == 1, str(seen))
    # What tpufeed relies on: locks of folders end at the host, those of files do not.
    expect(seen["locks"] == {"folder": "granted", "file": "refused"}, str(seen))
    return "hard links; both see the same mtime_ns; a folder's lock holds on one host only, a file's on both"


def built(seen: dict[str, Any]) -> str:
    expect(seen["end"][0] == 0 and seen["same"] and seen["verify"] == PHOTOS, str(seen))
    return "sound, the same bytes"


def read(seen: list[Any]) -> str:
    for code, said, *_ in seen:
        expect(code == 0 and json.loads(said) == {"samples": PHOTOS, "distinct": PHOTOS}, str(seen))
    return f"each of {PHOTOS} images once"


def built_twice(seen: list[Any]) -> str:
    for each in seen:
        expect([code for code, _ in each["ends"]] == [0, 0], str(each))
        expect(each["same"] and each["verify"] == PHOTOS and not each["left"], str(each))
    return f"{len(seen)} rounds: both succeed, sound, the bytes of a local build, nothing left"


def overwritten(seen: dict[str, Any]) -> str:
    """One keeps the place whole; the other says so, if its build was replaced."""
    ends = seen["ends"]
    expect(0 in [code for code, _ in ends] and seen["verify"] == PHOTOS and not seen["left"], str(seen))
    replaced = [said for code, said in ends if code]
    expect(all("another run with --overwrite has replaced this build" in said for said in replaced), str(seen))
    return f"a sound dataset; {len(replaced)} of 2 said that another run has replaced its build"


def continued(seen: dict[str, Any]) -> str:
    expect(seen["code"] == -9 and not seen["finished"] and seen["made"] > 0 and len(seen["left"]) == 1, str(seen))
    expect(seen["continued"][0] == 0 and seen["same"] and seen["verify"] == PHOTOS, str(seen))
    expect(seen["stays"] == seen["left"], str(seen))
    expect(seen["again"][0] == 0 and seen["same_again"] and not seen["day_later"], str(seen))
    return f"SIGKILL after {seen['made']} shards: the same bytes; its temporary folder stays a day, then goes"


def stopped_soft(seen: list[Any]) -> str:
    """A page that cannot be read is a SIGBUS: for a worker process an error, for the training process its end."""
    (code, _, seconds), (worker_code, said, worker_seconds) = seen
    expect(code == -SIGBUS and worker_code == 0, str(seen))
    told = json.loads(said)
    expect(told["error"] == "LoaderError" and "mount (NFS, FUSE)" in told["text"], str(seen))
    expect(told["samples"] < PHOTOS and worker_seconds < TIMEOUT_SECONDS, str(seen))
    return f"a worker: LoaderError on the mount after {worker_seconds:.0f} s; processes=0: SIGBUS after {seconds:.0f} s"


def removed(seen: list[Any]) -> str:
    """Shards that are open stay readable, as the server keeps them for NFS 4; a missing one is named."""
    read([during for during, _ in seen])
    for _, (code, said, _) in seen:
        told = json.loads(said)
        expect(code == 0 and told["error"] == "ShardError" and "/nfs/gone/train-000" in told["text"], str(seen))
    return "open shards stay readable to the epoch's end; the next loader gives a ShardError that names the shard"


def seen_late(seen: dict[str, Any]) -> str:
    expect(seen["build"][0] == seen["code"] == 0 and "NotFound" in seen["first"], str(seen))
    expect(seen["seconds"] < 70, str(seen))
    return f"seen {seen['seconds']:.0f} s after the build, when the other host had looked for it before"
