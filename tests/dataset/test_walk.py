"""Records are walked by their own lengths, and by an index, in chunks."""

import numpy as np
import pytest
from crc32c import crc32c

from tests.tfrecords import records_of
from tpufeed.dataset.walk import Walker
from tpufeed.storage.local import LocalStore


class Counting(LocalStore):
    """The real store, which notes the longest range that it is asked for."""

    most = 0

    def read_range(self, name, start, stop, version=""):
        self.most = max(self.most, stop - start)
        return super().read_range(name, start, stop, version)


@pytest.mark.parametrize("chunk_bytes", [1, 17, 5000, 1 << 20])
def test_records_that_span_chunks(photos, write_tfrecords, tmp_path, chunk_bytes):
    write_tfrecords(tmp_path / "x.tfrecord", [{"image": photo, "label": 1} for photo in photos.values()])
    store = Counting(str(tmp_path))
    (info,) = store.iter_objects()
    data = store.read(info.name)
    expected = records_of(data)
    offsets = np.array([*(offset for offset, _ in expected), len(data)])
    for version in ("", info.version):
        walker = Walker(store, info.name, len(data), version, chunk_bytes)
        for walk in (walker.walk(), walker.walk(offsets)):
            walker.crc32c = 0
            found = [
                (offset, bytes(payload))
                for walked in walk
                for offset, payload in zip(walked.offsets, walked.payloads, strict=False)
            ]
            assert found == [(offset, bytes(payload)) for offset, payload in expected]
            assert walker.crc32c == crc32c(data)
    longest = max(len(payload) for _, payload in expected)
    assert longest > 5000
    assert store.most <= max(longest + 100, chunk_bytes)
