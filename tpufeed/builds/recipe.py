"""A recipe describes one kind of build. `builds.run` runs and previews them all.

`tpufeed shard`, `append`, `cache warmup` and `compact` are the four recipes. A recipe identifies its plan, drafts it,
gives its tasks their context, and completes the manifest and the result.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tpufeed.builds.destination import Destination, Reject
from tpufeed.builds.digests import Duplicates
from tpufeed.builds.plan import Plan, PlanHeader, Task, check_same_plan
from tpufeed.builds.prices import BucketCost
from tpufeed.builds.versions import Layout
from tpufeed.builds.worker import TaskContext
from tpufeed.dataset.listed import UNLISTED, Listed
from tpufeed.dataset.manifest import Manifest, Sizes
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import DuplicateWriterError, url_identity
from tpufeed.storage.store import Store


@dataclass(frozen=True, slots=True)
class SplitPreview:
    """A split that a build would make.

    Attributes:
        inputs: number of input samples.
        shards: number of shards, of all variants of a cache together.
        bytes: estimated size of these shards.
    """

    inputs: int
    shards: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Findings about a build, from a listing of its source and from a few samples that were tried.

    Attributes:
        splits: splits by name.
        warnings: sentences on what would be better for training. A draft has those that its plan does not store.
        skipped: number of images of an append that are in the dataset already. A draft has it if it has no header.
        source_bytes: size of all input images.
        sizes: sizes of the images that were tried, after presizing, if any were.
        pixels: pixel format of images that keep theirs.
        odd: odd cases of these, counted.
        probed: number of samples that were tried.
        probed_rejects: number of these that cannot be taken.
        probed_seconds: time that one core takes for one sample, with all variants of a cache.
        fingerprint: fingerprint of the cache that this build makes, if it makes one.
    """

    splits: dict[str, SplitPreview] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    skipped: int = 0
    source_bytes: int = 0
    sizes: Sizes | None = None
    pixels: str = ""
    odd: Counter[str] = field(default_factory=Counter)
    probed: int = 0
    probed_rejects: int = 0
    probed_seconds: float = 0.0
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft(Trial):
    """A plan before it is stored, and what else is known about its build.

    Attributes:
        header: header of the plan. None if the growing dataset has all samples already.
        tasks: tasks of the plan. They are read once, and only while the draft is open.
        gets: number of requests that read the images from a bucket. 0: one for each.
        refused: inputs that are known to be rejected, counted by reason.
        first_refused: the first few of them.
    """

    header: PlanHeader | None
    tasks: Iterable[Task] = ()
    gets: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    first_refused: Sequence[Reject] = ()


class Recipe(Protocol):
    """One kind of build. A method with a body need not be overridden.

    Attributes:
        kind: the command, as plan and manifest name it.
        verb: what progress says of it ("sharding").
        worker: the module with `run` and `reach` of a task, see `engines.engine.Job`.
        source: URL of the input.
        stores: the stores that workers read from.
        identity: the options that decide every byte. With kind and source they identify a plan.
        warnings: sentences on the options.
        base: the version of a dataset that grows by this build. None for a new dataset.
        grows_by: the kind of the part that is added to `base`.
        different: options that decide bytes and differ from those of `base`.
        layout: the shards of the version after `base`. None: the part's shards come last.
        is_stale: an interrupted run has left an unfinished part that is no longer wanted. It is removed.
    """

    kind: str
    verb: str
    worker: str
    source: str
    identity: dict[str, Any]
    stores: tuple[Store, ...] = ()
    warnings: tuple[str, ...] = ()
    base: Dataset | None = None
    grows_by: str = ""
    different: Mapping[str, Any] = {}
    layout: Layout | None = None
    is_stale: bool = False

    def look(self, destination: Destination, overwrite: bool) -> Dataset | None:
        """Look at what is at the destination. A recipe that makes a dataset grow learns its `base` here.

        Returns:
            The dataset if it is finished already.

        Raises:
            TpufeedError: there is another dataset, or no dataset that can grow. Nothing was changed.
        """

    def finish(self, finished: Dataset) -> tuple[Dataset, Duplicates | None]:
        """Complete the dataset that `look` has found, and return it with its duplicates."""
        return finished, None

    def draft(self, is_preview: bool) -> AbstractContextManager[Draft]:
        """List the source, and plan the build. Changes nothing.

        Args:
            is_preview: try some samples, to predict the time and the rejects of the build, and do not read the whole
                source, even if a stored plan would need that.
        """

    def recognize(self, destination: Destination) -> None:
        """Check that the plan that is there has this recipe's identity. Only the URL of the source may differ.

        Raises:
            DuplicateWriterError: the destination belongs to a build with another source or other options.
        """
        header = destination.plan.header
        if header.source != url_identity(self.source):
            with suppress(DuplicateWriterError):
                check_same_plan(destination.url, header, self.kind, header.source, self.identity)
                destination.plan = self.follow(destination.plan) or destination.plan
        check_same_plan(destination.url, destination.plan.header, self.kind, self.source, self.identity)

    def follow(self, plan: Plan) -> Plan | None:
        """Return the plan for the present URL of the source if the source had another URL then, else None.

        For example, a folder is mounted elsewhere the next day.
        """
        return None

    def context(self, destination: Destination) -> TaskContext:
        """Return the context that all tasks of the plan share."""

    def conclude(
        self, destination: Destination, folder: Path, manifest: Manifest
    ) -> tuple[Manifest, Duplicates | None]:
        """Complete the manifest, before it is put and after shards, digests and rejects are put.

        `folder` is for temporary files.
        """
        return manifest, None

    def judge(self, sizes: Sizes | None, odd: Mapping[str, int], whose: str = "") -> Iterable[str]:
        """Yield warnings of the sizes and odd cases that the build found, or a preview: `whose` names its images."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Trial):
    """Forecast of a build: its plan, and the results of listing the source and trying a few samples.

    Attributes:
        source: URL of the input.
        destination: URL of the destination.
        bytes: estimated size of all shards together.
        variants: number of variants of a cache, or 1 for other datasets.
        classes: number of classes.
        listed: what the source is taken for.
        free_bytes: free space at the destination. None if unknown.
        cost: estimated cost in Google Cloud Storage. None if neither the source nor the destination is in a bucket.
        seconds: estimated time of the build.
        complete: the dataset exists already: nothing would be done.
        version: the dataset's number afterwards, if it grows.
    """

    source: str
    destination: str
    bytes: int
    variants: int = 1
    classes: int = 0
    listed: Listed = UNLISTED
    free_bytes: int | None = None
    cost: BucketCost | None = None
    seconds: float = 0.0
    complete: bool = False
    version: int | None = None
