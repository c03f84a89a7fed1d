"""A dataset that has grown by some appends, for the tests of what shortens it; `conftest` makes it."""

from pathlib import Path

from tpufeed.dataset.reader import open_dataset

PARTS = 5


def records_of(url, version=None):
    dataset = open_dataset(url, version)
    return {
        (split, variant): [bytes(payload) for payload in dataset.reader(split, variant).iter_payloads(0, entry.records)]
        for split, entry in dataset.manifest.splits.items()
        for variant in range(len(entry.variants))
    }


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def shards_of(url, split="train"):
    return open_dataset(url).split(split).variants[0].shards
