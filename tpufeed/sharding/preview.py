"""A preview of a build: what it would make, and how long it would take."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tpufeed.build.commit import check_names, foreign_names
from tpufeed.build.destination import check_space
from tpufeed.build.plan import Plan
from tpufeed.build.rejects import RejectBudget, too_many
from tpufeed.dataset.advice import iter_warnings
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import further_columns
from tpufeed.errors import BuildError, mask_secrets
from tpufeed.processes.limits import available_cores
from tpufeed.sharding.coco import is_coco
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.plan import count_shards, plan_shards, probe_images
from tpufeed.storage.store import ObjectInfo, Store


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
        ignored_files: files in the source that are no images by their names, counted by their endings (`.txt`).
        listed_twice: inputs that the source names more than once.
        free_bytes: at the destination; None where nobody can say.
        seconds: about what it would take.
        probed: images taken for this.
        probed_rejects: those of them that cannot be taken.
        warnings: what would serve training better, as sentences.
        complete: the dataset stands there already: nothing would be done.
        skipped: images of an append that are in the dataset already.
        read_before: images that are read before the build, to find duplicates or to deal them to splits by content.
        version: the dataset's number after an append; None of another build.
        images_from: the folder that file names in COCO's JSON are taken to be relative to; else empty.
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
    skipped: int = 0
    read_before: int = 0
    version: int | None = None
    images_from: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of all shards together, about."""
        return sum(split.bytes for split in self.splits.values())


def preview_build(  # noqa: PLR0913  # what is known of a build before it begins
    inventory: Inventory,
    options: ShardOptions,
    *,
    source: str,
    destination: Store,
    base: Dataset | None,
    budget: RejectBudget,
    plan: Plan | None,
    old: Sequence[ObjectInfo],
    workers: int | None,
    complete: bool,
) -> Preview:
    """Refuse what a build is certain to refuse once it has listed its source; tell what it would make.

    Args:
        inventory: of the source.
        options: of the build.
        source: URL of the source.
        destination: where the build puts its shards.
        base: the version of a dataset that it appends to.
        budget: for rejects.
        plan: that of an earlier run of the same build.
        old: what is removed first.
        workers: processes.
        complete: there is nothing to do.

    Raises:
        OptionError: a shard would be smaller than a record, or names of shards would be ambiguous.
        TooManyRejectsError, BuildError: of the inputs that were tried, or that have no file or class, more than the
            budget allows, or all there are, cannot be taken; or there is no room.
        DuplicateWriterError: files are in the way.
    """
    probe = probe_images(inventory, options)
    shards = count_shards(inventory, options, probe.estimate) if inventory.count else {}
    if not complete:  # the inputs that cannot be taken, as far as they are known
        by_reason = inventory.rejects + Counter(reject.reason for reject in probe.read_rejects)
        some, allowed = [*inventory.first_rejects, *probe.read_rejects], budget.allowed(inventory.count)
        if by_reason.total() > allowed:
            advice = "Nothing was changed. Mend the source, or allow more with --max-rejects"
            raise too_many(dict(sorted(by_reason.items())), some, inventory.count, allowed, advice)
        if by_reason.total() == inventory.count:
            raise BuildError(
                f"none of the {inventory.count} images can be taken; the first: {some[0].path}: {some[0].message}. "
                "Nothing was changed; mend the source"
            )
    if not complete and plan is None:
        check_space(destination, sum(size for _, size in shards.values()), sum(info.size_bytes for info in old))
        header, _ = plan_shards(inventory, options, probe.estimate, source, base)
        check_names(destination, header, foreign_names(destination, old), old)
    totals = inventory.totals
    of_shards = (iter_warnings(name, count, size, options.hosts) for name, (count, size) in shards.items())
    return Preview(
        source=source,
        destination=destination.url,
        splits={name: SplitPreview(totals[name][0], count, int(size)) for name, (count, size) in shards.items()},
        classes=len(inventory.classes.names),
        columns=further_columns(inventory.features),
        source_bytes=sum(size for _, size, _ in totals.values()),
        ignored_files=inventory.ignored_files,
        listed_twice=inventory.listed_twice,
        free_bytes=destination.free_bytes(),
        seconds=inventory.count * probe.seconds_an_image / (workers or available_cores()),
        probed=probe.images,
        probed_rejects=probe.rejects,
        warnings=(
            *options.warnings,
            *inventory.warnings,
            *(warning for several in of_shards for warning in several),
        ),
        complete=complete,
        skipped=inventory.skipped,
        read_before=0 if complete or plan is not None else inventory.count_reads(options),
        images_from=mask_secrets(inventory.base) if is_coco(source) else "",
    )
