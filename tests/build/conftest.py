"""The photographs, the dataset and the cache of `tests/dataset`."""

from tests.dataset.conftest import cache_url, copy, dataset_url, memory_url, photo_folder

__all__ = ["cache_url", "copy", "dataset_url", "memory_url", "photo_folder"]
