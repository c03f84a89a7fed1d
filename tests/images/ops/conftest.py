"""A photograph for the references."""

import numpy as np
import pytest

from tpufeed.images.decoding import decode


@pytest.fixture(scope="session")
def photo(photos):
    return np.ascontiguousarray(decode(photos["chelsea.png"])[:200:2, :300:2])
