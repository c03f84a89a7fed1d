"""Object storage mounted as a folder: rclone over a local folder, and over the tests' server of the service."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import chroot
from chroot import Chroot
from platform_run import ROOT, CheckError, MissingError, Platform, call, expect

MODES = ("off", "writes", "full")
PHOTOS, MORE = 600, 60
PROGRAMS = Path(__file__).parent / "programs"
MOUNT = "/mnt/bucket"
FLOWERS = f"{MOUNT}/flowers"


def run(platform: Platform) -> None:
    if not Path("/dev/fuse").exists():
        raise MissingError("there is no /dev/fuse here: modprobe fuse")
    with chroot.debian("trixie", platform.work / "debian", platform.work, ["rclone", "fuse3"]) as debian:
        rclone = debian.call(["rclone", "version"]).split()[1]
        platform.about = f"{chroot.version(debian)}, rclone {rclone}"
        place = Place(debian, platform)
        for mode in MODES:
            on = f"folder, cache {mode}"
            platform.check(f"{on}: verify, epochs", partial(place.check_reads, "/folder", mode))
            platform.check(f"{on}: builds are refused", partial(place.check_refused, mode))
            for how in ("killed", "unmounted"):
                platform.check(f"{on}: {how} in mid-epoch", partial(place.check_end, mode, how))
        platform.check("folder, cache full: a copied dataset", place.check_copied)
        platform.check("folder, cache off, no mtimes: verify, epochs", place.check_without_mtimes)
        with place.bucket_server([*MODES, "last"]) as (server, url):
            remote = partial(bucket, url)
            for mode in MODES:
                platform.check(f"gs, cache {mode}: verify, epochs", partial(place.check_reads, remote(mode), mode))
                platform.check(f"gs, cache {mode}: grows behind the mount", partial(place.check_growth, url, mode))
            platform.check("gs, cache off: cache warmup to a disk", partial(place.check_warmup, remote("last")))
            last = partial(place.check_second_epoch, remote("last"), server)
            platform.check("gs, cache full: an epoch without the bucket", last)


def bucket(url: str, name: str) -> str:
    """rclone's name for a bucket of the server at a URL."""
    return f':gcs,anonymous=true,bucket_policy_only=true,endpoint="{url}/storage/v1/":{name}'


