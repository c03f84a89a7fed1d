"""A Debian of another release or another processor, below a folder, and programs that run in it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from platform_run import CheckError, MissingError, call, need

SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
MAKE_SECONDS = 3600  # under qemu, and on a machine that is busy
SHARED = "/shared"  # within a chroot, the platform's folder
# An empty environment but for these: what a new user's shell has, and what leads pip to packages.
VARIABLES = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "xterm",
    "TMPDIR": "/var/tmp",
    "PIP_CACHE_DIR": "/pip-cache",
}
_SKIPPED = tuple(f"path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale"))


class Chroot:
    """Programs of a Debian below a folder.

    Attributes:
        root: the folder.
        shared: the platform's folder, which is /shared within.
    """

    def __init__(self, root: Path, shared: Path) -> None:
        self.root, self.shared = root, shared

    def command(self, command: str | Sequence[object]) -> list[str]:
        """A command line of this machine that runs the command, or the line of bash, within."""
        words = ["bash", "-c", command] if isinstance(command, str) else list(map(str, command))
        return [need("chroot", "coreutils"), str(self.root), *words]

    def call(
        self,
        command: str | Sequence[object],
        seconds: float = 300,
        environment: Mapping[str, str] | None = None,
        expected: int | None = 0,
    ) -> str:
        """What it prints, like `platform_run.call`. A line of bash has `-c` and no `-e`."""
        return call(self.command(command), seconds, environment=self.environment(environment), expected=expected)

    def start(self, command: str | Sequence[object], environment: Mapping[str, str] | None = None, **options: Any):  # type: ignore[no-untyped-def]
        """The command as a subprocess.Popen in a session of its own, whose options follow."""
        return subprocess.Popen(
            self.command(command), env=self.environment(environment), start_new_session=True, **options
        )

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        return pip | VARIABLES | dict(more or {})

    def venv(self, path: str, requirements: Sequence[object] = (), seconds: float = 1200, system: bool = False) -> str:
        """Make a virtual environment within, install wheels only, and return its path. `system` shows Debian's."""
        self.call(["python3", "-m", "venv", *["--system-site-packages"] * system, path], seconds)
        if requirements:
            self.call([f"{path}/bin/pip", "install", "-q", "--only-binary=:all:", *requirements], seconds)
        return path

    def copy(self, source: Path, to: str) -> str:
        """Copy a file or folder of this machine to a path within, and return that."""
        target = self.root / to.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
        else:
            shutil.copy(source, target)
        return to


@contextmanager
def debian(
    suite: str, folder: Path, shared: Path, packages: Sequence[str] = (), architecture: str | None = None
) -> Iterator[Chroot]:
    """Make a Debian of a suite, and remove it at the end, with whatever still runs in it.

    The folder is used as it is where it has one already (`--keep` leaves it).

    Args:
        suite: "trixie", "forky" or "sid".
        folder: where it will be.
        shared: a folder of this machine that is /shared within.
        packages: of Debian, beside Python, its venv and certificates.
        architecture: like "arm64"; this machine's by default.

    Raises:
        MissingError: no root, no mmdebstrap, no Debian to take packages from.
    """
    if os.geteuid():
        raise MissingError("this needs root: it makes and mounts a Debian below a folder")
    if not (folder / "etc/debian_version").exists():
        _make(suite, folder, packages, architecture)
    with ExitStack() as mounts:
        _mount(folder, shared, mounts)
        chroot = Chroot(folder, shared)
        try:
            yield chroot
        finally:
            _kill_within(folder)


def remove(folder: Path) -> None:
    """Remove a Debian's folder. Raises CheckError while something is mounted below it."""
    below = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    if any(Path(mount).is_relative_to(folder) for mount in below):
        raise CheckError(f"{folder} is not removed: something is mounted below it")
    shutil.rmtree(folder, ignore_errors=True)


def version(chroot: Chroot) -> str:
    """Like "Debian 13.8, Python 3.13.5"."""
    release = (chroot.root / "etc/debian_version").read_text().strip()
    return f"Debian {release}, {chroot.call(['python3', '--version']).strip()}"


def _make(suite: str, folder: Path, packages: Sequence[str], architecture: str | None) -> None:
    program = need("mmdebstrap", "mmdebstrap")
    include = ["python3", "python3-venv", "ca-certificates", "procps", *packages]
    command = [program, "--variant=minbase", "--mode=root", f"--include={','.join(include)}"]
    # The mirror of an unstable suite may be older than its own deadline; signatures are checked all the same.
    command += ["--aptopt=Acquire::Check-Valid-Until false", "--aptopt=Acquire::Retries 3"]
    command += [f"--dpkgopt={each}" for each in _SKIPPED]
    command += [f"--architectures={architecture}"] if architecture else []
    folder.parent.mkdir(parents=True, exist_ok=True)
    call([*command, suite, folder, _mirror()], MAKE_SECONDS)


def _mirror() -> str:
    for path in SOURCES:
        text = path.read_text() if path.exists() else ""
        found = re.search(r"^(?:URIs: |deb )(?:\[.*?\] )?(\S+)", text, re.MULTILINE)
        if found:
            return found[1]
    raise MissingError(f"no Debian mirror in {' or '.join(map(str, SOURCES))}: this needs a Debian")


def _mount(root: Path, shared: Path, mounts: ExitStack) -> None:
    """Mount what programs expect, and undo it when the stack closes."""
    shutil.copy(CERTIFICATES, root / str(CERTIFICATES).lstrip("/"))
    for name in ("/etc/resolv.conf", "/etc/hosts"):
        shutil.copy(Path(name).resolve(), root / name.lstrip("/"))
    cache = Path.home() / ".cache/pip"
    cache.mkdir(parents=True, exist_ok=True)
    wanted = [
        (["-t", "proc", "proc"], "/proc"),
        (["--rbind", "/sys"], "/sys"),
        (["--bind", "/dev"], "/dev"),
        (["--bind", "/dev/pts"], "/dev/pts"),
        (["-t", "tmpfs", "-o", "size=4g", "tmpfs"], "/dev/shm"),
        (["--bind", str(cache)], "/pip-cache"),
        (["--bind", str(shared)], SHARED),
        *((["--bind", "-o", "ro", name], name) for name in _of_pip(root)),
    ]
    for options, name in wanted:
        target = root / name.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        call(["mount", *options, target], 30)
        call(["mount", "--make-rslave", target], 30)
        mounts.callback(call, ["umount", "-R", "-l", target], 30, expected=None)


def _of_pip(root: Path) -> list[str]:
    """Copy this machine's pip settings, and return the folders of packages that they name."""
    for name in ("/etc/pip.conf", "/etc/xdg/pip"):
        source, target = Path(name), root / name.lstrip("/")
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, target)
    settings = call(["python3", "-m", "pip", "config", "list"], 60)
    return sorted({found for found in re.findall(r"(?<![\w.])/[\w./-]+", settings) if Path(found).is_dir()})


def _kill_within(root: Path) -> None:
    """Kill every process whose root is the folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "root").resolve() == root.resolve():
                os.kill(int(entry.name), 9)
        except OSError:
            continue
