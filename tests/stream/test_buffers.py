"""Memory of batches: whose it is, and that it comes back."""

import gc
import itertools
import os
import resource

import numpy as np
import pytest

import tpufeed
from tpufeed.stream.buffers import BufferLayout, BufferPool, MappedBuffers, Memory

THREADS = 3


def make(url, **options):
    return tpufeed.Loader(url, **{"batch_size": 10, "threads": THREADS} | options)


def test_a_pool_hands_out_memory_again_when_its_last_user_is_gone():
    pool = BufferPool(BufferLayout([("image", "uint8", (3, 5, 7)), ("depth", "int32", (2, 3))]))
    first, depth = pool.take().arrays.values()
    assert (depth.shape, depth.dtype, depth.ctypes.data % 4096) == ((2, 3), np.int32, 0)
    del depth
    assert (first.shape, first.dtype) == ((3, 5, 7), np.uint8)
    first[...] = 77
    view = first[1:, ::2].T
    address = first.ctypes.data
    del first
    second = pool.take().arrays["image"]  # the view still needs the first
    assert second.ctypes.data != address
    assert (view == 77).all()
    del view
    third = pool.take().arrays["image"]
    assert third.ctypes.data == address
    assert (third == 77).all()  # the memory itself: fresh memory is zero


def test_the_pages_of_a_shared_buffer_are_there_before_a_worker_stores_to_them():
    pages, faults = 4096, lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pool, layout = None, BufferLayout([("image", "uint8", (pages, 4096))])

    def take_mapped(worker, number, parts=1):
        buffer, mapped = worker.take(number)
        assert not mapped
        for part in range(parts):
            list(buffer.memory.make_pages(part, parts))
        return buffer.arrays["image"]

    try:
        pool = BufferPool(layout, kept=0, shared=True)
        buffer = pool.take()
        for parts in (1, 3):
            worker = MappedBuffers(pool.file, layout)
            image = take_mapped(worker, buffer.memory.number, parts)
            before = faults()
            image[:] = 7
            assert faults() - before < pages / 4
            assert worker.take(buffer.memory.number)[1]
        assert (take_mapped(MappedBuffers(pool.file, layout), buffer.memory.number) == 7).all()  # not written over
        assert os.fstat(pool.file).st_blocks * 512 == pages * 4096  # the other buffers of the segment have none
        del buffer  # it is not kept: its pages go
        assert os.fstat(pool.file).st_blocks == 0
        image = take_mapped(worker, pool.take().memory.number)
        before = faults()
        image[:] = 8
        assert faults() - before < pages / 4
    finally:
        pool.close()


@pytest.mark.all
def test_the_loaders_process_makes_pages_while_workers_start(dataset_url, ops, monkeypatch):
    made, make_pages = [], Memory.make_pages

    def watched(memory):
        for _ in make_pages(memory):
            made.append(memory.number)
            yield

    monkeypatch.setattr(Memory, "make_pages", watched)
    with make(dataset_url, ops=ops, batch_size=5, processes=1, prefetch=2) as loader:
        batches = [image.copy() for image, _ in loader]
        pages = loader.stream._executor._pages
    assert made[:2] == [0, 1]
    assert pages is None  # none is made once a batch has come
    with make(dataset_url, ops=ops, batch_size=5) as loader:
        assert all((image == other).all() for (image, _), other in zip(loader, batches, strict=True))


def test_a_batch_that_is_kept_is_never_overwritten(dataset_url, ops):
    kept = []
    with make(dataset_url, ops=ops, batch_size=5, prefetch=2) as loader:
        for _ in range(2):
            for images, labels in loader:
                kept.append((images, images.copy(), labels, labels.copy()))
        kept += [(view := images[2:4, ::3], view.copy(), labels, labels) for images, labels in loader]
    for images, images_then, labels, labels_then in kept:
        np.testing.assert_array_equal(images, images_then)
        np.testing.assert_array_equal(labels, labels_then)
    assert len({images.ctypes.data for images, *_ in kept}) == len(kept) == 42


def test_dropped_batches_give_their_memory_to_later_ones(cache_url):
    with make(cache_url, batch_size=2, prefetch=4) as loader:
        addresses = [images.ctypes.data for _ in range(10) for images, _ in loader]
    assert len(addresses) == 350
    assert len(set(addresses)) <= 6  # four ahead, the loop's own, and the one that is being replaced


def test_a_batch_outlives_its_loader(cache_url, stored):
    loader = make(cache_url, columns=["image", "sample"])
    images, samples = next(iter(loader))
    loader.close()
    del loader
    gc.collect()
    np.testing.assert_array_equal(images, stored(cache_url).pixels[samples])


def test_memory_goes_back_to_the_node_whose_worker_has_written_it():
    pool = BufferPool(BufferLayout([("image", "uint8", (4096,))]), shared=True)
    try:
        numbers = {node: pool.take(node).memory.number for node in (0, 1)}
        assert numbers[0] != numbers[1]
        for _ in range(3):
            assert {node: pool.take(node).memory.number for node in (1, 0)} == numbers
    finally:
        pool.close()


def test_a_child_has_for_itself_the_batches_that_it_was_forked_with(cache_url):
    given = {"batch_size": 10, "prefetch": 2, "repeat": True, "columns": ["image"]}
    with make(cache_url, **given) as loader:
        expected = [images.copy() for images in itertools.islice(loader, 40)]
    with make(cache_url, processes=1, **given) as loader:
        batches = iter(loader)
        kept, dropped = next(batches), next(batches)
        address, (waits, go) = dropped.ctypes.data, os.pipe()
        child = os.fork()
        if not child:
            os.close(go)
            os.read(waits, 1)
            same = np.array_equal(dropped, expected[1])
            kept[...] = dropped[...] = 7
            os._exit(0 if same else 9)
        del dropped
        addresses = set[int]()
        for images, expects in zip(batches, expected[2:], strict=False):
            addresses.add(images.ctypes.data)
            np.testing.assert_array_equal(images, expects)
        os.close(go)
        os.close(waits)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert address in addresses  # the memory came back, and workers write to it again
        np.testing.assert_array_equal(kept, expected[0])
        np.testing.assert_array_equal(images, expected[-1])
    os.waitpid(os.fork() or os._exit(0), 0)  # also once the loader is closed
    del kept, images
