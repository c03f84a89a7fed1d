"""Datasets that a stranger has prepared, and every command on each of them.

A step takes a copy of a small dataset, puts a link in the place of one of its files or folders, or forges a file, and
runs one command. Whatever it is: nothing outside the dataset is read, written or removed; it ends within bounds of
time and memory; and it ends well or with an error of tpufeed, never with a traceback.
"""

import copy
import io
import json
import os
import random
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tpufeed.builds.destination import Report, checksum
from tpufeed.cli.app import app
from tpufeed.engines.choice import SerialEngine
from tpufeed.errors import TpufeedError
from tpufeed.images import CenterCrop, Resize

MOST_SECONDS, MOST_BYTES = 20.0, 500 << 20
KINDS = ("grown", "begun", "cache", "adopted")
LINKS = ("file", "other file", "folder", "missing", "loop")
# Where nothing stands, and a command may put or look for something.
ABSENT = (
    "_tpufeed/tmp",
    "_tpufeed/versions/7.json",
    "_tpufeed/versions/1.pruned.json",
    "_tpufeed/removals-0000000000000000.json",
    "_tpufeed/duplicates.jsonl",
    "part-00003",
    "part-00004",
    "part-00003/_tpufeed",
    "part-00003/_tpufeed/plan.jsonl",
    "part-00002/_tpufeed/tmp",
    "train-version-3.index.npy",
    "train-00000-of-00009.tfrecord",
)
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**40, -(2**63), 1.5, 1e308),
    *("", ".", "..", "../../outside/thesis/chapter.txt", "/etc/passwd", "\0", "x" * 300, "x" * 70_000, "\x1b[2J", "é"),
    *("part-00002/../x", "manifest.json", "part-00009/x", "_tpufeed/plan.jsonl", "append", "adopt", "compact", "cache"),
    *("image/encoded", "image/class/label", "int64", "string", "boxes", "keep", "drop", "raw", "train", "00"),
    *([], {}, [[]], [-1], ["x"], {"x": 1}, [[[[]]]], [0] * 1000, {"op": "Resize"}),
)


def picture(number: int) -> bytes:
    pixels = np.full((20, 24, 3), number, np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)


@dataclass(frozen=True)
class Bases:
    """The datasets that steps copy, and what lies around them, below one folder."""

    folder: Path

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    def source(self, name: str) -> Path:
        return self.folder / "sources" / name

    def of(self, kind: str) -> Path:
        return self.folder / "bases" / kind


def make_bases(folder: Path) -> Bases:
    """Make a dataset that has grown and has rejects, one that is begun, a cache and an adopted one; another outside."""
    bases = Bases(folder)
    serial = {"engine": SerialEngine()}
    for number in range(8):
        put(bases.source("first") / "ab"[number % 2] / f"{number}.png", picture(number))
    put(bases.source("first") / "a/double.png", picture(1))
    put(bases.source("first") / "a/broken.png", b"no image")
    for number in range(20, 24):
        put(bases.source("second") / "ab"[number % 2] / f"{number}.png", picture(number))
    for number in range(22, 27):  # two of which are there already
        put(bases.source("third") / "bc"[number % 2] / f"{number}-new.png", picture(number))
    for number in range(40, 44):
        put(bases.source("other") / "ab"[number % 2] / f"{number}.png", picture(number))
    tpufeed.shard(bases.source("first"), bases.of("grown"), seed=3, **serial)
    tpufeed.append(bases.source("second"), bases.of("grown"), **serial)
    shutil.copytree(bases.of("grown"), bases.of("begun"))
    (bases.of("begun") / "manifest.json").unlink()
    shutil.copytree(bases.of("grown") / "part-00002", bases.of("begun") / "part-00003")
    tpufeed.cache.warmup(bases.of("grown"), bases.of("cache"), size=8, encode="raw", variants=2, **serial)
    bases.of("adopted").mkdir()
    for path in bases.of("grown").glob("*.tfrecord"):
        shutil.copy(path, bases.of("adopted"))
    tpufeed.adopt(bases.of("adopted"))
    tpufeed.shard(bases.source("other"), bases.outside / "dataset", **serial)
    for name in ("chapter.txt", "photos/2019/a.jpg", "notes/b"):
        put(bases.outside / "thesis" / name, "CANARY: years of work")
    return bases


# Links


def components(folder: Path) -> list[str]:
    """Return every file and folder below one, and what could be there."""
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    return sorted({*found, *ABSENT})


