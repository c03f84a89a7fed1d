"""A growing dataset: its columns, and the inputs that its builds have taken or rejected."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from tpufeed.builds.destination import Reject
from tpufeed.builds.digests import REJECTED, TAKEN, UNREAD, read_digests
from tpufeed.builds.item import Item
from tpufeed.builds.plan import iter_tasks, read_plan
from tpufeed.dataset.naming import REJECTS
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import OWN_NAMES, FeatureSpec
from tpufeed.errors import ObjectNotFoundError, OptionError, url_identity
from tpufeed.sources.boxes import FlipPairs
from tpufeed.sources.columns import Declared
from tpufeed.sources.paths import file_of_row
from tpufeed.storage.reading import read_certain
from tpufeed.storage.store import Store, open_store

_REJECT = msgspec.json.Decoder(Reject)

_NO_FATE = frozenset({  # options that do not decide whether an image is taken
    "append_to", "base_digest", "shard_bytes", "shards", "hosts", "split", "split_by", "seed",
    "names", "image", "label", "classes", "keeps_classes", "flip_pairs",
})  # fmt: skip


class Known(NamedTuple):
    """An input of the dataset."""

    path: str
    place: str  # the file of rows that it is in, see `file_of_row`; empty for a file or a member of a tar
    size_bytes: int | None  # of its image; None if the plan has only an estimate
    version: str | None  # of its file; None if it is in another place, where versions mean something else
    digest: bytes | None  # of its image; None if no digest is stored, or the image was not read
    outcome: int  # taken or rejected, as `build.digests` stores it
    fate: str | None  # all that decided that it is not in the dataset, see `fate_of`
    said: bytes | None  # what the source said of an image that is in the dataset, see `said_of`


def fate_of(item: Item, class_names: Sequence[str], options: Mapping[str, Any], tool_version: str) -> str:
    """Return a digest of all that decides, besides the bytes of its image, whether an input is taken or rejected.

    `options` are the plan's; `tool_version` is the version of the tpufeed that decides.
    """
    names = [class_names[each] if 0 <= each < len(class_names) else None for each in (item.label, *item.labels)]
    problem = None
    if item.problem is not None:
        problem = item.problem[0], re.sub(r"\brow [0-9]+", "row", url_identity(item.problem[1]))  # rows may move
    images = [(url_identity(image.file), image.bytes, image.version, image.offset) for image in item.images]
    deciding = {name: value for name, value in sorted(options.items()) if name not in _NO_FATE}
    parts: list[Any] = [tool_version, names, item.columns, problem, images, deciding]
    parts += [item.outlines] if item.outlines else []
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()


def said_of(item: Item, class_names: Sequence[str], features: Sequence[FeatureSpec]) -> bytes:
    """Return a digest of what a source says of an image: labels, values of columns with boxes, outlines, masks' sizes.

    `features` are those of the records. A column without a value counts as missing.
    """
    names = [class_names[each] if 0 <= each < len(class_names) else None for each in (item.labels or (item.label,))]
    columns = [spec.name for spec in features if spec.name not in OWN_NAMES and not spec.is_picture]
    values = sorted(
        (name, value) for name, value in zip(columns, item.columns, strict=True) if value not in ((), ("",))
    )
    sizes = [image.bytes for image in item.images]
    return hashlib.blake2b(msgspec.json.encode([names, values, item.outlines, sizes]), digest_size=8).digest()


class StandingDataset:
    """The version of a dataset that an append starts from. Raises OptionError if it cannot grow by new images."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.manifest = dataset, dataset.manifest
        command = dataset.manifest.options.get("command")
        if dataset.manifest.cache is not None:
            raise OptionError(
                f"{dataset.url} is a cache: append to the dataset that it was made from, then run tpufeed cache warmup "
                "again"
            )
        if command != "shard":
            raise OptionError(
                f"{dataset.url} was made by tpufeed {command}; only datasets made by tpufeed shard can grow. Shard the "
                "new images as a separate dataset, and mix both with tpufeed.Mixture"
            )

    def declare(self, given: Sequence[Declared]) -> tuple[Declared, ...]:
        """Return the column types of the dataset, so that new values become the same, with those that are given."""
        declared = dict[str, Declared]()
        for spec in self.manifest.features:
            is_column = spec.name not in OWN_NAMES and not spec.is_picture
            if spec.kind in ("boxes", "keypoints"):
                declared[spec.name] = Declared(spec.name, spec.dtype, None, spec.each, spec.kind)
            elif is_column and spec.lengths != (0, 0):
                # A single number of few bits is stored differently from a list.
                grows = spec.shape in ((), None) and spec.dtype not in ("uint8", "float16")
                declared[spec.name] = Declared(spec.name, spec.dtype, spec.shape, spec.each, None, grows)
        return tuple((declared | {each.name: each for each in given}).values())

    @property
    def flip_pairs(self) -> FlipPairs | None:
        """The flip pairs of its keypoints, which new images share unless their source says others."""
        found = (spec.flip_pairs for spec in self.manifest.features if isinstance(spec.flip_pairs, tuple))
        return next(found, None)

    @property
    def parts(self) -> list[tuple[str, Store]]:
        """Folder and store of each part that added images."""
        store = self.dataset.store
        return [
            (part.folder, open_store(f"{store.url.rstrip('/')}/{part.folder}", follow=False) if part.folder else store)
            for part in self.manifest.history
            if part.kind != "compact"
        ]


def iter_known(store: Store, base: str) -> Iterator[Known]:
    """Yield all inputs of a part of a dataset, rejects included; `base` is the base of the new source."""
    try:
        plan = read_plan(store)
    except ObjectNotFoundError:
        raise OptionError(
            f"{store.url} no longer has its plan, which would tell which images are in it; nothing was changed. Build "
            "the dataset again to let it grow"
        ) from None
    header = plan.header
    same_place = header.base == url_identity(base)
    stored = read_digests(store, header.images)
    rejects = set[str]()
    if stored is None:
        with suppress(ObjectNotFoundError):
            for line in read_certain(store, REJECTS).splitlines():
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # an edited line
                    rejects.add(_REJECT.decode(line).path)
    for at, item in enumerate(item for task in iter_tasks(store, plan) for item in task.inputs):
        if stored is not None:
            digest, outcome = stored.digests[at].tobytes(), int(stored.fates[at])
        else:
            digest = UNREAD
            outcome = (REJECTED if item.problem is not None or item.path in rejects else TAKEN)[0]
        is_taken = outcome == TAKEN[0]
        yield Known(
            item.path,
            file_of_row(item.path) if item.file else "",
            None if item.row is not None else item.bytes,
            item.version if same_place else None,
            None if digest == UNREAD else digest,
            outcome,
            None if is_taken else fate_of(item, header.class_names, header.options, header.tool_version),
            said_of(item, header.class_names, header.features) if is_taken else None,
        )
