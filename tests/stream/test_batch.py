"""Records that are damaged, cut off or gone, and ops that fail: errors name them, or a budget skips them."""

import json
import logging
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.tfrecords import encode_record, records_of
from tpufeed.dataset.reader import open_dataset
from tpufeed.dataset.schema import record_layout
from tpufeed.errors import OpError, OptionError, RecordError, ShardError, TpufeedError
from tpufeed.images import Custom, RandomCrop, RandomResizedCrop
from tpufeed.tfrecord.example import decode_example, encode_entries


def deliver(url, **options):
    """The samples delivered before the error, and the error."""
    given = {"columns": ["sample", "image"], "shuffle": False, "batch_size": 5, "remainder": "pad"}
    delivered = []
    with tpufeed.Loader(url, **given | options) as loader:
        try:
            for samples, *_ in loader:
                delivered += samples.tolist()
        except TpufeedError as error:
            return delivered, error
    pytest.fail(f"no error in {delivered}")


@pytest.mark.parametrize(
    ("sample", "remote", "options"),
    [
        (0, False, {"prefetch": 1}),
        (33, False, {"prefetch": 8, "processes": 2}),
        (33, True, {"prefetch": 1}),
        (69, True, {"prefetch": 8}),
    ],
)
def test_a_damaged_record_is_named_after_all_batches_before_it(cache_url, damage, sample, remote, options):
    damaged = damage(cache_url, sample)
    url = f"local://{damaged.url}" if remote else damaged.url
    delivered, error = deliver(url, **options)
    assert isinstance(error, RecordError)
    assert delivered == list(range(sample // 5 * 5))
    assert f"{damaged.url}/{damaged.shard}, record {damaged.record}, byte {damaged.byte}" in str(error)


def test_after_a_damaged_record_the_next_epoch_can_be_read(cache_url, damage):
    """The record is damaged in variant 0 only."""
    damaged = damage(cache_url, 33)
    with tpufeed.Loader(damaged.url, columns=["sample"], batch_size=10) as loader:
        iterator = iter(loader)
        with pytest.raises(RecordError):
            list(iterator)
        with pytest.raises(RuntimeError, match="failed"):
            next(iterator)
        assert sorted(np.concatenate(list(loader))) == list(range(70))
        with pytest.raises(RecordError):
            list(loader)


def test_an_image_that_does_not_decode_is_named(photo_folder, tmp_path, stored, ops):
    """A JPEG that ends half-way, which `check="header"` lets in: its record is sound."""
    folder, url = tmp_path / "photos", str(tmp_path / "dataset")
    folder.mkdir()
    for photo in sorted(photo_folder.glob("*/*.jpg"))[:20]:
        shutil.copy(photo, folder)
    broken = sorted(folder.iterdir())[7]
    broken.write_bytes(broken.read_bytes()[:5000] + b"\xff\xd9")
    tpufeed.shard(folder, url, images=tpufeed.Images(check="header"), workers=1)
    sample = stored(url).texts("image/filename").index(broken.name)
    delivered, error = deliver(url, ops=ops)
    assert isinstance(error, RecordError)
    assert f"train-00000-of-00001.tfrecord, record {sample}" in str(error)
    assert delivered == list(range(sample // 5 * 5))
    with tpufeed.Loader(url, columns=["sample"], ops=ops, max_bad_records=1, batch_size=20) as loader:
        list(loader)
        assert loader.stats().bad_records == 0, "without images none is decoded"
    with tpufeed.Loader(url, ops=ops, max_bad_records=1, batch_size=20, shuffle=False) as loader:
        ((*_, mask),) = loader
        assert loader.stats().bad_records == 1
    assert np.flatnonzero(~mask).tolist() == [sample]


def test_a_shard_that_was_cut_off_is_named(cache_url, tmp_path):
    shutil.copytree(cache_url, tmp_path / "copy")
    shard = tmp_path / "copy" / "train-v0-00002-of-00006.tfrecord"
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])
    delivered, error = deliver(tmp_path / "copy")
    assert isinstance(error, ShardError)
    assert f"{shard} has {len(data) // 2} bytes" in str(error)
    assert delivered == list(range(20))  # 11 + 12 records lie before it

    delivered, error = deliver(
        f"local://{tmp_path / 'copy'}"
    )  # by ranges its size is not seen; its first half is there
    assert isinstance(error, RecordError)
    assert re.search(rf"{shard.name}, record 6, byte \d+: ", str(error))
    assert delivered == list(range(25))


def test_an_index_that_is_not_the_dataset_s_is_named(cache_url, tmp_path):
    shutil.copytree(cache_url, tmp_path / "copy")
    index = Path(tmp_path / "copy" / "train-v0.index.npy")
    index.write_bytes(index.read_bytes()[:-8])
    _, error = deliver(tmp_path / "copy")
    assert isinstance(error, ShardError)
    assert f"{index} has 75 offsets" in str(error)


def test_a_shard_may_be_deleted_while_it_is_read(cache_url, tmp_path, stored):
    shutil.copytree(cache_url, tmp_path / "copy")
    with tpufeed.Loader(tmp_path / "copy", columns=["image", "sample"], batch_size=10, lanes=16) as loader:
        list(loader), list(loader)  # opens the shards of both variants
        for shard in (tmp_path / "copy").glob("*.tfrecord"):
            shard.unlink()
        for images, samples in loader:
            np.testing.assert_array_equal(images, stored(cache_url).pixels[samples])


@pytest.mark.parametrize("cut", [6000, 12287])
@pytest.mark.parametrize("remote", [False, True], ids=["local", "by ranges"])
def test_a_sound_record_with_too_few_pixels_is_named(cache_url, tmp_path, cut, remote):
    """Its framing, CRCs and index are right: another tool wrote an image of another size."""
    url = tmp_path / "copy"
    shutil.copytree(cache_url, url)
    path = url / "train-v0-00000-of-00006.tfrecord"
    manifest = json.loads((url / "manifest.json").read_text())
    layout = record_layout(open_dataset(url).manifest.features)
    payloads = [bytes(payload) for _, payload in records_of(path.read_bytes())]
    image, ints = layout.decode(memoryview(payloads[7]))
    features = decode_example(payloads[7])
    rest = {name: value for name, value in features.items() if name not in (layout.image_key, *layout.int_keys)}
    prefix, suffix = layout.encode(cut, ints, encode_entries(rest))
    payloads[7] = prefix + bytes(image[:cut]) + suffix
    records = [encode_record(payload) for payload in payloads]
    path.write_bytes(b"".join(records))
    entry = manifest["splits"]["train"]["variants"][0]["shards"][0]
    entry["bytes"] = path.stat().st_size
    (url / "manifest.json").write_text(json.dumps(manifest))
    index = np.load(url / "train-v0.index.npy")
    index[: len(records) + 1] = np.cumsum([0, *map(len, records)])
    np.save(url / "train-v0.index.npy", index)

    delivered, error = deliver(f"local://{url}" if remote else url)
    assert isinstance(error, RecordError)
    assert f"{path}, record 7: the image has {cut} bytes" in str(error)
    assert delivered == list(range(5))


OPTIONS = {"columns": ["sample", "image", "label"], "shuffle": False, "batch_size": 10}


@pytest.fixture(scope="module")
def damaged(cache_url, damage):
    """Sample 33 of variant 0."""
    return damage(cache_url, 33).url


def read(url, **options):
    with tpufeed.Loader(url, **OPTIONS | options) as loader:
        return list(loader), loader


@pytest.mark.parametrize(("processes", "threads"), [(0, 3), (1, 1)])
def test_the_slot_repeats_the_sample_before_it_masked_and_counted(damaged, cache_url, caplog, processes, threads):
    with caplog.at_level(logging.WARNING):
        batches, loader = read(damaged, max_bad_records=1, processes=processes, threads=threads)
    sound, _ = read(cache_url)
    assert len(batches) == len(sound) == 7
    for number, (batch, expected) in enumerate(zip(batches, sound, strict=True)):
        *columns, mask = batch
        assert mask.dtype == np.bool_
        rows = np.arange(10)
        if number == 3:
            rows[3] = 2
        assert mask.tolist() == (rows == np.arange(10)).tolist()
        for found, wanted in zip(columns, expected, strict=True):
            np.testing.assert_array_equal(found, wanted[rows])
    assert loader.stats().bad_records == 1
    assert any("bad record skipped, 1 of at most 1" in message and "record" in message for message in caplog.messages)


@pytest.mark.all
@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_a_bug_of_ours_is_no_bad_record(cache_url, dataset_url, ops, monkeypatch, error):
    """Pixels of a cache, and JPEGs; in a loader, and sample by sample."""
    for url, given, place in (
        (cache_url, [RandomCrop(32)], "tpufeed.images.pipeline._cut"),
        (dataset_url, ops, "tpufeed.images.pipeline.reduction"),
        (dataset_url, ops, "tpufeed.images.pipeline.read_jpeg_header"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, partial(fail, error))
            with pytest.raises(error, match=r"^'?a bug'?$") as caught:
                read(url, ops=given, max_bad_records=100, processes=0)
            assert caught.type is error
            with pytest.raises(error) as caught:
                tpufeed.TFRecordImages(url, ops=given)[0]
            assert caught.type is error


def fail(error, *_):
    raise error("a bug")


def test_a_thread_that_cannot_be_started_is_no_closed_loader(cache_url, monkeypatch):
    monkeypatch.setattr("threading.Thread.start", partial(fail, RuntimeError))  # as if there were too many
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        read(cache_url, processes=0)


def test_a_record_that_is_not_skipped_says_how_it_could_be(damaged):
    for processes in (0, 1):
        with pytest.raises(RecordError, match=r"record \d+.*max_bad_records=N"):
            read(damaged, processes=processes)


def test_the_first_slot_repeats_the_one_behind_it(cache_url, damage):
    batches, _ = read(damage(cache_url, 30).url, max_bad_records=1)
    samples, _, _, mask = batches[3]
    assert samples.tolist() == [31, *range(31, 40)]
    assert mask.tolist() == [False] + [True] * 9


def test_one_more_than_the_budget_is_an_error_that_names_it(damaged, damage):
    twice = damage(damaged, 52).url
    with pytest.raises(RecordError, match=r"2 .*max_bad_records=1.*record \d+"):
        read(twice, max_bad_records=1)
    with tpufeed.Loader(twice, **OPTIONS, max_bad_records=1) as again:
        for _ in range(2):
            again.set_epoch(0)
            with pytest.raises(RecordError, match="2 bad"):
                list(again)
    batches, loader = read(twice, max_bad_records=2)
    assert loader.stats().bad_records == 2
    assert sum(int((~mask).sum()) for *_, mask in batches) == 2


def test_a_record_counts_once_however_often_it_is_read(damaged):
    with tpufeed.Loader(damaged, **OPTIONS, max_bad_records=1) as loader:
        for _ in range(4):  # variant 0 twice
            assert len(list(loader)) == 7
        assert loader.stats().bad_records == 1


def test_a_batch_of_bad_records_alone_is_zeros(damaged, damage):
    batches, loader = read(damaged, batch_size=1, max_bad_records=1)
    assert [number for number, (*_, mask) in enumerate(batches) if not mask.all()] == [33]
    samples, images, labels, _ = batches[33]
    assert (samples.tolist(), images.any(), labels.tolist(), loader.stats().bad_records) == ([33], False, [0], 1)
    with pytest.raises(RecordError, match="2 bad records, more than max_bad_records=1"):
        read(damage(damaged, 52).url, batch_size=1, max_bad_records=1)


def test_padding_and_skipping_share_the_mask(damaged):
    batches, _ = read(damaged, max_bad_records=1, remainder="pad", batch_size=32)
    masks = np.concatenate([mask for *_, mask in batches])
    assert np.flatnonzero(~masks).tolist() == [33, *range(70, 96)]


@pytest.fixture
def lose(cache_url, tmp_path):
    """`lose(*numbers)`: a copy of the cache in which these shards of variant 0 are missing, or cut off."""

    def copy(*numbers, cut=False):
        shutil.copytree(cache_url, tmp_path / "lost")
        for number in numbers:
            path = tmp_path / f"lost/train-v0-{number:05}-of-00006.tfrecord"
            path.write_bytes(path.read_bytes()[:5000]) if cut else path.unlink()
        return str(tmp_path / "lost")

    return copy


@pytest.mark.parametrize(
    ("scheme", "cut", "processes"), [("", False, 0), ("", True, 1), ("local://", False, 1)], ids=["gone", "cut", "far"]
)
def test_a_lost_shard_is_skipped_whole_masked_and_named_at_once(
    lose, cache_url, caplog, monkeypatch, scheme, cut, processes
):
    url = scheme + lose(2, cut=cut)
    first, stop = np.cumsum([0, *open_dataset(cache_url).shard_records("train")])[2:4]
    sound, _ = read(cache_url)
    with (
        caplog.at_level(logging.WARNING),
        tpufeed.Loader(url, **OPTIONS, max_bad_shards=1, processes=processes, threads=2) as loader,
    ):
        epoch = list(loader)
        assert [len(list(loader)) for _ in range(2)] == [7, 7]
        assert (loader.stats().bad_shards, loader.stats().bad_records) == (1, 0)
    samples, images, labels, masks = map(np.concatenate, zip(*epoch, strict=True))
    wanted, pixels, classes = map(np.concatenate, zip(*sound, strict=True))
    assert np.flatnonzero(~masks).tolist() == list(range(first, stop))
    assert np.array_equal(samples[masks], wanted[masks])
    assert np.array_equal(images[masks], pixels[masks])
    assert np.array_equal(labels[masks], classes[masks])
    (said,) = [message for message in caplog.messages if "lost shard" in message]
    assert "1 of at most 1" in said
    assert "train-v0-00002-of-00006.tfrecord" in said


def test_a_batch_of_a_lost_shard_alone_is_zeros_and_all_ranks_have_as_many(lose):
    url = lose(2)
    options = {
        "max_bad_shards": 1,
        "processes": 0,
        "batch_size": 2,
        "columns": ["sample", "image", "label", "filename"],
    }
    ranks = [read(url, **options, world=(rank, 2), lanes=2)[0] for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == 17
    empty = [batch for batches in ranks for batch in batches if not batch[-1].any()]
    assert empty
    for samples, images, labels, names, _ in empty:
        assert not images.any()
        assert not labels.any()
        assert names.tolist() == ["", ""]
        assert len(set(samples.tolist())) == 2, "the ids that are missing"


def test_one_lost_shard_more_than_the_budget_is_an_error(lose):
    url = lose(1, 4)
    with pytest.raises(ShardError, match=r"00001-of-00006.*max_bad_shards=N"):
        read(url, max_bad_records=99)
    with pytest.raises(ShardError, match=r"2 lost shards, more than max_bad_shards=1.*00004-of-00006"):
        read(url, max_bad_shards=1)
    assert read(url, max_bad_shards=2)[1].stats().bad_shards == 2


@pytest.mark.parametrize("world", [(0, 1), (1, 2)])
def test_a_loss_of_all_shards_is_an_error_whatever_the_budget(lose, world):
    with pytest.raises(ShardError, match=r"all shards with samples of split 'train' are lost.*-of-00006"):
        read(lose(*range(6)), max_bad_shards=99, world=world, lanes=2, processes=0)


def test_a_loss_of_all_shards_that_a_view_reads_is_one_too(lose, cache_url):
    first, stop = np.cumsum([0, *open_dataset(cache_url).shard_records("train")])[2:4].tolist()
    view = open_dataset(lose(2)).select(samples=range(first, stop), split="train")
    with pytest.raises(ShardError, match=r"all shards with samples of split 'train' are lost.*00002-of-00006"):
        read(view, max_bad_shards=1, processes=0)


@pytest.mark.parametrize("value", [-1, 1.5, "all", None])
def test_a_budget_is_a_whole_number(cache_url, value):
    with pytest.raises(OptionError, match="max_bad_records"):
        tpufeed.Loader(cache_url, max_bad_records=value)
    with pytest.raises(OptionError, match="max_bad_shards"):
        tpufeed.Loader(cache_url, max_bad_shards=value)


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "users_ops.py").write_text(
        "def fails(image, rng):\n    raise KeyError('gone')\n\n\ndef dims(image, rng):\n    return image // 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("module")
def test_an_op_that_raises_names_the_record(dataset_url):
    ops = [RandomResizedCrop(32), Custom("users_ops:fails")]
    with (
        tpufeed.Loader(dataset_url, batch_size=4, ops=ops, shuffle=False) as loader,
        pytest.raises(OpError, match=r"train-00000-of-\d+\.tfrecord, record \d: .*users_ops:fails.*gone"),
    ):
        list(loader)


@pytest.mark.usefixtures("module")
def test_an_op_runs_live(dataset_url):
    plain, dimmed = (
        next(iter(tpufeed.Loader(dataset_url, batch_size=4, ops=[RandomResizedCrop(32), *more], shuffle=False)))[0]
        for more in ([], [Custom("users_ops:dims")])
    )
    assert (dimmed == plain // 2).all()


def test_an_op_that_cannot_be_imported_is_no_damage(dataset_url):
    ops = [RandomResizedCrop(32), Custom("no_such_module:f")]
    with pytest.raises(OptionError, match="no_such_module"):
        list(tpufeed.Loader(dataset_url, batch_size=4, ops=ops))
