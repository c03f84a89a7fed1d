"""The messages that users meet: each mistake here makes a real error, and messages.txt has its class and its text.

Other tests ask for the class of an error and one datum of its message. The words are in that file alone, so that a
message that changes is read beside the others, in one diff. After a change, write the file again and read the diff:

    TPUFEED_WRITE_MESSAGES=1 python -m pytest -q tests/test_messages.py

In it /data is the folder that all mistakes share, /new an empty one for each, and # a number that differs between
runs. Errors that typer reports, like an unknown flag of the command, are not here: their words are typer's.
"""

import gzip
import io
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.gcs_server import GcsServer
from tests.sharding.written import encode_tar
from tests.tfrecords import encode_features, encode_record
from tpufeed.cli.app import app
from tpufeed.errors import TpufeedError, install_command
from tpufeed.images import (
    CenterCrop,
    Custom,
    CutMix,
    HorizontalFlip,
    MixUp,
    RandAugment,
    RandomResizedCrop,
    Resize,
    Rotate,
)
from tpufeed.measure.step_cost import cost_of_step
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.gcs_requests import Patience
from tpufeed.tfrecord.example import Feature

GOLDEN = Path(__file__).with_name("messages.txt")
WRITE = bool(os.environ.get("TPUFEED_WRITE_MESSAGES"))
# Addresses, digests, tries and seconds; and sizes of records, as the bytes of a JPEG are the encoder's.
OF_A_RUN = (
    r"(?<= at )0x\w+|\b[0-9a-f]{32}\b|\d+(?= tries)|[\d.]+(?= s\b)"
    r"|(?<=takes )\d+|\d+(?= are left)|(?<=payload \()\d+"
)
KEEP, DICOM = tpufeed.Images(pixels="keep"), bytes(128) + b"DICM"
WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


def records_in(url):
    return tpufeed.open_dataset(url).split("train").records


