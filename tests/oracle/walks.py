"""Walks: a loader is made, iterated, saved, continued elsewhere and changed, and equals the oracle throughout."""

import copy
import json
import os
import pickle
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Verbosity, given, seed, settings
from hypothesis import strategies as st

import tpufeed
from tests.oracle.datasets import CLIPS, FORMATS
from tests.oracle.loader import SHORT, DamagedError, Mixed, Options, Reference, RefusedError, kept_by
from tpufeed.errors import LoaderError, OptionError, RecordError, ShardError
from tpufeed.images import (
    CenterCrop,
    Choose,
    Custom,
    CutMix,
    HorizontalFlip,
    MixUp,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)

BANDS = ("bands", "bands2", "bands-crops")
FLOATS = ("floats", "floats2", "floats-crops")
OF_CLIPS = {*CLIPS, "clips-crops", "clips-deep-crops"}
FAMILIES = (("lists", "lists2"), ("tags", "tags2"), ("faces", "faces2"), ("captions",), BANDS, FLOATS)  # that mix
FAMILIES += (("clips", "clips2", "clips-crops"), ("clips-deep", "clips-deep-crops"))
# Images of another pixel format than 8-bit RGB.
KEPT = {*FORMATS, *BANDS, *FLOATS, "lists-deep", "clips-deep", "clips-deep-crops", "clips-float"}
PIXELS = ("uint8", "uint16", "float32")  # types of images
PLAIN = ("png", "jpeg", "crops", "live", "dct", "grown", "grown-crops")  # datasets of one label and nothing else
OPS = (
    (RandomCrop(12),),
    (CenterCrop(14),),
    (RandomResizedCrop(12, scale=(0.3, 1.0)), HorizontalFlip()),
    (Resize((15, 13)), VerticalFlip(), RandomCrop(10, padding=2, fill=(1, 2, 3))),
    (HorizontalFlip(), Resize(15), CenterCrop((9, 12))),
    (RandomResizedCrop(9, scale=(0.5, 1.0)),),
)
SHARING = (  # views that share their crops
    (
        (RandomResizedCrop(12, scale=(0.3, 1.0)), HorizontalFlip()),
        (RandomResizedCrop((9, 7), scale=(0.3, 1.0)), HorizontalFlip()),
    ),
    ((RandomCrop(12), VerticalFlip()), (RandomCrop(12), VerticalFlip(), CenterCrop(8))),
)
DEVICE_OPS = (
    (HorizontalFlip(),),
    (RandomCrop(8),),
    (Resize((7, 8)), VerticalFlip()),
    (RandomResizedCrop(8, scale=(0.3, 1.0)), HorizontalFlip()),
    (RandomResizedCrop((6, 9)),),
)
MIXING = ((MixUp(),), (CutMix(),), (CutMix(2.0),), (MixUp(0.5, p=0.5), CutMix()))
# Levels by which a device may be off that decodes coefficients: the host rounds after the inverse DCT, and clips before
# it resizes. Another crop of these images, or another flip, is 200 off.
CODED = 16
CROPPED = {
    "crops",
    "grown-crops",
    "lists-crops",
    "bands-crops",
    "clips-crops",
}  # caches of random crops, which no device crops again
WEIGHTS = ((1.0,), (0.5, 2.0, 0.0, 7.0), (1e-3, 1.0, 3e3), (0.0, 0.0, 0.7))  # of samples
SEEDS = (0, 1, 7, -3, 1 << 40, (1 << 64) + 5)