def put_link(folder: Path, name: str, kind: str, bases: Bases) -> None:
    """Put a link in the place of a file or a folder: to an equal one, to others, to nothing or to itself."""
    path = folder / name
    twin = bases.outside / "twin"
    shutil.rmtree(twin, ignore_errors=True)
    twin.mkdir()
    if path.exists():
        path.rename(twin / path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    other = bases.outside / "dataset" / name
    target = {
        "file": twin / path.name,
        "other file": other if other.exists() else bases.outside / "thesis/chapter.txt",
        "folder": bases.outside / "thesis",
        "missing": bases.outside / "nowhere" / path.name,
        "loop": path,
    }[kind]
    path.symlink_to(target)


# Forged files


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within a document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def forge_value(document: Any, draw: random.Random) -> Any:
    """Replace, remove, double or rename one value of a document."""
    *above, last = draw.choice([path for path in places(document) if path] or [(None,)])
    if last is None:
        return copy.deepcopy(draw.choice(ODD))
    holder = document
    for key in above:
        holder = holder[key]
    action = draw.random()
    if action < 0.7:
        holder[last] = copy.deepcopy(draw.choice(ODD))
    elif action < 0.8:
        del holder[last]
    elif action < 0.9 and isinstance(holder[last], int):
        holder[last] += draw.choice([-1, 1])
    elif isinstance(holder, list):
        holder.append(copy.deepcopy(holder[last]))
    else:
        holder[draw.choice(["x", "name", "", "\0", "../x", *holder])] = copy.deepcopy(holder[last])
    return document


def dump(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def sealed_plan(lines: list[Any]) -> bytes:
    """Return a plan whose CRC fits: whoever forges one can compute it."""
    data = b"".join(dump(line) + b"\n" for line in lines[:-1])
    return data + dump({"crc32c": crc32c(data)} if isinstance(lines[-1], dict) else lines[-1]) + b"\n"


def sealed_report(document: Any) -> bytes:
    data = dump(document)
    try:
        report = msgspec.json.decode(data, type=Report)
        return msgspec.json.encode(msgspec.structs.replace(report, checksum=checksum(report)))
    except Exception:  # noqa: BLE001  # it is of other types: no CRC makes it fit
        return data


def npy_header(count: int) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"shape": (count,), "fortran_order": False, "descr": "<u8"})
    return buffer.getvalue()


