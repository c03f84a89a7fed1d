"""User ops that change a whole sample: image, masks, boxes and points in one call.

Around such an op a sample is held as arrays: what the ops before it made, and what it returned for the ops after it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tpufeed.dataset.sample import Sample
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import OpError
from tpufeed.images.decoding import Pixels
from tpufeed.images.ops import Custom
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Draws
from tpufeed.stream.columns import IMAGE, TEXTS, Field, Items, Mask, Scalar, Tokens


class JointPipeline:
    """A pipeline that is cut at each `Custom(..., sample=True)`.

    Args:
        pipeline: all of the ops.
        specs: the columns that functions get, by the names that they use: masks, boxes, keypoints, what belongs to
            boxes, texts and numbers.
        fields: all fields that were asked for. A mask's field has the value beyond the image.
    """

    def __init__(self, pipeline: Pipeline, specs: Mapping[str, FeatureSpec], fields: Sequence[Field]) -> None:
        self._parts: list[tuple[slice, Pipeline, Custom | None]] = []
        self._specs, start = specs, 0
        self._fills = {each.columns[0].name: each.fill_value for each in fields if isinstance(each, Mask)}
        self._scalars = {
            each.columns[0].name: each.text if isinstance(each, Tokens) else each
            for each in fields
            if isinstance(each, Scalar | Tokens)
        }
        items = [each for each in fields if isinstance(each, Items) and each.most is None]
        self._shapes = {each.columns[0].name: each.columns[0].shape for each in items}
        for number, op in enumerate([*pipeline.ops, None]):
            if op is None or (isinstance(op, Custom) and op.sample):
                part = Pipeline(
                    pipeline.ops[start:number], pipeline.seed, pipeline.fast, pipeline.upright, pixels=pipeline.pixels
                )
                self._parts.append((slice(start, number), part, op))
                start = number + 1

    def run(
        self, run_first: Callable[[Pipeline, Sequence[Draws]], Pixels], sample: Sample, draws: Sequence[Draws]
    ) -> tuple[Pixels, Sample]:
        """Return the image after all ops, and the sample as the ops after the last whole-sample op move it.

        Args:
            run_first: decodes the image and runs the first part over it.
            sample: the sample as it is stored.
            draws: one entry per op.

        Raises:
            ImageError, RecordError, OpError: the sample is damaged, or an op failed.
        """
        pixels, values, whole = None, dict[str, Any](), sample.geometry
        size = whole.source
        for at, part, custom in self._parts:
            drawn = draws[at]
            sample = sample.behind(partial(part.geometry, *size, drawn), whole, values)
            pixels = run_first(part, drawn) if pixels is None else part.run(pixels, drawn).copy()
            if custom is None:
                break
            moved = {name: self._materialise(name, spec, sample) for name, spec in self._specs.items()}
            changed = custom.apply_sample({IMAGE: np.ascontiguousarray(pixels), **moved}, draws[at.stop])
            for name, spec in self._specs.items():  # an OpError: the record is not at fault
                if isinstance(spec.of, str) and len(changed[name]) != len(changed[spec.of]):
                    raise OpError(
                        f"{custom} returned {len(changed[name])} items of {name!r} for {len(changed[spec.of])} boxes "
                        f"in {spec.of!r}: return one for each box"
                    )
                found = np.shape(changed[name])
                if found != (shape := self._shapes.get(name, found)):
                    raise OpError(f"{custom} returned {name!r} of shape {found}: return it with the shape {shape}")
            pixels, size = changed.pop(IMAGE), pixels.shape[:2]
            values = {self._specs[name].name: value for name, value in changed.items()}
        assert pixels is not None, "there is at least one part"
        for name in self._scalars.keys() & self._specs.keys():
            spec = self._specs[name]
            if (spec.dtype in TEXTS) != isinstance(values[spec.name], str | bytes):
                raise OpError(
                    f"Custom(..., sample=True) left {name!r} as {type(values[spec.name]).__name__}: return whole "
                    f"numbers of shape (n,) if it is in pad=, like pad={{{name!r}: 77}}, else a text"
                )
        return pixels, sample

    def _materialise(self, name: str, spec: FeatureSpec, sample: Sample) -> Any:
        if name in self._scalars:
            return self._scalars[name].read(sample)
        if spec.kind in ("mask", "depth"):
            return sample.mask(spec, self._fills[name])
        if spec.kind == "boxes":
            return sample.boxes(spec)
        return sample.points(spec)[0] if spec.kind == "keypoints" else sample.items(spec)
