"""Measure with the real loader how fast a sample could be fed if it were stored, or augmented, in another way.

Each alternative is made as `tpufeed shard` or `tpufeed cache warmup` would make it, and written as a small dataset. The
loader then feeds from that for a short time. If ops are left to the device, that is the host's part: it hands over
whole images, and the numbers that the device needs.
"""

import math
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c

from tpufeed.adapters.loader import Loader
from tpufeed.dataset.index import encode_index
from tpufeed.dataset.manifest import CacheInfo, IndexFile, Manifest, Shard, Sizes, Split, Variant, encode_manifest
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.dataset.schema import ENCODED, TENSOR, FeatureSpec, record_layout
from tpufeed.dataset.writer import ShardWriter
from tpufeed.errors import ImageError, OptionError, StoreError, TpufeedError
from tpufeed.images.coefficients import SIDE_PX, encode_coefficients, of_quality
from tpufeed.images.device import DeviceOps
from tpufeed.images.ops import (
    CenterCrop,
    ColorJitter,
    Custom,
    Grayscale,
    HorizontalFlip,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from tpufeed.images.pipeline import Pipeline, run_views
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.images.policy import Images, store_image
from tpufeed.images.protocols import Op
from tpufeed.images.restart import CAN_REWRITE
from tpufeed.measure.prediction import Alternative
from tpufeed.measure.stages import measure_loader
from tpufeed.processes.limits import available_cores
from tpufeed.storage.copies_folder import free_bytes
from tpufeed.text import format_error

_SPLIT = "train"
_BLOCK = 16
_QUALITY = 90  # the default of warmup
_PLENTY_BYTES = 128 << 20  # more than the processor's cache holds, or copying would look faster than it is
_MOST_ROUNDS = 64

_VARIANTS = 4  # in a raw cache
_MARGIN = 8 / 7  # makes 256 of 224: people presize to that
_LEAST_PX = 8  # that --presize takes
_SIZE_FREE = (HorizontalFlip, VerticalFlip, ColorJitter, Grayscale)  # do the same to smaller images
_SMALLER = 0.8  # share of the bytes: a smaller gain is not worth a build
_FEATURES_BYTES = 400  # size of a record without its image
_DRAWS_ANEW = "random numbers are new in every epoch, and the device's own time for the ops is not counted"

_Ops = tuple[Op, ...]
_Size = tuple[int, int]  # (height, width)


def write_sample(  # noqa: PLR0913  # what tests and benchmarks vary
    folder: Path,
    images: Sequence[bytes],
    shape: tuple[int, ...] | None = None,
    shards: int = 8,
    least_bytes: int = _PLENTY_BYTES,
    split: str = _SPLIT,
    *,
    cache: CacheInfo | None = None,
    sizes: Sizes | msgspec.UnsetType = msgspec.UNSET,
    pixels: PixelFormat | msgspec.UnsetType = msgspec.UNSET,
) -> Dataset:
    """Write a dataset of these images, which are raw pixels if a `shape` is given, and open it.

    The images are repeated up to `least_bytes`, so that the processor's cache does not help. `cache`,
    `sizes` and `pixels` (the format of images that are not `RGB8`) are those of the dataset that the images come from.

    Raises:
        StoreError: the dataset cannot be written.
    """
    from tpufeed._version import __version__

    dtype = (pixels or RGB8).dtype
    raw, encoded = FeatureSpec(TENSOR, dtype, shape, pixels=pixels), FeatureSpec(ENCODED, "bytes", pixels=pixels)
    features = (encoded if shape is None else raw,)
    made, offsets = list[Shard](), []
    try:
        folder.mkdir(parents=True)
        rounds = min(least_bytes, free_bytes(folder) // 2) // max(1, sum(map(len, images)))
        rounds = max(1, min(rounds, _MOST_ROUNDS))
        for number in range(min(shards, len(images))):
            name, part = f"sample-{number}.tfrecord", [*images[number::shards]] * rounds
            with closing(ShardWriter(folder / name, record_layout(features))) as writer:
                for image in part:
                    writer.add(image, (), b"")
            made.append(Shard(name, writer.offsets[-1], writer.crc32c, len(part)))
            offsets.append(np.array(writer.offsets, np.uint64))
        index = encode_index(offsets)
        (folder / "sample.index.npy").write_bytes(index)
        variant = Variant(tuple(made), IndexFile("sample.index.npy", len(index), crc32c(index)))
        manifest = Manifest(
            run_id="doctor",
            tool_version=__version__,
            splits={split: Split(sum(shard.records for shard in made), (), (variant,))},
            class_names=(),
            features=features,
            options={},
            input_digest="",
            rejects={},
            images={},
            odd={},
            sizes=sizes,
            cache=CacheInfo("", (), (), "raw", shape, dtype, 1, 0, "sample") if shape and cache is None else cache,
        )
        (folder / MANIFEST).write_bytes(encode_manifest(manifest))
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror or error}") from error
    return open_dataset(folder)


class DevicePlan(NamedTuple):
    """A split of all ops among a cache, the host, and a device that runs the last ones.

    Attributes:
        cached: the ops of a cache of whole images.
        host: the ops that the loader runs on the host.
        device: the ops that the device runs after them.
    """

    cached: _Ops
    host: _Ops
    device: _Ops


def plan_device_ops(ops: Sequence[Op], size: _Size | None = None) -> DevicePlan | None:
    """Leave as many of the last ops to a device as it can run. Return None if none of them is random.

    Args:
        ops: all ops of the loader.
        size: size of the stored images, if they have one size. Otherwise plan a cache of whole images: its ops are
            those before the first random one, else a resize with a margin and a central crop.
    """
    cached, rest = _Ops(), tuple(ops)
    if size is None:
        first = next((number for number, op in enumerate(rest) if op.draws), len(rest))
        cached, rest = rest[:first], rest[first:]
        size = Pipeline(cached, seed=0).output_size(None)
        if size is None and rest:
            if not cached and isinstance(rest[0], RandomResizedCrop):
                side = _margin(Pipeline(rest[:1], seed=0).output_size(None))
                cached = (Resize(side), CenterCrop(side))
            elif cached and isinstance(cached[-1], Resize):  # to a shorter side
                cached = (*cached, CenterCrop(cached[-1].size))
            size = Pipeline(cached, seed=0).output_size(None)
        if size is None:
            return None
    for start in range(len(rest)):
        host, device = rest[:start], rest[start:]
        before = Pipeline(host, seed=0).output_size(size)
        if before is None or not any(op.draws for op in device):
            continue
        with suppress(OptionError):
            DeviceOps(device, before)
            return DevicePlan(cached, host, device)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way to store the images, and the loader's ops over them.

    Attributes:
        name: what is done, for people.
        command: how it is done, for a shell or for people.
        change: makes all stored variants of the image with this number, and returns the first.
        size: size of raw pixels, or None if images stay encoded.
        gain: its advantage besides the rate.
        shrinks: True if it is only worth a build when it makes images smaller.
        is_coded: True for DCT images, of `size`, which a device decodes.
    """

    name: str
    command: str
    change: Callable[[int], bytes]
    ops: _Ops
    device_ops: _Ops
    size: _Size | None = None
    variants: int = 1
    gain: str = ""
    shrinks: bool = False
    is_coded: bool = False


def try_alternatives(  # noqa: PLR0913  # each option is a parameter that editors show
    url: str,
    images: Sequence[bytes],
    folder: Path,
    seconds: float,
    *,
    records: int,
    ops: Sequence[Op],
    batch_size: int,
    built: int | None = None,
    of_which: str = "",
    device_ops: Sequence[Op] = (),
    are_files: bool = False,
    manifest: Manifest | None = None,
) -> tuple[tuple[Alternative, ...], list[str]]:
    """Measure other ways to store encoded images. Return them, and notes on those that could not be tried.

    Args:
        url: the dataset or the files, for the commands in the advice.
        images: a sample of the images.
        folder: a folder for small datasets.
        seconds: time of each measurement.
        records: number of images that the loader reads.
        ops: ops of the loader, which bring images to one size.
        batch_size: batch size of the loader.
        built: number of images that the commands build: those of all splits. Default: `records`.
        of_which: which images these are, if not all of them: "the first 20,000 images".
        device_ops: ops that a device runs after them already.
        are_files: the images are files, and there is no dataset yet.
        manifest: the manifest of the dataset, for the command that makes it again.
    """
    ops = tuple(ops)
    if manifest is not None and manifest.image_size is not None and Pipeline(ops, seed=0).output_size(None) is None:
        ops = (Resize(manifest.image_size), *ops)  # it changes no pixel, and says the size to `warmup`
    size = Pipeline(ops, seed=0).output_size(None)
    assert size is not None, "the loader only takes ops that bring images to one size"
    ways = _list_ways(url, images, ops, tuple(device_ops), size, are_files, manifest)
    found, notes = list[Alternative](), list[str]()
    for number, way in enumerate(ways):
        try:
            start = time.perf_counter()
            made = _change(way.change, len(images), seconds)
            took = time.perf_counter() - start
            if not made:
                continue  # a build would reject all of them
            mean_bytes = float(np.mean([len(image) for image in made]))
            if way.shrinks and mean_bytes > _SMALLER * float(np.mean([len(image) for image in images])):
                continue
            cache = None
            if way.is_coded and way.size is not None:
                shape = (*way.size, 3)
                cache = CacheInfo("", (), (), "dct", shape, "uint8", 1, 0, "sample", quality=_QUALITY)
            shape_of_raw = way.size and not cache and (*way.size, 3)
            small = write_sample(folder / f"alternative-{number}", made, shape_of_raw or None, cache=cache)
            options = {"ops": way.ops, "device_ops": way.device_ops or None}
            rates = measure_loader(small, _SPLIT, batch_size, seconds, **options)
        except (TpufeedError, OSError, MemoryError) as error:
            notes.append(f"{way.name}: could not be tried: {format_error(error)}")
            continue
        record_bytes, images_built = mean_bytes + _FEATURES_BYTES, records if built is None else built
        cost = _cost(images_built * way.variants * record_bytes, images_built * took / len(made), way, of_which)
        sent, read_bytes = _size_ratio(way.ops, way.size, size), records * way.variants * record_bytes
        if way.is_coded and way.size is not None:
            sent *= math.prod(of_quality(way.size, _QUALITY).shape) / (3 * math.prod(way.size))
        do = f"{way.name}: {way.command}"
        found.append(Alternative(do, rates.whole, record_bytes, read_bytes, cost, sent, span=rates.spans[0]))
    return tuple(found), notes


def _list_ways(  # noqa: PLR0913, PLR0917  # as `try_alternatives`
    url: str,
    images: Sequence[bytes],
    ops: _Ops,
    device_ops: _Ops,
    size: _Size,
    are_files: bool,
    manifest: Manifest | None,
) -> list[_Way]:
    """Return the other ways to store images that loaders bring to `size`."""
    side = _presize_side((*ops, *device_ops))

    def store(number: int) -> bytes:
        return store_image(images[number], Images()).data

    def presize(number: int) -> bytes:
        return store_image(images[number], Images(presize=side)).data

    def warm_by(ops: _Ops, variants: int = 1) -> Callable[[int], bytes]:
        pipelines, samples = [Pipeline(ops, seed=0)] * variants, np.arange(len(images))
        draws = [pipeline.draw(variant, samples) for variant, pipeline in enumerate(pipelines)]

        def warm(number: int) -> bytes:
            drawn = [[op[number] for op in of_variant] for of_variant in draws]
            return run_views(pipelines, memoryview(images[number]), drawn, [None] * variants)[0].tobytes()

        return warm

    presized, given, first = f"presized-{side}", quote(url), ""
    same: dict[str, Any] = {"ops": ops, "device_ops": device_ops}
    ways, command = list[_Way](), f"tpufeed shard {given} {name_beside(url, presized)} --presize {side}"
    if are_files:
        shards = name_beside(url, "shards")
        shard = f"tpufeed shard {given} {shards}"
        ways.append(_Way(name="make shards of the files", command=shard, change=store, **same))
        given, first = shards, f"{shard} && "  # caches are made of datasets
    elif manifest is not None:
        # With the mode "long" shorter sides would be smaller.
        mode = " --presize-mode short" if manifest.options.get("presize_mode") == "long" else ""
        command = f"give --presize {side}{mode} and a new DST to the `tpufeed shard` that made it"
    # No command presizes what was adopted.
    if side is not None and (manifest is None or manifest.options.get("command") != "adopt"):
        ways.append(_Way(name=f"presize to {side}", command=command, change=presize, shrinks=True, **same))
    flags = _flags(ops)
    if ops == (RandomResizedCrop(size[0]), HorizontalFlip()):  # the default of warmup
        flags = f" --size {size[0]}"
    variants = _VARIANTS if any(op.draws for op in ops) else 1
    place = name_beside(url, "x".join(map(str, dict.fromkeys(size))))
    command = f"{first}tpufeed cache warmup {given} {place}{flags}"
    command += f" --variants {variants}" if variants > 1 else ""
    raw: dict[str, Any] = {"size": size, "ops": (), "device_ops": device_ops, "variants": variants}
    ways.append(_Way(name="warm a raw cache", command=command, change=warm_by(ops, variants), **raw))
    plan = plan_device_ops((*ops, *device_ops))
    if plan is not None and plan.cached != ops:  # otherwise it is the raw cache
        whole = Pipeline(plan.cached, seed=0).output_size(None)
        assert whole is not None, "a plan has a size"
        place = name_beside(url, "whole-" + "x".join(map(str, dict.fromkeys(whole))))
        by_device: dict[str, Any] = {"ops": plan.host, "device_ops": plan.device, "size": whole, "gain": _DRAWS_ANEW}
        ways.append(
            _Way(
                name=f"read a cache of whole images with {_arguments(plan)}",
                command=f"{first}tpufeed cache warmup {given} {place}{_flags(plan.cached)}",
                change=warm_by(plan.cached),
                **by_device,
            )
        )
        if CAN_REWRITE and not plan.host and not any(side % SIDE_PX for side in whole):
            warm = warm_by(plan.cached)

            def code(number: int) -> bytes:
                return encode_coefficients(np.frombuffer(warm(number), np.uint8).reshape(*whole, 3), _QUALITY)

            ways.append(
                _Way(
                    name=f"read a cache of their DCT coefficients, which the device decodes, with {_arguments(plan)}",
                    command=f"{first}tpufeed cache warmup {given} {place}-dct{_flags(plan.cached)} --encode dct",
                    change=code,
                    is_coded=True,
                    **by_device,
                )
            )
    return ways


def _cost(total_bytes: float, seconds: float, way: _Way, of_which: str) -> str:
    """Return the size of the result and the time to make it, in words."""
    cost = f"{total_bytes / 1e9:,.1f} GB" if total_bytes >= 1e8 else f"{total_bytes / 1e6:,.1f} MB"
    cost += f" for {way.variants} variants" if way.variants > 1 else ""
    minutes = seconds / 60
    cost += f", about {minutes:,.0f} minutes" if minutes >= 2 else f", about {max(1, round(seconds))} s"
    return f"{cost} on this host{of_which and f', for {of_which}'}" + (f"; {way.gain}" if way.gain else "")


def try_device_ops(  # noqa: PLR0913  # each option is a parameter that editors show
    cache: Dataset,
    split: str,
    near: Dataset,
    seconds: float,
    *,
    ops: Sequence[Op],
    batch_size: int,
    device_ops: Sequence[Op] = (),
    max_bad_records: int = 0,
) -> tuple[tuple[Alternative, ...], list[str]]:
    """Measure a cache whose loader leaves its ops to the device. Return that as `try_alternatives` does.

    Args:
        cache: the cache.
        split: the split that is read.
        near: what is measured instead of a remote cache: a local sample of it.
        seconds: time of the measurement.
        ops: ops of the loader.
        batch_size: batch size of the loader.
        device_ops: ops that a device runs after them already.
        max_bad_records: as in `Loader`.
    """
    entry, stored = cache.split(split), cache.manifest.image_size
    assert stored is not None, "it is a cache"
    plan = plan_device_ops((*ops, *device_ops), stored)
    if plan is None or len(plan.host) >= len(ops):
        return (), []
    given: dict[str, Any] = {"ops": plan.host, "device_ops": plan.device}
    try:
        Loader(cache, split, world=(0, 1), **given).close()
    except OptionError:  # it holds crops, which no device may crop again
        return (), []
    do = f"run ops on the device: give Loader {_arguments(plan, always=True)}"
    try:
        rates = measure_loader(near, split, batch_size, seconds, max_bad_records=max_bad_records, **given)
    except (TpufeedError, OSError, MemoryError) as error:
        return (), [f"{do}: could not be tried: {format_error(error)}"]
    now = Pipeline(ops, seed=0).output_size(stored)
    assert now is not None, "the loader only takes ops that bring images to one size"
    mean = entry.total_bytes / (entry.records * len(entry.variants))
    sent = _size_ratio(plan.host, stored, now)
    return (Alternative(do, rates.whole, mean, entry.total_bytes, _DRAWS_ANEW, sent, span=rates.spans[0]),), []


def _presize_side(ops: _Ops) -> int | None:
    """Return the shorter side that images need so that the ops give the same views and enlarge none.

    It is None if smaller images would mean something else: a crop of 200 pixels shows more of them.
    """
    for op in ops:
        if isinstance(op, RandomResizedCrop):
            return max(_LEAST_PX, _margin(op.output_size(None)))
        if isinstance(op, Resize):
            return max(_LEAST_PX, op.size if isinstance(op.size, int) else max(op.size))
        if not isinstance(op, _SIZE_FREE):
            return None
    return None


def _margin(size: _Size | None) -> int:
    """Return the side that people presize to for crops of `size`."""
    assert size is not None, "crops have a size"
    return round(max(size) * _MARGIN)


def _size_ratio(ops: _Ops, stored: _Size | None, now: _Size) -> float:
    """Return the pixels that leave the host after `ops`, divided by those of the size `now`."""
    size = Pipeline(ops, seed=0).output_size(stored)
    assert size is not None, "a loader fed them"
    return math.prod(size) / math.prod(now)


def name_beside(url: str, suffix: str) -> str:
    """Return a quoted URL beside `url`: `photos-224` for "photos/" or "photos.csv", a placeholder for several URLs."""
    start = re.sub(r"[*?\[{].*", "", url) if "://" not in url or "?" not in url else ""
    stem = re.sub(r"(?<=[^/])\.\w+$", "", start).rstrip("-_./")
    return quote(f"{'DATASET' if not stem or '=' in stem else stem}-{suffix}")


def _flags(ops: _Ops) -> str:
    return "".join(f" --op {quote(_written(op))}" for op in ops)


def _arguments(plan: DevicePlan, always: bool = False) -> str:
    """Return the arguments of `Loader`, and which op stays on the host. Empty `ops` are left out, unless `always`."""
    device = f"device_ops=[{', '.join(map(_written, plan.device))}]"
    if not plan.host:
        return f"ops=[] and {device}" if always else device
    host = f"ops=[{', '.join(map(_written, plan.host))}]"
    return f"{host} and {device} ({type(plan.host[-1]).__name__} runs on the host only)"


def _written(op: Any) -> str:
    """Return an op as one writes it: without arguments that have their default, but for `size`."""
    kind: Any = type(op)
    if isinstance(op, Custom) or not is_dataclass(op):
        return repr(op)
    own = [field for field in fields(op) if field.init]
    needed = [getattr(op, field.name) for field in own if field.default is MISSING or field.name == "size"]
    plain = kind(*needed)
    changed = [
        (field.name, getattr(op, field.name)) for field in own if getattr(op, field.name) != getattr(plain, field.name)
    ]
    return f"{kind.__name__}({', '.join([*map(repr, needed), *(f'{name}={value!r}' for name, value in changed)])})"


def _change(change: Callable[[int], bytes], count: int, seconds: float) -> list[bytes]:
    """Convert images on all cores for some seconds, at least one block. Leave out bad images."""
    stop = time.monotonic() + seconds

    def run(number: int) -> bytes | None:
        if number >= _BLOCK and time.monotonic() > stop:
            return None
        try:
            return change(number)
        except ImageError:
            return None

    with ThreadPoolExecutor(available_cores(), "tpufeed-doctor") as executor:
        return [image for image in executor.map(run, range(count)) if image is not None]
