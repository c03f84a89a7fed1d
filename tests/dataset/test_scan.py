"""Reading a shard in blocks."""

import pytest

from tpufeed.dataset.foreign.scan import ShardStream
from tpufeed.storage.local import LocalStore
from tpufeed.tfrecord.crc32c import crc32c
from tpufeed.tfrecord.framing import iter_records


@pytest.mark.parametrize("block_bytes", [1, 17, 5000, 1 << 20])
def test_records_that_span_blocks(photos, write_tfrecords, tmp_path, block_bytes):
    write_tfrecords(tmp_path / "x.tfrecord", [{"image": photo, "label": 1} for photo in photos.values()])
    store = LocalStore(str(tmp_path))
    (info,) = store.iter_objects()
    data = store.read(info.name)
    expected = list(iter_records(memoryview(data)))
    stream = ShardStream(store, info, block_bytes)
    found = [(offset, bytes(payload)) for offset, _, payload in stream.iter_records()]
    assert found == [(offset, bytes(payload)) for offset, payload in expected]
    assert max(len(payload) for _, payload in expected) > 5000
    assert stream.crc32c == crc32c(data)


def test_no_more_is_read_than_a_block_or_a_record(photos, write_tfrecords, tmp_path):
    class Counting(LocalStore):
        most = 0

        def read_range(self, name, start, stop, version=""):
            self.most = max(self.most, stop - start)
            return super().read_range(name, start, stop, version)

    path = write_tfrecords(tmp_path / "x.tfrecord", [{"image": photo} for photo in photos.values()] * 3)
    store = Counting(str(tmp_path))
    (info,) = store.iter_objects()
    longest = max(len(payload) for _, _, payload in ShardStream(store, info, 20_000).iter_records())
    assert store.most <= longest + 100 < path.stat().st_size / 5
