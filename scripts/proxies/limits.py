"""A host with little memory, and disks that run full: each command succeeds, or says what ran out and what to do."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

from platform_run import ROOT, CheckError, MissingError, Platform, call, expect, need

GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))  # of version 1 and 2
PROGRAM = Path(__file__).parent / "programs/limits_feed.py"
PHOTOS = {"small": (1000, 240, 320), "large": (40, 4000, 6000), "huge": (3, 8333, 12000)}  # count, height, width
COUNT = sum(count for count, *_ in PHOTOS.values())
OPS = ("--op", "RandomResizedCrop(64)")
BENCH = ("--loader", "numpy", "--batch", 32, "--seconds", 0.5, "--repeats", 1, "--warm-up", 0, "--device", "none")
ADVICE = r"No space left on device\. It has room for [\d,.]+ MB and [\d,]+ files\. Make room and run"


class Host:
    """A virtual environment with the wheel, photographs, and the commands that run in it."""

    def __init__(self, platform: Platform) -> None:
        if os.geteuid():
            raise MissingError("this needs root: it makes control groups and mounts")
        self.work, self.venv, self.photos = platform.work, platform.work / "venv", platform.work / "photos"
        if not self.venv.exists():
            call([sys.executable, "-m", "venv", self.venv], 120)
        wheel = f"{platform.wheel}{'[gcs,report]' if platform.name == 'fulldisk' else ''}"
        call([self.venv / "bin/pip", "install", "-q", "--force-reinstall", "--no-deps", platform.wheel], 120)
        call([self.venv / "bin/pip", "install", "-q", "--only-binary=:all:", wheel], 600)
        for name, shape in PHOTOS.items():
            if not (self.photos / name).exists() and (name == "small" or platform.name == "lowmem"):
                call([self.venv / "bin/python", PROGRAM, "photos", self.photos / name, *shape], 300)
        version = call([self.venv / "bin/python", "--version"], 60).strip()
        platform.about = f"{version}, Linux {os.uname().release}, {len(os.sched_getaffinity(0))} cores"

    def command(self, *words: object) -> list[str]:
        return [str(self.venv / "bin/tpufeed"), *map(str, words)]

    def epoch(self, url: object, **options: object) -> list[str]:
        return [str(self.venv / "bin/python"), str(PROGRAM), "epoch", str(url), json.dumps(options)]

    def digest(self, url: Path) -> str:
        call(self.command("verify", url), 120)
        program = f"import tpufeed; print(tpufeed.open_dataset({str(url)!r}).manifest.content_digest)"
        return call([self.venv / "bin/python", "-c", program], 60).strip()


def run(platform: Platform) -> None:
    host = Host(platform)
    {"lowmem": run_lowmem, "fulldisk": run_fulldisk}[platform.name](platform, host)


def limited(megabytes: int, command: Sequence[object], expected: int = 0, seconds: float = 280) -> tuple[str, str]:
    """Run a command in a new control group with so much memory and no swap: what it prints, and the peak."""
    top = next((top for top in GROUPS if (top / "cgroup.procs").exists() and _hands_memory_on(top)), None)
    if top is None:
        raise MissingError(f"no control group for memory below {GROUPS[0]} or {GROUPS[1]}")
    group, limit = top / f"tpufeed-{os.getpid()}", megabytes << 20
    try:
        group.mkdir()
    except OSError as error:
        raise MissingError(f"{group} cannot be made: {error.strerror}") from error
    try:
        for name, value in (("memory.limit_in_bytes", limit), ("memory.max", limit)):
            if (group / name).exists():
                (group / name).write_text(str(value))
        for name, value in (("memory.memsw.limit_in_bytes", limit), ("memory.swap.max", 0)):
            with suppress(OSError):  # a kernel that does not count swap
                (group / name).write_text(str(value))
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        text = call(["sh", "-c", enter, "sh", *command], seconds, expected=expected)
        end_all(group)
        peak = next(group / name for name in ("memory.max_usage_in_bytes", "memory.peak") if (group / name).exists())
        return text, f"peak {int(peak.read_text()) >> 20:,} of {megabytes:,} MiB"
    finally:
        end_all(group, kill=True)
        group.rmdir()


def _hands_memory_on(top: Path) -> bool:
    controllers = top / "cgroup.subtree_control"
    return not controllers.exists() or "memory" in controllers.read_text().split()


def end_all(group: Path, kill: bool = False) -> None:
    """Wait until a group is empty. Raises CheckError if something still runs in it; with `kill`, kills it."""
    for _ in range(100):
        pids = (group / "cgroup.procs").read_text().split()
        if not pids:
            return
        for pid in pids if kill else ():
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        time.sleep(0.1)
    raise CheckError(f"{len(pids)} processes are left behind")


def run_lowmem(platform: Platform, host: Host) -> None:
    flowers, raw, jpeg = (host.work / name for name in ("flowers", "raw", "jpeg"))

    def builds(name: str, *words: object, megabytes: int = 2048) -> Callable[[], str]:
        def build() -> str:
            text, peak = limited(megabytes, host.command(*words))
            expect(f"{COUNT * (2 if 'cache' in words else 1):,} images" in text, text)
            host.digest(host.work / name)
            killed = text.count("Out of memory: the system has killed it")
            expect(killed == 0 or megabytes < 2048, text)
            return f"{peak}, {re.findall(r'wrote .*', text)[0]}" + f", {killed} workers killed" * bool(killed)

        return build

    def feeds(expected: str, megabytes: int, url: Path, code: int = 0, **options: object) -> Callable[[], str]:
        def feed() -> str:
            text, peak = limited(megabytes, host.epoch(url, **options), code)
            found = re.search(expected, text.strip().splitlines()[-1])
            expect(bool(found), text)
            return f"{peak}, {found[0]}"  # type: ignore[index]

        return feed

    def measures(*words: object) -> Callable[[], str]:
        return lambda: limited(2048, host.command(*words))[1]

    whole, refused = (
        rf"{COUNT} samples;.*",
        r"3 batches of 453 MB, .* do not fit .* of 537 MB are free\. Use a smaller.*",
    )
    killed = (
        r"SIGKILL; .* the system has killed it for that\. The limit of memory here is 537 MB\. Try a smaller batch.*"
    )
    check = platform.check
    check("2 GB: shard", builds("flowers", "shard", host.photos, flowers))
    check("2 GB: shard --presize 256", builds("small", "shard", host.photos, host.work / "small", "--presize", 256))
    size = ("--size", 224, "--variants", 2)
    check("2 GB: cache warmup, raw", builds("raw", "cache", "warmup", flowers, raw, *size))
    check("2 GB: cache warmup, JPEG", builds("jpeg", "cache", "warmup", flowers, jpeg, *size, "--encode", "jpeg"))
    check("2 GB: an epoch of JPEGs, 256 x 224", feeds(whole, 2048, flowers, batch_size=256, size=224))
    check("2 GB: an epoch of raw images, 256 x 224", feeds(whole, 2048, raw, batch_size=256))
    check("2 GB: an epoch of JPEGs, 1024 x 384", feeds(whole, 2048, flowers, batch_size=1024, size=384))
    check("2 GB: the same in threads", feeds(whole, 2048, flowers, batch_size=1024, size=384, processes=0))
    check("2 GB: doctor", measures("doctor", flowers, "--batch", 256, "--op", "RandomResizedCrop(224)"))
    check("2 GB: bench", measures("bench", flowers, raw, *BENCH, "--op", "RandomResizedCrop(224)"))
    options = {"batch_size": 1024, "size": 384}
    check("512 MB: batches that cannot fit", feeds(refused, 512, flowers, 1, **options))
    check("512 MB: the same in threads", feeds(refused, 512, flowers, 1, **options, processes=0))
    check("512 MB: a worker that takes all memory", feeds(killed, 512, flowers, 1, batch_size=8, size=64, hog=True))
    many = ("--shard-size", "20MB", "--presize", 256, "--workers", 6)
    check("200 MB: 6 workers", builds("many", "shard", host.photos, host.work / "many", *many, megabytes=200))


@contextmanager
def disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small disk: a tmpfs with these options, or "ext4" of 16 MB."""
    folder.mkdir(exist_ok=True)
    image = folder.with_suffix(".img")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    if options == "ext4":
        with image.open("wb") as file:
            file.truncate(16 << 20)
        call([need("mkfs.ext4", "e2fsprogs"), "-q", image], 60)
        command = ["mount", "-o", "loop", image, folder]
    text = call(command, 60, expected=None)
    if text:
        raise MissingError(text.strip())
    try:
        yield folder
    finally:
        call(["umount", "-l", folder], 60)
        image.unlink(missing_ok=True)


