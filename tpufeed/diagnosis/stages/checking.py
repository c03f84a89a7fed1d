"""Whether a prediction holds: the same loader really feeds an emulated accelerator."""

import itertools
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.diagnosis.feeds.devices import Subject, feed
from tpufeed.diagnosis.feeds.loaders import open_loader
from tpufeed.diagnosis.feeds.options import DeviceChoice
from tpufeed.diagnosis.results import Diagnosis, Run
from tpufeed.loaders.options import LoaderOptions
from tpufeed.profiling.accelerator import Limits
from tpufeed.profiling.flops import AcceleratorProfile
from tpufeed.storage.registry import open_store

_WARM_UP_BATCHES = 8


def check_diagnosis(diagnosis: Diagnosis, options: LoaderOptions, seconds: float) -> Run | None:
    """A short EMULATED run at the high rate of what was diagnosed; None for raw images, which have no loader yet.

    Raises:
        TpufeedError: what the loader raises.
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
        TpufeedError: what the loader raises.
    """
    batch_size = min(options.batch_size, dataset.split(split).records)
    opened = open_loader("numpy", dataset, split, batch_size, _keywords(options))
    label = f"EMULATED {profile.name}"
    source = "shards" if dataset.manifest.cache is None else "cache"
    subject = Subject(f"{dataset.url}, numpy", dataset.url, "numpy", source)
    try:
        _warm_up(opened.loader)
        return feed(DeviceChoice(label, "emulated", profile), batch_size, opened, Limits(seconds=seconds), subject)
    finally:
        opened.close()


def _warm_up(loader: Iterable[Any]) -> None:
    """A part of an epoch: the workers that it starts stay for the next one."""
    with closing(iter(loader)) as batches:  # type: ignore[type-var]  # an epoch of ours
        for _ in itertools.islice(batches, _WARM_UP_BATCHES):
            pass


def _keywords(options: LoaderOptions) -> dict[str, Any]:
    return {
        "ops": options.ops,
        "threads": options.threads,
        "processes": options.processes,
        "stage_dir": options.stage_dir,
        "stage_bytes": options.stage_bytes,
        "max_bad_records": options.max_bad_records,
    }
