"""Chains of commands through a store that damages what is read of it, against the same chain without damage.

The store has no checksums of its own, and damages each read otherwise: it flips a bit, cuts the end off, leaves a part
out, or repeats one. Each command ends with the right bytes, or with an error that names an object; then the same
command continues. Nothing wrong is ever published, verified, or given to a training step.

    python -m tests.oracle.faults [--seconds 1800] [--seed N]
"""

import functools
import io
import json
import os
import random
import secrets
import tempfile
import zlib
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3"})

import numpy as np
from PIL import Image

import tpufeed
from tests.oracle.seeds import make_parser, try_seeds
from tpufeed import cache
from tpufeed.dataset import records
from tpufeed.dataset.naming import MANIFEST
from tpufeed.errors import DatasetDamagedError, TpufeedError
from tpufeed.images import CenterCrop, HorizontalFlip
from tpufeed.storage import memory
from tpufeed.storage.memory import MemoryStore

COUNTS: Counter[str] = Counter()
KINDS = ("folder", "csv", "jsonl")
SIDE = 16
RATES = (0.5, 0.2, 0.05, "first", "first")  # of the reads that are damaged, or the first one of each range
OF_BYTES = (".tfrecord", ".npy", "rejects.jsonl", "digests.bin", "duplicates.jsonl")


def flip(data, draw):
    """One bit is another one."""
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def cut(data, draw):
    """The end is missing."""
    return data[: draw.randrange(len(data))]


def skip(data, draw):
    """A part is missing, and what follows moves up."""
    start = draw.randrange(len(data))
    return data[:start] + data[start + draw.randint(1, 40) :]


def repeat(data, draw):
    """A part comes twice, instead of what follows it."""
    start = draw.randrange(len(data))
    part = data[start : start + draw.randint(1, 40)]
    return (data[: start + len(part)] + part + data[start + 2 * len(part) :])[: len(data)]


def other(data, whole, start, draw):
    """The bytes of another place of the object, as far away as they are many: maybe another sound record."""
    places = range(start % len(data), len(whole) - len(data) + 1, len(data))
    place = draw.choice(places) if places else 0
    return whole[place : place + len(data)]


KINDS_OF_DAMAGE = (flip, flip, cut, skip, repeat)


class Damage:
    """Damages reads by seed, object, range and number of the read, whichever thread is first."""

    def __init__(self, seed, rate):
        self.seed, self.rate, self.reads, self.done = seed, rate, Counter(), []
        self.kinds = KINDS_OF_DAMAGE
        self.given = {}  # by place: the same damage never comes twice, or it would be the object's

    def __call__(self, url, name, start, data, whole):
        place = url, name, start
        self.reads[place] += 1
        draw = random.Random(f"{self.seed} {name} {start} {self.reads[place]}")  # not the URL: it is drawn
        is_due = self.reads[place] == 1 if self.rate == "first" else draw.random() < self.rate
        if not data or not is_due:
            return data
        kind = draw.choice(self.kinds)
        found = kind(data, draw) if kind is not other else other(data, whole, start, draw)
        given = self.given.setdefault(place, {data})
        while found in given:
            kind, found = flip, flip(found or data, draw)
        given.add(found)
        self.done.append((kind.__name__, name, start))
        COUNTS[kind.__name__] += 1
        return found


class FaultyStore(MemoryStore):
    """A `MemoryStore` that damages reads while there is a `damage`."""

    damage = None

    def read(self, name, version=""):
        data = super().read(name, version)
        return self.struck(name, 0, data, data)

    def read_range(self, name, start, stop, version=""):
        data = super().read(name, version)
        return self.struck(name, start, data[start:stop], data)

    def struck(self, name, start, data, whole):
        return data if FaultyStore.damage is None else FaultyStore.damage(self.url, name, start, data, whole)


@contextmanager
def damaging(damage):
    FaultyStore.damage = damage
    try:
        yield
    finally:
        FaultyStore.damage = None


def png(number):
    """Files of one length, so that a record may be taken for another."""
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE + 1, SIDE + 3, 3), np.uint8)
    buffer = io.BytesIO()
    # Not JPEG: no decoder sees a bit that has flipped there.
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def put_source(url, kind, numbers):
    """Put images with labels; one of them is damaged, one is there twice. Returns the URL and options of shard."""
    store = MemoryStore(url)
    rows = [(f"{'ab'[number % 2]}/{number}.png", "ab"[number % 2], png(number)) for number in numbers]
    rows += [("a/bad.png", "a", png(1)[:200]), ("b/copy.png", "b", rows[0][2])]
    for name, _, data in rows:
        store.put(name, data)
    if kind == "folder":
        return url, {}
    if kind == "csv":
        text = "image,label,score\n" + "".join(f"{name},{label},{len(data)}\n" for name, label, data in rows)
    else:
        records = ({"image": name, "label": label, "box": [[1, 2, 9, 8]]} for name, label, _ in rows)
        text = "\n".join(map(json.dumps, records))
    store.put(f"table.{kind}", text.encode())
    return f"{url}/table.{kind}", {"boxes": tpufeed.Boxes(column="box")} if kind == "jsonl" else {}


