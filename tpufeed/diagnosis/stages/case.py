"""A dataset as the doctor sees it: what is measured, with which options, and some of it near where it is far away."""

from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.diagnosis.stages.samples import SPLIT, Sample, take_sample, write_sample
from tpufeed.diagnosis.wording import number_of
from tpufeed.images.flips import HorizontalFlip
from tpufeed.images.ops import Op
from tpufeed.images.windows import RandomResizedCrop
from tpufeed.loaders.decoder import Decoder
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.workers import Workers, plan_workers

DEFAULT_OPS = (RandomResizedCrop(224), HorizontalFlip())
SAID_OF_OPS = "ops: RandomResizedCrop(224) and HorizontalFlip(), as none were given (--op)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured.

    Attributes:
        dataset: as it lies.
        split: of it, which has samples.
        options: of its loaders.
        ops: that they apply.
        size: (height, width) of what comes out.
        workers: that they have.
        sample: of the split.
        near: the dataset, or the sample as one, where the dataset is remote: what a loader finds once it is staged.
        near_split: of that.
        folder: for small datasets.
        notes: what was noticed.
    """

    dataset: Dataset
    split: str
    options: LoaderOptions
    ops: tuple[Op, ...]
    size: tuple[int, int]
    workers: Workers
    sample: Sample
    near: Dataset
    near_split: str
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def direct(self) -> bool:
        """Whether the loader reads from far away, with nothing staged."""
        return self.dataset.is_remote and self.options.stage_bytes == 0

    @property
    def encoded(self) -> bool:
        """Whether images have to be decoded."""
        return self.dataset.manifest.tensor_shape is None

    @property
    def record_bytes(self) -> float:
        """Of a record, on average."""
        shards = [shard for variant in self.dataset.split(self.split).variants for shard in variant.shards]
        return sum(shard.bytes for shard in shards) / sum(shard.records for shard in shards)


def open_case(dataset: Dataset, split: str, options: LoaderOptions, seconds: float, folder: Path) -> Case:
    """Look at a split that has samples, for so many seconds. The sample may be empty: then there is nothing near.

    Raises:
        OptionError: options that do not fit it; its images differ in size.
        StoreError, ShardError: none of it can be read.
    """
    notes, records = list[str](), dataset.split(split).records
    if options.ops is None and dataset.manifest.cache is None:
        options = replace(options, ops=DEFAULT_OPS)
        notes.append(SAID_OF_OPS)
    decoder = Decoder(dataset, options.ops, 0)
    ops, (height, width, _) = decoder.pipeline.ops, decoder.batch_shape
    if records < options.batch_size:
        notes.append(
            f"split {split!r} has {number_of(records, 'sample')}, fewer than a batch of {options.batch_size}: they "
            "come again and again, in batches of as many"
        )
    workers = plan_workers(dataset, options)
    sample = take_sample(dataset, split, seconds)
    if sample.damaged:
        notes.append(_say_damage(sample, dataset.url))
        options = replace(options, max_bad_records=records)
    near, near_split = dataset, split
    if dataset.is_remote and sample.images:
        near = open_dataset(write_sample(folder / "as-is", sample, dataset.manifest.tensor_shape))
        near_split, options = SPLIT, replace(options, ops=ops)  # the copy's manifest names none
    return Case(
        dataset=dataset,
        split=split,
        options=options,
        ops=ops,
        size=(height, width),
        workers=workers,
        sample=sample,
        near=near,
        near_split=near_split,
        folder=folder,
        notes=tuple(notes),
    )


def _say_damage(sample: Sample, url: str) -> str:
    bad, looked_at = len(sample.damaged), len(sample.damaged) + len(sample.images)
    said = f"{bad} of {number_of(looked_at, 'record')} looked at {'is' if bad == 1 else 'are'} damaged"
    return f"{said}, the first: {sample.damaged[0]}. Run: tpufeed verify {quote(url)}"
