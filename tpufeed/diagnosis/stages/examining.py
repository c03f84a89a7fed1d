"""Measuring a dataset: each stage by itself, the loader from end to end, and other ways of storing its samples."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tpufeed.dataset.advice import iter_warnings
from tpufeed.dataset.reader import Dataset
from tpufeed.diagnosis.machine import machine
from tpufeed.diagnosis.stages.apart import tell_apart
from tpufeed.diagnosis.stages.case import Case, open_case
from tpufeed.diagnosis.stages.draining import Drained, drain, fitting_batch
from tpufeed.diagnosis.stages.examination import Examination
from tpufeed.diagnosis.stages.findings import Findings, Way
from tpufeed.diagnosis.stages.origin import find_origin
from tpufeed.diagnosis.stages.probing import Part, Probes, Subject
from tpufeed.diagnosis.stages.rates import ASSEMBLY, DECODING, OPS, READING, STORAGE, TRANSFER, Figure, Storage
from tpufeed.diagnosis.stages.samples import sample_folder
from tpufeed.diagnosis.stages.settings import suggest_settings
from tpufeed.diagnosis.stages.storing import measure_storage
from tpufeed.diagnosis.stages.transfers import measure_transfer
from tpufeed.diagnosis.stages.ways import Trial, try_ways, try_workers
from tpufeed.diagnosis.wording import number_of

_SAMPLING = 1.5  # times a measurement's seconds
_LOADING = 2.0  # likewise: what is predicted depends on it most
_SPARE = 1.02


def examine_dataset(dataset: Dataset, split: str, asked: Examination) -> Findings:
    """Measure a split that has samples.

    Raises:
        OptionError: options that do not fit it; its images differ in size.
        StoreError, ShardError: none of it can be read.
    """
    about = machine()  # before there is any load of ours
    asked.listener("a sample of it")
    with sample_folder() as folder:
        case = open_case(dataset, split, asked.loader, asked.each_seconds * _SAMPLING, folder)
        found = Findings(
            url=dataset.url,
            split=split,
            machine=about,
            record_bytes=case.record_bytes,
            storage=Storage(kind="memory"),
            notes=case.notes,
        )
        if not case.sample.images:
            return replace(found, why_no_loader="none of the records that were looked at can be read")
        found = _measure_loader(_measure_stages(found, case, asked), case, asked)
        if found.loader is not None:
            found = _try_others(found, case, asked)
    settings, why = asked.attempt("settings", lambda: suggest_settings(dataset, asked.loader, asked.goal.devices))
    return replace(
        found,
        settings=settings or {},
        hints=tuple(_iter_hints(found, case, settings or {})),
        notes=(*found.notes, *([why] if why else [])),
    )


def _measure_stages(found: Findings, case: Case, asked: Examination) -> Findings:
    seconds = asked.each_seconds
    storage, why = asked.attempt(STORAGE, lambda: _measure_storage(case, seconds))
    if storage is None:
        storage = Storage(kind="remote" if case.dataset.is_remote else "memory", why_not=why)
    parts: tuple[Part, ...] = ("reading", "decoding", "all") if case.encoded else ("reading", "all")

    def probe() -> dict[str, tuple[float, float]]:
        with Probes(Subject(case.near.url, case.near_split, case.options), case.workers) as probes:
            every = {part: probes.measure(part, seconds / 2) for part in parts}
            if case.workers.decoding == 1:
                return {part: (rate, rate) for part, rate in every.items()}
            return {part: (probes.measure_one(part, seconds / 2), rate) for part, rate in every.items()}

    rates, why = asked.attempt("reading, decoding and ops", probe)
    if rates is None:
        reading, decoding, ops = (Figure(name=name, why_not=why) for name in (READING, DECODING, OPS))
    else:
        reading, decoding, ops = tell_apart(rates, case.encoded, bool(case.ops))
    asked.listener(TRANSFER)
    transfer = measure_transfer((*case.size, 3), case.options.batch_size, seconds)
    return replace(found, storage=storage, reading=reading, decoding=decoding, ops=ops, transfer=transfer)


def _measure_storage(case: Case, seconds: float) -> Storage:
    if not case.direct:
        return measure_storage(case.dataset, case.split, case.options, seconds)
    with Probes(Subject(case.dataset.url, case.split, case.options), case.workers) as probes:
        rate = probes.measure("reading", seconds) * case.record_bytes
    what = f"{rate / 1e6:,.0f} MB/s by ranges in {number_of(case.workers.decoding, 'thread')}, as nothing is staged"
    return Storage(kind="remote", bytes_per_second=rate, every_epoch=True, in_turn=True, detail=what)


def _measure_loader(found: Findings, case: Case, asked: Examination) -> Findings:
    seconds = asked.each_seconds * _LOADING
    expected = _expect(found)

    def measure() -> Drained:
        batch = fitting_batch(case.options.batch_size, expected, seconds)
        options = replace(case.options, batch_size=batch)
        if case.direct:
            return drain(case.dataset, case.split, options, seconds)
        return drain(case.near, case.near_split, replace(options, stage_bytes=None), seconds)

    drained, why = asked.attempt(ASSEMBLY, measure)
    if drained is None:
        return replace(found, why_no_loader=why)
    notes = list(found.notes)
    if drained.batch_size < min(case.options.batch_size, case.near.split(case.near_split).records):
        notes.append(f"measured with batches of {drained.batch_size}: larger ones take too long here")
    if case.dataset.is_remote and not case.direct:
        notes.append(_measure_unstaged(found, case, asked, drained.images_per_second))
    detail = _say(drained, case)
    return replace(found, loader=drained.images_per_second, loader_detail=detail, notes=tuple(notes))


def _expect(found: Findings) -> float | None:
    """Images a second that the loader may give: what its parts take together."""
    rates = [figure.images_per_second for figure in (found.reading, found.decoding, found.ops)]
    seconds = sum(1 / rate for rate in rates if rate)
    return found.storage.through(1 / seconds, found.record_bytes) if seconds else None


def _measure_unstaged(found: Findings, case: Case, asked: Examination, staged: float) -> str:
    """What comes while nothing is staged yet; none of it is kept."""
    expected = found.storage.through(staged, found.record_bytes)
    batch = fitting_batch(case.options.batch_size, expected, asked.each_seconds)
    options = replace(case.options, batch_size=batch, stage_dir=case.folder / "stage")
    measured, why = asked.attempt(
        "the loader before anything is staged", lambda: drain(case.dataset, case.split, options, asked.each_seconds)
    )
    if measured is None:
        return f"the loader could not be measured before anything is staged: {why}"
    return f"before anything is staged the loader gives {measured.images_per_second:,.0f} images a second"


def _try_others(found: Findings, case: Case, asked: Examination) -> Findings:
    cache = case.dataset.manifest.cache
    trial = Trial(
        url=case.dataset.url,
        origin=find_origin(case.dataset.manifest.options),
        records=case.dataset.split(case.split).records,
        sample=case.sample,
        shape=case.dataset.manifest.tensor_shape,
        cached=cache.shape if cache is not None and case.encoded else None,
        options=case.options,
        ops=case.ops,
        size=case.size,
        folder=case.folder,
        seconds=asked.each_seconds,
        expected=found.loader,
    )
    ways, notes = list[Way](), list(found.notes)
    tried, why = asked.attempt(
        "other threads and processes", lambda: try_workers(case.near, case.near_split, trial, case.workers)
    )
    for way, said in tried or []:
        ways.append(way)
        notes += [said] if said else []
    if why:
        notes.append(f"other threads and processes could not be tried: {why}")
    asked.listener("other ways of storing the images")
    for made in try_ways(trial, raw_files=False):
        if isinstance(made, str):
            notes.append(made)
        else:
            ways.append(made)
    return replace(found, ways=tuple(ways), notes=tuple(notes))


def _iter_hints(found: Findings, case: Case, settings: dict[str, Any]) -> Iterator[str]:
    dataset, entry = case.dataset, case.dataset.split(case.split)
    total = sum(shard.bytes for variant in entry.variants for shard in variant.shards)
    if found.storage.kind == "remote" and found.storage.every_epoch and total <= settings.get("stage_bytes", 0):
        yield (
            f"stage all of it: stage_bytes={int(total * _SPARE)} fits {settings['stage_dir']}, and epochs from the "
            "second on read from memory"
        )
    shards = entry.variants[0].shards
    hosts = int(dataset.manifest.options.get("hosts", 1))
    if dataset.manifest.options.get("command") == "adopt":
        return  # its shards are another tool's
    for sentence in iter_warnings(case.split, len(shards), sum(shard.bytes for shard in shards), hosts):
        yield f"reshard: {sentence}"


def _say(drained: Drained, case: Case) -> str:
    threads, processes = number_of(case.workers.threads, "thread"), case.workers.processes
    who = f"{number_of(processes, 'process', 'processes')} x {threads}" if processes else threads
    where = ", from staged copies" if case.dataset.is_remote and not case.direct else ""
    return f"the loader from end to end, {who}{where}; first batch after {drained.first_batch_seconds:.1f} s"
