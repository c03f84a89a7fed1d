import numpy as np
import pytest

from tpufeed.builds.digests import DIGEST_BYTES, REJECTED, TAKEN, UNREAD, Duplicates, Overlap, image_digest
from tpufeed.builds.digests import read_digests as read
from tpufeed.dataset.naming import DIGESTS
from tpufeed.errors import ManifestError, StoreError
from tpufeed.storage import local
from tpufeed.storage.memory import MemoryStore


def test_digests_are_read_as_they_were_written(tmp_path):
    store = MemoryStore(f"memory://{tmp_path.name}-digests")
    assert read(store, 3) is None
    entries = [TAKEN + image_digest(b"one"), REJECTED + UNREAD, TAKEN + image_digest(b"one")]
    store.put(DIGESTS, b"".join(entries))
    found = read(store, 3)
    np.testing.assert_array_equal(found.fates, [1, 0, 1])
    assert found.digests.shape == (3, DIGEST_BYTES)
    assert found.digests[0].tobytes() == found.digests[2].tobytes() == image_digest(b"one")
    with pytest.raises(ManifestError, match="51 bytes"):
        read(store, 4)


def test_many_digests_are_no_text(tmp_path, monkeypatch):
    """They hold zeros. A local store takes a large document with zeros for a hole."""
    monkeypatch.setattr(local, "_BLOCK_BYTES", 64)
    store = local.LocalStore(str(tmp_path))
    store.put(DIGESTS, (TAKEN + UNREAD) * 1000)
    assert len(read(store, 1000).digests) == 1000
    with pytest.raises(StoreError, match="is zero"):
        store.read_document(DIGESTS)


def test_what_duplicates_spoil_is_said():
    def said(**fields):
        nothing = {"groups": 1, "images": 0, "crossing": {}, "labels": 0, "report": "u"}
        return Duplicates(**nothing | fields).warnings

    assert said() == ()
    (crossing,) = said(crossing={"val": Overlap(1, 2_000, ("test", "train"))})
    assert crossing.startswith("1 of 2,000 images of val is in test and train as well, byte for byte: see u.")
    assert said(labels=3) == ("equal images that have different labels: 3. See u",)
    assert said(images=4)[0].endswith("4. See u")
