"""A few samples warmed for nothing: what records take, in bytes and seconds, and whether the ops can be trusted."""

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tpufeed.cache.plan import CacheOptions
from tpufeed.cache.source import CacheSource, Sample, first_samples
from tpufeed.cache.worker import Augmenter, encode_pixels
from tpufeed.dataset.plan import PlanHeader, Task
from tpufeed.errors import ImageError, OpError
from tpufeed.images.decoding import decode
from tpufeed.images.pipeline import Pipeline, check_deterministic

_PROBED_SAMPLES, _FIRST_SAMPLES = 16, 4
_PROBED_SECONDS = 1.0  # an op may take seconds an image


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of warming a few samples.

    Attributes:
        image_bytes: of an encoded image, their mean.
        first_bytes: the same of the first samples alone: no matter of time, as what plans are cut by must be.
        seconds_a_sample: that all variants take one core.
        samples: tried.
    """

    image_bytes: float
    first_bytes: float
    seconds_a_sample: float
    samples: int


def probe_samples(source: CacheSource, header: PlanHeader, tasks: Iterable[Task], options: CacheOptions) -> Probe:
    """Warm a few samples, and run each op of the first of them twice.

    Raises:
        OpError: an op raises, returns what is no image of its size, or gives other pixels the second time; names op
            and sample.
    """
    seed = source.draws_seed(options.seed)
    augment = Augmenter(options, seed, source.upright)
    ops, final = Pipeline(options.ops, seed), Pipeline(options.final, seed)
    lengths, seconds = list[int](), list[float]()
    begun = time.monotonic()
    for sample in itertools.islice(first_samples(source, header, tasks), _PROBED_SAMPLES):
        start = time.perf_counter()
        try:
            variants = augment(sample)
        except ImageError:
            continue
        lengths += [len(encode_pixels(pixels, options)) for pixels in variants]
        seconds.append(time.perf_counter() - start)
        if len(seconds) <= _FIRST_SAMPLES:
            _repeat(sample, ops, None)
            _repeat(sample, final, variants[0])
        if len(seconds) >= _FIRST_SAMPLES and time.monotonic() - begun > _PROBED_SECONDS:
            break
    return Probe(_mean(lengths), _mean(lengths[: _FIRST_SAMPLES * options.variants]), _mean(seconds), len(seconds))


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / max(1, len(numbers))


def _repeat(sample: Sample, pipeline: Pipeline, pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None) -> None:
    if pixels is None:
        pixels = sample.image if isinstance(sample.image, np.ndarray) else decode(sample.image)
    draws = [op[0] for op in pipeline.draw(0, np.array([sample.number]))]
    try:
        check_deterministic(pipeline, pixels, draws)
    except OpError as error:
        raise OpError(f"{sample.name} (sample {sample.number}): {error}") from error
