"""Make the lost files of a finished dataset again, alone, by the command that made them.

Nothing is put unless it has the bytes of the manifest, so that readers, states and caches of the dataset stay valid.
"""

import logging
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np

from tpufeed.builds.destination import Destination
from tpufeed.builds.plan import read_plan, read_task, with_access
from tpufeed.builds.recipe import Recipe
from tpufeed.builds.worker import make_shards
from tpufeed.dataset.manifest import Shard, Variant
from tpufeed.dataset.naming import counted, uncounted
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.walk import Walker
from tpufeed.dataset.writer import IndexWriter
from tpufeed.errors import BuildError, DamageError, ObjectNotFoundError, advised, mask_secrets, url_identity

_logger = logging.getLogger(__name__)


def repair(recipe: Recipe, dataset: Dataset) -> None:
    """Make the files again that a dataset has lost, of those that the command of `recipe` made.

    A lost file is missing, or has another size or, if the store knows it, another CRC-32C.

    Raises:
        BuildError: another command made a lost file, which the error names once all others are there, or a file has
            other bytes now, and was not put.
        TpufeedError: an input or the store cannot be read.
    """
    destination = Destination(dataset.store)
    lost = set(destination.iter_lost(dataset.manifest))
    if not lost:
        return
    variants = [variant for split in dataset.manifest.splits.values() for variant in split.variants]
    indexes = [variant for variant in variants if variant.index.name in lost]
    shards = {shard.name: shard for variant in variants for shard in variant.shards}
    by_folder = defaultdict[str, set[str]](set)
    for name in lost & shards.keys():
        folder, slash, _ = name.rpartition("/")
        by_folder[folder + slash].add(name)
    others = list[BuildError]()
    for folder, names in sorted(by_folder.items()):
        try:
            part = _find_plan(recipe, dataset, folder, min(names))
        except BuildError as error:
            others.append(error)
        else:
            _remake(recipe, part, folder, names, shards)
    if others:
        raise others[0]
    for variant in indexes:
        _remake_index(destination, variant)


def _find_plan(recipe: Recipe, dataset: Dataset, folder: str, name: str) -> Destination:
    """Return the destination, with its plan, of the build that has put the shards of a folder.

    Raises:
        BuildError: another command has put them.
    """
    part = Destination(dataset.store).part(folder)
    plan, advice = None, "No command can make it alone: restore it, or build all again with --overwrite"
    with suppress(ObjectNotFoundError, DamageError):
        plan = read_plan(part.store)
    # A cache that grows, or has grown, has other samples than the tasks of its first plan make now.
    is_first = dataset.manifest.cache is None or (dataset.number == 1 and recipe.base is None)
    if plan is not None and plan.header.kind != "compact" and is_first:
        header = plan.header
        if header.kind == recipe.kind and header.source != url_identity(recipe.source):
            plan = recipe.follow(plan) or plan
        if (plan.header.kind, plan.header.source) == (recipe.kind, url_identity(recipe.source)):
            part.plan = with_access(plan, recipe.source)
            return part
        command = "append" if folder else header.kind
        advice = f"It is made again, alone, by the command that made it: {command} of {header.source}"
    raise BuildError(
        f"{mask_secrets(dataset.url)}/{name} is missing or damaged. {advice}. To see all that is "
        f"lost: {advised('verify', mask_secrets(dataset.url))}"
    )


def _remake(recipe: Recipe, part: Destination, folder: str, lost: set[str], shards: dict[str, Shard]) -> None:
    """Run the tasks of lost shards in this process. Put those shards, once all of a task have the manifest's bytes."""
    plan, store = part.plan, part.store
    context, of_name = recipe.context(part), {}
    context.check()
    for ref in plan.tasks:
        for variant in plan.header.variant_numbers:
            of_name[folder + ref.name.replace("-v0-", f"-v{variant}-")] = ref
    for ref in sorted({of_name[folder + uncounted(name[len(folder) :])] for name in lost}):
        _logger.warning("%s/%s is lost, and is made again", mask_secrets(part.url), ref.name)
        with store.temporary_folder() as temporary:
            _, made = make_shards(context, read_task(store, ref), temporary, lambda _: None)
            for name, _, writer in made:
                entry = shards.get(folder + counted(name, len(writer.offsets) - 1))
                if entry is None or (entry.bytes, entry.crc32c) != (writer.offsets[-1], writer.crc32c):
                    raise _differs(part.url, name, "its source, or a library that stores images, has changed since")
            for name, path, writer in made:
                full_name = counted(name, len(writer.offsets) - 1)
                if folder + full_name in lost:
                    part.put(full_name, path, writer.offsets[-1], writer.crc32c)


def _remake_index(destination: Destination, variant: Variant) -> None:
    """Make an index again from the lengths that the records of all its shards have."""
    index, store = variant.index, destination.store
    _logger.warning("%s/%s is lost, and is made again of all its shards", mask_secrets(store.url), index.name)
    with store.temporary_folder() as folder:
        path = Path(folder, "index")
        writer = IndexWriter(path)
        for shard in variant.shards:
            offsets = [0]
            for walked in Walker(store, shard.name, shard.bytes).walk():
                offsets += walked.offsets[1:]
            writer.add(np.array(offsets, np.uint64))
        made = writer.finish()
        if made != (index.bytes, index.crc32c):
            raise _differs(store.url, index.name, f"a shard is damaged. Run: {advised('verify', store.url)}")
        destination.put(index.name, path, *made)


def _differs(url: str, name: str, why: str) -> BuildError:
    return BuildError(
        f"{mask_secrets(url)}/{name} is lost, and was made again with other bytes than the manifest's: {why}. It "
        "was not put. Build the dataset again with --overwrite"
    )
