"""Containers as Kubernetes runs them: the root is read-only, the user has no name and no HOME, /dev/shm has 64 MB.

Bubblewrap makes one of this machine's files. There is no cgroup in it: tests/processes/test_limits.py has those.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpufeed
from tests.gcs_server import GcsServer

ROOT = Path(__file__).parent.parent
SANDBOX = [
    *("bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--chdir", "/"),
    *("--perms", "1777", "--size", str(64 << 20), "--tmpfs", "/dev/shm", "--unshare-user", "--uid", "12345"),
    *("--gid", "12345", "--unsetenv", "HOME", "--unsetenv", "TMPDIR", "--unsetenv", "TPUFEED_LOCAL_DIR"),
]
READ = """
import glob, os, pwd, sys, time
try:
    pwd.getpwuid(os.getuid())
except KeyError:
    print("no name")
try:
    open("/new", "w")
except OSError as error:
    print(error.strerror)
import tpufeed
with tpufeed.Loader(sys.argv[1], batch_size=2, columns=["sample", "image"], processes=1) as loader:
    for _ in range(2):
        print("samples", sorted(int(sample) for samples, _ in loader for sample in samples))
    deadline = time.monotonic() + 60
    while not (copies := glob.glob("/tmp/tpufeed-copies-*/*.shard") + glob.glob("/dev/shm/tpufeed-copies-*/*.shard")):
        assert time.monotonic() < deadline, "nothing was copied"
        time.sleep(0.05)
print("copies in", os.path.dirname(copies[0]))
"""


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap() -> None:
    if shutil.which("bwrap") is None or subprocess.run([*SANDBOX, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no bubblewrap, or no right to make a user namespace")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, photo_files: list[Path]) -> Path:
    """`photos`, and `raw`, a cache of them."""
    folder = tmp_path_factory.mktemp("containers")
    (folder / "photos").mkdir()
    for path in photo_files[:4]:
        shutil.copy(path, folder / "photos")
    tpufeed.shard(folder / "photos", folder / "flowers", label="none", workers=1)
    tpufeed.cache.warmup(folder / "flowers", folder / "raw", ops=[tpufeed.images.Resize(size=(32, 32))], workers=1)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[GcsServer]:
    with GcsServer(process=True) as server:
        for path in (folder / "raw").rglob("*"):
            if path.is_file():
                server.put("bucket", f"raw/{path.relative_to(folder / 'raw')}", path.read_bytes())
        yield server


def run(words: list[str], *sandbox: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [*SANDBOX, *sandbox, "--", sys.executable, *words]
    environment = os.environ | variables | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(("sandbox", "place"), [([], "/dev/shm"), (["--tmpfs", "/tmp"], "/tmp")], ids=["no tmp", "tmp"])
def test_a_loader_keeps_copies_where_it_can_write(server: GcsServer, sandbox: list[str], place: str) -> None:
    if sandbox and str(ROOT).startswith("/tmp"):
        pytest.skip("the code is in /tmp, which the sandbox hides")
    done = run(["-c", READ, "gs://bucket/raw"], *sandbox, **server.environment())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["no name", "Read-only file system"]
    assert lines.count("samples [0, 1, 2, 3]") == 2
    assert lines[-1] == f"copies in {place}/tpufeed-copies-1-12345"


def test_a_build_without_a_folder_for_temporary_files_names_the_variable(folder: Path, tmp_path: Path) -> None:
    words = ["-m", "tpufeed", "shard", str(folder / "photos"), str(tmp_path / "d"), "--label", "none", "--workers", "1"]
    sandbox = ["--bind", str(tmp_path), str(tmp_path)]
    done = run(words, *sandbox)
    assert done.returncode != 0
    assert "Set TMPDIR to a writable folder" in done.stderr
    assert "Traceback" not in done.stderr
    done = run(words, *sandbox, "--setenv", "TMPDIR", "/dev/shm")
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("d/*.tfrecord"))) == 1
