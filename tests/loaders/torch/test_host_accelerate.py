"""DataLoader over TFRecordImages under Accelerate: dealt once, and read by whom it is dealt to."""

import itertools
import json

import numpy as np
import pytest

import tpufeed

SAMPLES = 70


@pytest.fixture(scope="module")
def found(run_script, cache_url):
    return json.loads(run_script("torch/host_accelerate.py", cache_url).splitlines()[-1])


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def test_a_process_alone_reads_each_sample_once(found, cache_url, stored):
    """Epochs move: where the sampler does not count them Accelerate tells the dataset."""
    first, second = (flat(batches) for batches, _ in found["alone"])
    assert [total for _, total in found["alone"]] == [stored(cache_url, "train", v).pixels[0].sum() for v in (0, 1)]
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second


def test_epochs_move_with_a_lane_sampler(found, cache_url, stored):
    """Accelerate counts them, and tells the sampler."""
    sampler = tpufeed.LaneSampler(tpufeed.TFRecordImages(cache_url), 1, 0)
    for epoch, (batches, sums) in enumerate(zip(found["lanes"], found["sums"], strict=True)):
        sampler.set_epoch(epoch)
        assert flat(batches) == list(sampler)
        pixels = stored(cache_url, "train", epoch % 2).pixels[flat(batches)]
        assert flat(sums) == pixels.sum(axis=(1, 2, 3), dtype=int).tolist()


@pytest.mark.parametrize("lanes", [False, True], ids=["in order", "lanes"])
def test_two_processes_read_their_own_samples(found, lanes):
    ours = found["two"][lanes::2]
    assert [each["rank"] for each in ours] == [0, 1]
    assert sorted(flat(flat(each["ids"] for each in ours))) == list(range(SAMPLES))
    assert [each["read"] for each in ours] == [35, 35]
    assert {len(batch) for each in ours for batch in each["ids"]} == {7}
    assert len(np.unique([batch[0] for each in ours for batch in each["ids"]])) == 10


def test_a_lane_sampler_that_would_deal_as_well_is_refused(found):
    assert "Accelerate deals" in found["refused"]
    assert "num_replicas=1 and rank=0" in found["refused"]


@pytest.mark.parametrize("way", ["host", "device", "wrapped", "parts"])
def test_skipping_batches_of_a_torch_loader_is_refused_with_the_way_to_go_on(found, way):
    """Accelerate would make a DataLoader of its parts, as the Hugging Face Trainer has it do to resume."""
    assert "load_state_dict" in found["skipped"][way]


def test_that_way_goes_on(found, cache_url):
    with tpufeed.Loader(cache_url, columns=["image", "sample"], batch_size=10) as loader:
        expected = [samples.tolist() for _, samples in loader]
    assert found["gone on"] == expected[3:]