@dataclass
class Spec:
    """Everything that makes a loader.

    Attributes:
        names: of datasets of the pool; of a mixture in the order of its weights.
        numbers: the version of each.
        grown: whether each was opened with `grown`.
        views: what is selected of each, and of that: the ways of `select`; () for all of it.
        mixed: weights and options of a mixture; None for one dataset.
        runs_first: whether a feed gives a batch before it loads a state.
    """

    names: list[str]
    numbers: list[int]
    grown: list[bool]
    views: list[tuple[dict[str, Any], ...]]
    options: Options
    mixed: Mixed | None
    size: int
    feed: str
    processes: int = 0
    runs_first: bool = False

    @property
    def needs_pixels(self):
        """Whether host ops come before device ops that get coefficients."""
        return bool("dct" in self.names and self.options.ops and self.options.device_ops)

    @property
    def is_refused(self):
        """Whether device ops cannot run: of columns that cannot be mixed, of coefficients, or that mix clips."""
        mixes_clips = self.options.mixing and OF_CLIPS & {*self.names}
        return bool(self.options.cannot_mix or self.needs_pixels or mixes_clips)

    @property
    def is_coded(self):
        """Whether a device decodes the images."""
        return bool("dct" in self.names and self.options.device_ops and self.feed in ("device", "jax"))

    def reference(self, pool):
        versions = []
        for name, number, grown, ways in zip(self.names, self.numbers, self.grown, self.views, strict=True):
            version = replace(pool[name].versions[number - 1], grown=grown)
            weights = () if self.mixed is None else self.mixed.of_samples
            if ways or weights:  # its digests and its name are only names here
                view = selected(tpufeed.open_dataset(version.url, number), ways)
                kept, classes = kept_by(version.stored, ways)
                split = self.options.split
                if weights:
                    (view,) = self.weighted(view).weights
                    records = range(sum(version.stored.counts[split, 0]))
                    empty = {each: [] for each in version.stored.manifest["splits"]}
                    kept = empty | {split: [i for i in kept.get(split, records) if weights[i % len(weights)]]}
                version = replace(
                    version,
                    digest=view.content_digest,
                    past=view.past_digests,
                    url=view.label,
                    kept=kept,
                    classes=classes,
                    weights=weights,
                )
            versions.append(version)
        return Reference(versions, replace(self.options), self.size, self.mixed)

    def data(self, pool):
        """What a loader is given."""
        opened: list[Any] = []
        for name, number, grown, ways in zip(self.names, self.numbers, self.grown, self.views, strict=True):
            if ways or (number, grown) != (len(pool[name].versions), False):
                found = tpufeed.open_dataset(pool[name].url, number, grown=grown)
                opened.append(selected(found, ways))
            else:
                opened.append(pool[name].url)
        if self.mixed is None:
            return opened[0]
        given = self.mixed
        if given.of_samples:
            return self.weighted(opened[0])
        return tpufeed.Mixture(
            dict(zip(opened, given.weights.values(), strict=True)),
            stop=given.stop,
            seed=given.seed,
            classes=given.classes,
            reweight=given.reweight,
        )

    def weighted(self, dataset):
        given, split = self.mixed, self.options.split
        dataset = tpufeed.open_dataset(dataset) if isinstance(dataset, str) else dataset
        weights = np.resize(given.of_samples, dataset.manifest.splits[split].records)
        return tpufeed.Mixture.by_weight(dataset, weights, split=split, seed=given.seed, reweight=given.reweight)

    def open(self, pool):
        """The feeds of all ranks."""
        data = self.data(pool)
        return [FEEDS[self.feed](data, self, rank) for rank in range(self.size)]


def selected(dataset, ways):
    for way in ways:
        dataset = dataset.select(**way)
    return dataset


class NumpyFeed:
    """A loader of one rank, whatever the framework: batches are dicts of numpy arrays."""

    moves = True  # it can be told an epoch, be copied, and load a state when it has begun

    def __init__(self, data, spec, rank, state=None):
        self.spec, self.data, self.rank = spec, data, rank
        self.loader = self.make(data, spec, rank, state)
        self.iterator = None

    @staticmethod
    def takes(options):
        """Whether it has these options at all."""
        return options is not None

    def options(self):
        given = self.spec.options
        options = {
            "split": given.split,
            "batch_size": given.batch_size,
            "seed": given.seed,
            "remainder": given.remainder,
            "lanes": given.lanes,
            "shuffle": given.shuffle,
            "repeat": given.repeat,
            "columns": list(given.columns),
            "fill": given.fill or None,
            "pad": given.pad or None,
            "truncate": given.truncate,
            "min_visibility": given.min_visibility,
            "label_format": "multi_hot" if given.multi_hot else "ids",
            "max_bad_records": given.max_bad_records,
            "max_bad_shards": given.max_bad_shards,
            "world": (self.rank, self.spec.size),
            "processes": self.spec.processes,
            "device_ops": list(given.device_ops) or None,
            "threads": 2,
        }
        if given.views:
            return options | {"views": given.views, "share": given.share}
        return options | {"ops": given.ops}

    def make(self, data, spec, rank, state):
        return tpufeed.Loader(data, **self.options())

    def names(self):
        return self.host().form.names

    def host(self):
        return self.loader.stream

    def next(self):
        if self.iterator is None:
            self.iterator = iter(self.loader)
        return self.named(next(self.iterator))

    def named(self, batch):
        names = self.names()
        batch = (batch,) if len(names) == 1 else batch
        return {name: self.on_host(column) for name, column in zip(names, batch, strict=True)}

    def on_host(self, column):
        return column

    def state(self):
        return self.loader.state_dict()

    def load(self, state):
        self.loader.load_state_dict(state)
        self.iterator = None

    def set_epoch(self, epoch):
        self.loader.set_epoch(epoch)
        self.iterator = None

    def close(self):
        self.iterator = None
        self.loader.close()


class TorchFeed(NumpyFeed):
    def make(self, data, spec, rank, state):
        return tpufeed.Loader(data, **self.options()).to_torch()

    def on_host(self, column):
        return column if isinstance(column, np.ndarray) else column.numpy()