def fill(folder: Path) -> Path:
    """Fill a disk to its last byte."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return filler


def run_fulldisk(platform: Platform, host: Host) -> None:
    disks, check = Disks(host), platform.check
    check("a destination that is too small", disks.too_small)
    for name in ("tmpfs", "ext4"):
        check(f"{name} fills up under shard", partial(disks.resumes, name, disks.shard))
    check("tmpfs fills up under cache warmup", partial(disks.resumes, "tmpfs", disks.warmup))
    check("inodes run out under shard", partial(disks.resumes, "inodes", disks.shard))
    check("append to a full disk", disks.appends)
    check("a read-only mount", disks.read_only)
    check("TMPDIR on a full disk", partial(disks.unneeded, "TMPDIR"))
    check("HOME on a full disk", partial(disks.unneeded, "HOME"))
    check("stdout and reports on a full disk", disks.writes)
    check("gs://, local_dir with 100 kB", partial(disks.copies, "local_dir"))
    check("gs://, /dev/shm with 100 kB", partial(disks.copies, "/dev/shm"))


class Disks:
    """A dataset and a cache on a large disk, and commands on small ones."""

    options: ClassVar = {"tmpfs": "size=8m", "ext4": "ext4", "inodes": "size=8m,nr_inodes=20"}

    def __init__(self, host: Host) -> None:
        self.host, self.small = host, host.work / "disk"
        self.whole, self.more = host.work / "whole", host.work / "more"
        call(host.command(*self.shard(self.whole)), 200)
        if not self.more.exists():
            call([host.venv / "bin/python", PROGRAM, "photos", self.more, 60, 240, 320], 60)
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def shard(self, url: object) -> tuple[object, ...]:
        return ("shard", self.host.photos / "small", url, "--presize", 64, "--shard-size", "200KB", "--workers", 2)

    def warmup(self, url: object) -> tuple[object, ...]:
        return ("cache", "warmup", self.whole, url, "--size", 24, "--variants", 2, "--shard-size", "200KB")

    def too_small(self) -> str:
        with disk(self.small, "size=8m") as small:
            text = call(self.host.command("shard", self.host.photos / "small", small / "d"), 60, expected=1)
            expect(text.startswith("error: ") and "Make room" in text and not [*small.iterdir()], text)
        return text.strip()

    def resumes(self, kind: str, words: Callable[[object], tuple[object, ...]]) -> str:
        """The disk fills up in the middle of a command. With more room the same command ends with the same bytes."""
        call(self.host.command(*words(self.host.work / f"{words.__name__}-there")), 200)
        with disk(self.small, self.options[kind]) as small:
            url = small / "d"
            process = subprocess.Popen(
                self.host.command(*words(url)), stdout=-1, stderr=subprocess.STDOUT, text=True, env=self.environment
            )
            while process.poll() is None and not any(url.glob("_tpufeed/reports/*")):
                time.sleep(0.01)
            filler = None if kind == "inodes" else fill(small)
            text, _ = process.communicate(timeout=200)
            said = text.strip().splitlines()[-1]
            expect(process.returncode == 1 and bool(re.match(rf"error: .*{small}/.*{ADVICE}", said)), text)
            expect(
                not (url / "manifest.json").exists() and not (url / "_tpufeed/tmp").exists(), "something half is left"
            )
            call(self.host.command("info", url), 60, expected=2)
            if filler is None:
                call(["mount", "-o", "remount,nr_inodes=500", small], 60)
            else:
                filler.unlink()
            call(self.host.command(*words(url)), 200)
            expected = self.host.digest(self.host.work / f"{words.__name__}-there")
            expect(self.host.digest(url) == expected, "other bytes")
        return said[-150:]

    def appends(self) -> str:
        """An append that finds no room leaves the dataset as it was."""
        with disk(self.small, "size=8m") as small:
            url = small / "d"
            call(self.host.command(*self.shard(url)), 200)
            before, filler = self.host.digest(url), fill(small)
            text = call(self.host.command("append", self.more, url), 100, expected=1)
            expect(self.host.digest(url) == before and "Make room" in text, text)
            filler.unlink()
            call(self.host.command("append", self.more, url), 100)
            expect("1,060" in call(self.host.command("verify", url), 60), "not all are there")
        return text.strip()[-150:]

    def read_only(self) -> str:
        with disk(self.small, "size=8m") as small:
            call(["mount", "-o", "remount,ro", small], 60)
            text = call(self.host.command("shard", self.host.photos, small / "d"), 60, expected=1)
            expect("Read-only file system" in text and not [*small.iterdir()], text)
        return text.strip()[-100:]

    def unneeded(self, variable: str) -> str:
        """Commands that want a place for temporary files find another, and those that want a HOME need none."""
        given, page, url = (
            self.environment | {variable: str(self.small)},
            self.host.work / "page.html",
            self.host.work / "again",
        )
        commands = [
            (*self.shard(url), "--overwrite"),
            ("append", self.more, url),
            ("doctor", self.whole, "--batch", 32, *OPS),
            ("bench", self.whole, *BENCH, *OPS, "--report", page),
        ]
        with disk(self.small, "size=1m") as small:
            fill(small)
            for words in commands:
                call(self.host.command(*words), 200, environment=given)
        expect("<svg" in page.read_text() and "1,060" in call(self.host.command("verify", url), 60), "not whole")
        page.unlink()
        return "shard, append, doctor and bench --report succeed"

    def writes(self) -> str:
        buffered = {name: value for name, value in self.environment.items() if name != "PYTHONUNBUFFERED"}
        with disk(self.small, "size=1m") as small:
            out, page = small / "out", small / "page.html"
            out.touch()
            fill(small)
            for words in (["info", self.whole], ["info", "--json", self.whole], ["verify", self.whole], ["--help"]):
                line = " ".join(self.host.command(*words))
                said = call(["sh", "-c", f"{line} 2>&1 >{out}"], 60, environment=buffered, expected=1)
                expect(said.count("\n") == 1 and "stdout cannot be written" in said, f"{words}: {said}")
            said = call(self.host.command("bench", self.whole, *BENCH, *OPS, "--report", page), 100, expected=1)
            expect(bool(re.search(ADVICE, said)) and {each.name for each in small.iterdir()} == {"filler", "out"}, said)
        return "info, verify, --help and bench --report: one line, exit code 1"

    def copies(self, place: str) -> str:
        """A loader reads ranges from object storage if copies of shards have no room."""
        command = [str(ROOT / ".venv/bin/python"), "-m", "tests.gcs_server"]
        with (
            disk(self.small, "size=100k") as small,
            subprocess.Popen(command, cwd=ROOT, stdout=-1, text=True, env=self.environment) as server,
        ):
            try:
                at = server.stdout.readline().strip().rpartition("=")[2]  # type: ignore[union-attr]
                given = self.environment | {"STORAGE_EMULATOR_HOST": at, "HOME": str(small), "TMPDIR": str(small)}
                call(
                    self.host.command(*self.shard("gs://bucket/d")),
                    200,
                    environment=self.environment | {"STORAGE_EMULATOR_HOST": at},
                )
                feed = self.host.epoch(
                    "gs://bucket/d",
                    batch_size=100,
                    size=64,
                    **({"local_dir": str(small)} if place == "local_dir" else {}),
                )
                mount = f'mount --bind {small} /dev/shm && exec "$@"'
                text = call(["unshare", "-m", "sh", "-c", mount, "sh", *feed], 200, environment=given)
                files = [each for each in small.rglob("*") if each.is_file()]
                expect("1000 samples" in text and not any(each.suffix == ".part" for each in files), text)
            finally:
                server.terminate()
        return text.strip().splitlines()[-1]