class Place:
    """A Debian with tpufeed, photographs, a dataset in the folder /folder, and a mount point."""

    def __init__(self, debian: Chroot, platform: Platform) -> None:
        self.debian, self.work = debian, platform.work
        self.bin = debian.venv("/venv", [debian.copy(platform.wheel, f"/wheels/{platform.wheel.name}") + "[gcs]"])
        for program in PROGRAMS.glob("fuse_*.py"):
            debian.copy(program, f"/programs/{program.name}")
        self.folder, self.point = debian.root / "folder", debian.root / MOUNT.lstrip("/")
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in (self.folder, self.point):
            folder.mkdir(parents=True, exist_ok=True)
        self.python("fuse_photos.py", "/photos", 0, PHOTOS)
        self.python("fuse_photos.py", "/more", PHOTOS, PHOTOS + MORE)
        self.tpufeed("shard", "/photos", "/folder/flowers", "--shard-size", "1MB")

    def python(self, program: str, *arguments: object, expected: int = 0) -> str:
        command = [f"{self.bin}/bin/python", "-P", f"/programs/{program}", *arguments]
        return self.debian.call(command, 240, expected=expected)

    def tpufeed(self, *arguments: object, expected: int | None = 0, url: str = "") -> str:
        environment = {"STORAGE_EMULATOR_HOST": url} if url else {}
        return self.debian.call([f"{self.bin}/bin/tpufeed", *arguments], 240, environment, expected).strip()

    def epoch(self, dataset: str, processes: int, line: str = "") -> tuple[list[int], str]:
        """The numbers of the images of an epoch, and the error that ended it."""
        found = json.loads(self.python("fuse_epoch.py", dataset, processes, line).splitlines()[-1])
        return found["numbers"], found["error"]

    def check_epoch(self, dataset: str, processes: int, images: int = PHOTOS) -> None:
        numbers, error = self.epoch(dataset, processes)
        expect(numbers == list(range(images)), f"processes={processes}: {len(numbers)} of {images} images; {error}")

    def check_sound(self, images: int = PHOTOS) -> str:
        """The dataset at the mount is sound, and an epoch has each image once, with and without a worker process."""
        said = self.tpufeed("verify", FLOWERS)
        expect(said.startswith(f"sound: {images} records"), said)
        for processes in (0, 1):
            self.check_epoch(FLOWERS, processes, images)
        return f"sound; {images} images with processes=0 and 1, each once"

    @contextmanager
    def mounted(self, remote: str, mode: str, *options: str) -> Iterator[int]:
        """Mount a remote of rclone's, and yield the process that serves it."""
        words = ["rclone", "mount", remote, MOUNT, "--vfs-cache-mode", mode, "--cache-dir", "/var/tmp/rclone", *options]
        assert not os.path.ismount(self.point), f"{self.point} is mounted already"
        with (self.work / "rclone.log").open("w") as log:
            process = self.debian.start(words, stdout=log, stderr=log)
            try:
                while not os.path.ismount(self.point):
                    if process.poll() is not None:
                        raise CheckError(f"rclone ended: {Path(log.name).read_text()[-500:]}")
                    time.sleep(0.1)
                yield process.pid
            finally:
                call(["umount", "-l", self.point], 30, expected=None)
                process.kill()
                process.wait()
                shutil.rmtree(self.debian.root / "var/tmp/rclone", ignore_errors=True)

    @contextmanager
    def bucket_server(self, names: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Serve buckets that hold the dataset; yield the server and its URL."""
        for name in names:
            shutil.copytree(self.folder / "flowers", self.work / "buckets" / name / "flowers", dirs_exist_ok=True)
        command = [sys.executable, "-m", "tests.gcs_server", "--folder", str(self.work / "buckets")]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                yield server, server.stdout.readline().strip().partition("=")[2]
            finally:
                server.kill()

    def check_reads(self, remote: str, mode: str) -> str:
        with self.mounted(remote, mode):
            return self.check_sound()

    def check_refused(self, mode: str) -> str:
        """Each command that would write ends with the words of a mount without hard links, and leaves nothing."""
        new = f"{MOUNT}/new"
        cache, append = ("cache", "warmup", FLOWERS, new, "--size", 64), ("append", "/more", FLOWERS)
        words = (f"the mount {MOUNT} (fuse.rclone) cannot make a hard link", "gs://", "on a local disk")
        with self.mounted("/folder", mode):
            before = set(self.folder.rglob("*"))
            for command in (("shard", "/photos", new), cache, append):
                said = self.tpufeed(*command, expected=1)
                expect(all(word in said for word in words), f"{command[0]}: {said}")
                left = set(self.folder.rglob("*")) ^ before
                expect(not left, f"{command[0]} left {left}")
        return f"shard, cache warmup, append: {words[0]}; nothing was written"

    def check_end(self, mode: str, how: str) -> str:
        """The mount ends in mid-epoch: killed, what reads it dies of SIGBUS; unmounted, its files are missing."""
        seen = []
        for processes in (1, 0):
            with self.mounted("/folder", mode) as pid:
                line = f"kill -9 {pid}" if how == "killed" else f"fusermount3 -u -z {MOUNT}"
                if how == "killed" and not processes:
                    self.python("fuse_epoch.py", FLOWERS, processes, line, expected=-signal.SIGBUS)
                    seen.append("processes=0: SIGBUS")
                    continue
                numbers, error = self.epoch(FLOWERS, processes, line)
            if how == "killed":
                told = {"LoaderError: ": "its disk or mount (NFS, FUSE) is gone"}
            else:  # a shard is missing, or the folder, whichever is looked at first
                told = {
                    f"ShardError: {FLOWERS}/train-": "No such file",
                    f"ObjectChangedError: {FLOWERS} ": "was removed while it was read",
                }
            said = [(start, words) for start, words in told.items() if error.startswith(start) and words in error]
            expect(bool(said) and 64 <= len(set(numbers)) == len(numbers), f"{len(numbers)} images; {error}")
            ((start, words),) = said
            seen.append(f"processes={processes}: {len(numbers)} images, then {start.partition(':')[0]}: {words}")
        return "; ".join(seen)

    def check_growth(self, url: str, name: str) -> str:
        """While the mount is stale it has the old version, or an error; then the new one. Never something between."""
        with self.mounted(bucket(url, name), name, "--dir-cache-time", "1h") as pid:
            self.tpufeed("verify", FLOWERS)
            self.tpufeed("append", "/more", f"gs://{name}/flowers", url=url)
            numbers, error = self.epoch(FLOWERS, 1)
            is_told = error.startswith(("StoreError: ", "ShardError: ", "LoaderError: "))
            expect(is_told or numbers == list(range(PHOTOS)), f"{len(numbers)} images; {error}")
            said = self.tpufeed("verify", FLOWERS, expected=None)
            expect(said.startswith(("error: ", f"sound: {PHOTOS} records")), said)
            os.kill(pid, signal.SIGHUP)  # rclone forgets its listings
            time.sleep(2)
            self.check_sound(PHOTOS + MORE)
        return f"while it is stale: {error or len(numbers)}; verify: {said}; then {PHOTOS + MORE} images"

    def check_second_epoch(self, remote: str, server: subprocess.Popen[str]) -> str:
        with self.mounted(remote, "full"):
            self.check_sound()
            server.kill()
            self.check_epoch(FLOWERS, 1)
        return f"{PHOTOS} images, each once, after the server was stopped"

    def check_warmup(self, remote: str) -> str:
        shutil.rmtree(self.debian.root / "cache", ignore_errors=True)
        with self.mounted(remote, "off"):
            self.tpufeed("cache", "warmup", FLOWERS, "/cache", "--op", "Resize((80, 80))")
        self.check_epoch("/cache", 1)
        return self.tpufeed("verify", "/cache")

    def check_copied(self) -> str:
        """Until it is uploaded, a file's mtime by its name may differ from that of the open file: that is said."""
        with self.mounted("/folder", "full"):
            self.debian.call(["cp", "-r", FLOWERS, f"{MOUNT}/copied"])
            at_once = self.tpufeed("verify", f"{MOUNT}/copied", expected=None)
            is_told = "its mtime differs" in at_once and f"the mount {MOUNT} (fuse.rclone) may still" in at_once
            expect(is_told or at_once.startswith("sound: "), at_once)
            time.sleep(8)
            said = self.tpufeed("verify", f"{MOUNT}/copied")
            expect(said.startswith("sound: "), said)
        return f"at once: {at_once}; 8 s later: {said}"

    def check_without_mtimes(self) -> str:
        with self.mounted("/folder", "off", "--no-modtime"):
            times = set(self.debian.call(f"stat -c %Y {FLOWERS}/*.json {FLOWERS}/*.npy").split())
            expect(len(times) == 1, f"{len(times)} mtimes")
            return self.check_sound()
