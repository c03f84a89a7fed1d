"""Shards that are damaged, cut off or gone: what Loader says, and when."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.tfrecords import encode_record, records_of
from tpufeed.dataset.reader import open_dataset
from tpufeed.dataset.schema import record_layout
from tpufeed.errors import RecordError, ShardError, TpufeedError
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
    place = f"{damaged.url}/{damaged.shard}, record {damaged.record}, byte {damaged.byte}: the CRC of the payload"
    assert re.search(re.escape(place), str(error))


def test_after_a_damaged_record_the_next_epoch_can_be_read(cache_url, damage):
    """The record is damaged in variant 0 only."""
    damaged = damage(cache_url, 33)
    with tpufeed.Loader(damaged.url, columns=["sample"], batch_size=10) as loader:
        iterator = iter(loader)
        with pytest.raises(RecordError):
            list(iterator)
        with pytest.raises(RuntimeError, match="last batch failed"):
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
    tpufeed.shard(folder, url, check="header", workers=1)
    sample = stored(url).texts("image/filename").index(broken.name)
    delivered, error = deliver(url, ops=ops)
    assert isinstance(error, RecordError)
    assert f"train-00000-of-00001.tfrecord, record {sample}: the JPEG does not decode" in str(error)
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
    assert f"{shard} has {len(data) // 2} bytes; the manifest says {len(data)}" in str(error)
    assert "tpufeed verify" in str(error)
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
    assert f"{index} has 75 offsets; the manifest's records want 76" in str(error)


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
    assert f"{path}, record 7: the image has {cut} bytes; (64, 64, 3) take 12288" in str(error)
    assert delivered == list(range(5))
