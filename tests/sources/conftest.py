"""Sources and listings of `tests/sharding`."""

from tests.sharding.conftest import bytes_of, photo_folder, small_jpegs, take, tree

__all__ = ["bytes_of", "photo_folder", "small_jpegs", "take", "tree"]
