"""Class 2: a put whose response is lost was our own put, and is there once."""

import pytest

import tpufeed
from tests.faults.remote import CHUNK_BYTES, LARGE, WARM, met, names_of, objects
from tpufeed import cache
from tpufeed.dataset.reader import open_dataset
from tpufeed.storage import gcs_transfers

SHARD = {"shard_bytes": "30KB", "workers": 1}


def is_ours(server, name):
    """The object was stored by the put whose response was lost; the second try met it and put nothing."""
    lost, again = server.requests(operation="write", name=name)
    return (lost.fault, lost.status, again.status) == ("lose_response", 200, 412)


def test_the_command_loses_the_response_to_every_put(server, kept, command):
    """Every object's first put is stored and not answered."""
    for name in names_of(server, "kept/cache"):
        server.fault("lose_response", operation="write", name=f"c/{name}")
    words = ["cache", "warmup", f"{kept}/dataset", "gs://bucket/c", "--size", 32, "--variants", 2]
    done = command(*words, "--shard-size", "40KB", "--workers", 1)
    assert done.exit_code == 0, done.output
    assert all(is_ours(server, f"c/{name}") for name in names_of(server, "kept/cache"))
    generations = {
        file.name: file.generation for file in open_dataset("gs://bucket/c").split("train").variants[0].shards
    }
    for name, generation in generations.items():
        (lost,) = server.requests(operation="write", name=f"c/{name}", fault="lose_response")
        assert lost.generation == generation != ""
    assert names_of(server, "c") == names_of(server, "kept/cache")
    assert objects(server, "c") == objects(server, "kept/cache")


def test_the_end_of_a_shard_in_chunks_is_lost(server, kept, monkeypatch):
    cache.warmup(f"{kept}/dataset", "gs://bucket/calm", **LARGE)
    monkeypatch.setattr(gcs_transfers, "SMALL_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(gcs_transfers, "CHUNK_BYTES", CHUNK_BYTES)
    chunks = -(-len(objects(server, "calm")["train-v0-00000-of-00002.tfrecord"]) // CHUNK_BYTES)
    server.fault("lose_response", operation="chunk", name="c/train-v0-00000-of-00002.tfrecord", calls=(chunks,))
    cache.warmup(f"{kept}/dataset", "gs://bucket/c", **LARGE)
    (lost,) = met(server)
    assert (lost.operation, lost.status) == ("chunk", 200)
    assert len(server.requests(operation="chunk", name=lost.name)) == chunks
    assert objects(server, "c") == objects(server, "calm")
    assert names_of(server, "c") == names_of(server, "calm")


@pytest.mark.all
def test_a_plan_of_another_build_is_not_taken_for_our_own(server, kept):
    """It came just before: the put that lost its response had not been stored."""
    tpufeed.shard(f"{kept}/photos", "gs://bucket/other", seed=1, **SHARD)
    plan = server.get("bucket", "other/_tpufeed/plan.jsonl")
    server.put("bucket", "d/_tpufeed/plan.jsonl", plan)
    server.fault("status", operation="stat", name="d/_tpufeed/plan.jsonl", status=404)  # as it was not there yet
    with pytest.raises(tpufeed.errors.DuplicateWriterError, match="seed"):
        tpufeed.shard(f"{kept}/photos", "gs://bucket/d", **SHARD)
    assert met(server, "status")
    assert server.get("bucket", "d/_tpufeed/plan.jsonl") == plan
    assert names_of(server, "d") == {"_tpufeed/plan.jsonl"}
    assert cache.warmup(f"{kept}/dataset", "gs://bucket/c", **WARM).images == 80
