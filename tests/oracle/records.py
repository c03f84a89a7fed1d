"""Datasets read by the letter of docs/format.md: a manifest is JSON, shards are TFRecords of tf.train.Example."""

import json
import struct
from pathlib import Path


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """The fields of a protobuf message, as (number, value): varints and 4 bytes as numbers, all else as bytes."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        elif tag & 7 == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            value, at = varint(data, at)
        yield tag >> 3, value


def features(payload):
    """A tf.train.Example as a dict of lists."""
    found = {}
    for _, features_ in fields(payload):
        for _, entry in fields(features_):
            pair = dict(fields(entry))
            ((kind, values),) = fields(pair[2]) if pair[2] else ((1, b""),)
            if kind == 1:
                listed = [value for _, value in fields(values)]
            elif kind == 2:
                listed = [
                    number
                    for _, value in fields(values)
                    for number in (
                        struct.unpack(f"<{len(value) // 4}f", value) if isinstance(value, bytes) else [value]
                    )
                ]
            else:
                listed = []
                for _, value in fields(values):
                    packed, at = value if isinstance(value, bytes) else None, 0
                    while packed is not None and at < len(packed):
                        number, at = varint(packed, at)
                        listed.append(number - (number >> 63 << 64))
                    if packed is None:
                        listed.append(value - (value >> 63 << 64))
            found[pair[1].decode()] = listed
    return found


def payloads(path):
    data, at = Path(path).read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        yield data[at + 12 : at + 12 + size]
        at += size + 16


class Stored:
    """A version of a dataset on the local disk.

    Attributes:
        manifest: its JSON.
        counts: by split and variant the records of each shard.
        samples: by split and variant all samples, as dicts of features.
    """

    def __init__(self, folder, version=None):
        self.folder = Path(folder)
        found = json.loads((self.folder / "manifest.json").read_text())
        if version not in (None, found.get("version", 1)):
            found = json.loads((self.folder / f"_tpufeed/versions/{version}.json").read_text())
        self.manifest = found
        self.counts, self.samples = {}, {}
        for split, entry in found["splits"].items():
            for variant, shards in enumerate(each["shards"] for each in entry["variants"]):
                self.counts[split, variant] = tuple(shard["records"] for shard in shards)
                self.samples[split, variant] = [
                    features(payload) for shard in shards for payload in payloads(self.folder / shard["name"])
                ]

    def variants(self, split):
        return len(self.manifest["splits"][split]["variants"])

    @property
    def version(self):
        return self.manifest.get("version", 1)