class DeviceFeed(TorchFeed):
    def make(self, data, spec, rank, state):
        return tpufeed.device_loader(super().make(data, spec, rank, state), "cpu", device_prefetch=2)


class JaxFeed(NumpyFeed):
    def make(self, data, spec, rank, state):
        import jax

        options = {name: value for name, value in self.options().items() if name != "world"}
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return tpufeed.Loader(data, **options).to_jax(sharding=sharding)

    def on_host(self, column):
        if isinstance(column, np.ndarray):
            return column
        array = np.asarray(column)
        return array.astype(np.int64) if array.dtype == np.int32 else array  # jax without 64 bits


class TfFeed(NumpyFeed):
    moves = False

    def make(self, data, spec, rank, state):
        self.read = tpufeed.Loader(data, **self.options())
        if state is not None:
            self.read.load_state_dict(state)
        return self.read.to_tf(deterministic=True)

    def host(self):
        return self.read.stream

    def state(self):
        return self.read.state_dict()

    def on_host(self, column):
        array = column.numpy()
        return np.array([each.decode() for each in array], object) if array.dtype == object else array

    def load(self, state):
        self.__init__(self.data, self.spec, self.rank, state)

    def close(self):
        self.iterator = None


NO_BATCH = (StopIteration, OptionError, RecordError, ShardError)


class KerasFeed(NumpyFeed):
    """As Keras asks for batches on JAX and torch: by number, as many as it was told when it began."""

    moves = False

    def make(self, data, spec, rank, state):
        from tpufeed.adapters.keras.dataset import KerasFeed

        feed = KerasFeed(tpufeed.Loader(data, **self.options()).stream)
        self.skipped = 0
        if state is not None and spec.runs_first:
            feed.on_epoch_begin()
            with suppress(*NO_BATCH):
                feed[0]
        if state is not None:  # of the rest of an epoch: keras_state tells Keras how many batches that has
            feed.load_state_dict(state)
            samples = feed.state_dict()["samples"]
            self.skipped = 0 if spec.options.repeat else len(feed) - feed.stream.batches_from(samples)
        return feed

    def next(self):
        if self.iterator is None:
            self.loader.on_epoch_begin()
            self.iterator = iter(range(self.loader.num_batches or 1 << 60))
            for _ in range(self.skipped):
                next(self.iterator)
            self.skipped = 0
        return self.named(self.loader[next(self.iterator)])

    def named(self, batch):
        found = super().named(batch)
        mask = self.host().columns.mask
        return {name: column.astype(bool) if name == mask else column for name, column in found.items()}

    def load(self, state):
        self.__init__(self.data, self.spec, self.rank, state)

    @staticmethod
    def takes(options):
        """Keras takes an image and a label, and weights third."""
        return options.columns in (("image", "label"), ("image", "sample")) and not options.views


class SamplerFeed(NumpyFeed):
    """A torch DataLoader of TFRecordImages with LaneSampler; the loop counts for its state."""

    moves = False

    def make(self, data, spec, rank, state):
        from torch.utils.data import DataLoader

        options, given = self.options(), spec.options
        names = ("columns", "seed", "ops", "views", "fill", "pad", "truncate", "min_visibility", "label_format")
        chosen = {name: options.get(name) for name in (*names, "share")}
        images = tpufeed.TFRecordImages(data, given.split, **chosen)
        self.sampler = tpufeed.LaneSampler(
            images, spec.size, rank, given.shuffle, given.seed, drop_last=True, lanes=given.lanes
        )
        self.epoch, self.begun = 0, 0
        if state is not None:
            self.sampler.load_state_dict(state)
            self.epoch = self.sampler.epoch
            self.begun = state["samples"] if state["epoch"] == self.epoch and self.is_same(state) else 0
            if len(images) - self.begun < spec.size * given.batch_size:  # which the sampler cannot know
                self.epoch, self.begun = self.epoch + 1, 0
        self.given = None
        return DataLoader(images, given.batch_size, sampler=self.sampler, drop_last=True)

    def is_same(self, state):
        return state["content_digest"] == self.sampler.dataset.dataset.content_digest

    def next(self):
        if self.iterator is None:
            self.sampler.set_epoch(self.epoch)
            self.iterator, self.given, self.epoch = iter(self.loader), self.begun, self.epoch + 1
            self.begun = 0
        batch = next(self.iterator)
        self.given += self.spec.options.batch_size * self.spec.size
        return self.named(batch)

    def names(self):
        return self.sampler.dataset._open().names

    def named(self, batch):
        batch = (batch,) if len(self.names()) == 1 else batch
        arrays = [np.array(column, object if isinstance(column[0], str) else None) for column in batch]
        return dict(zip(self.names(), arrays, strict=True))

    def state(self):
        if self.given is None:
            self.sampler.set_epoch(self.epoch)
        return self.sampler.state_at(self.begun if self.given is None else self.given)

    def load(self, state):
        self.__init__(self.data, self.spec, self.rank, state)

    def close(self):
        self.iterator = None

    @staticmethod
    def takes(options):
        bad = options.max_bad_records or options.max_bad_shards
        return options.remainder == "drop" and not (options.repeat or bad or options.device_ops)


