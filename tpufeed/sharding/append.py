"""`append`: add new images to a dataset, as its next version."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tpufeed.builds.destination import Destination
from tpufeed.builds.plan import differing_options
from tpufeed.builds.run import BuildResult, ProgressListener, run
from tpufeed.builds.versions import follows
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import OWN_NAMES
from tpufeed.dataset.writer import check_writable
from tpufeed.engines.engine import Engine
from tpufeed.errors import DatasetNotFoundError, OptionError, advised
from tpufeed.options import Names, checked
from tpufeed.sharding.recipe import ShardRecipe
from tpufeed.sharding.standing import StandingDataset
from tpufeed.sources.coco import CocoSource
from tpufeed.sources.options import OPTIONS, ShardOptions

# Stored options that decide no bytes of records.
_OF_SOURCE = {"command", "source"} | {name for name, (_, option) in OPTIONS.items() if "reads" in option.metadata}
_STORED_OTHERWISE = {"splits", "shards", "image_columns"}  # in another form than users give them


@checked()
def append(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    image: str | None = None,
    label: str | None = None,
    split_by: str | None = None,
    masks: str | Path | None = None,
    unset: Names = (),
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
    progress: bool | None = None,
) -> BuildResult:
    """Add new images to a dataset, as its next version. Existing files are neither moved nor rewritten.

    The new images are stored like those of the dataset: all options are those of its first build, except for places of
    its source (the folder of COCO's images, the folder of masks). Images that the dataset has already, with the same
    path and the same bytes, are skipped and counted. An image that an earlier build rejected is tried again only if
    something changed that may have been the reason. Classes are matched by name, and new ones follow the old ones, so
    that ids stay. Readers that have opened a version keep it.

    After an interruption the same call resumes. Once all is done, it finds nothing new.

    Args:
        src: a folder, table, tars or annotations, as in `tpufeed.shard`. It may be the whole source that has grown.
        dst: path or URL of the dataset.
        image: how to read the new source, if that differs from the dataset's first one. See `tpufeed.shard`. COCO's
            folder of images is not taken from the first build.
        label: as for `image`.
        split_by: as for `image`.
        masks: the folder of masks that mirrors this source, if the dataset has such masks.
        unset: options of the dataset's first build that get their defaults for the new source, by their names in
            `tpufeed info`, like "image" or "box_format".
        max_rejects: fail, and leave the dataset as it is, if more of the new images than this are rejected.
        overwrite: discard what an interrupted append has left, instead of continuing it.
        fsync: write the new shards to the disk before the manifest.
        workers: number of processes. Default: one per core, fewer with little memory.
        engine: what runs the tasks, see `tpufeed.shard`.
        listener: called with a `BuildProgress` a few times a second.
        progress: show a progress bar, as in `tpufeed.shard`.

    Raises:
        DatasetNotFoundError: there is no dataset to append to.
        OptionError, NoInputsError, SourceError: the source does not fit the dataset. Nothing was changed.
        DuplicateWriterError: another append is running, or was interrupted.
        TooManyRejectsError, TaskError, BuildError: the work failed. The dataset is as it was.
    """
    given = {"image": image, "label": label, "split_by": split_by, "masks": masks}
    return run(
        AppendRecipe(src, given=given, unset=unset),
        dst,
        max_rejects=max_rejects,
        overwrite=overwrite,
        fsync=fsync,
        workers=workers,
        engine=engine,
        listener=listener,
        progress=progress,
    )


class AppendRecipe(ShardRecipe):
    """Adds the images of a source that a dataset does not have yet, as its next version.

    It takes the dataset's options, replaced by `given` ones that are not None and without those `unset`, or else all
    `options`, which may be different in what decides bytes only if `allow_different`.
    """

    grows_by, verb = "append", "appending"
    standing: StandingDataset

    def __init__(
        self,
        src: str | Path,
        options: ShardOptions | None = None,
        *,
        allow_different: bool = True,
        given: Mapping[str, Any] = MappingProxyType({}),
        unset: Sequence[str] = (),
    ) -> None:
        super().__init__(src, options or ShardOptions())
        self._asked, self._allow_different, self._given, self._unset = options, allow_different, given, unset

    def look(self, destination: Destination, overwrite: bool) -> None:
        """Find the version that the images are added to, and check what can be checked before the source is listed."""
        base = self.base = destination.find_finished()
        if base is None:
            raise DatasetNotFoundError(
                f"{destination.url} holds no dataset to append to. Make one with: "
                f"{advised('shard', self.source, destination.url)}"
            )
        self.standing = StandingDataset(base)
        options = self.options = self._asked or self._inherit(base)
        there, here = _deciding(base.manifest.options), _deciding(options.to_dict())
        self.different = {name: here.get(name) for name in {**there, **here} if there.get(name) != here.get(name)}
        if self.different and not self._allow_different:
            raise OptionError(
                f"these options differ from those of {base.url}: {'; '.join(differing_options(there, here))}. Nothing "
                "was changed. Give those of the dataset (tpufeed append takes them by itself), or --allow-different"
            )
        check_writable(destination.store)
        self.identity, self.warnings = options.to_dict() | follows(base), options.warnings

    def _inherit(self, base: Dataset) -> ShardOptions:
        """Return the options of a dataset's first build, as far as they hold for this source.

        Raises:
            OptionError: the dataset has masks from a parallel folder, and no such folder is given, or there is no such
                option to unset.
        """
        stored = base.manifest.options
        given = {name: value for name, value in self._given.items() if value is not None}
        left_out = {name.replace("-", "_") for name in self._unset}
        if unknown := sorted(left_out - (OPTIONS.keys() - {"keeps_classes"})):
            raise OptionError(f"there is no option {unknown[0]!r} to unset. The names are those that tpufeed info has")
        if both := sorted(left_out & given.keys()):
            raise OptionError(f"{both[0]} is both given and unset. Leave one of them out")
        sources = self.source, str(stored.get("source"))
        if any(url.lower().endswith(CocoSource.suffixes) for url in sources):
            left_out.add("image")  # the folder of the first images
        inherited = OPTIONS.keys() - left_out
        options: dict[str, Any] = {
            name: stored[name] for name in inherited - _STORED_OTHERWISE if stored.get(name) is not None
        }
        options["keeps_classes"] = "classes" in options
        # The new rows of an image may not differ in all columns that have values of boxes.
        if {"group_by", "boxes"} <= options.keys():
            of_boxes = [spec.name for spec in base.manifest.features if isinstance(spec.of, str)]
            old = {new: old for old, new in (stored.get("rename") or {}).items()}
            options.setdefault("box_columns", [old.get(name, name) for name in of_boxes if name not in OWN_NAMES])
        if "splits" in inherited:
            options["splits"] = stored.get("splits")
        if "shards" in inherited & stored.keys():  # the number was for all images
            shards = [shard for split in base.manifest.splits.values() for shard in split.variants[0].shards]
            options["shard_bytes"] = max(1, *(shard.bytes for shard in shards))
        if "image_columns" in inherited & stored.keys():
            options["image_columns"] = dict(each.split("=", 1) for each in stored["image_columns"])
        if stored.get("masks") is not None and "masks" not in given.keys() | left_out:
            raise OptionError(
                f"{base.url} was made with masks in a folder parallel to its images ({stored['masks']}). Name the "
                "folder of the new images' masks: --masks DIR"
            )
        if "split_by" in given:
            options["splits"] = None
        return ShardOptions.of_flat(options | given)


def _deciding(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in options.items() if name not in _OF_SOURCE}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
