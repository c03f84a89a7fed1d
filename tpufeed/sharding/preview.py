"""A preview of a build: what it would make, and how long it would take."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpufeed.dataset.advice import iter_warnings
from tpufeed.dataset.schema import further_columns
from tpufeed.engines.engine import available_cores
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.plan import Probe
from tpufeed.storage.store import Store


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

    @property
    def bytes(self) -> int:
        """Bytes of all shards together, about."""
        return sum(split.bytes for split in self.splits.values())


def make_preview(  # noqa: PLR0913, PLR0917  # what is known of a build before it begins
    inventory: Inventory,
    probe: Probe,
    shards: Mapping[str, tuple[int, float]],
    options: ShardOptions,
    destination: Store,
    workers: int | None,
    complete: bool,
    source: str,
    read_before: int = 0,
) -> Preview:
    """Return the preview of a build; `shards` are for each split their number and their bytes together."""
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
        read_before=read_before,
    )