FEEDS = {
    "numpy": NumpyFeed,
    "torch": TorchFeed,
    "device": DeviceFeed,
    "jax": JaxFeed,
    "tf": TfFeed,
    "keras": KerasFeed,
    "sampler": SamplerFeed,
}


# What a walk is made of.


def specs(pool, feeds):
    return st.composite(_draw_spec)(pool, feeds)


def _draw_spec(draw, pool, feeds):  # noqa: PLR0912, PLR0915  # one thing after the other
    pick = lambda *choices: draw(st.sampled_from(choices))  # noqa: E731
    mixed = draw(st.booleans())
    if mixed:
        family = pick(PLAIN, *FAMILIES)
        names = draw(st.lists(st.sampled_from(family), min_size=1, max_size=3, unique=True))
        names += ["grown"] if "grown" in family and "grown" not in names and pick(False, True) else []
    else:
        names = [pick(*pool, *["grown", "grown-crops", "small-jpegs"] * 3)]
    by_class = mixed and "png" in family and pick(False, False, True)
    if by_class:  # the classes of one dataset, also of one sample
        views = [
            ({"classes": [each], "keep_ids": True},)
            for each in pool[names[0]].versions[0].stored.manifest["class_names"]
        ]
        views = [way for way in views if kept_by(pool[names[0]].versions[0].stored, way)[0]["train"]]
        names = names[:1] * len(views)
    by_weight = mixed and not by_class and pick(False, False, True)
    names = names[:1] if by_weight else names
    numbers = [draw(st.integers(1, len(pool[name].versions))) for name in names]
    splits = set.intersection(*(set(pool[name].splits) for name in names))
    split = pick(*sorted(splits)) if not mixed else "train"
    size, feed = pick(1, 1, 1, 2, 3, 4), pick(*feeds)
    if feed == "jax":
        size = 1
    columns = sorted(set.intersection(*({*pool[name].columns} for name in names)))
    chosen = [name for name in ("image", "sample", *columns, *(["source"] if mixed else [])) if pick(0, 1, 1)]
    if feed in ("jax", "tf") and mixed:
        chosen = [name for name in chosen if name not in ("filename", "captions", "txt")]
    options = Options(
        split=split,
        batch_size=draw(st.integers(1, 6)),
        seed=pick(*SEEDS),
        remainder=pick("drop", "pad", "repeat"),
        shuffle=pick(True, True, True, False),
        repeat=pick(False, False, False, True),
        columns=tuple(draw(st.permutations(chosen or ["sample"]))),
    )
    options.lanes = pick(None, size, 2 * size, 12) if not mixed else pick(size, 2 * size, 12, 36)
    sizes = {pool[name].size for name in names}
    if len(sizes) > 1 or None in sizes or pick(True, False):
        options.ops = pick(*OPS)
        if names[0] in KEPT:  # no colours
            options.ops = tuple(replace(op, fill=9) if getattr(op, "fill", 0) else op for op in options.ops)
    if options.columns == ("image",) and pick(False, True):
        options.views, options.ops = [OPS[2], OPS[2], OPS[1]], None
    elif "image" in options.columns and feed != "keras" and pick(False, False, True):
        options.views, options.ops, options.share = list(pick(*SHARING)), None, "crop"
    draw_columns(options, names, pick)
    if "captions" in options.columns:
        draw_texts(options, pick)
    is_whole = options.views is None and "image" in options.columns
    if is_whole and pick(True, True, "small-jpegs" in names or "dct" in names):
        draw_device_ops(options, names, pick)
    mixture = None
    if mixed:
        mixture = Mixed(
            {number: pick(1.0, 1.0, 3.0, 0.2, 7.5) for number in range(len(names))},
            stop=pick("shortest", "longest", "never", "total"),
            seed=pick(None, None, 4),
            classes=pick("by_name", "by_name", "offset"),
        )
        options.repeat = options.repeat or mixture.stop == "never"
    if not takes(feed, options, mixed):
        feed = "numpy"
    if not by_class:
        views = [draw_view(pool[name], split, pick) for name in names]
    if by_weight:
        weigh_samples(mixture, options, kept_by(pool[names[0]].versions[0].stored, views[0])[0], pick)
    return Spec(names, numbers, [False] * len(names), views, options, mixture, size, feed, pick(*[0] * 40, 2))


