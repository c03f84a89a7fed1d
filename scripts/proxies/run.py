"""Tries tpufeed on platforms that this machine can stand in for: see scripts/platforms."""

import argparse
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import chroot
from matrix import build
from platform_run import CheckError, MissingError, Platform, expect

from tpufeed.measure.machine import machine

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/platforms.json"
WORK = Path("/var/tmp/tpufeed-platforms")


class Proxy(NamedTuple):
    """A platform's file here, whose `run` takes a Platform, and what it stands in for."""

    module: str
    stands_for: str


PROXIES = {
    "python3.12": Proxy("pythons", "Python 3.12"),
    "python3.13": Proxy("pythons", "Python 3.13: Debian 13"),
    "python3.14": Proxy("pythons", "Python 3.14: Debian's unstable release"),
    "arm64": Proxy("arm64", "a host with Arm processors: qemu"),
    "slurm": Proxy("slurm", "a cluster under Slurm: real daemons of two nodes on one machine"),
    "rclone": Proxy("fuse", "object storage mounted as a file system: rclone, like gcsfuse"),
    "nfs": Proxy("nfs", "NFS and Filestore: a kernel in qemu that serves and mounts it"),
    "numa": Proxy("numa", "a host of two NUMA nodes: a kernel in qemu"),
    "lowmem": Proxy("limits", "a small host or container: 2 GB of memory"),
    "fulldisk": Proxy("limits", "a disk that runs full"),
    "tpu-compiler": Proxy("tpu_compiler", "four TPUs: their own compiler, which runs without one"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is ended, unmounted and removed
    if not options.names:
        print("\n".join(f"{name:<12} {proxy.stands_for}" for name, proxy in PROXIES.items()))
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    folder = options.wheels or build(options.work / f"dist-{time.time_ns()}")[0].parent
    failed = False
    try:
        for name in options.names:
            platform = Platform(name, options.work / f"{name}-work", *find(folder, name))
            failed |= not run(platform, options.keep)
            if options.save:
                save(platform)
    finally:
        if not options.wheels:
            shutil.rmtree(folder)
    return int(failed)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/platforms", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(PROXIES))
    parser.add_argument("--keep", action="store_true", help="leave what was set up, for the next run")
    parser.add_argument("--work", type=Path, default=WORK, metavar="FOLDER", help=f"on a disk; {WORK} by default")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="of scripts/wheels, instead of new ones")
    parser.add_argument("--save", action="store_true", help=f"put the rows into {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in PROXIES]
    if unknown:
        parser.error(f"there is no platform {', '.join(unknown)}; there are {', '.join(PROXIES)}")
    return options


def find(folder: Path, name: str) -> tuple[Path, Path]:
    """The wheel for the platform's processor, or for this machine's if there is none, and the sdist."""
    own, arm = (list(folder.glob(f"tpufeed-*_{machine}.whl")) for machine in (os.uname().machine, "aarch64"))
    wheels, sdists = (arm if name == "arm64" and arm else own), list(folder.glob("tpufeed-*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        sys.exit(f"scripts/platforms: {folder} has {len(wheels)} wheels for {name} and {len(sdists)} sdists, not one")
    return wheels[0], sdists[0]


def run(platform: Platform, keep: bool) -> bool:
    """Run one platform. True where nothing failed."""
    platform.work.mkdir(parents=True, exist_ok=True)

    def whole() -> str:
        try:
            importlib.import_module(PROXIES[platform.name].module).run(platform)
        except (CheckError, MissingError):
            raise
        except Exception as error:  # a fault of the platform's own program is its result, too
            raise CheckError(f"{platform.about}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error
        expect(all(row.result != "FAILED" for row in platform.rows), platform.about)
        return platform.about

    try:
        platform.check("all of it", whole)
    finally:
        if not keep:
            chroot.remove(platform.work)
    return all(row.result != "FAILED" for row in platform.rows)


def save(platform: Platform) -> None:
    """Put the platform's rows into the results, in place of those of an earlier run."""
    before = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = [row for row in before if row["platform"] != platform.name] + [asdict(row) for row in platform.rows]
    result = {"machine": machine(), "command": "scripts/platforms --save NAME ...", "about": {}, "rows": rows}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
