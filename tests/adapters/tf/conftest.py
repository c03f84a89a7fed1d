"""What tests of TensorFlow's datasets share."""

import gc

import pytest

from tpufeed.adapters.loader import Loader


@pytest.fixture(scope="module", autouse=True)
def _no_loader_stays_open():
    """TensorFlow keeps the datasets that Keras has fitted, and so their loaders; tests of other files count threads."""
    yield
    for loader in [found for found in gc.get_objects() if type(found) is Loader]:
        loader.close()