def weigh_samples(mixture, options, kept, pick):
    """Weights of the samples of one dataset, instead of those of datasets."""
    mixture.stop, mixture.classes, mixture.weights, options.repeat = "total", "by_name", {0: 1.0}, False
    mixture.of_samples = pick(*WEIGHTS)
    if not any(mixture.of_samples[each % len(mixture.of_samples)] for each in kept.get(options.split, range(9))):
        mixture.of_samples = WEIGHTS[0]


def draw_view(made, split, pick):
    """What is selected of a dataset, the same of all its versions; () for nothing."""
    stored = made.versions[0].stored
    classes, records = stored.manifest["class_names"], len(stored.samples[split, 0])
    ways = [{"fold": (pick(0, 1), 2)}, {"without_fold": (pick(0, 1, 2), 3)}]
    few = sorted({(pick(0, 1, 5, 7) * each + pick(0, 3)) % records for each in range(pick(2, 3, 20))})
    ways += [{"samples": few, "split": split}, {"drop": few, "split": split}]
    if classes and not (made.versions[0].damaged or made.versions[0].lost):  # or the labels cannot be read
        if all(SHORT["filename"] in each for each in stored.samples[split, 0]):
            ways += [{"fold": (pick(0, 1), 2), "group": "filename"}]
        picked = [each for each in classes[:: pick(1, -1)] if pick(0, 1, 1)] or [classes[-1]]
        ways += [{"classes": picked, "keep_ids": True}] + [{"classes": picked}] * 2
        ways += [{"classes": picked, "fold": (0, 2)}]
    twice = (ways[-2], {"classes": ways[-2]["classes"][1::-1]}) if "classes" in ways[-2] else (pick(*ways), pick(*ways))
    drawn = pick((), (pick(*ways),), twice)
    numbers = kept_by(stored, drawn[:1])[1]
    if numbers and "classes" in drawn[-1]:  # the first view has only these
        left = [each for each in drawn[-1]["classes"] if classes.index(each) in numbers] or [classes[numbers[0]]]
        drawn = (*drawn[:-1], drawn[-1] | {"classes": left})
    return drawn if all(kept_by(stored, drawn[:count])[0].get(split, True) for count in (1, 2)) else ()


def draw_columns(options, names, pick):
    """How columns are batched."""
    if "mask" in options.columns and pick(False, True):
        options.fill["mask"] = 250
    if "label" in options.columns and names[0].startswith(("lists", "tags")):
        options.multi_hot = pick(False, True)
    if "boxes" in options.columns:
        options.min_visibility = pick(0.0, 0.4)
    if "kp" in options.columns and pick(False, True):
        options.pad["kp"], options.truncate = 3, True
    if names == ["bad"]:
        options.max_bad_records = pick(0, 2, 3, 9)
    if names == ["lost"]:
        options.max_bad_shards = pick(0, 1, 1, 2)


def draw_texts(options, pick):
    """One of several captions, or what a function makes of it; always the first in evaluation."""
    more = (Choose("captions", random=pick(True, True, False)),)
    options.fill["captions"] = "none"
    if pick(False, True) and options.views is None:
        more += (Custom("tests.oracle.ops:tokenised", sample=True),)
        options.pad["captions"], options.truncate = pick(2, 5), True
    if options.views is None:
        options.ops = (*(options.ops or OPS[0]), *more)
    else:
        options.views[0] = (*options.views[0], *more)


def draw_device_ops(options, names, pick):
    """Ops on the device, and ops that mix rows, which need labels, pairs, and columns that can be mixed."""
    ops = pick((), *DEVICE_OPS)
    options.device_ops = ops if not crops_again(ops, names) else DEVICE_OPS[0]
    mixes = (True, True, False) if names[0] not in OF_CLIPS else (True, False, False, False)  # which is refused
    if names not in (["plain"], ["captions"]) and pick(*mixes):
        more = ("label", "mask") if names[0].startswith("lists") else ("label",)
        options.columns += tuple(name for name in more if name not in options.columns)
        options.device_ops += pick(*MIXING[1:3], *([] if "mask" in options.columns else MIXING))
        options.batch_size += options.batch_size % 2
        options.remainder = "drop" if options.remainder == "pad" else options.remainder
        options.multi_hot = names[0].startswith(("lists", "tags"))
        if pick(True, True, True, False):
            left = tuple(name for name in options.columns if name not in options.cannot_mix)
            options.columns = left


def crops_again(ops, names):
    return bool(CROPPED & {*names}) and any(isinstance(op, RandomResizedCrop) for op in ops)


def takes(feed, options, mixed):
    return FEEDS[feed].takes(options) and not (mixed and feed == "sampler")


