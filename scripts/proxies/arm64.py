"""64-bit Arm: Debian's arm64 under qemu, which runs each of its programs here, some 20 times as slowly."""

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
from artifacts import BUILD, EXTENSION, read_wheel, unpack
from available import choosing
from chroot import SHARED, Chroot, debian, version
from matrix import TEST_TOOLS, variables
from platform_run import ROOT, MissingError, Platform, call, expect, need
from pythons import IMPOSSIBLE

BINFMT = Path("/proc/sys/fs/binfmt_misc")
PACKAGES = ("gcc", "libc6-dev", "python3-dev")
AARCH64 = 183  # e_machine of ELF
VENV = "/var/tmp/venv"
PYTHON = "3.13"  # of trixie
BACKEND = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
DOWNLOADED = ("--no-index", "--find-links", SHARED)
# With this machine's versions, what differs is the processor's doing.
PINNED = ("numpy", "pillow", "simplejpeg", "opencv-python-headless")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PHOTOS = 60
TESTS = {
    "tests/tfrecord": ["-n2"],
    "tests/images": ["-n2", *(f"--deselect=tests/{name}" for name in IMPOSSIBLE)],
    "tests/stream/test_workers.py": [],
}
# Where OpenCV rounds in another way on Arm, by a part of an op's name: levels apart, and the part of all values. A hue
# that is 1 of 256 steps apart moves a level by 1; with contrast on top it can be 2. Sharpness blends by addWeighted,
# whose sums are NumPy's float32 on Arm, and not quite on x86-64: what lies near a half goes up or down.
APART = {"cropped": (1, 1.0), "Resize": (1, 1.0), "ColorJitter": (2, 0.001), "sharpness": (1, 0.015)}
# Each command may take an hour, each test half of it: no check is of the time that emulation takes.
SECONDS, TEST_SECONDS = 3600, 1800


@contextmanager
def arm64(work: Path) -> Iterator[Chroot]:
    """Make a Debian for Arm in `work`/debian, whose /shared is `work`/shared, with an empty environment at VENV.

    It is removed like any other `debian`.

    Raises:
        MissingError: no root, no mmdebstrap, no qemu for Arm.
    """
    need("qemu-aarch64-static", "qemu-user-static binfmt-support")
    if not (BINFMT / "status").exists():
        raise MissingError(f"{BINFMT} is not mounted: mount -t binfmt_misc binfmt_misc {BINFMT}")
    emulator = BINFMT / "qemu-aarch64"
    # F: the kernel holds the emulator open, so that a chroot need not have it.
    if not emulator.exists() or "F" not in emulator.read_text().partition("flags:")[2].partition("\n")[0]:
        raise MissingError("the kernel does not run Arm's programs: apt-get install qemu-user-static binfmt-support")
    shared = work / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    with debian("trixie", work / "debian", shared, PACKAGES, "arm64") as arm:
        shutil.rmtree(arm.root / VENV.lstrip("/"), ignore_errors=True)
        arm.venv(VENV)
        yield arm


def build_wheel(arm: Chroot, sdist: Path) -> Path:
    """Build the aarch64 wheel within from the sdist; return its path on this machine."""
    shutil.rmtree(arm.root / "var/tmp/dist", ignore_errors=True)
    given = arm.copy(sdist, f"/var/tmp/{sdist.name}")
    download(arm, *BACKEND)
    command = [f"{VENV}/bin/pip", "wheel", "-q", "--no-deps", "-w", "/var/tmp/dist", *DOWNLOADED, given]
    arm.call(command, SECONDS, BUILD)
    (wheel,) = (arm.root / "var/tmp/dist").glob("*.whl")
    return wheel


def download(arm: Chroot, *arguments: object) -> None:
    """Download wheels for Arm by this machine's processor: under qemu a server may not wait for pip's handshake."""
    options = choosing(PYTHON, "aarch64")
    call([sys.executable, "-m", "pip", "download", "-q", "-d", arm.shared, *options, *arguments], SECONDS)


