"""The doctor: measure what feeds a TPU from here, and say what binds and what to do about it.

`examine` opens the dataset or the raw images, takes a sample, measures each stage and the loader itself, tries a few
alternatives, and hands all rates to `prediction` (what binds, how idle) and to `advice` (what to do next).
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TypeVar

from tpufeed.dataset.advice import iter_warnings
from tpufeed.dataset.reader import Dataset, find_dataset, open_dataset
from tpufeed.diagnosis.advice import Evidence, Provenance, advise, find_provenance
from tpufeed.diagnosis.feeding import DeviceChoice, feed, open_loader
from tpufeed.diagnosis.machine import clashes, crowds, machine
from tpufeed.diagnosis.prediction import (
    ASSEMBLY,
    DECODING,
    OPS,
    READING,
    STORAGE,
    TRANSFER,
    Alternative,
    Goal,
    Measurements,
    Storage,
    detect_tpu,
    needed_rates,
    predict,
)
from tpufeed.diagnosis.rawfiles import measure_files, read_files
from tpufeed.diagnosis.results import Diagnosis, Run, Stage
from tpufeed.diagnosis.samples import (
    SPLIT,
    Scenario,
    sample_folder,
    take_sample,
    try_storages,
    try_workers,
    write_sample,
)
from tpufeed.diagnosis.stages.measure import (
    measure_cores,
    measure_ranges,
    measure_storage,
    measure_throughput,
    measure_transfer,
    stage_room,
)
from tpufeed.diagnosis.stages.probing import Subject
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import DatasetNotFoundError, NoInputsError, OptionError, SourceError, TpufeedError
from tpufeed.images.flips import HorizontalFlip
from tpufeed.images.ops import Op
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.windows import RandomResizedCrop
from tpufeed.loaders.decoder import Decoder
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.workers import plan_workers
from tpufeed.profiling.accelerator import Limits
from tpufeed.profiling.clock import MODERATE_PERCENT, load_steps
from tpufeed.profiling.tpu import AcceleratorProfile, find_model, find_tpu, training_flops
from tpufeed.profiling.xplane import read_profile
from tpufeed.storage.registry import open_store

Listener = Callable[[str], None]
T = TypeVar("T")

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 600.0
_ASSUMED_TPU, _DEFAULT_MODEL = "v3-8", "resnet50"
_DEFAULT_OPS = (RandomResizedCrop(224), HorizontalFlip())
_SAID_OF_OPS = "ops: RandomResizedCrop(224) and HorizontalFlip(), as none were given (--op)"

_MEASUREMENTS = 16  # share the time among them; starting processes takes the rest
_SAMPLING = 1.5  # times a measurement's seconds
_LOADING = 2.0  # likewise: most of the prediction depends on it
_SPARE = 1.02
_WARM_UP_BATCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Options of the doctor.

    Attributes:
        split: to be measured; None: "train", or else the first one.
        tpu: that is to be fed; None: the one of this host, else a v3-8.
        model: that it trains; None: resnet50.
        flops_per_sample: of a training step, in place of a model.
        batch_size: of this host; None: the loaders' default, 128, and no advice about it.
        ops: as for loaders; None: the cache's own, or RandomResizedCrop(224) and HorizontalFlip().
        threads: as for loaders.
        processes: as for loaders.
        stage_dir: as for loaders.
        stage_bytes: as for loaders.
        seconds: that all measurements may take together, about.
        steps: a report that `StepClock` saved.
        profile: a folder that a profiler wrote.
    """

    split: str | None = None
    tpu: str | None = None
    model: str | None = None
    flops_per_sample: float | None = None
    batch_size: int | None = None
    ops: Sequence[Op] | None = None
    threads: int | None = None
    processes: int | None = None
    stage_dir: str | Path | None = None
    stage_bytes: str | int | None = None
    seconds: float = 25.0
    steps: Path | None = None
    profile: Path | None = None

    def __post_init__(self) -> None:
        if not _LEAST_SECONDS <= self.seconds <= _MOST_SECONDS:
            raise OptionError(f"seconds are between {_LEAST_SECONDS:g} and {_MOST_SECONDS:g}, not {self.seconds:g}")
        if self.model is not None and self.flops_per_sample is not None:
            raise OptionError("give either a model or the FLOPs of a sample, not both")
        self.loader_options()

    def loader_options(self) -> LoaderOptions:
        """Return the options of the loaders that are measured. Raises OptionError."""
        given = LoaderOptions(
            ops=self.ops,
            threads=self.threads,
            processes=self.processes,
            stage_dir=self.stage_dir,
            stage_bytes=self.stage_bytes,
        )
        return given if self.batch_size is None else replace(given, batch_size=self.batch_size)