def whole_replacements(data: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "a blank line more": data + b"\n",
        "a BOM": b"\xef\xbb\xbf" + data,
        "CRLF": data.replace(b"\n", b"\r\n"),
        "cut": data[: len(data) // 2],
        "deep": b"[" * 200_000,
        "deep objects": b'{"a":' * 200_000,
        "deep within": b'{"options":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "null": b"null\n",
        "a list": b"[]\n",
        "not UTF-8": b'{"path": "\xff\xfe"}\n',
        "a lone surrogate": b'{"path": "\\ud800", "reason": "\\ud800", "message": ""}\n',
        "numbers": b'{"path": 1}\n',
        "many lines": b"{}\n" * 100_000,
        "zeros": bytes(4096),
        "doubled": data + data,
        "digits": b"9" * 100_000,
        "an array of terabytes": npy_header(10**12) + bytes(64),
        "an array of gigabytes": npy_header(10**9) + bytes(64),
    }


def replace_whole(path: Path, way: float, draw: random.Random, bases: Bases) -> str:
    """Put something else in the place of a file, and return what."""
    if way < 0.6:
        said, made = draw.choice(sorted(whole_replacements(path.read_bytes()).items()))
        path.write_bytes(made)
    elif way < 0.75:
        said = "1 TiB"
        with path.open("r+b") as file:  # a hole: it takes no room here
            file.truncate(1 << 40)
    elif way < 0.85:
        said = "another dataset's"
        others = [each for each in bases.outside.rglob(path.name) if each.is_file()]
        path.write_bytes(draw.choice(others).read_bytes() if others else b"x")
    elif way < 0.95:
        said = "a folder"
        path.unlink()
        path.mkdir()
    else:
        said = "a pipe"
        path.unlink()
        os.mkfifo(path)
    return said


def forge(folder: Path, name: str, draw: random.Random, bases: Bases) -> str:
    """Forge a file of a dataset, and return how."""
    path, way = folder / name, draw.random()
    data = path.read_bytes()
    if way < 0.35:
        return replace_whole(path, way / 0.35, draw, bases)
    if name.endswith("manifest.json") and way < 0.5:
        return lie_at_large(path, draw)
    if name.endswith("plan.jsonl") and way < 0.45:
        return plan_at_large(path, draw)
    if name.endswith((".jsonl", ".json")):
        lines = [json.loads(line) for line in data.splitlines()] if name.endswith("l") else [json.loads(data)]
        for _ in range(draw.choice([1, 1, 2])):
            place = draw.randrange(len(lines)) if lines else 0
            lines[place : place + 1] = [forge_value(lines[place] if lines else {}, draw)]
        if name.endswith("plan.jsonl"):
            path.write_bytes(sealed_plan(lines))
        elif "/reports/" in name:
            path.write_bytes(sealed_report(lines[0]))
        else:
            path.write_bytes(b"".join(dump(line) + b"\n" for line in lines))
        return "values"
    changed = bytearray(data)
    for _ in range(draw.choice([1, 3])):
        at = draw.randrange(0, max(1, len(changed) - 8))
        some = [
            bytes(8),
            b"\xff" * 8,
            struct.pack("<Q", 1 << 60),
            struct.pack("<Q", draw.randrange(300)),
            b"",
            b"'" * 9,
        ]
        changed[at : at + 8] = draw.choice(some)
    path.write_bytes(bytes(changed))
    if draw.random() < 0.7:
        reseal(folder, name, bytes(changed))
    return "bytes"


def lie_at_large(path: Path, draw: random.Random) -> str:
    """Let a manifest count more records than there are, without a contradiction, and files be as long as it says."""
    document, records = json.loads(path.read_text()), draw.choice([10**4, 10**7, 10**9, 10**12])
    name = draw.choice(sorted(document["splits"]))
    split = document["splits"][name]
    added = records - split["variants"][0]["shards"][0]["records"]
    split["records"] += added
    split["class_counts"] = [split["records"], *(0 for _ in split["class_counts"][1:])]
    if document.get("parts"):
        document["parts"][0]["records"][name] = document["parts"][0]["records"].get(name, 0) + added
    for variant in split["variants"]:
        shard, index = variant["shards"][0], variant["index"]
        shard.update(records=records, bytes=max(shard["bytes"], 16 * records))
        index["bytes"] += 8 * added
        for file in (shard, index) if draw.random() < 0.7 else ():
            with (path.parent / file["name"]).open("r+b") as opened:
                opened.truncate(file["bytes"])  # a hole
    path.write_text(json.dumps(document))
    return "consistent lies"


def plan_at_large(path: Path, draw: random.Random) -> str:
    """Let a plan make many files."""
    header, *_ = (json.loads(line) for line in path.read_bytes().splitlines())
    shards, variants = draw.choice([(20_000, None), (20_000, 1000), (10**12, None), (1, 1000), (2, 10**9)])
    header.update(splits={"train": shards}, variants=variants)
    header["images"] = draw.choice([0, 8, 10**12])
    count = min(shards, 20_000)
    tasks = [{"number": each, "split": "train", "shard": each, "shards": shards} for each in range(count)]
    path.write_bytes(sealed_plan([header, *tasks, {}]))
    return "many files"


def reseal(folder: Path, name: str, data: bytes) -> None:
    """Let every manifest vouch for a file that was forged."""
    for path in folder.rglob("*.json"):
        within = path.parent.relative_to(folder).as_posix() if path.name == "manifest.json" else "."
        try:
            document = json.loads(path.read_text())
            files = [
                file
                for split in document["splits"].values()
                for variant in split["variants"]
                for file in (*variant["shards"], variant["index"])
            ]
        except (KeyError, TypeError, ValueError):
            continue
        for file in files:
            if name in (file["name"], f"{within}/{file['name']}"):
                file.update(bytes=len(data), crc32c=crc32c(data))
        path.write_text(json.dumps(document))


# Commands


def load(url: Path) -> None:
    ops = None if list(url.glob("train-v0-*")) else [Resize(16), CenterCrop(16)]
    with tpufeed.Loader(url, batch_size=2, lanes=1, ops=ops, remainder="pad") as loader:
        for _ in loader:
            pass


def read(url: Path) -> None:
    dataset = tpufeed.open_dataset(url)
    for split in dataset.manifest.splits:
        for _ in dataset.iter_examples(split):
            pass


def command_line(*words: str | Path) -> None:
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if "Traceback" in result.output:
        raise AssertionError(result.output)
    if "CANARY" in result.output:
        raise AssertionError(f"it shows what lies outside: {result.output}")
    if result.exit_code:
        raise TpufeedError(result.output)


Command = Callable[[Path, Path, Bases], object]
SERIAL: dict[str, Any] = {"engine": SerialEngine()}
COMMANDS: dict[str, Command] = {
    "shard again": lambda url, _, bases: tpufeed.shard(bases.source("first"), url, seed=3, **SERIAL),
    "overwrite": lambda url, _, bases: tpufeed.shard(bases.source("other"), url, overwrite=True, **SERIAL),
    "append": lambda url, _, bases: tpufeed.append(bases.source("third"), url, **SERIAL),
    "append, overwrite": lambda url, _, bases: tpufeed.append(bases.source("third"), url, overwrite=True, **SERIAL),
    "append, dry run": lambda url, _, bases: command_line("append", bases.source("third"), url, "--dry-run"),
    "append again": lambda url, _, bases: tpufeed.append(bases.source("second"), url, **SERIAL),
    "compact": lambda url, _, __: tpufeed.compact(url, **SERIAL),
    "prune": lambda url, _, __: tpufeed.prune(url),
    "warm from it": lambda url, new, _: tpufeed.cache.warmup(url, new, size=8, encode="raw", **SERIAL),
    "warm into it": lambda url, _, bases: tpufeed.cache.warmup(
        bases.of("grown"), url, size=8, encode="raw", variants=2, **SERIAL
    ),
    "warm into it, overwrite": lambda url, _, bases: tpufeed.cache.warmup(
        bases.of("grown"), url, size=8, encode="raw", overwrite=True, **SERIAL
    ),
    "verify": lambda url, _, __: tpufeed.verify(url, decode="all"),
    "verify, command": lambda url, _, __: command_line("verify", url),
    "info": lambda url, _, __: command_line("info", url),
    "info, json": lambda url, _, __: command_line("info", url, "--json"),
    "info, versions": lambda url, _, __: command_line("info", url, "--versions"),
    "show": lambda url, new, _: command_line("show", url, "--out", new.with_suffix(".png")),
    "card": lambda url, new, _: command_line("card", url, "--out", new.with_suffix(".md")),
    "adopt": lambda url, _, __: tpufeed.adopt(url),
    "adopt elsewhere": lambda url, new, _: tpufeed.adopt(url, new),
    "read": lambda url, _, __: read(url),
    "load": lambda url, _, __: load(url),
}
# A source is read through links, as docs/security.md says.
READS_SOURCE = ("adopt elsewhere",)


# Steps


@dataclass(frozen=True)
class Step:
    """A copy of `kind` in which `name` is `forged` or becomes a link, and the command that meets it."""

    kind: str
    name: str
    how: str
    command: str
    seed: int


def link_steps(bases: Bases) -> list[Step]:
    """Return each link in each place with each command."""
    return [
        Step(kind, name, how, command, 0)
        for kind in KINDS
        for name in components(bases.of(kind))
        for how in LINKS
        for command in COMMANDS
    ]


def forged_step(bases: Bases, draw: random.Random) -> Step:
    """Draw a forged file and a command."""
    kind = draw.choice(KINDS)
    files = sorted(path.relative_to(bases.of(kind)).as_posix() for path in bases.of(kind).rglob("*") if path.is_file())
    papers = [name for name in files if name.endswith((".json", ".jsonl", ".bin", ".npy"))]
    return Step(kind, draw.choice(papers * 4 + files), "forged", draw.choice(list(COMMANDS)), draw.getrandbits(32))


def take_step(step: Step, bases: Bases) -> str:
    """Take a step, and return what came of it: "ok" or the class of the error.

    Raises:
        AssertionError: it has gone beyond a bound, or has touched what lies outside.
        Exception: whatever ended the command otherwise than tpufeed's errors do.
    """
    work = bases.folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    url, new = work / "dataset", work / "new"
    shutil.copytree(bases.of(step.kind), url)
    if step.how == "forged":
        forge(url, step.name, random.Random(step.seed), bases)
    else:
        put_link(url, step.name, step.how, bases)
    result, said = "ok", ""
    with unread(bases.outside, step.command in READS_SOURCE), bounded_memory(), bounded_time():
        try:
            COMMANDS[step.command](url, new, bases)
        except TpufeedError as error:
            result, said = type(error).__name__, str(error)
    assert "Traceback" not in said, said
    assert "CANARY" not in said, said
    left = [path for path in work.rglob("*") if path.is_file() and not path.is_symlink()]
    papers = [path for path in left if path.suffix in (".json", ".jsonl") and path.stat().st_size < 1 << 20]
    assert not any(b"CANARY" in path.read_bytes() for path in papers), "what lies outside was copied"
    return result


def look(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return what shows that anything below a folder was changed."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)
    return found


@contextmanager
def unread(folder: Path, may_read: bool) -> Iterator[None]:
    """Check that nothing below a folder is read, changed, added or removed meanwhile."""
    before = look(folder)
    for path, (_, _, changed, _) in before.items():
        os.utime(path, ns=(1, changed))  # a time of access that is long past is set by the next read
    yield
    was_read = [path for path in before if Path(path).exists() and Path(path).stat().st_atime_ns != 1]
    assert look(folder) == before, "what lies outside was changed"
    assert may_read or not was_read, f"read outside: {was_read}"


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Check that this process takes no more memory than is allowed meanwhile."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    clear.write_text("5")  # the peak begins again
    before = _peak(status)
    yield
    taken = _peak(status) - before
    assert taken < MOST_BYTES, f"{taken >> 20} MiB"


@contextmanager
def bounded_time() -> Iterator[None]:
    """Raise AssertionError in what takes longer than is allowed."""

    def stop(*_: object) -> None:
        raise AssertionError(f"it takes more than {MOST_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _peak(status: Path) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10