def install(arm: Chroot, *requirements: object) -> None:
    """Install wheels into the environment at VENV."""
    download(arm, *requirements)
    given = [arm.copy(each, f"/var/tmp/{each.name}") if isinstance(each, Path) else each for each in requirements]
    command = [f"{VENV}/bin/pip", "install", "-q", "--no-compile", "--only-binary=:all:", *DOWNLOADED, *given]
    arm.call(command, SECONDS)
    arm.call([f"{VENV}/bin/pip", "check"], SECONDS)


def run(platform: Platform) -> None:
    with arm64(platform.work) as arm:
        emulator = call(["qemu-aarch64-static", "--version"], 30).split()[2]
        platform.about = f"{version(arm)}, arm64, under qemu {emulator}"
        source = prepare(platform, arm)
        if not platform.check("the wheel", partial(check_wheel, platform, arm)):
            return
        platform.check("smoke: none", partial(smoke, arm, source))
        platform.check("gs:// at the tests' server", partial(smoke_gcs, arm, source))
        compare = Comparison(arm, source)
        if platform.check("kept JPEGs: the same shards as x86-64", compare.shards):
            platform.check("a raw cache: the same batches as x86-64", compare.batches)
            platform.check("a state of x86-64: the same samples follow", compare.samples)
            platform.check("pixels: the same but for what OpenCV rounds in another way", compare.pixels)
        for path, options in TESTS.items():
            platform.check(path, partial(test, arm, source, path, options))


def prepare(platform: Platform, arm: Chroot) -> str:
    """Unpack the sdist without the package, as the wheel's is to be tested; return where, within."""
    folder = arm.shared / "source"
    shutil.rmtree(folder, ignore_errors=True)
    tree = unpack(platform.sdist, folder)
    shutil.rmtree(tree / "tpufeed")
    return f"{SHARED}/source/{tree.name}"


def check_wheel(platform: Platform, arm: Chroot) -> str:
    """Install the wheel of scripts/wheels, or one that is built from the sdist; its extension is Arm's."""
    given = "aarch64" in platform.wheel.name
    wheel = platform.wheel if given else build_wheel(arm, platform.sdist)
    expect("-cp311-abi3-" in wheel.name and wheel.name.endswith("_aarch64.whl"), f"{wheel.name}: no wheel for Arm")
    found = read_wheel(wheel)
    if not given:
        other = read_wheel(platform.wheel)
        differ = {name for name in found.keys() | other.keys() if found.get(name) != other.get(name)}
        differ = {name for name in differ if not name.endswith(("/WHEEL", "/RECORD"))}
        expect(differ == {EXTENSION}, f"{wheel.name} and {platform.wheel.name} differ in {sorted(differ)}")
    machine = int.from_bytes(found[EXTENSION][18:20], "little")
    expect(machine == AARCH64, f"{EXTENSION} is for the processor {machine} of ELF, not {AARCH64}")
    pins = [f"{name}=={metadata.version(name)}" for name in PINNED]
    install(arm, wheel, *pins, *TEST_TOOLS, "pytest-xdist")
    return f"{wheel.name}, {wheel.stat().st_size / 1000:,.0f} kB; installed with {', '.join(pins)}"


def smoke(arm: Chroot, source: str) -> str:
    program = f"{source}/scripts/packaging/smoke.py"
    arm.call([f"{VENV}/bin/python", "-I", program, "none", empty(arm, "smoke")], SECONDS)
    return "shard, cache warmup, verify, info, loaders with worker processes, restart markers; each extra is named"


def smoke_gcs(arm: Chroot, source: str) -> str:
    """What the smoke of `gcs` adds; the server runs on this machine's own processor."""
    install(arm, *EXTRAS["gcs"])
    steps = f"import sys; from pathlib import Path; sys.path.insert(0, '{source}/scripts/packaging'); import smoke"
    steps += "; folder = Path(sys.argv[1]); smoke.make_photos(folder / 'photos'); smoke.check_gcs(folder)"
    with variables("gcs") as environment:
        arm.call([f"{VENV}/bin/python", "-I", "-c", steps, empty(arm, "smoke-gcs")], SECONDS, environment)
    return "a build, verify, an epoch, an access that is refused"


