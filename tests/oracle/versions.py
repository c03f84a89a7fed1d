"""Versions of a dataset or a cache, read by the letter of docs/format.md."""

import io
import json
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from PIL import Image

from tests.oracle.records import features, payloads
from tests.oracle.sources import Sample, number_of, same_path, shown

OWN = ("image/encoded", "image/tensor", "image/class/label", "image/class/text", "image/height", "image/width")
OWN += ("image/channels", "image/format", "image/filename", "image/size", "image/class/one_hot")
COUNTS: Counter[str] = Counter()  # of all that was done and compared


@dataclass(frozen=True)
class Version:
    """What a version of a dataset holds: names of classes, and by split its samples in their order."""

    classes: tuple[str, ...]
    splits: dict[str, tuple[Sample, ...]]

    @property
    def samples(self):
        return [sample for split in self.splits.values() for sample in split]

    @property
    def known(self):
        return {(sample.path, sample.pixels) for sample in self.samples}

    @property
    def contents(self):
        return {sample.pixels for sample in self.samples}

    def grew_from(self, base):
        """Whether the samples and classes of `base` are here under their old numbers."""
        same_classes = self.classes[: len(base.classes)] == base.classes
        return same_classes and all(self.splits[name][: len(of)] == of for name, of in base.splits.items())


def manifest_of(folder, number):
    """The manifest of a version, or None."""
    found = folder / "manifest.json"
    if not found.exists():
        return None
    newest = json.loads(found.read_text())
    if newest.get("version", 1) == number or number is None:
        return newest
    found = folder / f"_tpufeed/versions/{number}.json"
    return json.loads(found.read_text()) if found.exists() else None


def numbers_of(folder):
    """The versions that can be opened."""
    newest = manifest_of(folder, None)
    if newest is None:
        return []
    stems = [path.stem for path in folder.glob("_tpufeed/versions/*.json")]
    return sorted({newest.get("version", 1), *(int(stem) for stem in stems if stem.isdecimal())})


def read(manifest, folder, variant=0):
    """A version by the letter of docs/format.md."""
    splits = {}
    for split, entry in manifest["splits"].items():
        shards = entry["variants"][variant]["shards"]
        found = [to_sample(payload, manifest) for shard in shards for payload in payloads(folder / shard["name"])]
        COUNTS["samples compared"] += len(found)
        splits[split] = tuple(found)
    COUNTS["versions compared"] += 1
    return Version(tuple(manifest["class_names"]), splits)


def decoded(data):
    """The pixels of an encoded image."""
    if data.startswith(b"\x93NUMPY"):
        return np.load(io.BytesIO(data))
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def to_sample(payload, manifest):
    found, columns = features(payload), {}
    keys = {spec["name"]: spec.get("stored_as") or spec["name"] for spec in manifest["features"]}
    image = found.get(keys.get("image/encoded"))
    kept = manifest["features"][0].get("pixels", {"dtype": "uint8", "channels": 3})
    frames, channels = kept.get("frames", 1), kept["channels"]
    if image is None:
        pixels = np.frombuffer(found["image/tensor"][0], kept["dtype"])
        pixels = pixels.reshape(frames, math.isqrt(pixels.size // channels // frames), -1, channels)
    else:
        pixels = np.stack(list(map(decoded, image)))
    assert (pixels.dtype.name, len(pixels), pixels.shape[3]) == (kept["dtype"], frames, channels)
    pixels = pixels if "frames" in kept else pixels[0]
    labels = found[keys["image/class/label"]] if "image/class/label" in keys else ()  # numbers are no classes
    names = tuple(manifest["class_names"][label] for label in labels if label != -1)
    text = tuple(each.decode() for each in found[keys["image/class/text"]] if each) if labels else ()
    assert names or len(labels) < 2
    path = found[keys["image/filename"]][0].decode()
    assert names == text, f"{path}: the ids of {names} are beside the text {text}"
    if "image/class/one_hot" in keys:
        hot = {number for number, value in enumerate(found[keys["image/class/one_hot"]]) if value}
        assert hot == set(found[keys["image/class/label"]]), f"{path}: one_hot has {hot}, beside the text {text}"
    for name, key in keys.items():
        if name == "mask":
            data = found[key][0]
            mask = np.frombuffer(data, np.uint8) if image is None else np.asarray(Image.open(io.BytesIO(data)))
            assert mask.size * channels == pixels.size
            columns[name] = shown(mask)
        elif name not in OWN:
            values = found.get(key, ())
            values = (each.decode() if isinstance(each, bytes) else each for each in values)
            # Shares and sizes make pixels of a box with an error of 1e-15.
            values = (round(each, 4) if isinstance(each, float) else each for each in values)
            columns[name] = tuple("nan" if str(each) == "nan" else each for each in values)
    return Sample(same_path(path), number_of(pixels), names, tuple(sorted(columns.items())))


def tree(folder):
    """All files below a folder: bytes, and when they were changed."""
    return {path: (path.lstat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
