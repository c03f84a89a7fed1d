import re

import pytest

from tpufeed.dataset.advice import iter_warnings, manifest_warnings
from tpufeed.dataset.reader import open_dataset

MB, GB = 10**6, 10**9


@pytest.mark.parametrize(
    ("shards", "size_bytes", "hosts", "messages"),
    [
        (1, 128 * MB, 1, []),
        (8, 8 * 10 * MB, 8, []),
        (8, 8 * GB, 8, []),
        (1, 1000, 1, []),  # there are no more images
        (8, 8000, 8, []),
        (0, 0, 4, ["split s is empty"]),
        (3, 3 * 128 * MB, 4, [r"split s has fewer shards \(3\) than hosts \(4\)"]),
        (100, 100 * MB, 1, [r"split s has 100 shards of 1\.00 MB, less than 10 MB; fewer and larger .*128MB"]),
        (64, 64 * MB, 8, [r"64 shards of 1\.00 MB"]),
        (2, 5 * GB, 1, [r"shards of 2\.5 GB; smaller ones .*128MB"]),
        (2, 5 * GB, 4, ["than hosts", r"shards of 2\.5 GB"]),
    ],
)
def test_what_is_said_of_a_split(shards, size_bytes, hosts, messages):
    found = list(iter_warnings("s", shards, size_bytes, hosts))
    assert len(found) == len(messages)
    assert all(re.search(message, warning) for message, warning in zip(messages, found, strict=True)), found


def test_each_split_of_a_dataset_is_looked_at(dataset_url):
    warnings = manifest_warnings(open_dataset(dataset_url).manifest)
    assert [warning[:11] for warning in warnings] == ["split train", "split val h"]
    assert all("less than 10 MB" in warning for warning in warnings)
