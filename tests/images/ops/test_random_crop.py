"""RandomCrop is torchvision's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.images.ops.every import LARGEST, Case, fills, sizes, small
from tpufeed.images import RandomCrop
from tpufeed.images.pipeline import Pipeline

CASES = [
    Case(RandomCrop(40, 4), 0xAFE11896),
    Case(RandomCrop((70, 90), 3, (9, 8, 7)), 0x9EE4E5AC),
    Case(RandomCrop((50, 60)), device=0),
    Case(RandomCrop(88, padding=9, fill=77), device=0),
    Case(RandomCrop((120, 98), fill=(1, 200, 30)), device=0),  # larger than the image
]
MADE = [st.builds(RandomCrop, sizes, st.integers(0, 99), fills)]
MOVING = [st.builds(RandomCrop, small, st.integers(0, 9))]
SAME = [(RandomCrop(3, fill=[1, 2, 3]), RandomCrop(3, fill=(1, 2, 3)))]
REFUSED = [
    *((RandomCrop, {"size": size}, "size is one or two") for size in (0, True, 3.0)),
    *((RandomCrop, {"size": 3, "padding": value}, "padding is a whole number") for value in (-1, 1.5, None, True)),
    *((RandomCrop, {"size": 3, "fill": value}, "fill is a level") for value in (-1, 256, 0.5, "red", (1, 2), True)),
]


def by_padding(image, op, draws):
    """torchvision's RandomCrop with padding and pad_if_needed."""
    size = (op.size, op.size) if isinstance(op.size, int) else op.size
    starts = []
    pads = [(op.padding, op.padding)] * 2
    for axis in (0, 1):
        missing = max(0, size[axis] - image.shape[axis] - 2 * op.padding)
        pads[axis] = (op.padding + missing,) * 2
        starts.append(int(draws[axis] * (image.shape[axis] + sum(pads[axis]) - size[axis] + 1)))
    channels = [np.pad(image[..., c], pads, constant_values=np.broadcast_to(op.fill, 3)[c]) for c in range(3)]
    return np.stack(channels, -1)[starts[0] : starts[0] + size[0], starts[1] : starts[1] + size[1]]


side = st.integers(1, 12)


@given(st.tuples(side, side), side | st.tuples(side, side), st.integers(0, 15), st.data())
def test_random_crop_is_torchvision_s(shape, size, padding, data):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    op = RandomCrop(size, padding, data.draw(st.sampled_from([0, 77, (1, 2, 3)])))
    draws = data.draw(st.tuples(*[st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, LARGEST])] * 2))
    found = Pipeline([op], 0).run(image, [draws])
    assert np.array_equal(found, by_padding(image, op, draws))
    out = np.empty((*op.output_size(None), 3), np.uint8)
    assert Pipeline([op], 0).run(image, [draws], out) is out
    assert np.array_equal(out, found)