def chain(root, kind):
    """Yield name, folder and work of each command of a chain at `root`; the sources are beside all chains."""
    (first, options), (more, _), *small = sources(kind)
    dataset, cached = f"{root}/dataset", f"{root}/cache"
    few = {"workers": 1, "max_rejects": "50%"}
    ops, split = [CenterCrop(SIDE), HorizontalFlip()], "train=0.7,val=0.3"

    def warm():
        cache.warmup(dataset, cached, ops=ops, variants=2, shard_bytes="4KB", workers=1)

    yield "shard", dataset, lambda: tpufeed.shard(first, dataset, splits=split, shard_bytes="12KB", **options, **few)
    yield "warmup", cached, warm
    yield "append", dataset, lambda: tpufeed.append(more, dataset, **few)
    yield "grow", cached, warm
    yield "append again", dataset, lambda: tpufeed.append(first, dataset, **few)
    for url, _ in small:
        yield "append little", dataset, partial(tpufeed.append, url, dataset, **few)
        yield "grow", cached, warm
    yield "compact", dataset, lambda: tpufeed.compact(dataset, workers=1)
    yield "compact", cached, lambda: tpufeed.compact(cached, workers=1)
    yield "grow", cached, warm
    yield "prune", dataset, lambda: tpufeed.prune(dataset)
    yield "prune", cached, lambda: tpufeed.prune(cached)


@functools.cache
def sources(kind):
    numbers = range(10, 28), range(28, 35), [35, 37, 39], [36, 38, 40]
    return [put_source(f"memory://faults/{kind}/{at}", kind, each) for at, each in enumerate(numbers)]


def files_of(folder):
    """Shards, indexes, rejects and digests below a folder, by name."""
    store = MemoryStore(folder)
    return {info.name: store.read(info.name) for info in store.iter_objects() if info.name.endswith(OF_BYTES)}


def digest_of(folder):
    store = MemoryStore(folder)
    return tpufeed.open_dataset(folder).content_digest if store.stat(MANIFEST) else None


def batches_of(folder, split, **options):
    with tpufeed.Loader(folder, split, batch_size=3, processes=0, threads=1, remainder="pad", **options) as loader:
        for batch in loader:
            yield tuple(zlib.crc32(np.ascontiguousarray(part)) for part in batch)


LOADS = {"columns": ["image", "label", "sample"], "shuffle": False, "ops": [CenterCrop(SIDE)]}


@functools.cache
def right(kind):
    """What each command of an undisturbed chain leaves, and the batches of each split at the end."""
    root, left = f"memory://faults/{kind}/right", []
    for _, folder, work in chain(root, kind):
        work()
        left.append((digest_of(folder), files_of(folder)))
    folder = f"{root}/dataset"
    return left, {split: list(batches_of(folder, split, **LOADS)) for split in ("train", "val")}


def expect_named(error):
    assert "memory://" in str(error) or ".tfrecord" in str(error), f"names no object: {error!r}"
    COUNTS["errors"] += 1


def walk(kind, seed, temporary):
    """Walk through a chain with damage of this seed."""
    draw = random.Random(seed)
    damage = Damage(seed, draw.choice(RATES))
    root = f"memory://faults/{kind}/{secrets.token_hex(4)}"
    try:
        with (
            mock.patch.object(memory, "MemoryStore", FaultyStore),  # where `open_store` looks for it
            mock.patch.object(records, "_MERGED_BYTES", draw.choice([1, 4 << 20])),  # a request for each record, or few
        ):
            left, batches = right(kind)
            for (name, folder, work), (wanted, files) in zip(chain(root, kind), left, strict=True):
                before = digest_of(folder)
                # No reader of single records could know; a compaction sums up what it has copied.
                damage.kinds = (*KINDS_OF_DAMAGE, *[other] * 4) if name == "compact" else KINDS_OF_DAMAGE
                for tries_left in reversed(range(4)):
                    try:
                        with damaging(damage if tries_left else None):
                            work()
                        break
                    except TpufeedError as error:
                        if not tries_left:  # it cannot continue
                            raise
                        expect_named(error)
                    assert digest_of(folder) in (before, wanted), f"{name} has published damage"
                COUNTS["commands"] += 1
                found = files_of(folder)
                differing = {each: found.get(each) for each in {**found, **files} if found.get(each) != files.get(each)}
                assert not differing, f"{name} has put other bytes: {differing!s:.300}"
                assert digest_of(folder) == wanted, f"{name} has published damage"
            for folder in (f"{root}/dataset", f"{root}/cache"):
                try:
                    with damaging(damage):
                        tpufeed.verify(folder)
                except DatasetDamagedError as error:
                    raise AssertionError(f"what is right was called damaged: {error}") from error
                except TpufeedError as error:
                    expect_named(error)
                tpufeed.verify(folder)
            for split, wanted in batches.items():
                ways = {"local_bytes": 0}, {"local_dir": f"{temporary}/{secrets.token_hex(4)}"}
                load(f"{root}/dataset", split, wanted, damage, draw.choice(ways))
    except BaseException:
        print(f"faults: {kind}, seed {seed}, rate {damage.rate}; the last: {damage.done[-5:]}", flush=True)
        raise
    finally:
        for url in [key for key in memory._objects if key.startswith(root.removeprefix("memory://"))]:
            del memory._objects[url]
    COUNTS["chains"] += 1


def load(folder, split, wanted, damage, way):
    """What a loader gives before an error is right."""
    found = []
    try:
        with damaging(damage):
            found.extend(batches_of(folder, split, **LOADS, **way))
    except TpufeedError as error:
        expect_named(error)
        assert found == wanted[: len(found)]
    else:
        assert found == wanted, "a loader gave other samples"
    COUNTS["epochs"] += 1


def main() -> None:
    def take(number: int) -> None:
        with tempfile.TemporaryDirectory(prefix="tpufeed-faults-") as folder:
            walk(KINDS[number % len(KINDS)], number, Path(folder))

    try_seeds("faults", make_parser(__doc__).parse_args(), COUNTS, take)


if __name__ == "__main__":
    main()