def examine(url: str | Path, options: DoctorOptions | None = None, listener: Listener | None = None) -> Diagnosis:
    """Measure on this host, for as long as `options.seconds` say, what feeds a TPU from `url`, and judge it.

    A stage that cannot be measured says why, and the others are measured.

    Args:
        url: a dataset or cache, or raw images as `tpufeed shard` takes them.
        options: what is asked.
        listener: told what is being measured.

    Raises:
        DatasetNotFoundError: there is neither a dataset nor are there images.
        OptionError: an option that cannot be, a split that is not there or is empty, or images that differ in size.
        StoreError, ManifestError: the dataset cannot be read.
    """
    options = options or DoctorOptions()
    goal, assumed = find_goal(options)
    evidence = read_evidence(options.steps, options.profile)
    store = open_store(url)
    dataset = find_dataset(store)
    about = machine()  # before there is any load of ours
    with sample_folder() as folder:
        seconds = options.seconds / _MEASUREMENTS
        exam = _Examination(options.loader_options(), seconds, folder, listener or (lambda _: None))
        if dataset is None:
            measured = _examine_files(store.url, exam)
        else:
            measured = _examine_dataset(dataset, _find_split(dataset, options.split), exam)
    found = predict(measured, goal, store.url if dataset is None else dataset.url, about)
    notes = (*crowds(about), *assumed, *found.notes, *clashes(), *(one.says for one in evidence))
    return replace(found, actions=advise(measured, goal, evidence), notes=notes)


def find_goal(options: DoctorOptions) -> tuple[Goal, tuple[str, ...]]:
    """Return what is to be fed, and what had to be assumed. Raises OptionError that names the nearest TPU or model."""
    notes: tuple[str, ...] = ()
    tpu = detect_tpu(os.environ) if options.tpu is None else find_tpu(options.tpu)
    if tpu is None:
        tpu, notes = find_tpu(_ASSUMED_TPU), (f"no TPU was named or found: {_ASSUMED_TPU} is assumed (--tpu)",)
    elif options.tpu is None:
        notes = (f"{tpu.name} is the TPU of this host",)
    model = find_model(options.model or _DEFAULT_MODEL)
    flops = options.flops_per_sample
    if flops is not None:
        model = f"{flops / 1e9:,.4g} GFLOPs a sample"
    elif model != _DEFAULT_MODEL:
        flops = training_flops(model)
    return Goal(tpu.name, model, needed_rates(tpu, flops), tpu.devices, options.batch_size), notes


def read_evidence(steps: Path | None, profile: Path | None) -> tuple[Evidence, ...]:
    """Return what a training run has shown: steps that a clock saved, and a profile.

    Raises:
        OptionError: one cannot be read, or is none; it says what writes such a file.
        DamageError, MissingExtraError: a profile cannot be read.
    """
    found = list[Evidence]()
    if steps is not None:
        report = load_steps(steps)
        found.append(Evidence(report.blame, f"{steps}: {report.verdict}"))
    if profile is not None:
        read = read_profile(profile)
        figures = {
            "idle": read.idle_percent,
            "MXU": read.mxu_percent,
            "duty cycle": read.duty_cycle_percent,
            "MFU": read.mfu_percent,
        }
        known = ", ".join(f"{name} {'n/a' if value is None else f'{value:.1f} %'}" for name, value in figures.items())
        says = "; ".join((f"{profile}: {known}: {read.verdict}", *read.notes))
        # A profile cannot tell waiting for a batch from waiting for the host to trace: it blames data for both.
        blames = None if read.input_percent is None else read.input_percent >= MODERATE_PERCENT
        found.append(Evidence(None if blames is None else "data" if blames else "accelerator", says))
    return tuple(found)


