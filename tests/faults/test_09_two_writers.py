"""Class 9: of two builds in one place the same command may share it, any other is refused by what differs."""

import shutil
import threading
from functools import partial

import pytest

import tpufeed
from tpufeed.errors import BuildError, DuplicateWriterError, TpufeedError

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


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("looked", [("", 2), ("/_tpufeed", 1), ("/_tpufeed", 2)])
@pytest.mark.parametrize("rival_shards", ["30KB", "20KB"])
def test_what_a_run_with_overwrite_puts_while_another_looks_is_no_foreign_file(
    looked, rival_shards, photo_folder, fault, bytes_of, tmp_path
):
    """The second of two runs with --overwrite lists the folder while the first one puts its shards there."""
    folder, ours = tmp_path / "d", {**OPTIONS, "seed": 2, "overwrite": True}
    theirs = {**ours, "shard_bytes": rival_shards}
    tpufeed.shard(photo_folder, folder, seed=1, **OPTIONS)
    with pytest.raises(TpufeedError), fault("os.link", r"-00003-of-\d+\.tfrecord$", 28):
        tpufeed.shard(photo_folder, folder, **theirs)  # the rival is at work, and has put some of its shards

    def rival():
        tpufeed.shard(photo_folder, folder, **{**theirs, "overwrite": False})  # it goes on

    listed, nth = looked
    with fault("os.scandir", rf"^{folder}{listed}$", rival, nth):
        tpufeed.shard(photo_folder, folder, **ours)
    tpufeed.shard(photo_folder, tmp_path / "alone", **ours)
    assert bytes_of(folder) == bytes_of(tmp_path / "alone")
    assert tpufeed.verify(folder).records == 40


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("struck", [("os.scandir", 2), ("os.scandir", 3), ("os.link", 1)])
@pytest.mark.parametrize("kept", [1, 2])
def test_a_prune_goes_on_while_another_is_quicker(struck, kept, photo_folder, fault, tmp_path):
    """Versions that it has listed are gone when it reads them."""
    folder, source = tmp_path / "d", tmp_path / "source"
    photos = sorted(path for path in photo_folder.rglob("*") if path.is_file())
    for number in range(1, 5):
        source.mkdir(exist_ok=True)
        shutil.copy(photos[number], source)
        if number == 1:
            tpufeed.shard(source, folder, label="none", workers=1)
        else:
            tpufeed.append(source, folder, workers=1)

    call, nth = struck
    struck_path = "/1.pruned.json" if call == "os.link" else ""
    with fault(call, rf"^{folder}/_tpufeed/versions{struck_path}$", lambda: tpufeed.prune(folder, keep=kept), nth):
        assert tpufeed.prune(folder).kept == (4,)
    assert not [*(folder / "_tpufeed").glob("versions/*")]
    assert tpufeed.verify(folder).records == 4


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


# A dataset that grows: all that make its next version share one folder, and its plan says whose turn it is.


def folders_of(photo_folder, tmp_path, count):
    """The photographs, dealt to folders, of which the first becomes the dataset."""
    for number, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))):
        target = tmp_path / "photos" / str(number % count) / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    return sorted((tmp_path / "photos").iterdir())


def run_at_once(*works):
    """What came of each: its result or its error."""
    start, found = threading.Barrier(len(works)), [None] * len(works)

    def run(place, work):
        start.wait()
        try:
            found[place] = work()
        except TpufeedError as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("work", ["append", "compact"])
def test_the_same_command_twice_makes_one_version(work, photo_folder, tmp_path):
    first, second = folders_of(photo_folder, tmp_path, 2)
    url = tmp_path / "d"
    tpufeed.shard(first, url, **OPTIONS)
    if work == "append":
        found = run_at_once(*[partial(tpufeed.append, second, url, workers=1)] * 3)
    else:
        tpufeed.append(second, url, workers=1)
        manifest = url / "manifest.json"  # a usual size at which all of its shards are small
        manifest.write_text(manifest.read_text().replace('"shard_bytes": 30000', '"shard_bytes": 900000'))
        found = run_at_once(*[partial(tpufeed.compact, url, workers=1)] * 3)
    assert not [each for each in found if isinstance(each, TpufeedError)], found
    assert tpufeed.open_dataset(url).number == (2 if work == "append" else 3)
    assert tpufeed.verify(url).records == 40


def test_of_several_appends_and_a_compaction_one_wins_and_the_others_say_so_or_go_on(photo_folder, tmp_path):
    first, *others = folders_of(photo_folder, tmp_path, 4)
    url = tmp_path / "d"
    tpufeed.shard(first, url, shard_bytes="900KB", workers=1)
    works = [partial(tpufeed.append, folder, url, workers=1) for folder in others]
    found = run_at_once(*works, partial(tpufeed.compact, url, workers=1))
    errors = [each for each in found if isinstance(each, TpufeedError)]
    assert all(isinstance(error, (DuplicateWriterError, BuildError)) for error in errors), errors
    version = tpufeed.open_dataset(url).number
    assert 2 <= version <= 5
    tpufeed.verify(url)
    for work in works:
        work()
    assert tpufeed.verify(url).records == 40
    names = [bytes(each["image/filename"].values[0]) for each in tpufeed.open_dataset(url).iter_examples("train")]
    assert len(set(names)) == 40
    assert tpufeed.compact(url, workers=1).shards == 1
    assert tpufeed.verify(url).records == 40


def test_an_append_that_is_discarded_as_it_is_published_publishes_nothing_of_it(photo_folder, fault, tmp_path):
    first, second, third = folders_of(photo_folder, tmp_path, 3)
    url, rivals = tmp_path / "d", []
    tpufeed.shard(first, url, **OPTIONS)

    def rival():
        if not rivals:
            rivals.append(None)
            rivals[0] = tpufeed.append(third, url, overwrite=True, workers=1)

    with fault("os.link", rf"^{url}/_tpufeed/versions/1\.json$", rival):
        done = tpufeed.append(second, url, workers=1)
    assert rivals[0].manifest.number == 2
    assert done.manifest.number == 3  # it went on from the rival's version
    assert [part.source for part in done.manifest.history] == [str(first), str(third), str(second)]
    assert tpufeed.verify(url).records == 40
