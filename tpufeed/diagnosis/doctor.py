"""The doctor: what feeds a TPU from here, what it needs, what binds, and what to do about it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.diagnosis.machine import clashes, crowds
from tpufeed.diagnosis.results import Diagnosis
from tpufeed.diagnosis.stages.evidence import read_evidence
from tpufeed.diagnosis.stages.examination import Examination
from tpufeed.diagnosis.stages.examining import examine_dataset
from tpufeed.diagnosis.stages.examining_files import examine_files
from tpufeed.diagnosis.stages.prediction import diagnose
from tpufeed.diagnosis.stages.rates import ASSUMED_TPU, DEFAULT_MODEL, Goal, detect_tpu, needed_rates
from tpufeed.errors import DatasetNotFoundError, NoInputsError, OptionError, SourceError
from tpufeed.images.ops import Op
from tpufeed.loaders.options import LoaderOptions
from tpufeed.profiling.flops import find_model, find_tpu, training_flops
from tpufeed.storage.registry import open_store

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 600.0

Listener = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What the doctor is asked.

    Attributes:
        split: to be measured; None: "train", or else the first one.
        tpu: that is to be fed; None: the one of this host, else a v3-8.
        model: that it trains; None: resnet50.
        flops_per_sample: of a training step, in place of a model.
        batch_size: of this host; None: the loaders' default, 128, of which nothing is said then.
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
        """For the loaders that are measured. Raises OptionError."""
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

    A stage that cannot be measured says why, and the others are.

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
    asked = Examination(
        loader=options.loader_options(),
        goal=goal,
        seconds=options.seconds,
        listener=listener or (lambda _: None),
    )
    if dataset is None:
        try:
            findings = examine_files(store.url, asked)
        except (SourceError, NoInputsError) as error:
            raise DatasetNotFoundError(
                f"{store.url} holds neither a dataset (no manifest.json) nor images: {error}. Give the URL of a "
                "dataset, or of images as `tpufeed shard` takes them"
            ) from error
    else:
        findings = examine_dataset(dataset, find_split(dataset, options.split), asked)
    notes = (*crowds(findings.machine), *assumed, *findings.notes, *clashes())
    return diagnose(replace(findings, evidence=evidence, notes=notes), goal, options.batch_size)


def find_goal(options: DoctorOptions) -> tuple[Goal, tuple[str, ...]]:
    """What is to be fed, and what had to be assumed. Raises OptionError that names the nearest TPU or model."""
    notes = list[str]()
    tpu = None if options.tpu is None else find_tpu(options.tpu)
    if tpu is None:
        tpu = detect_tpu(os.environ)
        notes.append(f"{tpu.name} is the TPU of this host" if tpu is not None else "")
    if tpu is None:
        tpu, notes = find_tpu(ASSUMED_TPU), [f"no TPU was named or found: {ASSUMED_TPU} is assumed (--tpu)"]
    model = options.model or DEFAULT_MODEL
    flops = options.flops_per_sample
    if flops is not None:
        model = f"{flops / 1e9:,.4g} GFLOPs a sample"
    elif model != DEFAULT_MODEL:
        model = find_model(model)
        flops = None if model == DEFAULT_MODEL else training_flops(model)
    return Goal(tpu.name, model, needed_rates(tpu, flops), tpu.devices), tuple(filter(None, notes))


def find_split(dataset: Dataset, name: str | None) -> str:
    """The split to be measured. Raises OptionError where there is none of that name, or it is empty."""
    if name is None:
        names = list(dataset.manifest.splits)
        name = "train" if "train" in names or not names else names[0]
    if not dataset.split(name).records:
        raise OptionError(
            f"{dataset.url}: split {name!r} is empty, so there is nothing to measure; choose another one with --split"
        )
    return name