def empty(arm: Chroot, name: str) -> str:
    """An empty folder within."""
    folder = arm.root / "var/tmp" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return f"/var/tmp/{name}"


class Comparison:
    """What both processors make of the same photographs; `shards` comes first and runs the program on both."""

    def __init__(self, arm: Chroot, source: str) -> None:
        self._arm, self._source = arm, source
        self._folder = arm.shared / "equal"

    def shards(self) -> str:
        shutil.rmtree(self._folder, ignore_errors=True)
        python, program = ROOT / ".venv/bin/python", "scripts/proxies/programs/arm_equal.py"
        photos = [self._folder / "photos", "--count", PHOTOS, "--size", "160x120", "--classes", 3]
        call([python, ROOT / "scripts/make_photos.py", *photos], 300)
        call([python, ROOT / program, self._folder, "x86-64"], 600, environment=os.environ | {"PYTHONPATH": str(ROOT)})
        command = [f"{VENV}/bin/python", f"{self._source}/{program}", f"{SHARED}/equal", "arm64"]
        self._arm.call(command, SECONDS, {"PYTHONPATH": self._source})
        names = self._same("shards")
        expect(len(names) == 5, f"4 shards of train and 1 of val were to be compared, not {sorted(names)}")
        return f"{len(names)} shards of {PHOTOS} photographs have the same SHA-256"

    def batches(self) -> str:
        found = self._same("batches")
        alone, processes = found["processes=0"], found["processes=2"]
        expect(alone == processes, "worker processes give other batches than threads do")
        return f"{len(alone)} batches of an epoch have the same SHA-256, by threads and by 2 processes"

    def samples(self) -> str:
        samples = self._same("samples")
        expect(len(samples) == len(set(samples)) > 0, f"the rest of an epoch is not each sample once: {samples}")
        return f"{len(samples)} samples up to the end of the epoch"

    def pixels(self) -> str:
        """Every op's values are the same on Arm, but for APART."""
        seen, wrong = [], []
        ours, theirs = (np.load(self._folder / f"{name}.npz") for name in ("x86-64", "arm64"))
        expect(ours.files == theirs.files and len(ours.files) > 20, f"not the same ops: {ours.files} {theirs.files}")
        for name in ours.files:
            apart = np.abs(ours[name].astype(int) - theirs[name])
            part = (apart > 0).mean()
            if part:
                seen.append(f"{name.partition('(')[0]}: {part:.2%}")
            levels, most = next((limits for word, limits in APART.items() if word in name), (0, 0.0))
            if apart.max() > levels or part > most:
                wrong.append(f"{name}: {apart.max()} levels, {part:.2%}")
        expect(not wrong, f"too far apart: {'; '.join(wrong)}")
        return f"of {len(ours.files)} the same to the bit but for {'; '.join(seen) or 'none'} of the values"

    def _same(self, what: str):  # type: ignore[no-untyped-def]
        ours, theirs = (json.loads((self._folder / f"{name}.json").read_text())[what] for name in ("x86-64", "arm64"))
        expect(ours == theirs, f"{what} differ: {ours} on x86-64, {theirs} on Arm")
        return ours


def test(arm: Chroot, source: str, path: str, options: list[str]) -> str:
    """Tests of the sdist against the installed wheel; what needs a framework is skipped. Raises CheckError."""
    command = f"cd {source} && {VENV}/bin/python -m pytest -p no:cacheprovider -q -m 'not long'"
    command += f" --timeout {TEST_SECONDS} {' '.join(options)} {path}"
    said = arm.call(command, SECONDS)
    last = said.strip().splitlines()[-1].strip("= ")
    expect(" passed" in last, last)
    return last