def _find_split(dataset: Dataset, name: str | None) -> str:
    """Return the split to be measured. Raises OptionError where there is none of that name, or it is empty."""
    if name is None:
        names = list(dataset.manifest.splits)
        name = "train" if "train" in names or not names else names[0]
    if not dataset.split(name).records:
        raise OptionError(
            f"{dataset.url}: split {name!r} is empty, so there is nothing to measure; choose another one with --split"
        )
    return name


@dataclass(frozen=True, slots=True)
class _Examination:
    """Options of the loaders, the seconds of one measurement, and a folder for small datasets."""

    options: LoaderOptions
    seconds: float
    folder: Path
    listener: Listener

    def attempt(self, what: str, measure: Callable[[], T]) -> tuple[T | None, str]:
        """Return what `measure` gives, or why there is nothing."""
        self.listener(what)
        try:
            return measure(), ""
        except (TpufeedError, OSError) as error:
            return None, str(error) or type(error).__name__
        except MemoryError:
            return None, "there is not enough memory for it"


def _examine_files(url: str, exam: _Examination) -> Measurements:
    """Measure raw images as one trains from them without tpufeed, and what shards of them would give.

    Raises:
        DatasetNotFoundError: there are no images.
        OptionError: ops that leave images of several sizes.
    """
    exam.listener("looking at the files")
    ops = tuple(exam.options.ops or _DEFAULT_OPS)
    size = Pipeline(ops, 0).output_size(None)
    if size is None:
        raise OptionError("the ops leave images of several sizes; end with one that fixes it, like CenterCrop(224)")
    try:
        files = read_files(url, exam.seconds)
    except (SourceError, NoInputsError) as error:
        raise DatasetNotFoundError(
            f"{url} holds neither a dataset (no manifest.json) nor images: {error}. Give the URL of a dataset, or of "
            "images as `tpufeed shard` takes them"
        ) from error
    measured = Measurements(
        split="all",
        record_bytes=files.bytes,
        storage=Storage(kind="memory", why_not="files are read one by one; see reading"),
        stages={ASSEMBLY: Stage(name=ASSEMBLY, why_not="none of the files can be read")},
        notes=(*files.notes, *([_SAID_OF_OPS] if exam.options.ops is None else [])),
    )
    if not files.sample.images:
        return measured
    exam.listener(TRANSFER)
    transfer = measure_transfer((*size, 3), exam.options.batch_size, exam.seconds)
    measured = replace(measured, stages=measure_files(files, size[0], exam.seconds) | {TRANSFER: transfer})
    scenario = Scenario(
        url=url,
        source="files",
        provenance=Provenance(url),
        records=files.count,
        sample=files.sample,
        options=exam.options,
        ops=ops,
        size=size,
        folder=exam.folder,
        seconds=exam.seconds,
        expected=measured.loader,
    )
    exam.listener("what shards and caches of them would give")
    tried = list(try_storages(scenario))
    return replace(
        measured,
        alternatives=tuple(one for one in tried if isinstance(one, Alternative)),
        notes=(*measured.notes, *(one for one in tried if isinstance(one, str))),
    )


