"""A dataset that stands and is to grow: what its classes, columns and samples are."""

from collections.abc import Iterator, Sequence

from tpufeed.dataset.digests import UNREAD, read_digests
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.plan import iter_tasks, read_plan
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import FeatureSpec, record_schema
from tpufeed.errors import ObjectNotFoundError, OptionError, mask_secrets
from tpufeed.sharding.boxes import FlipPairs
from tpufeed.sharding.columns import Declared
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

_OWN = frozenset({spec.name for spec in record_schema(labelled=True)})

Known = tuple[str, int, str | None, bytes | None]


class StandingDataset:
    """The version that an append begins with.

    Args:
        dataset: the version.

    Raises:
        OptionError: it cannot grow by new images.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        command = dataset.manifest.options.get("command")
        if dataset.manifest.cache is not None:
            raise OptionError(
                f"{dataset.url} is a cache: append to the dataset that it was made of, and run tpufeed cache warmup "
                "again"
            )
        if command != "shard":
            raise OptionError(
                f"{dataset.url} was made by tpufeed {command}, and only what tpufeed shard has made can grow; shard "
                "the new images as a dataset of their own, and mix both with tpufeed.Mixture"
            )

    @property
    def manifest(self) -> Manifest:
        """The manifest of the version."""
        return self.dataset.manifest

    def declare(self, given: Sequence[Declared]) -> tuple[Declared, ...]:
        """Return the types that columns have in the dataset, so that new values become the same."""
        declared = {spec.name: _declared(spec) for spec in self.manifest.features if _is_column(spec)}
        return tuple((declared | {each.name: each for each in given}).values())

    @property
    def flip_pairs(self) -> FlipPairs | None:
        """The pairs of its keypoints, which those of new images have as well unless their source says others."""
        found = (spec.flip_pairs for spec in self.manifest.features if isinstance(spec.flip_pairs, tuple))
        return next(found, None)

    def iter_known(self, base: str) -> Iterator[Known]:
        """Yield path, bytes, version and digest of all inputs of the dataset.

        The version is None for an input of another place than `base`, whose files have versions of their own; the
        digest for one whose build has stored none.
        """
        for _, store in self.parts:
            yield from _iter_inputs(store, base)

    @property
    def parts(self) -> list[tuple[str, Store]]:
        """The folder and store of each part that has brought new images."""
        store = self.dataset.store
        return [
            (part.folder, open_store(f"{store.url.rstrip('/')}/{part.folder}") if part.folder else store)
            for part in self.manifest.history
            if part.kind != "compact"
        ]


def _iter_inputs(store: Store, base: str) -> Iterator[Known]:
    try:
        plan = read_plan(store)
    except ObjectNotFoundError:
        raise OptionError(
            f"{store.url} has no plan any more, so that it is not known which images are in it; nothing was changed. "
            "Build the dataset anew to let it grow"
        ) from None
    same_place, at = plan.header.base == mask_secrets(base), 0
    digests = read_digests(store, plan.header.notes["images"])
    for task in iter_tasks(store, plan):
        for item in task.inputs:
            digest = None if digests is None else digests[at].tobytes()
            at += 1
            if (item.problem is None or item.is_left_out) and digest != UNREAD:
                yield item.path, item.bytes, item.version if same_place else None, digest


def _is_column(spec: FeatureSpec) -> bool:
    return spec.name not in _OWN and not spec.is_picture and spec.name != "image/encoded"


def _declared(spec: FeatureSpec) -> Declared:
    """Return the declaration that gives a column the type of a feature."""
    is_list = spec.shape is None
    if is_list and not spec.each and isinstance(spec.lengths, tuple) and spec.lengths[1] <= 1 and spec.kind != "boxes":
        is_list = False  # a value that some samples lack
    kind = spec.kind if spec.kind in ("boxes", "keypoints") else None
    if is_list:
        return Declared(spec.name, spec.dtype, None, spec.each, kind)
    return Declared(spec.name, spec.dtype, spec.shape or (), (), kind)
