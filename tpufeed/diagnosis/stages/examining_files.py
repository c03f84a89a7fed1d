"""Measuring raw images that are no dataset yet: what plain Python makes of them, and what shards of them would give."""

from dataclasses import replace
from functools import partial

from tpufeed.diagnosis.machine import machine
from tpufeed.diagnosis.stages.case import DEFAULT_OPS, SAID_OF_OPS
from tpufeed.diagnosis.stages.examination import Examination
from tpufeed.diagnosis.stages.findings import Findings, Way
from tpufeed.diagnosis.stages.origin import Origin
from tpufeed.diagnosis.stages.rates import DECODING, OPS, READING, TRANSFER, Figure, Storage, compose
from tpufeed.diagnosis.stages.rawfiles import RawFiles, measure_plainly, read_files
from tpufeed.diagnosis.stages.samples import sample_folder
from tpufeed.diagnosis.stages.settings import suggest_settings
from tpufeed.diagnosis.stages.transfers import measure_transfer
from tpufeed.diagnosis.stages.ways import Trial, try_ways
from tpufeed.diagnosis.wording import number_of
from tpufeed.engines.engine import available_cores
from tpufeed.errors import OptionError
from tpufeed.images.ops import Op
from tpufeed.images.pipeline import Pipeline

_SPLIT = "all"


def examine_files(url: str, asked: Examination) -> Findings:
    """Measure raw images as one trains from them without tpufeed, and what shards of them would give.

    Raises:
        SourceError, NoInputsError: there are no images.
        OptionError: ops that leave images of several sizes.
    """
    about = machine()  # before there is any load of ours
    asked.listener("looking at the files")
    ops = tuple(asked.loader.ops or DEFAULT_OPS)
    size = Pipeline(ops, 0).output_size(None)
    if size is None:
        raise OptionError("the ops leave images of several sizes; end with one that fixes it, like CenterCrop(224)")
    files = read_files(url, asked.each_seconds)
    found = Findings(
        url=url,
        split=_SPLIT,
        machine=about,
        record_bytes=files.bytes,
        storage=Storage(kind="memory", why_not="files are read one by one; see reading"),
        reading=Figure(name=READING, images_per_second=files.read_per_second, detail="file by file, in one thread"),
        settings=suggest_settings(None, asked.loader, asked.goal.devices),
        notes=_notes(files, asked.loader.ops is None),
    )
    if not files.sample.images:
        first = "".join(files.unreadable[:1]) or "there is none"
        return replace(found, why_no_loader=f"none of the files can be read; {first}")
    asked.listener(TRANSFER)
    transfer = measure_transfer((*size, 3), asked.loader.batch_size, asked.each_seconds)
    found = _measure(replace(found, transfer=transfer), files, size[0], asked)
    return _try_ways(found, files, ops, size, asked)


def _try_ways(
    found: Findings, files: RawFiles, ops: tuple[Op, ...], size: tuple[int, int], asked: Examination
) -> Findings:
    asked.listener("what shards and caches of them would give")
    with sample_folder() as folder:
        trial = Trial(
            url=found.url,
            origin=Origin(found.url),
            records=files.count,
            sample=files.sample,
            shape=None,
            cached=None,
            options=asked.loader,
            ops=ops,
            size=size,
            folder=folder,
            seconds=asked.each_seconds,
            expected=found.loader,
        )
        tried = list(try_ways(trial, raw_files=True))
    ways = tuple(way for way in tried if isinstance(way, Way))
    return replace(found, ways=ways, notes=(*found.notes, *(way for way in tried if isinstance(way, str))))


def _measure(found: Findings, files: RawFiles, side_px: int, asked: Examination) -> Findings:
    cores, seconds = available_cores(), asked.each_seconds
    plainly = partial(measure_plainly, files.sample)
    one = plainly(None, 1, seconds)
    decoding = plainly(None, cores, seconds)
    whole = plainly(side_px, cores, seconds)
    spent = 1 / whole - 1 / decoding if whole and decoding else 0.0
    ops = Figure(name=OPS, why_not="cannot be told from decoding")
    if spent > 0:
        ops = Figure(name=OPS, images_per_second=1 / spent, detail="a crop, resized by Pillow")
    return replace(
        found,
        decoding=Figure(name=DECODING, images_per_second=decoding or None, one_thread=one or None, detail="Pillow"),
        ops=ops,
        loader=compose(whole or None, files.read_per_second * cores) if whole else None,
        loader_detail=f"Pillow in {number_of(cores, 'thread')}, as a Dataset of one's own does it; no tpufeed in it",
        why_no_loader="" if whole else "Pillow decodes none of the images that were looked at",
    )


def _say_columns(columns: tuple[str, ...], labelled: bool) -> str:
    """What the actions' commands do not say of a table, since the doctor was not told."""
    said = ["the actions' commands put all of the table into train (add --split-by COLUMN where one says the split)"]
    if not labelled:
        said.append(
            "and make a dataset without labels, as no column is called label, class or the like (add --label COLUMN)"
        )
    return f"{' '.join(said)}; its other columns: {', '.join(columns)}"


def _notes(files: RawFiles, default_ops: bool) -> tuple[str, ...]:
    notes = [f"there is no dataset here yet, but images: {files.count:,}{'' if files.complete else ' and more'}"]
    if files.unreadable:
        notes.append(f"{len(files.unreadable):,} of those looked at cannot be read, the first: {files.unreadable[0]}")
    if files.columns:
        notes.append(_say_columns(files.columns, files.labelled))
    if default_ops:
        notes.append(SAID_OF_OPS)
    return tuple(notes)
