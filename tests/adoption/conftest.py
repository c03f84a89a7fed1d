"""The dataset and the TFRecords of `tests/dataset`."""

from tests.dataset.conftest import copy, dataset_url, photo, photo_folder, refused, write_tfrecords

__all__ = ["copy", "dataset_url", "photo", "photo_folder", "refused", "write_tfrecords"]
