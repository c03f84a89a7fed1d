"""to_torch under torch.distributed: two processes with gloo. two_ranks.py writes down what each saw."""

import itertools
import json
import re
import shutil

import pytest

import tpufeed


@pytest.fixture(scope="module")
def ranks(run_script, cache_url, tmp_path_factory):
    """What each rank saw. A copy of the dataset has lost its shards."""
    folder = tmp_path_factory.mktemp("ranks")
    shutil.copytree(cache_url, folder / "broken")
    for shard in (folder / "broken").glob("train-v0-*.tfrecord"):
        shard.unlink()
    run_script("torch/two_ranks.py", cache_url, folder / "broken", folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


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
        ("batches", "the ranks disagree on batch_size: 5 on 1 of 2 ranks, but 4 on rank 1"),
        ("seed", "seed 0, .* on 1 of 2 ranks, but .* seed 1, .* on rank 1"),
        (
            "cannot begin",
            "1 of 2 ranks cannot begin the epoch; rank 1: ShardError: .*train-v0-0000.-of-00006.tfrecord: No such file",
        ),
        ("resumed", "epoch 0, .* on 1 of 2 ranks, but .* epoch 2, .* on rank 1"),
    ],
)
def test_ranks_that_would_part_ways_raise_the_same_error(ranks, case, message):
    errors = [found[case] for found in ranks]
    assert errors[0][0] == errors[1][0]
    assert re.search(message, errors[0][0])
    assert [cause for _, cause in errors] == ["NoneType", "ShardError" if case == "cannot begin" else "NoneType"]


def test_a_rank_that_comes_alone_is_told_who_is_missing(ranks):
    message, _ = ranks[0]["alone"]
    assert message.startswith("rank 1 of 2 has begun no epoch within 1 s of this rank.")


def test_a_world_that_is_given_by_hand_is_taken_at_its_word(ranks):
    assert [found["by hand"] for found in ranks] == [7, 8]


def test_an_epoch_that_is_prefetched_does_not_meet_another_loader(ranks, cache_url):
    """Nor is a rank that leaves the loop kept by the others, until the process group's time is over."""
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
