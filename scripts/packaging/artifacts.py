"""What is in the wheel and the sdist, against the tree that they were built from."""

import gzip
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What building and testing from an sdist takes, and what tells of it.
NEEDED = (
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "PKG-INFO"),
    *("tests/conftest.py", "tests/gcs_server/__main__.py", "tests/measure/torch_xla_cpu.xplane.pb"),
    *("setup.py", "tpufeed/images/_restart.c", "tpufeed/images/_coefficients.h", "tpufeed/images/_blocks.h"),
    "tests/images/restart_fuzz.c",
    *("scripts/test", "scripts/package-matrix", "scripts/make_photos.py", "benchmarks/harness.py", "docs/format.md"),
)
SAME_TIMES = {"SOURCE_DATE_EPOCH": "1767225600"}  # in the wheel: without them two builds would differ
# The Python that builds may link its own folder into the extension; with this linker it does not.
BUILD = SAME_TIMES | {"LDSHARED": "gcc -shared"}
EXTENSION = "tpufeed/images/_restart.abi3.so"
WHEEL_BYTES, SDIST_BYTES = 2_000_000, 4_000_000
MANYLINUX = "manylinux2014_{machine}.manylinux_2_17_{machine}"  # the oldest for which the extension's symbols hold
_FOLDERS = re.compile(rb"/[\w.@+-]{2,}/[\w./@+-]{2,}")  # in the extension any folder is the builder's
_BUILDERS = re.compile(rb"(?<![\w.-])/(?:home|mnt|opt|root|tmp|usr|var|work)/[\w./@+-]*")


class ArtifactError(Exception):
    """Wheel or sdist are not what they should be; the message says in what."""


def check_artifacts(wheel: Path, sdist: Path, folder: Path) -> Iterator[str]:
    """Yields what was found. Raises ArtifactError."""
    check_tag(wheel, platform())
    yield check_wheel(wheel)
    yield check_metadata(wheel)
    yield check_sdist(sdist)
    yield check_same(wheel, sdist, folder)


def check_wheel(wheel: Path) -> str:
    """All of the package and nothing else."""
    names = set(read_wheel(wheel))
    expected = {f"tpufeed/{path.relative_to(ROOT / 'tpufeed')}" for path in (ROOT / "tpufeed").rglob("*.py")}
    expected |= {"tpufeed/py.typed", EXTENSION}
    found = {name for name in names if ".dist-info/" not in name}
    if found != expected:
        missing, beside = sorted(expected - found), sorted(found - expected)
        raise ArtifactError(f"{wheel.name} lacks {missing} and has {beside} that are not the package's")
    return f"{wheel.name}: {len(found)} files, {_kilobytes(wheel, WHEEL_BYTES)}"


def check_tag(wheel: Path, platforms: str) -> str:
    """One wheel for all Pythons from 3.11 on, and for these platforms: by its name and by what stands inside."""
    tag = f"cp311-abi3-{platforms}"
    if not wheel.name.endswith(f"-{tag}.whl"):
        raise ArtifactError(f"{wheel.name} is not one wheel for all Pythons from 3.11 on and {platforms}")
    inside = read_info(read_wheel(wheel), "WHEEL").get_all("Tag", [])
    expected = sorted(f"cp311-abi3-{each}" for each in platforms.split("."))
    if sorted(inside) != expected:
        raise ArtifactError(f"{wheel.name} says inside that its tags are {inside}; expected were {expected}")
    return tag


