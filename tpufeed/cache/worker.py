"""One task of a cache: decode each sample of a range once, and write it to one shard per variant."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from tpufeed.builds.destination import Reject
from tpufeed.builds.plan import Task
from tpufeed.builds.worker import Output, TaskContext, reach, run
from tpufeed.cache.moving import Mover, encode_pixels
from tpufeed.cache.options import CacheOptions
from tpufeed.cache.origin import OriginSample, iter_samples
from tpufeed.dataset.clips import pipeline_of, run_clip_views
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import CHANNELS, FORMAT, HEIGHT, LABEL, WIDTH, fixed_ints, kaggle_values
from tpufeed.errors import ImageError, OpError
from tpufeed.images.decoding import Pixels, Scratch
from tpufeed.images.header import JPEG_START
from tpufeed.images.mending import mend
from tpufeed.images.pipeline import DrawnBatch, run_views
from tpufeed.images.protocols import Draws
from tpufeed.tfrecord.example import Feature, encode_entries, encode_entry

__all__ = ["Augmenter", "CacheContext", "reach", "run"]  # engines look for `run` and `reach` here

_BLOCK = 128


@dataclass(frozen=True, slots=True)
class CacheContext(TaskContext):
    """The context that all tasks of a cache share."""

    origin: Dataset
    options: CacheOptions

    def write(self, task: Task, output: Output) -> None:
        """Write all variants of the task's samples."""
        header, options, before = self.header, self.options, self.origin.shards.retries
        int_names, keys = fixed_ints(header.features), {spec.name: spec.key for spec in header.features}
        names = [name.encode() for name in header.class_names]
        image_format = encode_entry(keys[FORMAT], Feature("bytes", (options.encode.encode(),)))
        augment = Augmenter(options, self.origin.manifest, task.split)
        stored = f"{options.encode}, augmented"
        output.images[stored] = 0
        with closing(iter_samples(self.origin, header, task)) as samples:
            for found in samples:
                try:
                    sample, variants, moved = augment(found)
                except ImageError as error:
                    output.reject(Reject(found.name, error.reason, str(error)))
                    continue
                rest = image_format + sample.rest
                if header.are_counted:
                    labels = None if sample.label is None else [sample.label]
                    values = kaggle_values(names, labels, *variants[0].shape[:2])
                    rest += encode_entries({keys[name]: value for name, value in values.items()})
                for writer, pixels, entries in zip(output.writers, variants, moved, strict=True):
                    ints = {LABEL: sample.label, **dict(zip((HEIGHT, WIDTH, CHANNELS), pixels.shape[-3:], strict=True))}
                    data = encode_pixels(pixels, options, augment.kept(sample.image))
                    writer.add(data, [ints[name] for name in int_names], rest + entries)
                    output.add(images=1, size=len(data))
                output.add(labels=set(sample.labels) if sample.label is None else (sample.label,))
                output.odd.update(sample.odd)
                output.images[stored] += 1
        output.retries = self.origin.shards.retries - before

    def see(self, task: Task) -> dict[str, str]:
        """Return the versions of the first files of a task."""
        shards, store = self.origin.split(task.split).variants[0].shards, self.origin.shards
        found = [store.stat(shard.name) for shard in shards[:1]]
        return {f"{store.url.rstrip('/')}/{info.name}": info.version for info in found if info is not None}


class Augmenter:
    """Makes all variants of a sample from one decoding. Not thread-safe.

    All variants have the same size. The next call overwrites their memory: fresh memory costs more than the default
    ops.

    Args:
        options: options of the cache.
        manifest: manifest of the samples' dataset.
        split: the split of the samples, which decides the ops.
        mends: repair an encoded image that does not decode, if possible.

    Attributes:
        seed: seed of the ops' random numbers.
    """

    def __init__(self, options: CacheOptions, manifest: Manifest, split: str, mends: bool = True) -> None:
        self.seed, ops = manifest.draws_seed(options.seed), options.ops_of(split)
        self._pixels = manifest.pixels
        make = pipeline_of(self._pixels)
        self._pipeline = make(ops, self.seed, upright=manifest.upright, pixels=self._pixels)
        self._mover = Mover(manifest.features, options, self._pipeline)
        self._mends, self._is_coded = mends, options.encode == "dct"
        # Without draws all variants are the first one.
        self._variants = options.variants if any(op.draws for op in ops) else 1
        self._repeats = options.variants // self._variants
        self._scratch = Scratch()
        self._outs: Sequence[Pixels | None] = [None] * self._variants
        self._block, self._draws = -1, list[DrawnBatch]()

    def __call__(self, sample: OriginSample) -> tuple[OriginSample, list[Pixels], list[bytes]]:
        """Return the sample (repaired if necessary), its variants, and for each the features that change with the crop.

        Raises:
            ImageError: the image does not decode.
            RecordError: a feature is not what the manifest says.
            OpError: an op failed. The message names the sample.
        """
        # Random numbers are drawn in blocks, because one call per block is faster than one per sample.
        block, row = divmod(sample.number, _BLOCK)
        if block != self._block:
            samples = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
            self._draws = [self._pipeline.draw(variant, samples) for variant in range(self._variants)]
            self._block = block
        draws = [[op[row] for op in drawn] for drawn in self._draws]
        try:
            made = self._run(sample, draws)
        except ImageError as error:
            if not self._mends or isinstance(sample.image, np.ndarray):
                raise
            sample = sample._replace(image=mend(sample.image, error), odd=(*sample.odd, "damaged"))
            made = self._run(sample, draws)
        if self._outs[0] is None:  # now the sizes are known
            self._outs = [np.empty(pixels.shape, pixels.dtype) for pixels in made]
        moved = self._mover.encode(sample.moving, sample.name, sample.image, draws)
        return sample, made * self._repeats, moved * self._repeats

    def kept(self, image: bytes | memoryview | Pixels) -> bytes | memoryview | None:
        """Return the image of a sample that a cache of coefficients may take over: a JPEG that no op changes."""
        if not self._is_coded or isinstance(image, np.ndarray) or image[:3] != JPEG_START:
            return None
        return image if self._pipeline.keeps(image) else None

    def _run(self, sample: OriginSample, draws: list[list[Draws]]) -> list[Pixels]:
        try:
            if isinstance(sample.image, np.ndarray):
                return [self._pipeline.run(sample.image, *each) for each in zip(draws, self._outs, strict=True)]
            image = memoryview(sample.image)
            pipelines = [self._pipeline] * len(draws)
            if self._pixels.frames:
                return run_clip_views(pipelines, self._pixels, image, draws, self._outs, self._scratch)
            return run_views(pipelines, image, draws, self._outs, self._scratch)
        except OpError as error:
            raise OpError(f"{sample.name} (sample {sample.number}): {error}") from error