def _examine_dataset(dataset: Dataset, split: str, exam: _Examination) -> Measurements:
    """Measure each stage of a split that has samples, the loader from end to end, and alternatives.

    Raises:
        OptionError: options that do not fit it; its images differ in size.
        StoreError, ShardError: none of it can be read.
    """
    exam.listener("a sample of it")
    options, entry, manifest, notes = exam.options, dataset.split(split), dataset.manifest, list[str]()
    if options.ops is None and manifest.cache is None:
        options = replace(options, ops=_DEFAULT_OPS)
        notes.append(_SAID_OF_OPS)
    decoder = Decoder(dataset, options.ops, 0)
    ops, (height, width, _) = decoder.pipeline.ops, decoder.batch_shape
    if entry.records < options.batch_size:
        notes.append(
            f"split {split!r} has {number_of(entry.records, 'sample')}, fewer than a batch of {options.batch_size}: "
            "they come again and again, in batches of as many"
        )
    sample = take_sample(dataset, split, exam.seconds * _SAMPLING)
    if sample.damaged:
        bad, looked_at = len(sample.damaged), len(sample.damaged) + len(sample.images)
        notes.append(
            f"{bad} of {number_of(looked_at, 'record')} looked at {'is' if bad == 1 else 'are'} damaged, the first: "
            f"{sample.damaged[0]}. Run: tpufeed verify {quote(dataset.url)}"
        )
        options = replace(options, max_bad_records=entry.records)
    shards = [shard for variant in entry.variants for shard in variant.shards]
    measured = Measurements(
        split=split,
        record_bytes=sum(shard.bytes for shard in shards) / sum(shard.records for shard in shards),
        storage=Storage(kind="memory"),
        stages={ASSEMBLY: Stage(name=ASSEMBLY, why_not="none of the records that were looked at can be read")},
        notes=tuple(notes),
    )
    if not sample.images:
        return measured
    scenario = Scenario(
        url=dataset.url,
        source="encoded" if manifest.cache is None and manifest.tensor_shape is None else "other",
        provenance=find_provenance(manifest.options),
        records=entry.records,
        sample=sample,
        cached=manifest.cache.shape if manifest.cache is not None and manifest.tensor_shape is None else None,
        options=replace(options, ops=ops),  # small datasets name none in their manifests
        ops=ops,
        size=(height, width),
        folder=exam.folder,
        seconds=exam.seconds,
    )
    measured = _measure_stages(dataset, measured, scenario, exam)
    hints = tuple(_iter_hints(dataset, split, measured.storage, scenario, exam))
    return replace(measured, hints=hints)


def _measure_stages(dataset: Dataset, measured: Measurements, scenario: Scenario, exam: _Examination) -> Measurements:
    """Measure storage, what cores do, the transfer, the loader from end to end, and alternatives to it."""
    options, seconds, split, notes = scenario.options, exam.seconds, measured.split, list(measured.notes)
    workers = plan_workers(dataset, options)
    in_turn = dataset.is_remote and options.stage_bytes == 0  # threads that decode read remote records themselves
    # Of a remote dataset the sample is copied into memory: that is where loaders read once shards are staged.
    near, near_split, near_options = dataset, split, replace(options, stage_bytes=None)
    if dataset.is_remote:
        url = write_sample(exam.folder / "as-is", scenario.sample, dataset.manifest.tensor_shape)
        near, near_split = open_dataset(url), SPLIT

    def measure_source() -> Storage:
        if in_turn:
            return measure_ranges(Subject(dataset.url, split, options), workers, measured.record_bytes, seconds)
        return measure_storage(dataset, split, options, seconds)

    storage, why = exam.attempt(STORAGE, measure_source)
    storage = storage or Storage(kind="remote" if dataset.is_remote else "memory", why_not=why)
    subject, encoded = Subject(near.url, near_split, options), dataset.manifest.tensor_shape is None
    cores, why = exam.attempt(
        "reading, decoding and ops", lambda: measure_cores(subject, workers, encoded, bool(scenario.ops), seconds)
    )
    stages = cores or {name: Stage(name=name, why_not=why) for name in (READING, DECODING, OPS)}
    exam.listener(TRANSFER)
    stages[TRANSFER] = measure_transfer((*scenario.size, 3), options.batch_size, seconds)

    alone = sum(1 / rate for name in (READING, DECODING, OPS) if (rate := stages[name].images_per_second))
    expected = storage.through(1 / alone, measured.record_bytes) if alone else None
    where = (dataset, split, options) if in_turn else (near, near_split, near_options)
    loader, why = exam.attempt(ASSEMBLY, lambda: measure_throughput(*where, seconds * _LOADING, expected))
    stages[ASSEMBLY] = Stage(name=ASSEMBLY, why_not=why)
    if loader is None:
        return replace(measured, storage=storage, stages=stages)
    if loader.batch_size < min(options.batch_size, near.split(near_split).records):
        notes.append(f"measured with batches of {loader.batch_size}: larger ones take too long here")
    who = number_of(workers.threads, "thread")
    if workers.processes:
        who = f"{number_of(workers.processes, 'process', 'processes')} x {who}"
    staged = ", from staged copies" if dataset.is_remote and not in_turn else ""
    stages[ASSEMBLY] = Stage(
        name=ASSEMBLY,
        images_per_second=loader.images_per_second,
        detail=f"the loader from end to end, {who}{staged}; first batch after {loader.first_batch_seconds:.1f} s",
    )
    measured = replace(measured, storage=storage, stages=stages)

    scenario, alternatives = replace(scenario, expected=loader.images_per_second), list[Alternative]()
    shares = measured.shares
    other, why = exam.attempt(
        "other threads and processes", lambda: try_workers(scenario, near, near_split, workers, shares[ASSEMBLY])
    )
    if why:
        notes.append(f"other threads and processes could not be tried: {why}")
    exam.listener("other ways of storing the images")
    for tried in (other, *try_storages(scenario)):
        if isinstance(tried, str):
            notes.append(tried)
        elif tried is not None:
            alternatives.append(tried)
    return replace(measured, alternatives=tuple(alternatives), notes=tuple(notes))


