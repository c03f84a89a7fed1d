"""The slowest loader: which batches and states any feed gives, by the letter of docs/order.md, mixtures.md, samples.md,
loaders.md and growing.md. It shares no code with tpufeed, and takes its ops for their parameters alone.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.oracle.ops import DRAWS, Moved, decoded, draws, halves, mixed
from tests.oracle.order import MixtureLane, epoch_lanes, repeats, source_seed, whole_shares, words
from tests.oracle.records import Stored

SHORT = {
    "label": "image/class/label",
    "text": "image/class/text",
    "height": "image/height",
    "width": "image/width",
    "filename": "image/filename",
}


class RefusedError(Exception):
    """What a loader answers by an OptionError."""


class DamagedError(Exception):
    """What a loader answers by a RecordError or a ShardError."""


@dataclass
class Version:
    """A dataset in one of its versions, as the oracle knows it.

    Attributes:
        digest: its content digest, which is a name here.
        past: those of the versions before.
        damaged: places (variant, shard, record) that cannot be read.
        lost: (variant, shard) of shards that are missing.
        live: the ops that a cache leaves to loaders.
        kept: by split the ids of the samples of a view; all of a split that is not named.
        classes: ids of the classes of a view that renumbers them.
        weights: how often its samples come: sample i has weights[i mod their number]. () if each comes once.
    """

    url: str
    stored: Stored
    digest: str
    past: tuple[str, ...] = ()
    damaged: frozenset[tuple[int, int, int]] = frozenset()
    lost: frozenset[tuple[int, int]] = frozenset()
    live: tuple[Any, ...] = ()
    grown: bool = False
    kept: dict[str, list[int]] = field(default_factory=dict)
    classes: list[int] | None = None
    weights: tuple[float, ...] = ()

    def counts(self, split):
        """The samples in each shard."""
        counts, found, first = self.stored.counts[split, 0], [], 0
        for count in counts:
            found.append(sum(first <= each < first + count for each in self.ids(split)))
            first += count
        return tuple(found)

    def ids(self, split):
        return self.kept.get(split, range(sum(self.stored.counts[split, 0])))

    @property
    def dtype(self):
        """The type of the pixels, as a raw cache holds them."""
        return np.dtype(self.pixels["dtype"]).newbyteorder("<")

    @property
    def pixels(self):
        """The pixel format; clips also have "frames"."""
        return self.stored.manifest["features"][0].get("pixels", {"dtype": "uint8", "channels": 3})

    @property
    def names(self):
        names = self.stored.manifest["class_names"]
        return names if self.classes is None else [names[each] for each in self.classes]


def kept_by_one(stored, way):
    """(ids of the samples by split, ids of the classes if they are renumbered) of `select(**way)`."""
    kept, numbers = {}, None
    names = stored.manifest["class_names"]
    classes = [names.index(each) for each in way.get("classes", ())]
    labels = next((each for each in stored.manifest["features"] if each["name"] == SHORT["label"]), {})
    if classes and not way.get("keep_ids") and labels.get("shape", ()) == []:
        numbers = classes
    for split in [way["split"]] if "split" in way else stored.manifest["splits"]:
        samples = stored.samples[split, 0]
        ids = range(len(samples))
        if classes:
            ids = [each for each in ids if set(samples[each].get(SHORT["label"], ())) & set(classes)]
        for name, inside in (("fold", True), ("without_fold", False)):
            if name in way:
                number, count = way[name]
                drawn = words(len(samples), (0, (1 << 64) - 3), 3)
                if "group" in way:  # its values, hashed
                    names = [bytes(each[SHORT[way["group"]]][0]) for each in samples]
                    hashes = [hashlib.blake2b(name, digest_size=8, person=b"fold").digest() for name in names]
                    drawn = [int.from_bytes(each, "big") for each in hashes]
                ids = [each for each in ids if (drawn[each] % count == number) == inside]
        for name, inside in (("samples", True), ("drop", False)):
            if name in way:
                ids = [each for each in ids if (each in way[name]) == inside]
        kept[split] = list(ids)
    return kept, numbers


def kept_by(stored, ways):
    """The same of views of views: `select(**way)` for each way in turn."""
    kept, numbers = {}, None
    for way in ways:
        more, renumbered = kept_by_one(stored, way)
        for split, ids in more.items():
            kept[split] = [each for each in ids if each in set(kept.get(split, ids))]
        numbers = renumbered or numbers
    return kept, numbers


@dataclass
class Options:
    split: str = "train"
    batch_size: int = 4
    seed: int = 0
    remainder: str = "drop"
    lanes: int | None = None
    shuffle: bool = True
    repeat: bool = False
    columns: tuple[str, ...] = ("image", "label")
    ops: Any = None  # None: the live ops of a cache
    device_ops: tuple[Any, ...] = ()
    views: Any = None  # lists of ops, each already as often as it is asked for
    share: str | None = None
    fill: dict[str, Any] = field(default_factory=dict)
    pad: dict[str, int] = field(default_factory=dict)
    truncate: bool = False
    min_visibility: float = 0.0
    multi_hot: bool = False
    max_bad_records: int = 0
    max_bad_shards: int = 0

    @property
    def mixing(self):
        return [op for op in self.device_ops if type(op).__name__ in ("MixUp", "CutMix")]

    @property
    def cannot_mix(self):
        """Columns that would not fit mixed images."""
        blends = any(type(op).__name__ == "MixUp" for op in self.mixing)
        moving = {"boxes", "hidden", "poses", "keypoints", "window", *(["mask"] if blends else [])}
        return moving & {*self.columns} if self.mixing else set()


@dataclass
class Mixed:
    """What a Mixture says."""

    weights: dict[int, float]  # by the place of the version in the list
    stop: str = "shortest"
    seed: int | None = None
    classes: str = "by_name"
    reweight: bool = False
    of_samples: tuple[float, ...] = ()  # of the one dataset, see `Version.weights`


def zeros(value):
    return "" if isinstance(value, str) else np.zeros_like(np.array(value, float))


class Reference:
    """All ranks of a loader at once: the batches of each, and the state that all of them have."""

    def __init__(self, versions, options, size=1, mixed=None):
        self.versions, self.options, self.size, self.mixed = versions, options, size, mixed
        self.given_lanes = options.lanes
        self.anchor = (0, 0, 0)  # epoch, where it begins in the stream, and the sample of it that was read first
        self.next = (0, 0)
        self.current = None  # epoch, samples of the last batch that was given
        self.is_open = False  # an iteration is under way
        self.bad = [set() for _ in range(size)]  # places that each rank has skipped
        self.lane_cache = {}
        if mixed:
            self.members = list(range(len(versions)))  # number in the training of each present source
            self.trained = [
                [each.digest, each.url, self.records_of(each), number, 0] for number, each in enumerate(versions)
            ]
            self.phases = [(0, whole_shares(list(mixed.weights.values())))]
            self.names, self.owners = [], []
            self.join()
        elif options.lanes is None and not options.shuffle:
            self.given_lanes = size

    # Numbers of an epoch.

    @property
    def lanes(self):
        if self.given_lanes is None:
            if not self.options.shuffle:
                return self.size
            lanes = 2
            while lanes * self.size < 16:
                lanes *= 2
            return self.size * lanes
        return self.given_lanes

    @property
    def batch(self):
        return self.options.batch_size * self.size

    def records_of(self, version):
        return len(version.ids(self.options.split))

    def passes(self, records):
        return -(-self.lanes // records)

    @property
    def records(self):
        if not self.mixed:
            return self.records_of(self.versions[0])
        shares = [share if number in self.members else 0 for number, share in enumerate(self.phases[-1][1])]
        key = ("epoch", tuple(shares), self.lanes)
        if key not in self.lane_cache:
            self.lane_cache[key] = self.epoch_of(shares)
        return self.lane_cache[key]

    def epoch_of(self, shares):
        """The samples of an epoch with these shares from the beginning on."""
        ends = []
        if self.mixed.stop == "total":
            total = sum(self.trained[each][2] for each in self.members)
            return self.lanes * max(1, round(total / self.lanes))
        for lane in range(self.lanes):
            order = MixtureLane([(0, shares)], self.lanes, lane, self.mixed_seed)
            given, number = [0] * len(self.trained), 0
            while True:
                left = [each for each in self.members if given[each] < self.length(each, lane)]
                source = order.source(number)
                if source not in left if self.mixed.stop == "shortest" else not left:
                    break
                given[source] += 1
                number += 1
            ends.append(number)
        return self.lanes * (min(ends) if self.mixed.stop == "shortest" else max(ends))

    def length(self, number, lane):
        records = self.trained[number][2]
        records *= self.passes(records)
        return records // self.lanes + (lane < records % self.lanes)

    def batches(self, samples=0):
        left = max(0, self.records - samples)
        return left // self.batch if self.options.remainder == "drop" else -(-left // self.batch)

    def end(self, samples=0):
        """Where an epoch of a mixture ends that was continued after so many samples."""
        if self.options.remainder == "pad":
            return self.records
        return samples + self.batches(samples) * self.batch

    def begun(self, epoch):
        first, begun, samples = self.anchor
        if epoch == first:
            return begun
        if epoch > first:
            return begun + self.end(samples) + (epoch - first - 1) * self.end()
        if epoch and begun != first * self.end():
            raise RefusedError(epoch)
        return epoch * self.end()

    # States.

    @property
    def mixed_seed(self):
        return self.options.seed if self.mixed.seed is None else self.mixed.seed

    def state(self):
        epoch, samples = self.next if self.current is None else self.current
        options = self.options
        found = {"version": 1, "split": options.split, "seed": options.seed, "shuffle": options.shuffle}
        found |= {"epoch": epoch, "lanes": self.lanes, "samples": samples}
        if not self.mixed:
            (version,) = self.versions
            number = {} if version.stored.version == 1 else {"dataset_version": version.stored.version}
            return found | {"content_digest": version.digest} | number
        mixture = {
            "sources": [list(each) for each in self.trained],
            "phases": [
                [first, [[n, share] for n, share in enumerate(shares) if share]] for first, shares in self.phases
            ],
            "classes": {"names": list(self.names), "owners": list(self.owners)},
            "join": self.mixed.classes,
            "seed": self.mixed_seed,
        }
        return found | {"mixture": mixture, "begun": self.begun(epoch), "epoch_samples": self.end()}

    def load(self, state):
        """Continue from what `state` gave; raise RefusedError if a loader would not."""
        for name in ("split", "seed", "shuffle"):
            if state[name] != getattr(self.options, name):
                raise RefusedError(name)
        if state["lanes"] % self.size or ("mixture" in state) != bool(self.mixed):
            raise RefusedError("lanes")
        epoch, samples, lanes = state["epoch"], state["samples"], state["lanes"]
        if self.mixed:
            self.join_training(state)
        else:
            (version,) = self.versions
            if state["content_digest"] != version.digest:
                if state["content_digest"] not in version.past or not version.grown:
                    raise RefusedError("content")
                epoch, samples = epoch + (samples > 0), 0
        self.given_lanes, self.current, self.is_open, self.lane_cache = lanes, None, False, {}
        if samples >= self.records or not self.batches(samples):
            self.anchor = (epoch + 1, state.get("begun", 0) + samples, 0)
            self.next = (epoch + 1, 0)
        else:
            self.anchor = (epoch, state.get("begun", 0), samples)
            self.next = (epoch, samples)

    def join_training(self, state):
        """Find the present sources among those of the state."""
        found, mixed = state["mixture"], self.mixed
        if (found["seed"], found["join"]) != (self.mixed_seed, mixed.classes):
            raise RefusedError("seed")
        trained = [list(each) for each in found["sources"]]
        phases = [(first, [dict(given).get(n, 0) for n in range(len(trained))]) for first, given in found["phases"]]
        numbers, position = {each[0]: number for number, each in enumerate(trained)}, state["begun"] + state["samples"]
        present = [each.digest for each in self.versions]
        expected, weights, grown = list(phases[-1][1]), [0.0] * len(trained), False
        gone = {each[0] for each, share in zip(trained, expected, strict=True) if share and each[0] not in present}
        members = []
        for version, weight in zip(self.versions, mixed.weights.values(), strict=True):
            if version.digest in numbers:
                members.append(numbers[version.digest])
                weights[members[-1]] = weight
                continue
            root, epoch, share = len(trained), 0, 0
            older = [digest for digest in version.past if digest in gone]
            if older:
                if not (version.grown or mixed.reweight):
                    raise RefusedError("grown")
                grown, number = True, numbers[older[-1]]
                gone.discard(older[-1])
                root, share, expected[number] = trained[number][3], expected[number], 0
                lanes, records = state["lanes"], trained[number][2]
                epoch = trained[number][4] + self.begun_epochs(phases, lanes, number, records, position)
                epoch = -(-epoch * -(-lanes // records) // -(-lanes // self.records_of(version)))
            members.append(len(trained))
            trained.append([version.digest, version.url, self.records_of(version), root, epoch])
            weights.append(weight)
            expected.append(share)
        shares = whole_shares(weights)
        same = all(abs(one - other) <= len(shares) for one, other in zip(shares, expected, strict=True))
        if not same and not mixed.reweight:
            raise RefusedError("weights")
        if grown or not same:
            more = [0] * (len(trained) - len(found["sources"]))
            phases = [(first, each + more) for first, each in phases if first < position]
            phases.append((position, expected if same else shares))
        self.trained, self.phases, self.members = trained, phases, members
        self.names, self.owners = list(found["classes"]["names"]), list(found["classes"]["owners"])
        self.join()

    def begun_epochs(self, phases, lanes, number, records, position):
        most = 0
        records *= -(-lanes // records)
        for lane in range(lanes):
            order = MixtureLane(phases, lanes, lane, self.mixed_seed)
            given = order.given(number, max(0, -(-(position - lane) // lanes)))
            most = max(most, -(-given // (records // lanes + (lane < records % lanes))))
        return most

    def join(self):
        """Find the id of each class of each source."""
        self.tables = []
        for version, number in zip(self.versions, self.members, strict=True):
            own, root = version.names, self.trained[number][3]
            if self.mixed.classes == "by_name":
                self.names += [name for name in own if name not in self.names]
                self.tables.append([self.names.index(name) for name in own])
            elif self.mixed.classes == "offset":
                new = own[self.owners.count(root) :]
                self.names += new
                self.owners += [root] * len(new)
                self.tables.append([place for place, owner in enumerate(self.owners) if owner == root][: len(own)])
            else:
                if any(a != b for a, b in zip(self.names, own, strict=False)):
                    raise RefusedError("classes")
                self.names += own[len(self.names) :]
                self.tables.append(range(len(own)))
            if version.classes is not None:
                self.tables[-1] = dict(zip(version.classes, self.tables[-1], strict=True))

    def set_epoch(self, epoch):
        if epoch != self.next[0]:
            if self.mixed and epoch == self.anchor[0]:
                self.anchor = (*self.anchor[:2], 0)
            self.next, self.current, self.is_open = (epoch, 0), None, False
        elif self.current is not None:
            self.current, self.is_open = None, False

    # Batches.

    @property
    def mask(self):
        """The name of the column that is False for padding."""
        return "sample_mask" if "mask" in self.spec("sample", 0)[1] else "mask"

    def next_batch(self):
        """The next batch of each rank as a dict of columns; raises StopIteration at the end of an epoch."""
        epoch, samples = self.current if self.is_open else self.next
        if not self.batches(samples):
            if not self.options.repeat:
                self.is_open = False
                raise StopIteration
            epoch, samples = self.next
        if self.mixed and self.begun(epoch) + samples < self.first_present():
            raise RefusedError(epoch)
        self.is_open = True
        positions = [
            [samples + (rank - samples) % self.size + k * self.size for k in range(self.options.batch_size)]
            for rank in range(self.size)
        ]
        found = [
            self.columns_of([self.place(epoch, p) for p in each], self.bad[rank]) for rank, each in enumerate(positions)
        ]
        if self.options.remainder == "pad" or self.options.max_bad_records or self.options.max_bad_shards:
            for batch, rank in zip(found, positions, strict=True):
                inside = np.array([p < self.records or self.options.remainder != "pad" for p in rank])
                batch[self.mask] = batch.get(self.mask, True) & inside
        samples += self.batch
        if not self.mixed or self.options.remainder == "pad":
            samples = min(samples, self.records)
        self.current, self.next = (epoch, samples), (epoch + 1, 0)
        return found

    def first_present(self):
        """The position from which on no source has a share that is gone."""
        ends = [first for first, _ in self.phases[1:]]
        gone = [
            end
            for end, (_, shares) in zip(ends, self.phases, strict=False)
            if any(share and number not in self.members for number, share in enumerate(shares))
        ]
        return max(gone, default=0)

    def place(self, epoch, position):
        """(present source, its epoch, variant, shard, record) of a position in an epoch."""
        split, options = self.options.split, self.options
        source, number, lanes, passes = 0, position % self.records, self.lanes, 1
        seed = options.seed
        if self.mixed:
            stream = self.begun(epoch) + position
            lane, at = stream % lanes, stream // lanes
            order = self.lane_cache.setdefault(lane, MixtureLane(self.phases, lanes, lane, self.mixed_seed))
            of_training = order.source(at)
            source, given = self.members.index(of_training), order.given(of_training, at)
            epochs, place = divmod(given, self.length(of_training, lane))
            epoch, number = self.trained[of_training][4] + epochs, place * lanes + lane
            seed = source_seed(seed, self.trained[of_training][3])
            passes = self.passes(self.trained[of_training][2])
        version = self.versions[source]
        counts = version.counts(split)
        if version.weights:
            return self.repeated(source, epoch, seed, number, passes)
        line = epoch_lanes(counts * passes, seed, epoch, lanes, options.shuffle)
        shard, record = line[number % lanes][number // lanes]
        again, shard = divmod(shard, len(counts))
        epoch = epoch * passes + again
        record = version.ids(split)[sum(counts[:shard]) + record] - sum(version.stored.counts[split, 0][:shard])
        return source, epoch, seed, epoch % version.stored.variants(split), shard, record

    def repeated(self, source, epoch, seed, number, passes):
        """The same of a dataset whose samples have weights."""
        split, version, drawn = self.options.split, self.versions[source], []
        ids, stored = version.ids(split), version.stored.counts[split, 0]
        weights = tuple(version.weights[each % len(version.weights)] for each in ids)
        for again in range(epoch * passes, (epoch + 1) * passes):  # each shard's samples, as often as they come
            times = dict(zip(ids, repeats(weights, seed, again), strict=True))
            first = 0
            for shard, count in enumerate(stored):
                own = range(first, first + count)
                drawn.append([(again, shard, each, copy) for each in own for copy in range(times.get(each, 0))])
                first += count
        line = epoch_lanes(tuple(map(len, drawn)), seed, epoch, self.lanes, self.options.shuffle)
        place, at = line[number % self.lanes][number // self.lanes]
        epoch, shard, sample, copy = drawn[place][at]
        variants = version.stored.variants(split)
        later = epoch + copy % ((1 << 20) // variants) * variants * (1 << 20)
        return source, later, seed, epoch % variants, shard, sample - sum(stored[:shard])

    def columns_of(self, places, bad):
        rows, good = [], []
        for row, (source, epoch, seed, variant, shard, record) in enumerate(places):
            if (variant, shard) in self.versions[source].lost:
                bad.add((source, variant, shard, None))
                version = self.versions[source]
                kept = {(variant, at) for at, count in enumerate(version.counts(self.options.split)) if count}
                if sum(each[-1] is None for each in bad) > self.options.max_bad_shards or kept <= version.lost:
                    raise DamagedError(shard)
                rows.append(None)
                continue
            if (variant, shard, record) in self.versions[source].damaged:
                bad.add((source, variant, shard, record))
                if len(bad) > self.options.max_bad_records:
                    raise DamagedError(shard, record)
                rows.append(None)
                continue
            good.append(row)
            rows.append(self.sample(source, epoch, seed, variant, shard, record))
        if not good:
            found = [self.sample(*place) for place in places]
            kept = ("sample", "source", "mixing", "dtype")
            filled = [{name: v if name in kept else zeros(v) for name, v in each.items()} for each in found]
        else:
            filled = [rows[row] or rows[max((g for g in good if g < row), default=good[0])] for row in range(len(rows))]
        found = {name: [each[name] for each in filled] for name in filled[0]}
        if self.options.mixing:
            found |= self.mixed_of(found)
        if self.options.max_bad_records or self.options.max_bad_shards:
            found[self.mask] = np.array([row is not None for row in rows])
        return found

    def mixed_of(self, found):
        """Images, masks and labels of a batch once its pairs are mixed."""
        pixels = {name: np.array(found[name], float) for name in ("image", "mask") if name in found}
        labels = found["label"]
        if not self.options.multi_hot:
            names = self.names if self.mixed else self.versions[0].names
            labels = [[float(label == number) for number in range(len(names))] for label in labels]
        batch = pixels | {"label": np.array(labels)}
        for number, op in enumerate(self.options.mixing):
            floats = ("label", *(["image"] if found.get("dtype") and found["dtype"][0].kind == "f" else []))
            batch = mixed(op, batch, [each[number] for each in found["mixing"]], floats)
        blends = any(type(op).__name__ == "MixUp" for op in self.options.mixing)
        return batch | {"resizes": [each + blends for each in found["resizes"]]}

    def sample(self, source, epoch, seed, variant, shard, record):
        """The columns of one sample."""
        version, options = self.versions[source], self.options
        stored, split = version.stored, options.split
        number = sum(stored.counts[split, variant][:shard]) + record
        features = stored.samples[split, variant][number]
        cache, dtype = stored.manifest.get("cache"), version.dtype
        if "image/tensor" in features:
            whole = np.frombuffer(features["image/tensor"][0], dtype).reshape(-1, *cache["shape"][-3:]).astype(float)
            files, frames = [b""] * len(whole), list(whole)
        else:
            files = features["image/encoded"]
            frames = list(map(decoded, files))
        pixels, is_clip = frames[0], "frames" in version.pixels
        assert len(frames) == version.pixels.get("frames", 1)
        if cache:
            seed ^= int.from_bytes(hashlib.blake2b(cache["fingerprint"].encode(), digest_size=8).digest(), "little")
        here = version.live if options.ops is None else options.ops
        later = [op for op in options.device_ops if op not in options.mixing]
        views = options.views or [[*here, *later]]
        seeds = [seed] * (len(views) if options.share else 1)  # of each view
        for view in range(len(seeds), len(views)):
            salt = hashlib.blake2b(str(view).encode(), digest_size=7).digest()
            seeds.append(seed ^ int.from_bytes(salt, "little"))
        each_view = list(zip(views, seeds, strict=True))
        shared = all(halves(ops, pixels.shape[:2], salted, epoch, number) for ops, salted in each_view)
        is_reduced = shared and (here or not later)  # all views share one decoding, and a device gets whole images
        is_whole, moved = dtype.kind == "u", []
        for ops, salted in each_view:
            reduced = [data if is_reduced and data.startswith(b"\xff\xd8") else None for data in files]
            each = zip(frames, reduced, strict=True)
            every = [Moved(frame, ops, salted, epoch, number, jpeg, is_whole) for frame, jpeg in each]
            moved.append(every[0])
            if is_clip:
                moved[-1].pixels = np.stack([of.pixels for of in every])
        places = enumerate(options.mixing, len(views[0]))
        found = {"mixing": [draws(seed, epoch, number, place, DRAWS[type(op).__name__]) for place, op in places]}
        for name in options.columns:
            if name == "image":
                found |= {"image": moved[0].pixels} if not options.views else self.views_of(moved)
                found |= {"resizes": max(each.resizes for each in moved), "dtype": dtype.newbyteorder("=")}
            elif name == "sample":
                found[name] = number
            elif name == "source":
                found[name] = source
            elif name == "window":
                found[name] = moved[0].window()
            else:
                choices = [place for place, op in enumerate(views[0]) if getattr(op, "column", None) == name]
                u = draws(seed, epoch, number, choices[0], 1) if choices and views[0][choices[0]].random else [0.0]
                drawn = self.drawn(name, features, u[0]) if choices else None
                found |= self.column(name, source, features, moved[0]) if drawn is None else drawn
        return found

    def drawn(self, name, features, u):
        """One of several texts, or what a function makes of it: a number for each word."""
        texts = [bytes(each).decode() for each in features[name]] or [self.options.fill[name]]
        text = texts[int(u * len(texts))]
        if name not in self.options.pad:
            return {name: text}
        lengths = [len(word) for word in text.split()][: self.options.pad[name]]
        padded = lengths + [0] * (self.options.pad[name] - len(lengths))
        return {name: np.array(padded), f"{name}_length": len(lengths)}

    @staticmethod
    def views_of(moved):
        sizes = list(dict.fromkeys(each.pixels.shape[-3:-1] for each in moved))
        named = {size: f"image_{size[0]}" if size[0] == size[1] else f"image_{size[0]}x{size[1]}" for size in sizes}
        named = {sizes[0]: "image"} if len(sizes) == 1 else named
        return {
            name: np.stack([each.pixels for each in moved if each.pixels.shape[-3:-1] == size])
            for size, name in named.items()
        }

    def spec(self, name, source):
        manifest = self.versions[source].stored.manifest
        named = {each["name"]: each for each in manifest["features"]}
        return named.get(name) or named.get(SHORT.get(name)), named

    def length_of(self, name):
        """The static length of a list, the same in all sources; None where all lists of a dataset are of one length."""
        if name in self.options.pad:
            return self.options.pad[name]
        lengths = [self.spec(name, source)[0]["lengths"] for source in range(len(self.versions))]
        plain = "of" not in self.spec(name, 0)[0] and self.spec(name, 0)[0].get("kind") != "boxes"
        if plain and len({tuple(each) for each in lengths}) == 1 and lengths[0][0] == lengths[0][1] > 0:
            return None
        return max(1, *(most for _, most in lengths))

    def column(self, name, source, features, moved):
        spec, named = self.spec(name, source)
        kind, owner, values = spec.get("kind"), spec.get("of"), features.get(spec["name"], [])
        if kind == "mask":
            stored = decoded(values[0])[..., 0] if not spec.get("shape") else np.frombuffer(values[0], np.uint8)
            stored = stored.reshape(spec.get("shape") or stored.shape)
            return {name: moved.mask(stored, self.options.fill.get(name, 0))}
        if spec["name"] == SHORT["label"]:  # else numbers to predict
            found = values
            if self.mixed:
                found = [-1 if label < 0 else self.tables[source][label] for label in values]
            elif self.versions[source].classes is not None:
                found = [self.versions[source].classes.index(label) for label in values]
            values = found
        if spec.get("shape", ()) == []:
            return {name: values[0].decode() if isinstance(values[0], bytes) else values[0]}
        items, visible = np.array(values, float).reshape(-1, *spec.get("item_shape", [])), None
        if kind == "boxes":
            items = np.array(moved.boxes(items, self.options.min_visibility)[0]).reshape(-1, 4)
        elif owner:
            boxes = np.array(features.get(named[owner]["name"], []), float).reshape(-1, 4)
            items = items[moved.boxes(boxes, self.options.min_visibility)[1]]
        if kind == "keypoints":
            flat, seen = moved.points(items.reshape(-1, items.shape[-1]))
            items, visible = np.array(flat).reshape(items.shape), np.array(seen, bool).reshape(items.shape[:-1])
            for one, other in spec.get("flip_pairs") or () if moved.mirrored else ():  # left and right of the same
                for values in (items, visible) if items.ndim > 2 else (items[None], visible[None]):
                    values[:, [one, other]] = values[:, [other, one]]
        if name == "label" and self.options.multi_hot:
            names = self.names if self.mixed else self.versions[0].stored.manifest["class_names"]
            return {name: [float(label in items.tolist()) for label in range(len(names))]}
        return self.padded(name, owner, items, visible)

    def padded(self, name, owner, items, visible):
        """A list at its static length, with its own length, and which of its points are visible."""
        counted = owner if owner in self.options.columns else name
        most = self.length_of(counted)
        if most is None:
            return {name: items} | ({} if visible is None else {f"{name}_visible": visible})
        if len(items) > most and not self.options.truncate:
            raise DamagedError(name)
        items = items[:most]
        padded = np.full((most, *items.shape[1:]), self.options.fill.get(name, -1 if name == "label" else 0), float)
        padded[: len(items)] = items
        found = {name: padded} | ({f"{name}_length": len(items)} if counted == name else {})
        if visible is not None:
            seen = found[f"{name}_visible"] = np.zeros(padded.shape[:-1], bool)
            seen[: len(items)] = visible[:most]
        return found
