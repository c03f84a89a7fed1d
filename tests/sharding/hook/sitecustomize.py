"""Faults at exact moments in the command under test and in each of its workers, which import this as they start.

A test copies it to a folder of its own on PYTHONPATH, with orders.json beside it. Python's audit events come just
before the call that they name, and nothing of tpufeed is replaced.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
ORDERS = json.loads((HERE / "orders.json").read_text())
PATH_OF = {"open": 0, "os.link": 1, "os.rename": 1, "os.remove": 0, "os.mkdir": 0, "os.rmdir": 0, "subprocess.Popen": 0}
PLACE = "worker" if "tpufeed.processes.child_main" in sys.orig_argv else "launcher"
_busy = threading.local()


def count(name):
    """One more in the file `name`, by whichever process; returns how many there are now."""
    with (HERE / name).open("ab", buffering=0) as file:
        file.write(b"x")
        return file.tell()


def kill_group():
    """kill -9 of the command with all its workers."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def kill_self():
    """What the OOM killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_encoding(number):
    """Die as the plan's line `number` is written."""
    import msgspec

    encode, lines = msgspec.json.encode, iter(range(number))
    msgspec.json.encode = lambda line: encode(line) if next(lines, None) is not None else kill_group()


def meet(name, others=1):
    """Wait until as many others are here as well."""
    count(f"{name}.here")
    due = time.monotonic() + 60
    while (HERE / f"{name}.here").stat().st_size <= others and time.monotonic() < due:
        time.sleep(0.001)
    if (HERE / f"{name}.here").stat().st_size > others:
        count(f"{name}.met")


def fill(folder):
    """Leave no byte free where `folder` is."""
    with Path(folder, "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                pass


def check_manifest(folder):
    """Count a violation where a manifest names what is not there, whole."""
    try:
        manifest = json.loads(Path(folder, "manifest.json").read_bytes())
    except FileNotFoundError:
        return
    for split in manifest["splits"].values():
        for variant in split["variants"]:
            for file in [*variant["shards"], variant["index"]]:
                path = Path(folder, file["name"])
                if not path.exists() or path.stat().st_size != file["bytes"]:
                    count("violations")


def watch(event, args):
    """The audit hook."""
    if event not in PATH_OF or getattr(_busy, "now", False):
        return
    path = args[PATH_OF[event]]
    if not isinstance(path, (str, os.PathLike)):
        return
    _busy.now = True
    try:
        for number, order in enumerate(ORDERS):
            if not re.search(order["event"], event) or order["place"] not in (PLACE, "any"):
                continue
            if not re.search(order["match"], os.fspath(path)):
                continue
            seen = count(f"{number}.seen")
            if order["nth"] in (seen, 0):
                count(f"{number}.fired")
                exec(order["do"], globals() | {"path": os.fspath(path), "event": event})
    finally:
        _busy.now = False


sys.addaudithook(watch)
