"""One task of a cache: a range of samples, decoded once each, written to a shard of every variant."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from tpufeed.build.commit import Reject
from tpufeed.build.plan import Task
from tpufeed.build.worker import Output, TaskContext, reach, run
from tpufeed.cache.moving import Mover, encode_pixels
from tpufeed.cache.options import CacheOptions
from tpufeed.cache.source import CacheSource, Sample
from tpufeed.dataset.schema import CHANNELS, FORMAT, HEIGHT, LABEL, WIDTH, fixed_ints
from tpufeed.errors import ImageError, OpError
from tpufeed.images.decoding import Pixels, make_scratch
from tpufeed.images.mending import mend
from tpufeed.images.pipeline import DrawnBatch, Pipeline, run_views
from tpufeed.images.protocols import Draws
from tpufeed.tfrecord.example import Feature, encode_entry

__all__ = ["Augmenter", "CacheContext", "iter_augmented", "reach", "run"]  # an engine finds `run` and `reach` here

_BLOCK = 128


@dataclass(frozen=True, slots=True)
class CacheContext(TaskContext):
    """Context that all tasks of a cache share."""

    source: CacheSource
    options: CacheOptions

    def write(self, task: Task, output: Output) -> None:
        """Write every variant of the task's samples, each decoded once."""
        header, options, source, before = self.header, self.options, self.source, self.source.retries
        int_names = fixed_ints(header.features)
        image_format = encode_entry(FORMAT, Feature("bytes", (options.encode.encode(),)))
        augment = Augmenter(options, source.draws_seed(options.seed), source.upright)
        mover, stored = Mover(source.features, options, augment.pipeline), f"{options.encode}, augmented"
        output.images[stored] = 0
        with closing(source.iter_samples(header, task)) as samples:
            for sample, variants, moved in iter_augmented(samples, augment, mover, source.mends):
                if isinstance(sample, Reject):
                    output.reject(sample)
                    continue
                rest = image_format + sample.rest
                for writer, pixels, entries in zip(output.writers, variants, moved, strict=True):
                    ints = {LABEL: sample.label, **dict(zip((HEIGHT, WIDTH, CHANNELS), pixels.shape, strict=True))}
                    data = encode_pixels(pixels, options)
                    writer.add(data, [ints[name] for name in int_names], rest + entries)
                    output.add(images=1, size=len(data))
                output.add(labels=set(sample.labels) if sample.label is None else (sample.label,))
                output.odd.update(sample.odd)
                output.images[stored] += 1
        output.retries = source.retries - before

    def see(self, task: Task) -> dict[str, str]:
        """Return the versions of the first files of a task."""
        return self.source.see(self.header, task)


def iter_augmented(
    samples: Iterator[Sample | Reject], augment: "Augmenter", mover: Mover | None, mends: bool
) -> Iterator[tuple[Sample | Reject, list[Pixels], list[bytes]]]:
    """Each sample with its variants, and the entries of what moves with each.

    One that does not decode is mended, or becomes a reject.
    """
    for sample in samples:
        if isinstance(sample, Reject):
            yield sample, [], []
            continue
        try:
            try:
                made = augment(sample)
            except ImageError as error:
                if not mends or isinstance(sample.image, np.ndarray):
                    raise
                sample = sample._replace(image=mend(sample.image, error), odd=(*sample.odd, "damaged"))  # noqa: PLW2901
                made = augment(sample)
            moved = [b""] * len(made)
            if mover:
                moved = mover.encode(sample.moving, sample.name, sample.image, augment.draws(sample.number))
        except ImageError as error:
            yield Reject(sample.name, error.reason, str(error)), [], []
        else:
            yield sample, made, moved


class Augmenter:
    """The variants of a sample, from one decoding; `seed` and `upright` are the source's. Not for several threads.

    All come out equal in size, into memory that the next call overwrites: fresh memory costs more than the default ops.

    Raises:
        ImageError: the image does not decode.
        OpError: an op failed; names the sample.
    """

    def __init__(self, options: CacheOptions, seed: int, upright: bool = False) -> None:
        self.pipeline = Pipeline(options.applied, seed, upright=upright)
        self._variants = options.variants
        self._scratch = np.empty(0, np.uint8)
        self._outs: Sequence[Pixels | None] = [None] * options.variants
        self._block, self._draws = -1, list[DrawnBatch]()

    def __call__(self, sample: Sample) -> list[Pixels]:
        draws = self.draws(sample.number)
        try:
            if isinstance(sample.image, np.ndarray):
                made = [self.pipeline.run(sample.image, *each) for each in zip(draws, self._outs, strict=True)]
            else:
                made = run_views(
                    [self.pipeline] * len(draws), memoryview(sample.image), draws, self._outs, self._memory
                )
        except OpError as error:
            raise OpError(f"{sample.name} (sample {sample.number}): {error}") from error
        if self._outs[0] is None:
            self._outs = [np.empty(pixels.shape, np.uint8) for pixels in made]
        return made

    def draws(self, sample: int) -> list[list[Draws]]:
        """Return the random numbers of each variant. They come in blocks: one call a block rather than one a sample."""
        block, row = divmod(sample, _BLOCK)
        if block != self._block:
            samples = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
            self._draws = [self.pipeline.draw(variant, samples) for variant in range(self._variants)]
            self._block = block
        return [[op[row] for op in drawn] for drawn in self._draws]

    def _memory(self, size: int) -> Pixels:
        if size > len(self._scratch):
            self._scratch = make_scratch(size)
        return self._scratch[:size]
