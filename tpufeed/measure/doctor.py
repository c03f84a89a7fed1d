"""The doctor: measure how fast this host can feed a TPU, find the stage that binds, and advise.

`examine` opens the dataset or the raw images, takes a sample, measures storage, the loader and the transfer
(`stages`, `naive`), tries other ways to store the images (`alternatives`), and judges the rates (`prediction`).
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tpufeed.adapters.loader import Loader
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.errors import OptionError, TpufeedError, advised
from tpufeed.images import HorizontalFlip
from tpufeed.images.mixing import MixingOp
from tpufeed.images.ops import RandomResizedCrop
from tpufeed.images.pixel_format import RGB8
from tpufeed.images.protocols import Op
from tpufeed.measure.alternatives import try_alternatives, try_device_ops, write_sample
from tpufeed.measure.clock import MODERATE_PERCENT, Blame, load_steps
from tpufeed.measure.machine import busy_notes, machine
from tpufeed.measure.naive import measure_files
from tpufeed.measure.prediction import (
    ASSEMBLY,
    OPS,
    STORAGE,
    TRANSFER,
    Alternative,
    Evidence,
    Goal,
    Measurements,
    Storage,
    find_goal,
    predict,
)
from tpufeed.measure.results import Diagnosis, Stage
from tpufeed.measure.sampling import default_split, take_sample
from tpufeed.measure.stages import measure_loader, measure_storage, measure_transfer, tell_stages_apart
from tpufeed.measure.step_cost import cost_of_step
from tpufeed.measure.xplane import read_profile
from tpufeed.options import Count, between, checked
from tpufeed.storage.local import temporary_folder
from tpufeed.storage.store import open_store
from tpufeed.stream.mixture import Mixture, parse_mixture
from tpufeed.text import format_count, format_error, format_percent, format_rate

Listener = Callable[[str], None]

_BATCH_SIZE = 128
_DEFAULT_OPS = (RandomResizedCrop(224), HorizontalFlip())
_NOTE_ON_OPS = "ops: RandomResizedCrop(224) and HorizontalFlip(), because none were given (--op)"

_MEASUREMENTS = 16  # equal parts of the time. Starting processes takes the rest
_SAMPLING, _LOADING = 1.5, 4.0  # lengths in such parts: most of the prediction depends on the loader


@dataclass(frozen=True, slots=True)
class _Asked:
    """Settings of the measurements, each `seconds` long. `split` and `ops` are None if they were not given."""

    split: str | None
    ops: Sequence[Op] | None
    device_ops: tuple[Op, ...]
    batch_size: int
    seconds: float
    tell: Listener
    max_bad_records: int = 0


@checked()
def examine(  # noqa: PLR0913  # each option is a parameter that editors show
    url: str | Path,
    *,
    split: str | None = None,
    tpu: str | None = None,
    model: str | None = None,
    flops_per_sample: float | None = None,
    step: str | None = None,
    batch_size: Count | None = None,
    ops: Sequence[Op] | None = None,
    device_ops: Sequence[Op] | None = None,
    seconds: Annotated[float, between(1.0, 600.0)] = 25.0,
    steps: Path | None = None,
    profile: Path | None = None,
    listener: Listener | None = None,
) -> Diagnosis:
    """Measure how fast this host can feed a TPU from `url`, and judge that.

    If a stage cannot be measured, it says why, and the other stages are measured.

    Args:
        url: a dataset or cache, raw images as `tpufeed shard` takes them, or a mixture like "URL=0.7,URL=0.3".
        split: the split to measure. Default: "train", or the first one.
        tpu: TPU type to feed, e.g. "v5e-8". Default: this host's, or v3-8.
        model: the model that it trains. Default: resnet50.
        flops_per_sample: FLOPs of training on one sample, instead of a model.
        step: the training step to compile for the TPU, instead of a model: "train.py:make_step", see `cost_of_step`.
        batch_size: batch size of this host. Default: 128, without advice about it.
        ops: ops of the loader. Default: the cache's live ops, or for other data without `device_ops`
            RandomResizedCrop(224) and HorizontalFlip().
        device_ops: ops that the loader leaves to the device. All figures are those of the host's part.
        seconds: approximate time of all measurements together.
        steps: a file that a `StepClock` saved: it shows whether the step waits for data or for tracing.
        profile: a folder that a profiler wrote: it shows how much of a step the TPU waited.
        listener: called with a description of each measurement.

    Raises:
        DatasetNotFoundError: there is neither a dataset nor an image.
        OptionError: an option is wrong, the split is missing or empty, or images differ in size.
        StoreError, ManifestError: the dataset cannot be read.
    """
    if sum(each is not None for each in (model, flops_per_sample, step)) > 1:
        raise OptionError("give either a model, the FLOPs per sample, or a step")
    goal, assumed = find_goal(tpu, model, flops_per_sample, batch_size, os.environ)
    evidence = read_evidence(steps, profile)
    mixture = parse_mixture(str(url))
    batch, each, tell = batch_size or _BATCH_SIZE, seconds / _MEASUREMENTS, listener or (lambda _: None)
    if step is not None:
        goal, cost = _ask_step(goal, step, tell)
        assumed += (cost,)
    about = machine()  # before the measurements load the machine
    later = tuple(op for op in device_ops or () if not isinstance(op, MixingOp))  # these take no time of the host
    asked = _Asked(split, ops, later, batch, each, tell)
    if isinstance(mixture, Mixture):
        where, measured = str(url), _examine_datasets(mixture, asked)
    else:
        store = open_store(url, follow=False)
        dataset = find_dataset(store)
        if dataset is None:
            if device_ops:
                raise OptionError(
                    f"{store.url} is no dataset, and only a loader has device_ops: give the URL of a dataset or cache, "
                    "or leave device_ops out to see what they would give"
                )
            if ops is None:
                assumed += (_NOTE_ON_OPS,)
            tried = _DEFAULT_OPS if ops is None else ops
            where, measured = store.url, measure_files(store.url, tried, batch, each, tell)
        else:
            where, measured = dataset.url, _examine_datasets(dataset, asked)
    measured = replace(measured, notes=(*busy_notes(about), *assumed, *measured.notes))
    return predict(measured, goal, where, about, evidence)


def _ask_step(goal: Goal, step: str, tell: Listener) -> tuple[Goal, str]:
    """Return the goal with the rate of a compiled step, and a note on its cost."""
    batch = _BATCH_SIZE if goal.batch_size is None else max(1, goal.batch_size // goal.devices)
    cost = cost_of_step(step, goal.tpu, batch, tell)
    rate = goal.devices * batch / cost.least_seconds
    note = (
        f"{step} needs at least {1e3 * cost.least_seconds:,.3g} ms for {format_count(batch, 'image')} on a device "
        f"({cost.bound}: {cost.hbm_bytes / 1e9:,.3g} GB of HBM, {cost.flops / 1e9:,.4g} GFLOPs), so {goal.tpu} takes "
        f"at most {format_rate(rate)} images a second; compiled for it by libtpu {cost.compiler}, not run on it"
    )
    return replace(goal, model=f"{step} at its fastest", needed=(rate, rate)), note


def read_evidence(steps: Path | None, profile: Path | None) -> tuple[Evidence, ...]:
    """Return the evidence of a training run: steps that a clock saved, and a profile.

    Raises:
        OptionError: one of them cannot be read. The message says what writes such a file.
        DamageError, MissingExtraError: the profile cannot be read.
    """
    found = list[Evidence]()
    if steps is not None:
        report = load_steps(steps)
        found.append(Evidence(report.blame, f"{steps}: {report.verdict}"))
    if profile is not None:
        read = read_profile(profile)
        figures = (
            f"idle {format_percent(read.idle_percent)}, MXU {format_percent(read.mxu_percent)}, "
            f"duty cycle {format_percent(read.duty_cycle_percent)}, MFU "
            f"{format_percent(read.mfu_percent)}"
        )
        blames: Blame | None = None
        if read.input_percent is not None:
            # A profile cannot tell waiting for a batch from waiting for the host to trace, so data is blamed for both.
            blames = "data" if read.input_percent >= MODERATE_PERCENT else "accelerator"
        found.append(Evidence(blames, "; ".join((f"{profile}: {figures}: {read.verdict}", *read.notes))))
    return tuple(found)


def _examine_datasets(data: Dataset | Mixture, asked: _Asked) -> Measurements:
    """Measure the loader, the storage of its heaviest dataset, the transfer, and other ways to store a single dataset.

    Raises:
        OptionError: options do not fit the data, images differ in size, or the split is empty.
        DatasetNotFoundError, ManifestError, StoreError, ShardError: nothing can be read.
    """
    asked.tell("a sample")
    mixes, later, batch_size = isinstance(data, Mixture), asked.device_ops, asked.batch_size
    split = asked.split or ("train" if isinstance(data, Mixture) else default_split(data))
    sources = data.open(split) if isinstance(data, Mixture) else [data]
    entries = [source.split(split) for source in sources]
    records = sum(entry.records for entry in entries)
    if not records:
        raise OptionError(
            f"{sources[0].url}: split {split!r} is empty, so there is nothing to measure; choose another with --split"
        )
    # Device ops may crop themselves.
    default = asked.ops is None and not later and any(source.manifest.cache is None for source in sources)
    live = _DEFAULT_OPS if default else asked.ops
    with Loader(data, split, ops=live, device_ops=later or None, world=(0, 1)) as loader:
        stream = loader.stream
        shape = stream.image_shape if stream.device_ops is None else stream.device_ops.sent.shape
        ops, shares = stream.pipeline.ops[: len(stream.pipeline.ops) - len(later)], stream.shares
    dataset = sources[max(range(len(sources)), key=shares.__getitem__)]
    notes = [_NOTE_ON_OPS] if default else []
    if later:
        notes.append(
            f"the device runs {', '.join(type(op).__name__ for op in later)}: all rates are those of the host, and the "
            "device's time for them is not counted"
        )
    if mixes:
        notes.append(
            f"storage was measured at {dataset.url}, the dataset with the largest share; other ways to store images "
            f"are only tried for a single dataset: {advised('doctor', dataset.url)}"
        )
    elif records < batch_size:
        notes.append(
            f"split {split!r} has {format_count(records, 'sample')}, fewer than a batch of {batch_size}: each batch "
            "was the whole split"
        )
    images, damage = take_sample(dataset, split, asked.seconds * _SAMPLING)
    notes += damage
    storage, stages = Storage(), {ASSEMBLY: Stage(ASSEMBLY, why_not="none of the records in the sample can be read")}
    alternatives: tuple[Alternative, ...] = ()
    if images:
        asked.tell(STORAGE)
        try:
            storage = measure_storage(dataset, split, asked.seconds)
        except (TpufeedError, OSError, MemoryError) as error:
            storage = Storage(why_not=format_error(error))
        asked = replace(asked, split=split, ops=live, max_bad_records=records if damage else 0)
        stages, alternatives, untried = _measure_loading(data, dataset, split, images, ops, asked)
        notes += untried
        asked.tell(TRANSFER)
        stages[TRANSFER] = measure_transfer(shape, batch_size, asked.seconds)
    means = [entry.total_bytes / (entry.records * len(entry.variants)) for entry in entries]
    return Measurements(
        split=split,
        record_bytes=sum(share * mean for share, mean in zip(shares, means, strict=True)),
        total_bytes=sum(entry.total_bytes for entry in entries),
        storage=storage,
        stages=stages,
        alternatives=alternatives,
        notes=tuple(notes),
    )


def _measure_loading(
    data: Dataset | Mixture, dataset: Dataset, split: str, images: Sequence[bytes], ops: Sequence[Op], asked: _Asked
) -> tuple[dict[str, Stage], tuple[Alternative, ...], list[str]]:
    """Measure the loader of `data`, and other ways to store `dataset`, if that is all of it, or to run its ops.

    Return the stages of the loader, the alternatives, and notes on those that could not be tried.

    Args:
        images: a sample of the dataset's images.
        ops: the ops that the loader runs on the host.
    """
    manifest = dataset.manifest
    alone, pixels = not isinstance(data, Mixture), manifest.pixels
    encoded, seconds = manifest.tensor_shape is None, asked.seconds
    # Loaders keep local copies of remote shards, so measure with a local dataset of the sample instead.
    copied = dataset.is_remote and alone and not pixels.frames
    with temporary_folder() as folder:
        near, fed_ops = data, asked.ops
        if copied:
            cache = manifest.cache and msgspec.structs.replace(manifest.cache, ops=(), live=(), variants=1)
            kept: dict[str, Any] = {
                "split": split,
                "cache": cache,
                "sizes": manifest.sizes,
                "pixels": manifest.features[0].pixels,
            }
            near = write_sample(folder / "as-is", images, manifest.tensor_shape, **kept)
            fed_ops = ops
        asked.tell(ASSEMBLY)
        bad: dict[str, Any] = {"max_bad_records": asked.max_bad_records}
        given = {"ops": fed_ops, "device_ops": asked.device_ops or None, **bad}
        try:
            rates = measure_loader(near, split, asked.batch_size, seconds * _LOADING, **given)
        except (TpufeedError, OSError, MemoryError) as error:
            return {ASSEMBLY: Stage(ASSEMBLY, why_not=format_error(error))}, (), []
        sample = images if encoded else ()
        stages = tell_stages_apart(rates, sample, ops, seconds, fast=not manifest.is_coded, pixels=pixels)
        if asked.device_ops and not ops:
            stages[OPS] = Stage(OPS, why_not="the device runs them all")
        if copied:
            stages[ASSEMBLY] = replace(stages[ASSEMBLY], detail=f"{stages[ASSEMBLY].detail}, from local copies")
        same: dict[str, Any] = {"ops": ops, "device_ops": asked.device_ops, "batch_size": rates.batch_size}
        alternatives, untried = tuple[Alternative, ...](), list[str]()
        if pixels.frames:
            untried.append("each clip counts as one image. Other ways to store clips are not tried")
        elif alone and encoded and manifest.cache is None and pixels != RGB8:
            untried.append(f"images of {pixels}: other ways to store them are not tried. A raw cache often helps")
        elif alone and encoded and manifest.cache is None:
            asked.tell("other ways to store the images")
            built = sum(entry.records for entry in manifest.splits.values())
            same |= {"records": dataset.split(split).records, "built": built, "manifest": manifest}
            alternatives, untried = try_alternatives(dataset.url, images, folder, seconds, **same)
        elif isinstance(near, Dataset) and manifest.cache is not None and ops:
            asked.tell("ops on the device")
            alternatives, untried = try_device_ops(dataset, split, near, seconds, **same, **bad)
    return stages, alternatives, untried
