"""A virtual machine: Debian's kernel in QEMU over the files of a chroot, and a program in it that tells what it saw."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chroot import SHARED, Chroot, debian, version
from platform_run import ROOT, CheckError, Platform, call

PACKAGES = (
    *("linux-image-amd64", "qemu-system-x86", "kmod", "iproute2", "numactl", "zstd"),
    *("nfs-kernel-server", "nfs-common", "e2fsprogs"),
)
PROGRAMS = Path(__file__).parent / "programs"
PHOTOS = 240
_KERNEL_OPTIONS = (
    "root=rootfs rootfstype=9p rootflags=trans=virtio,version=9p2000.L,msize=262144,cache=loose rw "
    f"init={SHARED}/vm_init.sh console=ttyS0 panic=5 mitigations=off"
)
_END_LINES = 30


class Machine:
    """A virtual machine that runs, and the facts that its job tells over a serial port, a line of JSON each."""

    def __init__(self, process: "subprocess.Popen[bytes]", shared: Path) -> None:
        self._process, self._console, self._facts = process, shared / "console", shared / "facts"

    def fact(self, name: str, seconds: float) -> Any:
        """Wait for a fact. Raises CheckError with the end of the console if it does not come, or says an error."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self._process.poll() is not None or time.monotonic() > deadline
            for line in self._facts.read_text().split("\n")[:-1] if self._facts.exists() else []:
                told = json.loads(line)
                if told["name"] == name:
                    if "error" in told:
                        raise CheckError(f"the job failed: {told['error']}")
                    return told["fact"]
            if ended:
                end = "\n".join(self._console.read_text(errors="replace").splitlines()[-_END_LINES:])
                how = "ended" if self._process.poll() is not None else f"took more than {seconds:.0f} s"
                raise CheckError(f"the virtual machine {how} before it told this\n{end}")
            time.sleep(1)


@contextmanager
def installed(platform: Platform) -> Iterator[Chroot]:
    """Make a Debian with a kernel, QEMU and tpufeed in /venv; its folder /shared has photographs and the programs."""
    shared = platform.work / "shared"
    shared.mkdir(exist_ok=True)
    with debian("trixie", platform.work / "debian", shared, PACKAGES) as chroot:
        settings = chroot.root / "etc/initramfs-tools"
        if not (settings / "conf.d/few").exists():  # a small one, with what leads to the root's file system
            (settings / "modules").write_text("9p\n9pnet_virtio\nvirtio_pci\n")
            (settings / "conf.d/few").write_text("MODULES=list\n")
            chroot.call(["update-initramfs", "-u"])
        shutil.rmtree(chroot.root / "venv", ignore_errors=True)
        chroot.venv("/venv", [chroot.copy(platform.wheel, f"/var/tmp/{platform.wheel.name}")])
        photos = ("--count", PHOTOS, "--size", "200x150")  # small, as all is slow there
        call([sys.executable, ROOT / "scripts/make_photos.py", shared / "photos", *photos], 300)
        for program in PROGRAMS.iterdir():
            if program.name.startswith(("vm_", f"{platform.name}_")):
                shutil.copy(program, shared)
        kernel = next((chroot.root / "boot").glob("vmlinuz-*")).name.partition("-")[2]
        platform.about = f"{version(chroot)}, Linux {kernel} in QEMU"
        yield chroot


@contextmanager
def machine(chroot: Chroot, job: str, *options: object, memory_mb: int = 3072) -> Iterator[Machine]:
    """Start the virtual machine with a job, a file of programs/, and end it in any case.

    Args:
        chroot: what `installed` gives; it is the root of the machine, too.
        job: name of the Python program.
        options: further ones of QEMU.
        memory_mb: memory of the machine.
    """
    for name in ("facts", "console"):
        (chroot.shared / name).unlink(missing_ok=True)
    (chroot.shared / "job").write_text(job)
    kernel, initrd = (f"/boot/{next((chroot.root / 'boot').glob(name)).name}" for name in ("vmlinuz-*", "initrd.img-*"))
    # A machine within a machine may have a /dev/kvm that fails in the middle of the boot.
    has_kvm = re.search(r"\b(vmx|svm)\b", Path("/proc/cpuinfo").read_text()) is not None
    command: Sequence[object] = [
        *("qemu-system-x86_64", *("-accel", "kvm") * has_kvm, "-accel", "tcg,thread=multi", "-cpu", "max"),
        *("-m", memory_mb),
        *("-kernel", kernel, "-initrd", initrd, "-append", _KERNEL_OPTIONS),
        *("-fsdev", "local,id=root,path=/,security_model=none,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=root,mount_tag=rootfs"),
        *("-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none"),
        *("-serial", f"file:{SHARED}/console", "-serial", f"file:{SHARED}/facts"),
        *options,
    ]
    with (chroot.shared / "qemu").open("wb") as said:
        process = chroot.start(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
    try:
        yield Machine(process, chroot.shared)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()
