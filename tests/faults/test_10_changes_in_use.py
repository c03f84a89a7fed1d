"""Class 10: what is replaced while it is read is an error; nobody gets samples of two datasets in one epoch."""

import os
import shutil
from pathlib import Path

import pytest

import tpufeed
from tests.faults.remote import HURRY, QUICK, epochs_of, met, names_of, pairs, until_error
from tpufeed import cache
from tpufeed.errors import ObjectChangedError, ShardError, TaskError
from tpufeed.images import CenterCrop, Resize

OPS = [Resize(40), CenterCrop(32)]
CACHE = {"size": 32, "variants": 2, "shard_bytes": "40KB", "workers": 1}


def names_and_sizes(folder):
    return {path.name: path.stat().st_size for path in Path(folder).glob("*.tfrecord")}


def test_a_cache_that_is_built_anew_while_it_is_read(dataset_url, cache_url, cache_copy):
    """Other pixels under the same names, of the same sizes, with sound CRCs."""
    with tpufeed.Loader(cache_copy, columns=["sample", "image"], batch_size=4, prefetch=1, lanes=1) as loader:
        batches = iter(loader)
        next(batches)
        cache.warmup(dataset_url, cache_copy, seed=7, overwrite=True, **CACHE)
        assert names_and_sizes(cache_copy) == names_and_sizes(cache_url)
        with pytest.raises(ObjectChangedError, match=f"{cache_copy} was rebuilt while it was read"):
            list(batches)


def test_a_dataset_that_is_removed_while_it_is_read(copy):
    with tpufeed.Loader(copy, columns=["sample"], ops=OPS, batch_size=4, prefetch=1, lanes=1) as loader:
        batches = iter(loader)
        next(batches)
        (copy / "manifest.json").unlink()
        with pytest.raises(ObjectChangedError, match=f"{copy} was removed while it was read"):
            list(batches)


def test_a_dataset_that_is_copied_over_itself_stays_the_same(dataset_url, copy):
    """As rsync does it, which renames: the manifest is another file of the same content, and no shard is truncated."""

    def replace(source, target):
        shutil.copyfile(source, f"{target}.new")
        return Path(f"{target}.new").replace(target)

    with tpufeed.Loader(copy, columns=["sample"], ops=OPS, batch_size=4, prefetch=1, lanes=1) as loader:
        batches = iter(loader)
        next(batches)
        before = (copy / "manifest.json").stat().st_mtime_ns
        shutil.copytree(dataset_url, copy, dirs_exist_ok=True, copy_function=replace)
        os.utime(copy / "manifest.json", ns=(before + 10**9, before + 10**9))
        assert len(list(batches)) == 9


def test_a_source_that_is_built_anew_while_a_cache_is_made_of_it(cache_copy, dataset_url, fault, tmp_path):
    """The source is a raw cache, so that sizes and offsets are the same before and after."""
    folder = tmp_path / "d"

    def rebuild():
        cache.warmup(dataset_url, cache_copy, seed=7, overwrite=True, **CACHE)

    arm = fault("os.link", rf"^{folder}/_tpufeed/reports/000000\.json$", rebuild)
    with pytest.raises((ObjectChangedError, TaskError), match=r"rebuilt while it was read"), arm:
        cache.warmup(cache_copy, folder, size=24, shard_bytes="20KB", workers=1, allow_augmented=True)
    assert not (folder / "manifest.json").exists()


# In a bucket, where each object has its generation.

VICTIM = "train-v0-00001-of-00003.tfrecord"
BATCHES = {"columns": ["sample", "image"], "batch_size": 4, "shuffle": False, "lanes": 1, "prefetch": 1, "threads": 1}


@pytest.mark.all
@pytest.mark.parametrize("change", ["the same bytes", "gone"])
def test_a_photograph_in_a_bucket_that_changes_after_the_plan_is_a_reject(change, server, kept, patience):
    """The plan has its generation. An outage stops the build between plan and photographs."""
    for name in names_of(server, "kept/photos"):
        server.put("bucket", f"p/{name}", server.get("bucket", f"kept/photos/{name}"))
    options = {"shard_bytes": "30KB", "workers": 1, "max_rejects": 1}
    server.fault("status", operation="read", name="p/*", calls=None)
    patience(HURRY)
    with pytest.raises(TaskError, match="gave up after"):
        tpufeed.shard("gs://bucket/p", "gs://bucket/d", **options)
    assert met(server)
    assert names_of(server, "d") == {"_tpufeed/plan.jsonl"}
    server.clear_faults()
    patience(QUICK)
    victim = f"p/{min(names_of(server, 'p'))}"
    data = server.get("bucket", victim)
    if change == "gone":
        server.remove("bucket", victim)
    else:
        server.put("bucket", victim, data)
    server.clear_log()
    result = tpufeed.shard("gs://bucket/p", "gs://bucket/d", **options)
    assert result.manifest.rejects == {"changed_during_build": 1}
    assert result.images == 39
    first, *_ = server.requests(operation="read", name=victim)
    assert first.status == 404
    assert "generation=" in first.target
    assert victim[2:] in server.get("bucket", "d/rejects.jsonl").decode()