class Walk:
    """A training, as tpufeed and as the oracle have it.

    Attributes:
        said: the actions so far, for the report of a failure.
    """

    def __init__(self, pool, spec, draw, feeds, counts):
        self.pool, self.spec, self.draw, self.names, self.counts = pool, spec, draw, feeds, counts
        self.reference, self.feeds = spec.reference(pool), []
        self.said: list[Any] = [spec]
        self.last: list[Any] = []  # batches, of each rank

    def pick(self, *choices):
        return self.draw(st.sampled_from(choices))

    def run(self):
        try:
            if self.refused(self.reference.batches) or self.empty():
                return
            if self.spec.is_refused:
                try:
                    self.spec.open(self.pool)
                except OptionError:
                    return
                raise AssertionError(f"device ops that cannot run were taken: {self.spec}")
            self.feeds = self.spec.open(self.pool)
            self.check_state()
            actions = [
                self.take,
                self.take,
                self.finish,
                self.continue_,
                self.set_epoch,
                self.copy,
                self.leave,
                self.close,
            ]
            actions += [self.reweight] * 4 if self.spec.mixed else [self.continue_]
            actions += [self.grow] * 3 if self.can_grow() else []
            actions += [self.fork] * 3 if self.spec.processes else []
            for _ in range(self.draw(st.integers(2, 8))):
                action = self.pick(*(each.__name__ for each in actions))
                self.counts[action] += 1
                getattr(self, action)()
                self.check_state()
            self.counts["walks"] += 1
        except AssertionError as error:
            error.add_note("the walk: " + "\n  ".join(map(str, self.said)))
            raise
        finally:
            self.end()

    def end(self):
        for feed in self.feeds:
            feed.close()
        self.feeds = []

    def empty(self):
        """True if remainder='drop' leaves nothing of an epoch."""
        return not self.reference.batches()

    @staticmethod
    def refused(do):
        try:
            do()
        except RefusedError:
            return True
        return False

    def check_state(self):
        try:
            expected = self.reference.state()
        except RefusedError:
            return
        for feed in self.feeds:
            found = json.loads(json.dumps(feed.state()))
            if "mixture" in found:
                found["mixture"] = json.loads(found["mixture"])
            assert found == json.loads(json.dumps(expected))
            if self.spec.mixed:
                assert list(feed.host().class_names) == self.reference.names

    # Actions.

    def take(self, count=None):
        count = self.draw(st.integers(1, 5)) if count is None else count
        self.said.append(f"take {count}")
        for _ in range(count):
            if not self.step():
                return

    def finish(self):
        """To the end of an epoch: as many batches as there should be, and then none."""
        if self.spec.options.repeat:
            return
        self.said.append("finish")
        for _ in range(self.reference.batches() + 1):
            if not self.step():
                return
        raise AssertionError("an epoch does not end")

    def step(self):
        """The next batch of each rank; False where the epoch is over."""
        try:
            expected = self.reference.next_batch()
        except StopIteration:
            for feed in self.feeds:
                self.raises(StopIteration, feed)
                feed.iterator = None
            return False
        except DamagedError:
            assert any(self.fails(feed) for feed in self.feeds), "a damaged record was given"
            self.restart()
            return False
        except RefusedError:
            for feed in self.feeds:
                self.raises((OptionError, RuntimeError), feed)
            self.restart()
            return False
        self.last = []
        for feed, columns in zip(self.feeds, expected, strict=True):
            self.last.append(feed.next())
            same(self.last[-1], columns, feed.names(), CODED if self.spec.is_coded else 0)
            self.counts["batches"] += 1
        return True

    def restart(self):
        """Another training: this one cannot continue."""
        self.said.append("restart")
        self.end()
        self.spec.options.max_bad_shards = int("lost" in self.spec.names)
        self.spec.options.max_bad_records = max(9, self.spec.options.max_bad_records) if "bad" in self.spec.names else 0
        if not takes(self.spec.feed, self.spec.options, self.spec.mixed):
            self.spec.feed = "numpy"
        self.reference, self.feeds = self.spec.reference(self.pool), self.spec.open(self.pool)

    @staticmethod
    def raises(kind, feed):
        try:
            batch = feed.next()
        except kind:
            return
        raise AssertionError(f"{kind} was expected, not {batch}")

    @staticmethod
    def fails(feed):
        try:
            feed.next()
        except Exception as error:  # noqa: BLE001  # TensorFlow has its own
            return any(name in f"{type(error)} {error}" for name in ("RecordError", "ShardError"))
        return False

    def saved(self):
        try:
            reference = json.loads(json.dumps(self.reference.state()))
        except RefusedError:
            return None
        states = [feed.state() for feed in self.feeds]
        assert all(state == states[0] for state in states)
        return json.loads(json.dumps(states[0])), reference

    def elsewhere(self, lanes):
        """Another world, batch, remainder or framework for the same data."""
        options = replace(
            self.spec.options,
            batch_size=self.draw(st.integers(1, 6)),
            remainder=self.pick("drop", "pad", "repeat"),
            lanes=self.pick(None, lanes),
        )
        if options.mixing:
            options.batch_size += options.batch_size % 2
            options.remainder = "drop" if options.remainder == "pad" else options.remainder
        feed = self.pick(*self.names)
        size = 1 if feed == "jax" else self.pick(*(size for size in (1, 2, 3, 4, 6) if lanes % size == 0))
        feed = feed if takes(feed, options, self.spec.mixed) else "numpy"
        spec = replace(self.spec, options=options, size=size, feed=feed, runs_first=self.pick(False, True))
        return replace(spec, mixed=replace(spec.mixed, reweight=self.pick(False, True))) if spec.mixed else spec

    def continue_(self, spec=None):
        """Save, and load into other loaders. They refuse the state just where the oracle does."""
        saved = self.saved()
        if saved is None:
            return
        state, known = saved
        spec = spec or self.elsewhere(known["lanes"])
        self.said.append(f"continue with {spec}")
        other = Walk(self.pool, spec, self.draw, self.names, self.counts)
        refused = self.refused(lambda: other.reference.load(known))
        if refused:  # by a loader that can be made and asked for its own state
            other.spec = replace(spec, feed="numpy", options=replace(spec.options, lanes=known["lanes"]))
            other.reference = other.spec.reference(self.pool)
        if other.empty():
            return
        try:
            self.load_into(other, state, refused)
        except BaseException:
            other.end()
            raise
        if refused:
            self.counts["states refused"] += 1
            other.end()
        else:
            self.counts["states loaded"] += 1
            self.end()
            self.spec, self.reference, self.feeds = spec, other.reference, other.feeds

    def load_into(self, other, state, refused):
        spec = other.spec
        for rank in range(spec.size):
            data = spec.data(self.pool)
            if not FEEDS[spec.feed].moves:
                other.feeds.append(FEEDS[spec.feed](data, spec, rank, state))
                continue
            feed = FEEDS[spec.feed](data, spec, rank)
            other.feeds.append(feed)
            if spec.runs_first:
                with suppress(*NO_BATCH):
                    feed.next()
            # Iterations of other loaders begin with their first batch, wherever the loader is then. A mixture may have
            # too few samples for the default lanes, until those of the state are loaded.
            opens = spec.feed == "numpy" and (spec.options.lanes is not None or not spec.mixed)
            stale = [iter(feed.loader) for _ in range(self.pick(0, 0, 2) if opens else 0)]
            before = feed.state() if refused else None
            try:
                feed.load(state)
            except OptionError:
                assert refused, "a state was refused that the pages promise to take"
                assert feed.state() == before, "a refused state changed the loader"
            else:
                assert not refused, "a state was taken that is of something else"
                for iterator in stale:
                    self.raises_superseded(iterator)

    @staticmethod
    def raises_superseded(iterator):
        try:
            next(iterator)
        except LoaderError:
            return
        raise AssertionError("an iteration of before the state was loaded gave a batch")

    def reweight(self):
        """Other weights, other sources, another order of them."""
        if self.spec.mixed.of_samples:
            mixed = replace(self.spec.mixed, of_samples=self.pick(*WEIGHTS[:3]), reweight=self.pick(True, True, False))
            kept = self.spec.reference(self.pool).versions[0].kept
            if any(mixed.of_samples[each % len(mixed.of_samples)] for each in kept[self.spec.options.split]):
                self.continue_(replace(self.spec, mixed=mixed))
            return
        family = next((each for each in FAMILIES if self.spec.names[0] in each), PLAIN)
        names = self.draw(st.lists(st.sampled_from(family), min_size=1, max_size=3, unique=True))
        own = self.spec
        known = dict(zip(own.names, zip(own.numbers, own.grown, own.views, strict=True), strict=True))
        picked = [known.get(name) or self.other(name) for name in names]
        weights = dict(enumerate(self.pick(1.0, 3.0, 0.2, 7.5) for _ in names))
        mixed = replace(self.spec.mixed, weights=weights, reweight=self.pick(True, True, True, False))
        spec = replace(
            self.spec,
            names=names,
            numbers=[each[0] for each in picked],
            grown=[each[1] for each in picked],
            views=[each[2] for each in picked],
            mixed=mixed,
        )
        if self.fits(spec):
            self.continue_(spec)

    def other(self, name):
        """A dataset that comes into a mixture."""
        made = self.pool[name]
        return self.draw(st.integers(1, len(made.versions))), False, draw_view(made, self.spec.options.split, self.pick)

    def can_grow(self):
        return any(len(self.pool[name].versions) > 1 for name in self.spec.names)

    def grow(self):
        """Newer versions of the datasets, or older ones; opened with `grown`, or not."""
        numbers = [self.draw(st.integers(1, len(self.pool[name].versions))) for name in self.spec.names]
        spec = replace(self.spec, numbers=numbers, grown=[self.pick(True, True, False) for _ in numbers])
        if self.fits(spec):
            self.continue_(spec)

    def fits(self, spec):
        """Whether a loader can be made of it at all: all columns are there, and images come out in one size."""
        columns = set.intersection(*({*self.pool[name].columns} for name in spec.names))
        sizes = {self.pool[name].size for name in spec.names}
        fixed = (
            spec.options.ops is not None or spec.options.views is not None or (len(sizes) == 1 and None not in sizes)
        )
        fixed = fixed and not crops_again(spec.options.device_ops, spec.names)
        fixed = fixed and not spec.is_refused
        return fixed and set(spec.options.columns) <= columns | {"image", "sample", "source"}

    def fork(self):
        """A child has for itself the batches that it was forked with, whatever its parent does then."""
        if not self.step():
            return
        kept, self.last = self.last, []
        if not self.step():
            return
        self.said.append("fork")
        dropped, self.last = self.last, []
        pixels = [column for batch in (*kept, *dropped) for column in batch.values() if column.dtype.name in PIXELS]
        before, (waits, go) = [column.copy() for column in pixels], os.pipe()
        child = os.fork()
        if not child:
            os.close(go)
            os.read(waits, 1)
            equal = all(map(np.array_equal, pixels, before))
            for column in pixels:
                column[...] = 7
            os._exit(0 if equal else 9)
        try:
            del dropped, pixels
            self.take(6)
        finally:
            os.close(go)
            os.close(waits)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == 0, "a child saw later batches in its own"
        pixels = [column for batch in kept for column in batch.values() if column.dtype.name in PIXELS]
        assert all(map(np.array_equal, pixels, before)), "a child wrote into its parent's batch"

    def set_epoch(self):
        if not all(feed.moves for feed in self.feeds):
            return
        epoch = self.pick(0, 1, 2, 5, self.reference.next[0])
        self.said.append(f"set_epoch {epoch}")
        self.reference.set_epoch(epoch)
        for feed in self.feeds:
            feed.set_epoch(epoch)

    def leave(self):
        """Leave the loop: the next one is the next epoch."""
        self.said.append("leave")
        self.reference.is_open = False
        for feed in self.feeds:
            feed.iterator = None

    def copy(self):
        """Continue with a copy or a pickle."""
        if not all(feed.moves for feed in self.feeds):
            return
        how = self.pick("copy", "pickle") if self.spec.feed != "jax" else "copy"  # devices cannot be pickled
        self.said.append(how)
        current = self.reference.current
        if current is not None:  # a copy continues the epoch, or has it behind it
            epoch, samples = current
            left = self.reference.batches(samples)
            self.reference.next = (epoch, samples) if left else (epoch + 1, 0)
            self.reference.current, self.reference.is_open = None, False
        for feed in self.feeds:
            loader = copy.copy(feed.loader) if how == "copy" else pickle.loads(pickle.dumps(feed.loader))
            feed.close()
            feed.loader, feed.iterator = loader, None

    def close(self):
        """A loader that was closed continues with its next epoch; what was open ends."""
        if not all(feed.moves for feed in self.feeds):
            return
        self.said.append("close")
        for feed in self.feeds:
            iterator = feed.iterator
            feed.close()
            self.reference.is_open = False
            if iterator is not None and self.reference.current is not None:
                try:
                    next(iterator)
                except (LoaderError, StopIteration):
                    continue
                raise AssertionError("a closed iteration went on")


