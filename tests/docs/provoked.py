"""A real error of each class, made in the folder /data as a person would meet it: the examples of docs/errors.md."""

import contextlib
import errno
import os
import re
import runpy
import sys
import time
from pathlib import Path

import pytest

import tpufeed
from tpufeed import errors
from tpufeed.dataset.reader import open_dataset
from tpufeed.images import Custom, HorizontalFlip, RandomResizedCrop
from tpufeed.storage.memory import MemoryStore
from tpufeed.storage.registry import open_store


def provoke_all(folder, photo, patch):
    """`{class: message}`; `folder` is shown as /data. Tells of no class that is only a base."""
    ways = {name.removeprefix("_"): way for name, way in globals().items() if name.endswith("Error") and name[0] == "_"}
    found = {}
    for name, way in ways.items():
        place = folder / name
        (place / "photos/rose").mkdir(parents=True)
        for number in range(3):
            (place / f"photos/rose/{number}.jpg").write_bytes(photo)
        with contextlib.chdir(place), patch.context() as inner:
            kind = getattr(errors, name)
            with pytest.raises(kind) as raised:
                way(place, inner)
            assert raised.type is kind, (name, raised.value)
            found[name] = str(raised.value).replace(str(place), "/data")
    return found


def _shard(place, **options):
    return tpufeed.shard(place / "photos", place / "flowers", workers=1, **options)


def _full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _UsageError(place, patch):
    patch.setitem(sys.modules, "tensorflow.python._pywrap_tensorflow_internal", sys)
    patch.delitem(sys.modules, "_XLAC", raising=False)
    runpy.run_module("tpufeed.loaders.xla.runtime")


def _OptionError(place, patch):
    _shard(place, split="train=0.9")


def _UnknownSchemeError(place, patch):
    open_dataset("foo://bucket/flowers")


def _NoInputsError(place, patch):
    tpufeed.adopt(place)


def _SourceError(place, patch):
    tpufeed.shard(place / "fotos", place / "flowers")


def _DatasetNotFoundError(place, patch):
    open_dataset(place / "flowers")


def _DatasetExistsError(place, patch):
    _shard(place)
    (place / "photos/rose/0.jpg").unlink()
    _shard(place)


def _DuplicateWriterError(place, patch):
    _shard(place)
    _shard(place, seed=1)


def _MissingExtraError(place, patch):
    patch.setitem(sys.modules, "ray", None)
    _shard(place, engine="ray")


def _StoreError(place, patch):
    patch.setattr(os, "link", _full)
    open_store(place).put("rejects.jsonl", b"")


def _ObjectNotFoundError(place, patch):
    MemoryStore("memory://flowers").read("train-00000-of-00002.tfrecord")


def _ObjectExistsError(place, patch):
    store = MemoryStore("memory://exists")
    store.put("manifest.json", b"one")
    store.put("manifest.json", b"another")


def _ObjectChangedError(place, patch):
    store = MemoryStore("memory://changed")
    store.put("train-00000-of-00002.tfrecord", b"one")
    store.read("train-00000-of-00002.tfrecord", version="1763783466512044")


def _AccessError(place, patch):
    patch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "key.json")
    Path("key.json").write_text("{}")
    open_dataset("gs://bucket/flowers")


def _UnavailableError(place, patch):
    from tpufeed.storage.gcs_retrying import Patience, TransientError, Tries

    tries = Tries("gs://bucket/flowers/manifest.json", Patience(deadline_seconds=0))
    tries.pause_after(TransientError("HTTP 503: Service Unavailable"))


def _DatasetUnreadableError(place, patch):
    url = _shard(place).url
    shard = Path(url, "train-00000-of-00001.tfrecord")
    shard.unlink()
    shard.symlink_to(shard)
    tpufeed.verify(url)


def _DamageError(place, patch):
    from tpufeed.profiling.xspace import read_xspace

    Path("host.xplane.pb").touch()
    read_xspace(Path("host.xplane.pb"))


def _RecordError(place, patch):
    url = _shard(place).url
    _flip(Path(url, "train-00000-of-00001.tfrecord"), 500)
    list(tpufeed.numpy_loader(url, "train", batch_size=2, ops=[RandomResizedCrop(32)], shuffle=False, remainder="pad"))


def _ShardError(place, patch):
    url = _shard(place).url
    shard = Path(url, "train-00000-of-00001.tfrecord")
    os.truncate(shard, shard.stat().st_size - 100)
    list(tpufeed.numpy_loader(url, "train", batch_size=2, ops=[RandomResizedCrop(32)], shuffle=False, remainder="pad"))


def _DatasetDamagedError(place, patch):
    url = _shard(place).url
    _flip(Path(url, "train-00000-of-00001.tfrecord"), 500)
    tpufeed.verify(url)


def _ManifestError(place, patch):
    url = _shard(place).url
    Path(url, "manifest.json").write_text("{")
    open_dataset(url)


def _ManifestVersionError(place, patch):
    manifest = Path(_shard(place).url, "manifest.json")
    manifest.write_text(re.sub(r'("format_version": *)1\b', r"\g<1>9", manifest.read_text()))
    open_dataset(manifest.parent)


def _ImageError(place, patch):
    from tpufeed.images.decoding import decode

    decode(b"<html>404</html>")


def heavy(image, rng):
    return image / 255


def hang(image, rng):
    time.sleep(1)
    return image


def _OpError(place, patch):
    ops = [RandomResizedCrop(32), Custom("tests.docs.provoked:heavy"), HorizontalFlip()]
    tpufeed.cache.warmup(_shard(place).url, place / "cache", ops=ops, workers=1)


def _BuildError(place, patch):
    for photo in (place / "photos").rglob("*.jpg"):
        photo.write_text("<html>404</html>")
    _shard(place)


def _TaskError(place, patch):
    from tpufeed.sharding import worker

    patch.setattr(worker, "run", _full)
    _shard(place)


def _TooManyRejectsError(place, patch):
    (place / "photos/rose/1.jpg").write_text("<html>404</html>")
    _shard(place, max_rejects=0)


def _LoaderError(place, patch):
    ops = [RandomResizedCrop(32), Custom("tests.docs.provoked:hang")]
    list(tpufeed.numpy_loader(_shard(place).url, "train", batch_size=1, ops=ops, timeout_seconds=0.25))
