"""`preview_shard`: tell what `shard` would do, from listing its source and taking a few images."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from tpufeed.dataset.advice import iter_warnings
from tpufeed.dataset.commit import check_destination, check_names, foreign_names
from tpufeed.dataset.destination import check_space
from tpufeed.dataset.rejects import RejectBudget, too_many
from tpufeed.dataset.schema import further_columns
from tpufeed.engines.engine import Engine, available_cores
from tpufeed.errors import BuildError
from tpufeed.sharding.advice import iter_label_warnings
from tpufeed.sharding.build import check_joined_plan, check_request, take_inventory
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.options import ShardKeywords
from tpufeed.sharding.plan import KIND, Probe, count_shards, plan_shards, probe_images


@dataclass(frozen=True, slots=True)
class SplitPreview:
    """A split that a build would make.

    Attributes:
        inputs: images of the source.
        shards: how many.
        bytes: of all of them, about.
    """

    inputs: int
    shards: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Preview:
    """Forecast of a build, from listing its source and taking a few images.

    Attributes:
        source: as a URL.
        destination: likewise.
        splits: by name.
        classes: how many there are.
        columns: types of the further columns of a table, see `further_columns`.
        source_bytes: of the images as they are.
        ignored_files: in the source, that are no images by their names: how many, by their endings (`.txt`).
        listed_twice: inputs that the source names more than once.
        free_bytes: at the destination; None where nobody can say.
        seconds: about what it would take.
        probed: images taken for this.
        probed_rejects: those of them that cannot be taken.
        warnings: what would serve training better, as sentences.
        complete: the dataset stands there already: nothing would be done.
    """

    source: str
    destination: str
    splits: dict[str, SplitPreview]
    classes: int
    columns: dict[str, str]
    source_bytes: int
    ignored_files: dict[str, int]
    listed_twice: int
    free_bytes: int | None
    seconds: float
    probed: int
    probed_rejects: int
    warnings: tuple[str, ...]
    complete: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all shards together, about."""
        return sum(split.bytes for split in self.splits.values())


def preview_shard(
    src: str | Path,
    dst: str | Path,
    *,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    **options: Unpack[ShardKeywords],
) -> Preview:
    """Tell what `shard` with the same arguments would do. Changes nothing.

    Raises:
        OptionError, NoInputsError, SourceError, DatasetExistsError, DuplicateWriterError: as `shard` does.
        TooManyRejectsError: more inputs than the budget allows cannot be taken, of those alone that were tried or have
            no file or class.
        BuildError, StoreError: there is no room at the destination, it cannot be written, or no input can be taken.
    """
    request = check_request(src, dst, max_rejects, overwrite, workers, engine, options)
    source, destination, checked = request.source.url, request.destination, request.options
    finished = request.finished is not None
    plan, old = (None, []) if finished else check_destination(destination, KIND, source, checked.to_dict(), overwrite)
    if plan is not None:
        check_joined_plan(destination, plan, source, checked)
    with take_inventory(source, checked) as inventory:
        probe = probe_images(inventory, checked.images)
        shards, totals = count_shards(inventory, checked, probe.estimate), inventory.totals()
        splits = {name: SplitPreview(totals[name][0], count, int(size)) for name, (count, size) in shards.items()}
        if not finished:
            _check_rejects(inventory, probe, request.budget)
        if not finished and plan is None:
            size = sum(size for _, size in shards.values())
            check_space(destination, size, sum(info.size_bytes for info in old))
            header, _ = plan_shards(inventory, checked, probe.estimate, source)
            check_names(destination, header, foreign_names(destination, old), old)
        warnings = [*iter_label_warnings(source, checked.label, inventory.features), *inventory.warnings]
        warnings += [
            warning
            for name, (count, size) in shards.items()
            for warning in iter_warnings(name, count, size, checked.hosts)
        ]
        return Preview(
            source=source,
            destination=destination.url,
            splits=splits,
            classes=len(inventory.classes.names),
            columns=further_columns(inventory.features),
            source_bytes=sum(size for _, size, _ in totals.values()),
            ignored_files=inventory.ignored_files,
            listed_twice=inventory.listed_twice(),
            free_bytes=destination.free_bytes(),
            seconds=len(inventory) * probe.seconds_an_image / (workers or available_cores()),
            probed=probe.images,
            probed_rejects=probe.rejects,
            warnings=tuple(warnings),
            complete=finished,
        )


def _check_rejects(inventory: Inventory, probe: Probe, budget: RejectBudget) -> None:
    """Raises as the build will where the inputs that cannot be taken, as far as they are known, are too many."""
    known, first = inventory.rejects()
    by_reason = known + Counter(reject.reason for reject in probe.read_rejects)
    some, allowed = [*first, *probe.read_rejects], budget.allowed(len(inventory))
    if by_reason.total() > allowed:
        advice = "Nothing was changed. Mend the source, or allow more with --max-rejects"
        raise too_many(dict(sorted(by_reason.items())), some, len(inventory), allowed, advice)
    if by_reason.total() == len(inventory):
        raise BuildError(
            f"none of the {len(inventory)} images can be taken; the first: {some[0].path}: {some[0].message}. Nothing "
            "was changed; mend the source"
        )
