"""Class 15: memory is bounded by options, neither by how slow the consumer is nor by how much there is to read."""

import mmap
import sys
import time
import tracemalloc

import numpy as np
import pytest
from PIL import Image

import tpufeed

_mapped = []
sys.addaudithook(lambda event, args: _mapped.append(args[1]) if event == "mmap.__new__" and args[0] == -1 else None)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_slow_consumer_makes_no_batch_be_prepared_beyond_prefetch(prefetch, cache_url):
    """A batch's memory is mapped once and used again; so all that is ever mapped is what was needed at one time."""
    _mapped.clear()
    seen = []
    with tpufeed.Loader(cache_url, batch_size=2, prefetch=prefetch) as loader:
        for _ in range(2):
            for images, _labels in loader:
                time.sleep(0.005)
                seen.append(images.ctypes.data)
        pages = -(-images.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        ours = [size for size in _mapped if size == pages]
    assert len(seen) == 40
    assert 1 <= len(ours) <= prefetch + 2  # the loop's own batch, and the one that takes its name


def peak_of(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.all
def test_a_build_needs_no_more_memory_for_more_images(photo_folder, tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(10):
        for path in photo_folder.glob("*/*.jpg"):
            (tmp_path / f"many/{number}-{path.name}").write_bytes(path.read_bytes())
    options = {"shard_bytes": "60KB", "workers": 1, "label": "none"}
    tpufeed.shard(photo_folder, tmp_path / "warm", **options)  # what is imported and cached
    few = peak_of(lambda: tpufeed.shard(photo_folder, tmp_path / "few", **options))
    many = peak_of(lambda: tpufeed.shard(tmp_path / "many", tmp_path / "d", **options))
    assert tpufeed.open_dataset(tmp_path / "d").split("train").records >= 10 * 20
    assert many < few + (2 << 20)


@pytest.mark.all
def test_verify_needs_memory_for_a_chunk_and_no_shard(monkeypatch, tmp_path):
    """A shard of 24 MB, read by ranges, in chunks of 1 MB."""
    rng = np.random.default_rng(1)
    (tmp_path / "photos").mkdir()
    for number in range(50):
        Image.fromarray(rng.integers(0, 255, (400, 400, 3), np.uint8)).save(tmp_path / f"photos/{number}.png")
    tpufeed.shard(tmp_path / "photos", tmp_path / "d", shards=1, workers=1, images=tpufeed.Images(check="header"))
    monkeypatch.setattr("tpufeed.dataset.walk.REMOTE_CHUNK_BYTES", 1 << 20)
    size = sum(path.stat().st_size for path in (tmp_path / "d").glob("*.tfrecord"))
    assert size > 20 << 20
    assert peak_of(lambda: tpufeed.verify(f"local://{tmp_path}/d")) < size // 2