def same(found, expected, names, far):
    """Compare a batch of the columns `names` with what the oracle says. Pixels may be `far` off."""
    assert tuple(found) == tuple(names)
    tolerance = max(far, *expected.get("resizes", [0]))
    for name, column in found.items():
        wanted = expected[name]
        assert not name.startswith("image") or column.dtype == expected["dtype"][0], (name, column.dtype)
        if isinstance(wanted, np.ndarray) and wanted.dtype == bool:
            assert column.dtype == bool, name
            assert column.tolist() == wanted.tolist(), name
        elif column.dtype == object:
            assert column.tolist() == list(wanted), name
        else:
            values = np.array(wanted, float)
            assert column.shape == values.shape, (name, column.shape, values.shape)
            off = np.abs(column.astype(float) - values).max(initial=0)
            exact = {"u": tolerance, "f": 1e-3}.get(column.dtype.kind, 0)
            assert off <= (0 if name == "mask" else exact), (name, off, column.tolist(), values.tolist())


def walk(pool, data, feeds=("numpy",), counts=None):
    """One walk, as hypothesis draws it; `counts` counts what was done."""
    Walk(pool, data.draw(specs(pool, feeds)), data.draw, feeds, Counter() if counts is None else counts).run()


def walk_often(pool, number, times, feeds, counts=None):
    """So many walks with the seed `number`."""

    @seed(number)
    @settings(
        max_examples=times,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.normal,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def walks(data):
        walk(pool, data, tuple(feeds), counts)

    walks()