def check_paths(wheel: Path) -> str:
    """No folder of the machine that built it: in the extension, or in what is said of the wheel."""
    files = read_wheel(wheel)
    if EXTENSION not in files:
        raise ArtifactError(f"{wheel.name} lacks {EXTENSION}: was there no C compiler?")
    (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    said = {name: text for name, text in files.items() if name.startswith(info)}
    said[f"{info}/METADATA"] = said[f"{info}/METADATA"].partition(b"\n\n")[0]  # below stands README.md
    found = {EXTENSION: _FOLDERS.findall(files[EXTENSION])}
    found |= {name: _BUILDERS.findall(text) for name, text in said.items()}
    stray = {name: sorted({path.decode() for path in paths}) for name, paths in found.items() if paths}
    if stray:
        raise ArtifactError(f"{wheel.name} names folders of the machine that built it: {stray}")
    return f"no folder of the builder in {len(found)} files"


def check_metadata(wheel: Path) -> str:
    """The licence, the entry point, README as Markdown, each extra."""
    files = read_wheel(wheel)
    (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    metadata = read_info(files, "METADATA")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = {
        "Name": "tpufeed",
        "License-Expression": project["license"],
        "Requires-Python": ",".join(sorted(project["requires-python"].split(","))),  # as setuptools writes it
        "Description-Content-Type": "text/markdown",
    }
    differ = {name: metadata[name] for name, value in expected.items() if metadata[name] != value}
    if differ:
        raise ArtifactError(f"{wheel.name}: its metadata has {differ}; expected was {expected}")
    extras = set(metadata.get_all("Provides-Extra", []))
    if extras != set(project["optional-dependencies"]):
        raise ArtifactError(f"{wheel.name}: its extras are {sorted(extras)}; expected were those of pyproject.toml")
    if metadata.get_payload().strip() != (ROOT / "README.md").read_text().strip():
        raise ArtifactError(f"{wheel.name}: its description is not README.md")
    if b"tpufeed = tpufeed.cli:main" not in files[f"{info}/entry_points.txt"]:
        raise ArtifactError(f"{wheel.name}: the command `tpufeed` is missing")
    if f"{info}/licenses/LICENSE" not in files:
        raise ArtifactError(f"{wheel.name}: LICENSE is missing")
    version = f"{metadata['Version']}, metadata {metadata['Metadata-Version']}"
    return f"tpufeed {version}: {len(extras)} extras, README as Markdown"


def check_sdist(sdist: Path) -> str:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = sorted(set(NEEDED) - names)
    stray = sorted(name for name in names if name.endswith(".pyc") or name.startswith((".venv", "build/", "dist/")))
    if missing or stray:
        raise ArtifactError(f"{sdist.name} lacks {missing} and has {stray[:5]}")
    return f"{sdist.name}: {len(names)} files, {_kilobytes(sdist, SDIST_BYTES)}"


def check_same(wheel: Path, sdist: Path, folder: Path) -> str:
    """The sdist gives the same wheel as the tree."""
    tree = unpack(sdist, folder / "source")
    command = [sys.executable, "-m", "build", "--installer", "uv", "--wheel", "--outdir", folder / "again", tree]
    environment = os.environ | SAME_TIMES
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise ArtifactError(f"{sdist.name} gives no wheel\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    (again,) = (folder / "again").glob("*.whl")
    if again.read_bytes() != wheel.read_bytes():
        first, second = read_wheel(wheel), read_wheel(again)
        differ = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        raise ArtifactError(f"the wheel built from {sdist.name} differs from the tree's in {differ or 'its framing'}")
    return f"the wheel built from {sdist.name} has the same bytes"


def repack(sdist: Path) -> None:
    """Write it anew with one time, one owner, one order and no umask: two builds have the same bytes then."""
    time, data = int(SAME_TIMES["SOURCE_DATE_EPOCH"]), io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, content)
    sdist.write_bytes(gzip.compress(data.getvalue(), mtime=time))


def read_wheel(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def read_info(files: dict[str, bytes], name: str) -> Message:
    """METADATA or WHEEL of a wheel's files."""
    (path,) = (path for path in files if path.endswith(f".dist-info/{name}"))
    return message_from_bytes(files[path])


def unpack(sdist: Path, folder: Path) -> Path:
    """The folder of the sdist's files."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def platform() -> str:
    """This machine, as wheels name it."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _kilobytes(path: Path, limit: int) -> str:
    size = path.stat().st_size
    if size > limit:
        raise ArtifactError(f"{path.name} has {size:,} bytes, more than {limit:,}: what has got into it?")
    return f"{size / 1000:,.0f} kB"