@pytest.fixture
def bucket_cache(server, kept, cache_url):
    """The URL of a cache that was built in the bucket, and what it gives in order."""
    cache.warmup(f"{kept}/dataset", "gs://bucket/c", **CACHE)
    server.clear_log()
    return "gs://bucket/c", epochs_of(cache_url, **BATCHES)[0]


def other_pixels(server, name):
    """A sound shard of the same size: that of the other variant."""
    return server.get("bucket", f"c/{name.replace('v0', 'v1')}")


def test_a_shard_that_is_replaced_while_it_is_read_is_an_error(server, bucket_cache):
    url, expected = bucket_cache
    with tpufeed.Loader(url, **BATCHES, local_bytes=0) as loader:
        batches = iter(loader)
        seen = [pairs(*next(batches))]
        data = other_pixels(server, VICTIM)
        assert len(data) == len(server.get("bucket", f"c/{VICTIM}"))
        server.put("bucket", f"c/{VICTIM}", data)
        rest, message = until_error(batches, ShardError)
    assert f"{url}/{VICTIM} has {len(data)} bytes of CRC-32C" in message
    assert "it was replaced" in message
    seen += rest
    assert seen == expected[: len(seen)]
    refused = server.requests(operation="read", name=f"*/{VICTIM}", status=404)
    assert refused
    assert all("generation=" in record.target for record in refused)
    with pytest.raises(ShardError, match=f"{VICTIM} has"):
        epochs_of(url, local_bytes=0)


@pytest.mark.all
def test_a_shard_that_is_replaced_when_it_is_copied_stays_what_it_was(server, bucket_cache, tmp_path):
    """Its copy has the CRC-32C of the manifest, also to the next loader."""
    url, expected = bucket_cache
    assert epochs_of(url, 2, local_dir=tmp_path, **BATCHES)[0] == expected
    with tpufeed.Loader(url, **BATCHES, local_dir=tmp_path) as loader:
        batches = iter(loader)
        seen = [pairs(*next(batches))]
        server.put("bucket", f"c/{VICTIM}", other_pixels(server, VICTIM))
        seen += [pairs(*batch) for batch in batches]
    assert seen == expected
    assert epochs_of(url, local_dir=tmp_path, **BATCHES) == [expected]
    with pytest.raises(ShardError, match=f"{VICTIM} has"):
        epochs_of(url, local_dir=tmp_path / "other", **BATCHES)


@pytest.mark.all
@pytest.mark.parametrize("copied", [True, False], ids=["copies", "ranges"])
def test_a_dataset_that_is_copied_to_another_place_is_the_same(copied, server, bucket_cache, upload, tmp_path):
    """As gsutil cp does it: the bytes are the manifest's, the generations are not."""
    _, expected = bucket_cache
    for name in names_of(server, "c"):
        server.put("bucket", f"copy/{name}", server.get("bucket", f"c/{name}"))
    options = {"local_dir": tmp_path} if copied else {"local_bytes": 0}
    assert epochs_of("gs://bucket/copy", **BATCHES, **options) == [expected]
    assert server.requests(operation="stat", name=f"copy/{VICTIM}", status=200)
    assert tpufeed.verify("gs://bucket/copy").records == 80


def test_a_shard_that_is_put_again_while_it_is_read_is_read_on(server, bucket_cache):
    url, expected = bucket_cache
    with tpufeed.Loader(url, **BATCHES, local_bytes=0) as loader:
        batches = iter(loader)
        seen = [pairs(*next(batches))]
        server.put("bucket", f"c/{VICTIM}", server.get("bucket", f"c/{VICTIM}"))
        seen += [pairs(*batch) for batch in batches]
    assert seen == expected
    assert server.requests(operation="read", name=f"*/{VICTIM}", status=404)
    assert len(server.requests(operation="stat", name=f"*/{VICTIM}")) >= 1
