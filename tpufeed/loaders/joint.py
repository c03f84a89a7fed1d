"""Ops of the user's that change a whole sample: image, masks, boxes and points in one call.

Around such an op a sample is held as arrays: what the ops before it made, and what it returned, which the ops behind it
begin with.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import OpError
from tpufeed.images.custom import Custom
from tpufeed.images.decoding import Pixels
from tpufeed.images.geometry import Geometry
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Draws
from tpufeed.loaders.columns import IMAGE, Field, Mask, Sample


class ArraySample(Sample):
    """A sample whose moving columns are arrays already, in pixels of its image.

    Args:
        before: the sample as it is stored, or as an earlier whole-sample op left it.
        arrays: by the names of features.
        whole: where each pixel of the result of all ops lies in the stored image.
    """

    def __init__(self, before: Sample, arrays: Mapping[str, Any], whole: Geometry) -> None:
        super().__init__(
            before._features,
            before.where,
            before._specs,
            before._find_geometry,
            before._min_visibility,
            before.classes,
            upright=before._upright,
        )
        self._arrays, self._whole = arrays, whole
        self.dropped = before.dropped

    @property
    def window(self) -> tuple[float, float, float, float]:
        return self._whole.bounds()  # `geometry` leads to the image that the whole-sample op returned

    def items(self, spec: FeatureSpec) -> npt.NDArray[Any]:
        if spec.name not in self._arrays:
            return super().items(spec)
        items: npt.NDArray[Any] = self._arrays[spec.name]
        return items[self._kept(spec, len(items))] if isinstance(spec.of, str) else items

    def _picture(self, spec: FeatureSpec) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._arrays[spec.name]
        return found


class JointPipeline:
    """A pipeline that is cut at each `Custom(..., sample=True)`.

    Args:
        pipeline: all of the ops.
        specs: by the names that functions know them by, the moving columns that are asked for: masks, boxes,
            keypoints, and what belongs to boxes.
        fields: all that are asked for; those of masks say what stands beyond the image.
    """

    def __init__(self, pipeline: Pipeline, specs: Mapping[str, FeatureSpec], fields: Sequence[Field]) -> None:
        self._parts: list[tuple[slice, Pipeline, Custom | None]] = []
        self._specs, start = specs, 0
        self._fills = {each.columns[0].name: each.fill_value for each in fields if isinstance(each, Mask)}
        for number, op in enumerate([*pipeline.ops, None]):
            if op is None or (isinstance(op, Custom) and op.sample):
                part = Pipeline(pipeline.ops[start:number], pipeline.seed, pipeline.fast, pipeline.upright)
                self._parts.append((slice(start, number), part, op))
                start = number + 1

    def run(
        self, run_first: Callable[[Pipeline, Sequence[Draws]], Pixels], sample: Sample, draws: Sequence[Draws]
    ) -> tuple[Pixels, Sample]:
        """Return the image after all ops, and the sample as those behind the last whole-sample op move it.

        Args:
            run_first: decodes the image and runs the first part over it.
            sample: as it is stored; its geometry is replaced by that of the first part.
            draws: one entry an op.

        Raises:
            ImageError, RecordError, OpError: the sample is damaged, or an op failed.
        """
        pixels: Pixels | None = None
        whole = sample.geometry
        size = whole.source
        for at, part, custom in self._parts:
            drawn = draws[at]
            sample._find_geometry = _finder(part, size, drawn)
            sample.__dict__.pop("geometry", None)
            pixels = run_first(part, drawn) if pixels is None else part.run(pixels, drawn).copy()
            if custom is None:
                break
            arrays = {name: self._materialise(name, spec, sample) for name, spec in self._specs.items()}
            changed = custom.apply_sample({IMAGE: np.ascontiguousarray(pixels), **arrays}, draws[at.stop])
            self._check_counts(custom, changed)
            pixels, size = changed.pop(IMAGE), pixels.shape[:2]
            by_feature = {self._specs[name].name: values for name, values in changed.items()}
            sample = ArraySample(sample, by_feature, whole)
        assert pixels is not None, "there is a part at least"
        return pixels, sample

    def _check_counts(self, custom: Custom, changed: Mapping[str, Any]) -> None:
        """Raise OpError where a function gave more or fewer items than boxes: the record is not at fault."""
        for name, spec in self._specs.items():
            if isinstance(spec.of, str) and len(changed[name]) != len(changed[spec.of]):
                raise OpError(
                    f"{custom} returned {len(changed[name])} items of {name!r} for {len(changed[spec.of])} boxes in "
                    f"{spec.of!r}: return one for each box"
                )

    def _materialise(self, name: str, spec: FeatureSpec, sample: Sample) -> Any:
        if spec.kind in ("mask", "depth"):
            return sample.mask(spec, self._fills[name])
        if spec.kind == "boxes":
            return sample.boxes(spec)
        return sample.points(spec)[0] if spec.kind == "keypoints" else sample.items(spec)


def _finder(pipeline: Pipeline, size: tuple[int, int], draws: Sequence[Draws]) -> Callable[[], Any]:
    return lambda: pipeline.geometry(*size, draws)
