"""What is in a dataset that a test has built: its samples and its rejects, by file name."""

import json
from pathlib import Path

from tpufeed.dataset.reader import open_dataset


def samples_of(url):
    """Return lists of values by feature, for each file name; bytes as they are."""
    found = {}
    dataset = open_dataset(url)
    for split in dataset.manifest.splits:
        for features in dataset.iter_examples(split):
            values = {
                name: [bytes(value) if isinstance(value, memoryview) else value for value in feature.values]
                for name, feature in features.items()
            }
            found[values["image/filename"][0].decode()] = values
    return found


def texts_of(url):
    """Return the same with bytes as text, in Latin-1."""
    return {
        path: {
            name: [value.decode("latin-1") if isinstance(value, bytes) else value for value in values]
            for name, values in sample.items()
        }
        for path, sample in samples_of(url).items()
    }


def rejects_of(url):
    """Return reason and message of each reject, by path."""
    lines = map(json.loads, Path(url, "rejects.jsonl").read_text().splitlines())
    return {line["path"]: (line["reason"], line["message"]) for line in lines}
