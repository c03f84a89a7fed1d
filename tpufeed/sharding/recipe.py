"""The recipe of `shard`: the images of a source become a dataset."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tpufeed.build.commit import find_finished, find_lost
from tpufeed.build.digests import Duplicates
from tpufeed.build.plan import Plan, check_same_plan, read_plan
from tpufeed.build.recipe import Draft, Recipe
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.naming import PLAN
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import record_schema
from tpufeed.errors import DatasetExistsError, ObjectNotFoundError
from tpufeed.sharding.duplicates import find_duplicates, report_duplicates
from tpufeed.sharding.inventory import take_inventory
from tpufeed.sharding.joined import check_joined
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.plan import KIND, draft_shards
from tpufeed.sharding.sample import iter_turn_warnings
from tpufeed.sharding.sources.coco import is_coco
from tpufeed.sharding.worker import ShardContext
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store


class ShardRecipe(Recipe):
    """A dataset of its own.

    Args:
        src: raw images: a path or URL.
        options: of the build.
    """

    kind, worker = KIND, "tpufeed.sharding.worker"
    parts: Sequence[tuple[str, Store]] = ()  # folder and store of each build whose images the dataset has already

    def __init__(self, src: str | Path, options: ShardOptions) -> None:
        source = open_store(src)
        self.source, self.stores, self.options = source.url, (source,), options
        self.names_base = is_coco(source.url)
        self.identity, self.warnings = options.to_dict(), options.warnings

    def look(self, destination: Store, overwrite: bool) -> Dataset | None:
        """Return the dataset that stands, if it is what the recipe would make now. Raises if it is another."""
        finished = None if overwrite else find_finished(destination)
        if finished is None:
            return None
        try:
            plan = read_plan(destination)
        except ObjectNotFoundError:
            raise DatasetExistsError(
                f"{finished.url} already holds a dataset (see: tpufeed info {finished.url}), and {PLAN}, which would "
                "say whether it is this one, is gone; nothing was changed. Take another destination, or say --overwrite"
            ) from None
        check_same_plan(destination, plan.header, KIND, self.source, self.identity)
        lost = find_lost(destination, finished.manifest)
        if lost is not None:
            raise DatasetExistsError(
                f"{finished.url} already holds the dataset of this command, but {lost} is missing or damaged. Nothing "
                f"was changed. Run: tpufeed verify {finished.url}; say --overwrite to build it anew"
            )
        with take_inventory(self.source, self.options) as inventory:
            if inventory.digest != plan.header.input_digest:
                raise DatasetExistsError(
                    f"{finished.url} already holds the dataset of this command, but {self.source} has changed since: "
                    f"{plan.header.images:,} inputs then, {inventory.count:,} now. Nothing was changed. To "
                    f"add what is new: tpufeed append {self.source} {finished.url}. Or take another destination, or "
                    "say --overwrite to build it anew"
                )
        return finished

    def finish(self, finished: Dataset) -> tuple[Dataset, Duplicates | None]:
        """Return what the build has reported of duplicates, too."""
        return finished, None if self.options.duplicates == "keep" else find_duplicates(finished)

    @contextmanager
    def draft(self, is_preview: bool) -> Iterator[Draft]:
        """List the source into a file, and plan in memory that does not grow with the inputs."""
        with take_inventory(self.source, self.options) as inventory:
            if not is_preview:
                inventory.prepare(self.options)
            yield draft_shards(inventory, self.options, self.source, self.identity, is_preview)

    def check_joined(self, store: Store, plan: Plan) -> None:
        """Check that the plan names files of the source, and nothing else."""
        check_joined(store, plan, self.source, self.options, None, record_schema(labelled=False)[0])

    def context(self, store: Store, plan: Plan) -> ShardContext:
        """Return what all tasks share."""
        return ShardContext(store.url, plan.header, plan.owner, self.options.images)

    def conclude(self, store: Store, plan: Plan, folder: Path) -> Duplicates | None:
        """Report images that were taken more than once."""
        return None if self.options.duplicates == "keep" else report_duplicates(store, plan, folder, self.parts)

    def judge(self, manifest: Manifest) -> Iterator[str]:
        """Yield a sentence on boxes that may have to be turned."""
        return iter_turn_warnings(manifest.odd)
