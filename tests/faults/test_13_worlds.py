"""Class 13: a state that is none, or of another world, is refused by name; nothing is skipped or repeated for it.

That ranks share an epoch out, and that another world goes on with the rest: `tests/stream/test_sampler.py`.
"""

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import OptionError

BAD = {
    "no lanes": {"lanes": None},
    "no lane": {"lanes": 0},
    "samples below zero": {"samples": -5},
    "an epoch below zero": {"epoch": -1},
    "samples that are no whole number": {"samples": 1.5},
    "no samples": {"samples": None},
    "more samples than there are": {"samples": 10**30},
    "a lane a byte of memory": {"lanes": 1 << 40},
}


def samples_of(loader):
    return np.concatenate([samples for _, samples in loader]).tolist()


@pytest.mark.parametrize("change", BAD)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(change, cache_url):
    with tpufeed.Loader(cache_url, columns=["image", "sample"], batch_size=4) as loader:
        next(iter(loader))
        before = loader.state_dict()
        state = {**before, **BAD[change]}
        state = {name: value for name, value in state.items() if value is not None}
        with pytest.raises(OptionError, match=f"the state's {next(iter(BAD[change]))} is .*, not a whole number"):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
        with pytest.raises(OptionError, match="dict"):
            loader.load_state_dict([before])


@pytest.mark.parametrize("worlds", [(1, 4), (4, 2), (2, 8)])
def test_ranks_that_come_back_as_another_world_see_the_rest_once(worlds, cache_url):
    """Two batches a rank under one world, the rest of the epoch under another."""
    before, after = worlds

    def ranks(size, state=None, batches=None):
        states, seen = [], []
        for rank in range(size):
            options = {"columns": ["sample"], "batch_size": 1, "lanes": 8, "remainder": "pad", "world": (rank, size)}
            with tpufeed.Loader(cache_url, **options) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                iterator = iter(loader)
                for _ in range(len(iterator) if batches is None else batches):
                    samples, mask = next(iterator)
                    seen += samples[mask].tolist()
                states.append(loader.state_dict())
        assert all(found == states[0] for found in states)
        return states[0], seen

    state, first = ranks(before, batches=2)
    assert len(first) == state["samples"] == 2 * before
    _, rest = ranks(after, state)
    assert sorted(first + rest) == list(range(40))
