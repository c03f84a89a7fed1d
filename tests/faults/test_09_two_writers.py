"""Class 9: of two builds in one place the same command may share it, any other is refused by what differs."""

import threading

import pytest

import tpufeed
from tpufeed.errors import DuplicateWriterError, TpufeedError

OPTIONS = {"shard_bytes": "30KB", "workers": 1}


def test_another_build_that_is_quicker_by_a_moment_keeps_the_place(photo_folder, fault, bytes_of, tmp_path):
    """It puts its plan just before ours would be put, which is after we have looked."""
    folder = tmp_path / "d"
    rivals = []

    def rival():
        rivals.append(
            threading.Thread(target=tpufeed.shard, args=(photo_folder, folder), kwargs={**OPTIONS, "seed": 2})
        )
        rivals[0].start()
        rivals[0].join()

    arm = fault("os.link", rf"^{folder}/_tpufeed/plan\.jsonl$", rival)
    with pytest.raises(DuplicateWriterError, match=r"seed is 2 there and 1 here") as raised, arm:
        tpufeed.shard(photo_folder, folder, seed=1, **OPTIONS)
    assert raised.value.exit_code == 2
    tpufeed.shard(photo_folder, tmp_path / "alone", seed=2, **OPTIONS)
    assert bytes_of(folder) == bytes_of(tmp_path / "alone")
    assert tpufeed.verify(folder).records == 40


def test_two_builds_of_other_options_at_once_leave_one_dataset(photo_folder, bytes_of, tmp_path):
    """Whichever it is, it is whole; the other has failed, and nothing of it is there."""
    folder, start, results = tmp_path / "d", threading.Barrier(3), {}

    def build(seed):
        start.wait()
        try:
            results[seed] = tpufeed.shard(photo_folder, folder, seed=seed, **OPTIONS)
        except TpufeedError as error:
            results[seed] = error

    threads = [threading.Thread(target=build, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [seed for seed, result in results.items() if not isinstance(result, TpufeedError)]
    assert all(isinstance(results[seed], DuplicateWriterError) for seed in results if seed != winner), results
    tpufeed.shard(photo_folder, tmp_path / "alone", seed=winner, **OPTIONS)
    assert bytes_of(folder) == bytes_of(tmp_path / "alone")
    assert tpufeed.verify(folder).records == 40
