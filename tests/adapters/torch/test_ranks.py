"""Two ranks of torch.distributed with gloo, and loaders under Accelerate, by what two_ranks.py writes down."""

import itertools
import json
import re

import numpy as np
import pytest

import tpufeed

pytestmark = pytest.mark.all


@pytest.fixture(scope="module")
def written(run_script, cache_url, broken_url, tmp_path_factory):
    """The folder in which each process wrote down what it saw."""
    folder = tmp_path_factory.mktemp("ranks")
    run_script("torch/two_ranks.py", cache_url, broken_url, folder)
    return folder


@pytest.fixture(scope="module")
def ranks(written):
    return [json.loads((written / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def accelerated(written):
    return json.loads((written / "accelerate.json").read_text())


@pytest.mark.all
def test_ranks_share_each_epoch(ranks, cache_url):
    for epoch in range(2):
        with tpufeed.Loader(cache_url, batch_size=70, processes=0, columns=["sample"], lanes=16) as loader:
            loader.set_epoch(epoch)
            (whole,) = loader
        parts = [list(itertools.chain(*found["epochs"][epoch])) for found in ranks]
        assert [found["length"] for found in ranks] == [7, 7]
        assert parts == [whole[rank::2].tolist() for rank in range(2)]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("batches", "batch_size: 5 on 1 of 2 ranks.* 4 on rank 1"),
        ("seed", "seed 0, .* seed 1, .* rank 1"),
        ("cannot begin", "rank 1: ShardError: .*train-v0-0000.-of-00006.tfrecord"),
        ("resumed", "epoch 0, .* epoch 2, .* rank 1"),
    ],
)
def test_ranks_that_would_part_ways_raise_the_same_error(ranks, case, message):
    errors = [found[case] for found in ranks]
    assert errors[0][0] == errors[1][0]
    assert re.search(message, errors[0][0])
    assert [cause for _, cause in errors] == ["NoneType", "ShardError" if case == "cannot begin" else "NoneType"]


def test_a_rank_that_comes_alone_is_told_who_is_missing(ranks):
    message, _ = ranks[0]["alone"]
    assert message.startswith("rank 1 of 2")


def test_a_world_that_is_given_by_hand_is_taken_at_its_word(ranks):
    assert [found["by hand"] for found in ranks] == [7, 8]


def test_an_epoch_that_is_prefetched_does_not_meet_another_loader(ranks, cache_url):
    """A rank that leaves the loop does not wait for the others until the process group's time is over."""
    for rank, found in enumerate(ranks):
        world = {"world": (rank, 2), "batch_size": 5, "columns": ["sample"], "processes": 0}
        with (
            tpufeed.Loader(cache_url, **world) as train,
            tpufeed.Loader(cache_url, "val", **world, shuffle=False) as validation,
        ):
            held_out = [batch.tolist() for batch in validation]
            assert found["validated"] == [[[batch.tolist() for batch in train], held_out] for _ in range(3)]


def test_accelerate_deals_no_batch_again_and_decodes_none_twice(ranks):
    parts = [found["accelerate"][0] for found in ranks]
    assert parts == [found["epochs"][0] for found in ranks]
    assert [found["accelerate"][1] for found in ranks] == [35, 35]


def test_ranks_that_were_launched_with_one_dataset_are_each_in_an_epoch_of_their_own(ranks, cache_url, stored):
    """Its epoch lies in memory that its workers share, and ranks that are started with it would, too."""
    brightness = [int(stored(cache_url, "train", variant).pixels[0].sum()) for variant in range(2)]
    assert [found["launched"] for found in ranks] == brightness


def test_a_spawned_worker_says_in_the_second_epoch_that_epochs_do_not_move(ranks):
    """It is no rank, and has to be told how many there are: each reads half of the samples."""
    first, second = ranks[0]["frozen"]
    assert first == ""
    assert second.count("variant 0 of 2") == 1


# Accelerate


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def test_a_process_alone_reads_each_sample_once(accelerated, cache_url, stored):
    """Epochs move: if the sampler does not count them, Accelerate tells the dataset."""
    first, second = (flat(batches) for batches, _ in accelerated["alone"])
    assert [total for _, total in accelerated["alone"]] == [
        stored(cache_url, "train", v).pixels[0].sum() for v in (0, 1)
    ]
    assert sorted(first) == sorted(second) == list(range(70))
    assert first != second


def test_epochs_move_with_a_lane_sampler(accelerated, cache_url, stored):
    """Accelerate counts them, and tells the sampler."""
    sampler = tpufeed.LaneSampler(tpufeed.TFRecordImages(cache_url), 1, 0)
    for epoch, (batches, sums) in enumerate(zip(accelerated["lanes"], accelerated["sums"], strict=True)):
        sampler.set_epoch(epoch)
        assert flat(batches) == list(sampler)
        pixels = stored(cache_url, "train", epoch % 2).pixels[flat(batches)]
        assert flat(sums) == pixels.sum(axis=(1, 2, 3), dtype=int).tolist()


@pytest.mark.parametrize("lanes", [False, True], ids=["in order", "lanes"])
def test_two_processes_read_their_own_samples(accelerated, lanes):
    ours = accelerated["two"][lanes::2]
    assert [each["rank"] for each in ours] == [0, 1]
    assert sorted(flat(flat(each["ids"] for each in ours))) == list(range(70))
    assert [each["read"] for each in ours] == [35, 35]
    assert {len(batch) for each in ours for batch in each["ids"]} == {7}
    assert len(np.unique([batch[0] for each in ours for batch in each["ids"]])) == 10


def test_what_accelerate_would_undo_is_refused(accelerated):
    """A sampler that deals as well, and skipped batches: for those it makes a DataLoader of the parts of a feed."""
    assert "num_replicas=1" in accelerated["refused"]
    for way in ("host", "device", "wrapped", "parts"):
        assert "load_state_dict" in accelerated["skipped"][way]


def test_a_feed_that_accelerate_prepared_continues_by_its_state(accelerated, cache_url):
    with tpufeed.Loader(cache_url, columns=["image", "sample"], batch_size=10) as loader:
        expected = [samples.tolist() for _, samples in loader]
    assert accelerated["gone on"] == expected[3:]