def _iter_hints(
    dataset: Dataset, split: str, storage: Storage, scenario: Scenario, exam: _Examination
) -> Iterator[str]:
    """Yield what else may help; it was not tried, so its effect is not known."""
    entry = dataset.split(split)
    total = sum(shard.bytes for variant in entry.variants for shard in variant.shards)
    if storage.kind == "remote" and storage.every_epoch:
        stage, _ = exam.attempt("the stage", lambda: stage_room(replace(scenario.options, stage_bytes=None)))
        if stage is not None and total <= stage[1]:
            yield (
                f"stage all of it: stage_bytes={int(total * _SPARE)} fits {stage[0].parent}, and epochs from the "
                "second on read from memory"
            )
    if dataset.manifest.options.get("command") == "adopt":
        return  # its shards are another tool's
    shards = entry.variants[0].shards
    hosts = int(dataset.manifest.options.get("hosts", 1))
    for sentence in iter_warnings(split, len(shards), sum(shard.bytes for shard in shards), hosts):
        yield f"reshard: {sentence}"


def check_diagnosis(diagnosis: Diagnosis, options: LoaderOptions, seconds: float) -> Run | None:
    """Make a short EMULATED run at the high rate of what was diagnosed; None for raw images, which have no loader yet.

    Raises:
        TpufeedError: the loader's errors.
    """
    dataset = find_dataset(open_store(diagnosis.url))
    if dataset is None:
        return None
    profile = AcceleratorProfile(f"tpu-{diagnosis.tpu}, {diagnosis.model}, high", diagnosis.needed[1])
    options = replace(options, max_bad_records=dataset.split(diagnosis.split).records)  # the doctor has gone on, too
    return feed_emulated(dataset, diagnosis.split, options, profile, seconds)


def feed_emulated(
    dataset: Dataset, split: str, options: LoaderOptions, profile: AcceleratorProfile, seconds: float
) -> Run:
    """Feed an accelerator of that rate for some seconds from the loader with these options, once all of it is at work.

    Raises:
        TpufeedError: the loader's errors.
    """
    batch_size = min(options.batch_size, dataset.split(split).records)
    names = ("ops", "threads", "processes", "stage_dir", "stage_bytes", "max_bad_records")
    keywords = {name: getattr(options, name) for name in names}
    opened = open_loader("numpy", dataset, split, batch_size, keywords)
    choice = DeviceChoice(f"EMULATED {profile.name}", "emulated", profile)
    try:
        # A part of an epoch: the workers that it starts stay for the next one.
        with closing(iter(opened.loader)) as batches:  # type: ignore[type-var]  # an epoch of ours
            for _ in itertools.islice(batches, _WARM_UP_BATCHES):
                pass
        return feed(choice, opened, Limits(seconds=seconds))
    finally:
        opened.close()