def jpeg(seed, size=(48, 40)):
    pixels = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def gif():
    frames = [Image.new("L", (8, 8), shade) for shade in (0, 255)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def shard(source, destination, **options):
    return tpufeed.shard(source, destination, workers=1, **options)


def warmup(source, destination, **options):
    return tpufeed.cache.warmup(source, destination, workers=1, **options)


def batches(url, **options):
    with tpufeed.Loader(url, **{"batch_size": 2} | options) as loader:
        return list(loader)


def command(*words):
    """Run the command in this process, and raise what it says on stderr as its message."""
    done = CliRunner().invoke(app, list(map(str, words)), prog_name="tpufeed", env=WIDE)
    assert isinstance(done.exception, SystemExit), (words, done.exception)
    raise SaidError(f"exit {done.exit_code}", done.stderr)


class SaidError(Exception):
    """What a command said as it failed."""


class Place:
    """The folders of a mistake: `data` to read, a copy of any of it to damage, and `new`, which is empty."""

    def __init__(self, data, new, server):
        self.data, self.new, self.server = data, new, server
        self.photos, self.dataset, self.cache = data / "photos", data / "flowers", data / "flowers-32"

    def copy(self, path):
        return Path(shutil.copytree(path, self.new / path.name))

    def table(self, text, name="labels.csv"):
        """A table beside copies of two photographs."""
        for number in range(2):
            write(self.new / f"{number}.jpg", jpeg(number))
        return write(self.new / name, text)

    def records(self, name, *records):
        """TFRecords of other tools, in /new/foreign."""
        examples = (encode_features({key: Feature(*each) for key, each in record.items()}) for record in records)
        write(self.new / "foreign" / name, b"".join(map(encode_record, examples)))
        return self.new / "foreign"


def without(package, use):
    """Make a mistake as if the package were not installed, and nothing had used it yet."""
    with mock.patch.dict(sys.modules):
        for name in list(sys.modules):
            if name.split(".")[0] == package or re.match(r"tpufeed\.adapters\.(torch|jax|xla|grain|keras|tf)\b", name):
                del sys.modules[name]
        sys.modules[package] = None
        use()


def change_manifest(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    return folder


def forget_a_class(manifest):
    manifest["class_names"].pop()
    for split in manifest["splits"].values():
        split["class_counts"].pop()


def damage(folder, pattern, offset):
    path = next(iter(sorted(folder.glob(pattern))))
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)
    return folder


def cut(folder, pattern):
    path = next(iter(sorted(folder.glob(pattern))))
    os.truncate(path, path.stat().st_size // 2)
    return folder


def remove(folder, pattern):
    next(iter(sorted(folder.glob(pattern)))).unlink()
    return folder


def denied(at, operation, use):
    at.server.fault("status", operation=operation, name="shut/*", status=403, message="no such grant", calls=None)
    use()


def take_from_bucket(at):
    for path in at.cache.rglob("*"):
        if path.is_file() and path.suffix != ".tfrecord":
            at.server.put("bucket", f"gone/{path.relative_to(at.cache)}", path.read_bytes())
    batches("gs://bucket/gone", local_dir=at.new)


def unanswered(at):
    at.server.fault("status", name="down/*", status=503, message="overloaded", calls=None)
    GcsStore("gs://bucket/down", Patience(deadline_seconds=0.01)).read("a")


def offline(at):
    unresolved = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    variables = {"STORAGE_EMULATOR_HOST": "", "NO_GCE_CHECK": "true"}
    with mock.patch.dict(os.environ, variables), mock.patch("socket.getaddrinfo", side_effect=unresolved):
        GcsStore("gs://bucket/flowers", Patience(unreachable_seconds=0.01)).read("a")


def rebuild(at):
    """Iterate a dataset that another build replaces meanwhile."""
    dataset = tpufeed.open_dataset(at.copy(at.cache))
    warmup(at.dataset, dataset.url, size=16, overwrite=True)
    batches(dataset)


def state(url, **options):
    with tpufeed.Loader(url, **{"batch_size": 2} | options) as loader:
        next(iter(loader))
        return loader.state_dict()


def load_state(url, state, **options):
    with tpufeed.Loader(url, **{"batch_size": 2} | options) as loader:
        loader.load_state_dict(state)


def iterate_twice(url):
    with tpufeed.Loader(url, batch_size=2) as loader:
        first = iter(loader)
        next(first)
        next(iter(loader))
        next(first)


def fail(image, generator):
    raise RuntimeError("no such filter")


def halve(image, generator):
    return image[::2].astype(np.float32)


SHARDING = {
    "a folder that is not there": lambda at: shard(at.data / "nowhere", at.new / "d"),
    "a folder without images": lambda at: shard(write(at.new / "in/notes.txt", "x").parent, at.new / "d"),
    "an image instead of a folder": lambda at: shard(at.photos / "rose/0.jpg", at.new / "d"),
    "an unknown option, a letter off": lambda at: shard(at.photos, at.new / "d", splitz="train=1"),
    "an unknown option of another tool": lambda at: shard(at.photos, at.new / "d", num_workers=2),
    "an unknown option, like none": lambda at: shard(at.photos, at.new / "d", zzz=2),
    "an option that is in a group": lambda at: shard(at.photos, at.new / "d", box_format="xywh"),
    "a text for a group": lambda at: shard(at.photos, at.new / "d", boxes="bbox"),
    "a choice that there is not": lambda at: shard(at.photos, at.new / "d", images=tpufeed.Images(encode="gif")),
    "a number out of range": lambda at: shard(at.photos, at.new / "d", images=tpufeed.Images(quality=101)),
    "text for a number": lambda at: shard(at.photos, at.new / "d", images=tpufeed.Images(presize="256")),
    "a size without a unit that is known": lambda at: shard(at.photos, at.new / "d", shard_bytes="100 megs"),
    "shares that do not add up": lambda at: shard(at.photos, at.new / "d", splits="train=0.9,val=0.2"),
    "a share that is no number": lambda at: shard(at.photos, at.new / "d", splits="train=most"),
    "a split with a slash in its name": lambda at: shard(at.photos, at.new / "d", splits="a/b=1.0"),
    "shares and a column of splits": lambda at: shard(at.photos, at.new / "d", splits="a=1.0", split_by="folder"),
    "size and number of shards": lambda at: shard(at.photos, at.new / "d", shard_bytes="1MB", shards=2),
    "a shard that holds no image": lambda at: shard(at.photos, at.new / "d", shard_bytes=100),
    "an image with too many pixels": lambda at: shard(at.photos, at.new / "d", images=tpufeed.Images(max_pixels=100)),
    "a kind of image that a policy rejects": lambda at: shard(
        write(at.copy(at.photos) / "rose/9.gif", gif()).parents[1],
        at.new / "d",
        images=tpufeed.Images(animated="reject"),
        max_rejects=0,
    ),
    "masks that are not there": lambda at: shard(at.photos, at.new / "d", masks=at.data / "nowhere"),
    "a policy that there is not": lambda at: shard(at.photos, at.new / "d", images=tpufeed.Images(rgba="reject")),
    "a budget that is none": lambda at: shard(at.photos, at.new / "d", max_rejects="a few"),
    "an engine that there is not": lambda at: tpufeed.shard(at.photos, at.new / "d", engine="spark"),
    "a column of a folder": lambda at: shard(at.photos, at.new / "d", label="species"),
    "a class that is not on the list": lambda at: shard(at.photos, at.new / "d", classes=["rose"], max_rejects=0),
    "images beside class folders": lambda at: shard(write(at.copy(at.photos) / "x.jpg", jpeg(9)).parent, at.new / "d"),
    "an image that is cut off": lambda at: shard(
        write(at.copy(at.photos) / "rose/9.jpg", jpeg(9)[:-500]).parents[1], at.new / "d", max_rejects=0
    ),
    "no image that can be taken": lambda at: shard(write(at.new / "in/1.jpg", "<html>").parent, at.new / "d"),
    "a destination that is a file": lambda at: shard(at.photos, write(at.new / "d", "")),
    "a destination in the source": lambda at: shard(at.photos, at.photos),
    "a destination with another dataset": lambda at: shard(at.photos, at.dataset, images=tpufeed.Images(presize=16)),
    "a destination with shards of another program": lambda at: shard(
        at.photos, write(at.new / "d/train-00000-of-00001.tfrecord", "").parent
    ),
    "a table without a column of images": lambda at: shard(at.table("a,b\n1,2\n"), at.new / "d"),
    "a column that a table has not": lambda at: shard(at.table("path,kind\n0.jpg,x\n"), at.new / "d", label="class"),
    "a table without rows": lambda at: shard(at.table("path,label\n"), at.new / "d"),
    "a row with a field too many": lambda at: shard(at.table("path,label\n0.jpg,a\n1.jpg,b,c\n"), at.new / "d"),
    "a quote that is not closed": lambda at: shard(at.table('path,label\n0.jpg,"a\n1.jpg,b\n'), at.new / "d"),
    "a line that is not JSON": lambda at: shard(at.table('{"path": "0.jpg"}\n{path\n', "l.jsonl"), at.new / "d"),
    "labels for some rows only": lambda at: shard(
        at.table("path,label\n0.jpg,a\n1.jpg,\n"), at.new / "d", max_rejects=0
    ),
    "a row whose image is not there": lambda at: shard(
        at.table("path,label\n0.jpg,a\n7.jpg,b\n"), at.new / "d", max_rejects=0
    ),
    "a column with a name of Kaggle's": lambda at: shard(
        at.table("path,label,size\n0.jpg,a,3\n1.jpg,b,4\n"), at.new / "d", names="kaggle"
    ),
    "a value of another type than was declared": lambda at: shard(
        at.table('{"path": "0.jpg", "age": 3}\n{"path": "1.jpg", "age": "old"}\n', "l.jsonl"),
        at.new / "d",
        columns={"age": "int64"},
        max_rejects=0,
    ),
    "boxes in a format that there is not": lambda at: shard(
        at.table('{"path": "0.jpg", "boxes": [[0, 0, 9, 9]]}\n', "l.jsonl"),
        at.new / "d",
        boxes=tpufeed.Boxes(column="boxes", format="xy"),
    ),
    "a box outside of its image": lambda at: shard(
        at.table('{"path": "0.jpg", "boxes": [[0, 0, 999, 9]]}\n', "l.jsonl"),
        at.new / "d",
        boxes=tpufeed.Boxes(column="boxes", format="xyxy"),
        max_rejects=0,
    ),
    "a tar that was cut short": lambda at: shard(
        write(at.new / "a.tar", encode_tar([("a.jpg", jpeg(1))])[:900]), at.new / "d", label="none"
    ),
    "bands without --pixels keep": lambda at: shard(at.photos, at.new / "d", bands="1,2"),
    "bands that are no list": lambda at: shard(at.photos, at.new / "d", bands="B02", images=KEEP),
    "a band that no file has": lambda at: shard(at.photos, at.new / "d", bands="B02,B03", images=KEEP),
    "a band that an image lacks": lambda at: shard(
        write(at.new / "in/a_B02.jpg", jpeg(1)).parent, at.new / "d", bands="B02,B03", images=KEEP, max_rejects=0
    ),
    "DICOM without --pixels keep": lambda at: shard(write(at.new / "in/1.dcm", DICOM).parent, at.new / "d"),
    "DICOM without pydicom": lambda at: without(
        "pydicom", lambda: shard(write(at.new / "in/1.dcm", DICOM).parent, at.new / "d", images=KEEP)
    ),
    "a Parquet file without pyarrow": lambda at: without(
        "pyarrow", lambda: shard(write(at.new / "t.parquet", "PAR1"), at.new / "d")
    ),
}
GROWING = {
    "append: no dataset": lambda at: tpufeed.append(at.photos, at.new / "d"),
    "append: to a cache": lambda at: tpufeed.append(at.photos, at.copy(at.cache)),
    "append: no images": lambda at: tpufeed.append(write(at.new / "in/a.txt", "").parent, at.copy(at.dataset)),
    "append: other options": lambda at: shard(
        at.photos, at.copy(at.dataset), append=True, images=tpufeed.Images(presize=16)
    ),
    "append: images without labels": lambda at: tpufeed.append(
        write(at.new / "in/1.jpg", jpeg(8)).parent, at.copy(at.dataset), workers=1
    ),
    "compact: no dataset": lambda at: tpufeed.compact(at.photos),
    "prune: no dataset": lambda at: tpufeed.prune(at.photos),
    "prune: keep nothing": lambda at: tpufeed.prune(at.dataset, keep=0),
}

ADOPTING = {
    "adopt: no TFRecord files": lambda at: tpufeed.adopt(at.photos),
    "adopt: a folder that is not there": lambda at: tpufeed.adopt(at.data / "nowhere"),
    "adopt: records without an image": lambda at: tpufeed.adopt(at.records("train.tfrecord", {"x": ("int64", [1])})),
    "adopt: a key that there is not": lambda at: tpufeed.adopt(
        at.records("train.tfrecord", {"jpg": ("bytes", [jpeg(1)])}), image_key="image"
    ),
    "adopt: a label that is text": lambda at: tpufeed.adopt(
        at.records("train.tfrecord", {"image": ("bytes", [jpeg(1)]), "label": ("bytes", [b"rose"])}), label_key="label"
    ),
    "adopt: a label below zero": lambda at: tpufeed.adopt(
        at.records("train.tfrecord", {"image": ("bytes", [jpeg(1)]), "label": ("int64", [-1])}), label_key="label"
    ),
    "adopt: fewer classes than labels": lambda at: tpufeed.adopt(
        at.records("train.tfrecord", {"image": ("bytes", [jpeg(1)]), "label": ("int64", [7])}),
        label_key="label",
        classes=["rose", "tulip"],
    ),
    "adopt: a file that is compressed": lambda at: tpufeed.adopt(
        write(at.new / "in/train.tfrecord", gzip.compress(bytes(99))).parent
    ),
    "adopt: a damaged record": lambda at: tpufeed.adopt(
        damage(at.records("train.tfrecord", {"image": ("bytes", [jpeg(1)])}), "*", 40)
    ),
    "adopt: a split that there is not": lambda at: tpufeed.adopt(
        at.records("train.tfrecord", {"image": ("bytes", [jpeg(1)])}), only="val"
    ),
    "adopt: a dataset stands there": lambda at: tpufeed.adopt(at.dataset),
}
CACHES = {
    "warmup: ops that fix no size": lambda at: warmup(at.dataset, at.new / "c", ops=[Resize(size=16)]),
    "warmup: a size and ops": lambda at: warmup(at.dataset, at.new / "c", size=16, ops=[Resize(size=(16, 16))]),
    "warmup: Kaggle's names for raw pixels": lambda at: warmup(at.dataset, at.new / "c", names="kaggle"),
    "warmup: names that there are not": lambda at: warmup(at.dataset, at.new / "c", names="kagle", encode="jpeg"),
    "warmup: Kaggle's names for lists of labels": lambda at: warmup(
        shard(at.table('{"path": "0.jpg", "label": ["a", "b"]}\n', "l.jsonl"), at.new / "d").url,
        at.new / "c",
        names="kaggle",
        encode="jpeg",
    ),
    "warmup: an op for a list": lambda at: warmup(at.dataset, at.new / "c", ops=CenterCrop(size=16)),
    "warmup: too many variants": lambda at: warmup(at.dataset, at.new / "c", size=16, variants=2000),
    "warmup: an option of shard": lambda at: warmup(at.dataset, at.new / "c", size=16, splits="a=1.0"),
    "warmup: of an augmented cache": lambda at: warmup(
        at.data / "flowers-augmented", at.new / "c", ops=[Resize(size=(8, 8))]
    ),
    "warmup: onto its source": lambda at: warmup(at.dataset, at.dataset, size=16),
    "warmup: onto another cache": lambda at: warmup(at.dataset, at.cache, size=16),
    "warmup: a view onto the cache of another": lambda at: warmup(
        tpufeed.open_dataset(at.dataset).select(samples=[0, 1, 5]), at.cache, size=32
    ),
    "warmup: a source that is not there": lambda at: warmup(at.data / "nowhere", at.new / "c", size=16),
    "warmup: an op that raises": lambda at: warmup(
        at.dataset, at.new / "c", ops=[Resize(size=(16, 16)), Custom("tests.test_messages:fail")]
    ),
    "warmup: an op that returns other pixels": lambda at: warmup(
        at.dataset, at.new / "c", ops=[Resize(size=(16, 16)), Custom("tests.test_messages:halve")]
    ),
    "warmup: an op that cannot be imported": lambda at: warmup(
        at.dataset, at.new / "c", ops=[Resize(size=(16, 16)), Custom("tests.test_messages:missing")]
    ),
    "op: a size of nothing": lambda _: Resize(size=0),
    "op: an option that there is not": lambda _: RandomResizedCrop(size=224, ratios=(1, 2)),
    "op: a range the wrong way round": lambda _: RandomResizedCrop(size=224, scale=(1.0, 0.08)),
}
READING = {
    "a dataset that is not there": lambda at: batches(at.data / "nowhere"),
    "a folder of images": lambda at: batches(at.photos),
    "a scheme that there is not": lambda _: batches("s4://bucket/flowers"),
    "a weight below 0": lambda at: tpufeed.Mixture.by_weight(at.dataset, -np.ones(records_in(at.dataset))),
    "weights that are all 0": lambda at: tpufeed.Mixture.by_weight(at.dataset, np.zeros(records_in(at.dataset))),
    "a weight too many": lambda at: tpufeed.Mixture.by_weight(at.dataset, np.ones(records_in(at.dataset) + 1)),
    "views that share no crop": lambda at: batches(at.dataset, views=[[CenterCrop(8)]] * 2, share="crop"),
    "a split that there is not": lambda at: batches(at.dataset, split="test"),
    "a version that there is not": lambda at: tpufeed.open_dataset(at.dataset, version=7),
    "a manifest that is no JSON": lambda at: batches(write(at.copy(at.dataset) / "manifest.json", "{").parent),
    "a manifest of a later version": lambda at: batches(
        change_manifest(at.copy(at.dataset), lambda manifest: manifest.update(format_version=9))
    ),
    "a record that is damaged": lambda at: batches(damage(at.copy(at.cache), "train-*", 3000), shuffle=False),
    "more bad records than are allowed": lambda at: batches(
        damage(damage(at.copy(at.cache), "train-*", 3000), "train-*", 9000), shuffle=False, max_bad_records=1
    ),
    "a label that is no class": lambda at: batches(change_manifest(at.copy(at.cache), forget_a_class), shuffle=False),
    "a dataset that was built anew meanwhile": rebuild,
    "a shard that was cut off": lambda at: batches(cut(at.copy(at.cache), "train-*")),
    "a shard that is gone": lambda at: batches(remove(at.copy(at.cache), "train-*")),
    "verify: a record that is damaged": lambda at: tpufeed.verify(damage(at.copy(at.cache), "train-*", 3000)),
    "verify: a share that is none": lambda at: tpufeed.verify(at.dataset, decode="half"),
    "a batch of nothing": lambda at: batches(at.dataset, batch_size=0),
    "a batch larger than the split": lambda at: batches(at.cache, batch_size=4096),
    "images of different sizes": lambda at: batches(at.dataset),
    "an unknown option of torch's": lambda at: tpufeed.Loader(at.dataset, num_workers=4),
    "an unknown option, a letter off, of a loader": lambda at: tpufeed.Loader(at.dataset, bach_size=4),
    "an option of an adapter": lambda at: tpufeed.Loader(at.dataset, device="xla"),
    "a remainder that there is not": lambda at: tpufeed.Loader(at.cache, remainder="keep"),
    "a column that there is not": lambda at: batches(at.cache, columns=["image", "lable"]),
    "a column of text in a batch by name": lambda at: batches(at.cache, columns=["filename"], fill={"filename": 0}),
    "pad of what is no list": lambda at: batches(at.cache, pad={"label": 3}),
    "multi-hot of single labels": lambda at: batches(at.cache, label_format="multi_hot"),
    "an op that is a function": lambda at: batches(at.dataset, ops=[halve]),
    "an op that raises in a loader": lambda at: batches(at.cache, ops=[Custom(fail)]),
    "device ops: an op that needs a gather": lambda at: batches(at.cache, device_ops=[Rotate(10)]),
    "device ops: RandAugment as it is": lambda at: batches(at.cache, device_ops=[RandAugment()]),
    "device ops: a user's op": lambda at: batches(at.cache, device_ops=[Custom(fail)]),
    "device ops: images of several sizes": lambda at: batches(at.dataset, device_ops=[HorizontalFlip()]),
    "device ops: a crop of crops": lambda at: batches(at.cache, device_ops=[RandomResizedCrop(16)]),
    "device ops: views": lambda at: batches(at.cache, views=[[], []], device_ops=[HorizontalFlip()]),
    "device ops: an op that mixes in ops": lambda at: batches(at.cache, ops=[MixUp()]),
    "device ops: padding would be mixed": lambda at: batches(at.cache, device_ops=[MixUp()], remainder="pad"),
    "device ops: an op after one that mixes": lambda at: batches(at.cache, device_ops=[MixUp(), HorizontalFlip()]),
    "device ops: no labels to mix": lambda at: batches(at.cache, columns=["image"], device_ops=[CutMix()]),
    "device ops: none, and nothing to finish": lambda at: tpufeed.Loader(at.cache).to_tf(finish=False),
    "ops of several sizes": lambda at: batches(at.dataset, ops=[Resize(size=16)]),
    "a rank beyond the world": lambda at: batches(at.cache, world=(8, 8)),
    "a world that is a number": lambda at: batches(at.cache, world=8),
    "lanes that ranks cannot share": lambda at: batches(at.cache, world=(0, 2), lanes=3),
    "an epoch below zero": lambda at: tpufeed.Loader(at.cache, batch_size=2).set_epoch(-1),
    "a state of another dataset": lambda at: load_state(at.cache, state(at.data / "flowers-augmented")),
    "a state of another seed": lambda at: load_state(at.cache, state(at.cache, seed=1)),
    "a state that is none": lambda at: load_state(at.cache, {"step": 3}),
    "a state that is no dict": lambda at: load_state(at.cache, 3),
    "an iteration that another one replaced": lambda at: iterate_twice(at.cache),
    "a mixture of no weights": lambda _: tpufeed.Mixture({}),
    "a mixture with a weight below zero": lambda at: tpufeed.Mixture({at.cache: -1}),
    "a mixture of several sizes": lambda at: batches(tpufeed.Mixture({at.cache: 1, at.data / "flowers-augmented": 1})),
    "torch that is not installed": lambda at: without("torch", lambda: tpufeed.Loader(at.cache).to_torch()),
    "jax that is not installed": lambda at: without("jax", lambda: tpufeed.Loader(at.cache).to_jax()),
}
STORES = {
    "a bucket that there is not": lambda _: batches("gs://nowhere/flowers"),
    "a dataset that is not in the bucket": lambda _: batches("gs://bucket/flowers"),
    "a shard that is gone from a bucket": take_from_bucket,
    "a bucket's name alone is wrong": lambda at: shard(at.photos, "gs:///flowers"),
    "no right to read": lambda at: denied(at, "read", lambda: batches("gs://bucket/shut")),
    "no right to write": lambda at: denied(at, "write", lambda: shard(at.photos, "gs://bucket/shut")),
    "no answer": unanswered,
    "no network": offline,
    "a file system that is not installed": lambda _: without("s3fs", lambda: batches("s3://bucket/flowers")),
}
COMMANDS = {
    "show of a split that there is not": lambda at: command(
        "show", at.dataset, "--split", "test", "--out", at.new / "s.png"
    ),
    "append without a dataset, by command": lambda at: command("append", at.photos, at.new / "d"),
    "a flag's choice that there is not": lambda at: command("shard", at.photos, at.new / "d", "--encode", "gif"),
    "a flag's pair without an equals sign": lambda at: command("shard", at.photos, at.new / "d", "--policy", "cmyk"),
    "a flag's policy that there is not": lambda at: command("shard", at.photos, at.new / "d", "--policy", "quality=9"),
    "a folder that is not there, by command": lambda at: command("shard", at.data / "nowhere", at.new / "d"),
    "more rejects than are allowed, by command": lambda at: command(
        "shard", write(at.copy(at.photos) / "rose/9.jpg", "").parents[1], at.new / "d", "--max-rejects", "0"
    ),
    "a class that there is not, by --select": lambda at: command("info", at.dataset, "--select", "classes=rose,tulips"),
    "a fold that there is not, by --select": lambda at: command(
        "show", at.dataset, "--select", "fold=5/5", "--out", at.new / "s.png"
    ),
    "a list that is not there, by --select": lambda at: command(
        "cache", "warmup", at.dataset, at.new / "c", "--select", f"drop={at.new}/bad.txt"
    ),
    "what --select does not know": lambda at: command("info", at.dataset, "--select", "class=rose"),
    "versions of a view": lambda at: command("info", at.dataset, "--versions", "--select", "fold=0/2"),
    "info of what is no dataset": lambda at: command("info", at.photos),
    "verify of a damaged dataset": lambda at: command("verify", damage(at.copy(at.cache), "train-*", 3000)),
    "doctor with a step that is no file and function": lambda at: command("doctor", at.cache, "--step", "train.py"),
    "doctor with a step whose file is missing": lambda at: command("doctor", at.cache, "--step", "no.py:make_step"),
    "doctor with a step, without libtpu": lambda at: without(
        "libtpu", lambda: cost_of_step(f"{write(at.new / 'train.py', '')}:make_step", "v5e-8")
    ),
    "bench with a profile that there is not": lambda at: command("bench", at.cache, "--device", "tpu-v9"),
}
ROOMS = {
    "Shard": SHARDING,
    "Append, compact and prune": GROWING,
    "Adopt": ADOPTING,
    "Caches and ops": CACHES,
    "Loaders": READING,
    "Stores": STORES,
    "Commands": COMMANDS,
}
MISTAKES = {heading: make for room in ROOMS.values() for heading, make in room.items()}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Nine photographs in three class folders, their dataset, and two caches of it; not to be changed."""
    data = tmp_path_factory.mktemp("data")
    for number in range(9):
        name = ("daisy", "rose", "tulip")[number % 3]
        write(data / "photos" / name / f"{number // 3}.jpg", jpeg(number, (48 + number, 40)))
    shard(data / "photos", data / "flowers")
    warmup(data / "flowers", data / "flowers-32", size=32, ops=None)
    warmup(data / "flowers", data / "flowers-augmented", ops=[RandomResizedCrop(size=24)], variants=2)
    return data


@pytest.fixture(scope="module")
def server():
    with GcsServer(["bucket"]) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def said(data, tmp_path, server):
    """`said(heading)`: what the mistake makes tpufeed say, with its class."""

    def say(heading):
        with pytest.raises((TpufeedError, TypeError, SaidError)) as caught:
            MISTAKES[heading](Place(data, tmp_path, server))
        server.clear_faults()
        error = caught.value
        kind, message = error.args if isinstance(error, SaidError) else (type(error).__name__, str(error))
        clone = install_command("x").partition("[")[0]
        for shown, found in (
            ("/new", tmp_path),
            ("/data", data),
            ("SERVER", server.url),
            ("pip install '/clone", clone),
        ):
            message = message.replace(str(found), shown)
        return f"{kind}\n{re.sub(OF_A_RUN, '#', message).strip()}"

    return say


def read_golden():
    parts = re.split(r"^### (.*)\n", GOLDEN.read_text(), flags=re.MULTILINE)
    texts = (re.split(r"^## ", part, flags=re.MULTILINE)[0].strip() for part in parts[2::2])
    return dict(zip(parts[1::2], texts, strict=True))


@pytest.fixture(scope="module")
def golden():
    return read_golden()


@pytest.mark.first_cases(17)
@pytest.mark.parametrize("heading", MISTAKES)
def test_a_mistake_is_told_in_the_words_of_the_file(heading, said, golden):
    found = said(heading)
    if WRITE:
        golden[heading] = found
    assert found == golden.get(heading)


def test_the_file_has_these_mistakes_and_no_others(golden):
    if WRITE:
        parts = [f"## {room}\n" + "".join(f"\n### {name}\n{golden[name]}\n" for name in ROOMS[room]) for room in ROOMS]
        GOLDEN.write_text("\n".join(parts))
    assert list(read_golden()) == list(MISTAKES)
