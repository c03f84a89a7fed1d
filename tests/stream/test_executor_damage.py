"""Local copies that were damaged after they passed their CRC: they are evicted, fetched again, and cost no sample."""

import re
import zlib
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tests.gcs_server import GcsServer
from tests.local_copies import wait_copied
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import RecordError
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import RemoteShard, copy_key
from tpufeed.storage.store import open_store

DataLoader = lazy("torch.utils.data:DataLoader")

OPS = [tpufeed.images.Resize(40), tpufeed.images.CenterCrop(32)]
FOLDERS = {"raw": "cache", "encoded": "dataset"}


@pytest.fixture(scope="module")
def server(dataset_url, cache_url):
    with GcsServer(process=True, md5=False) as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment().items():
            patch.setenv(key, value)
        for folder, name in ((dataset_url, "dataset"), (cache_url, "cache")):
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    server.put("bucket", f"{name}/{path.relative_to(folder)}", path.read_bytes())
        yield server


def flip(data):
    for at in range(len(data) // 3, len(data), 5000):  # in each record, of which a loader may see some by ranges
        data[at] ^= 1


def zero(data):
    data[:] = bytes(len(data))


DAMAGES = {"flipped bits": flip, "zeros": zero, "cut off": lambda data: data.__delitem__(slice(100, None))}


class Copied:
    """The local copies of a dataset's first variant, by name."""

    def __init__(self, url, parent):
        self.url, files = url, open_dataset(url).split("train").variants[0].files
        self.shards = {file.name: RemoteShard(file.name, file.bytes, file.crc32c) for file in files}
        self.store, self.parent = open_store(url), parent
        with LocalCopies(self.store, parent) as copies:
            self.folder = copies.folder

    def path(self, name):
        return self.folder / f"{copy_key(self.url, self.shards[name])}.shard"

    def fetch(self):
        with LocalCopies(self.store, self.parent) as copies:
            copies.fetch(self.shards.values())
            for shard in self.shards.values():
                assert wait_copied(copies, shard, 30) is not None

    def damage(self, change, index=False, shards=True):
        """Within the same files. Returns the damaged ones."""
        paths = [self.path(name) for name in self.shards if (index if name.endswith(".npy") else shards)]
        for path in paths:
            data = bytearray(path.read_bytes())
            change(data)
            path.write_bytes(data)
        return paths

    def is_sound(self):
        return all(self.path(name).read_bytes() == self.store.read(name) for name in self.shards)


@pytest.fixture(params=FOLDERS)
def site(request, server, tmp_path, dataset_url, cache_url):
    """A dataset with local copies of its first variant, and the same dataset in a local folder."""
    url = f"gs://bucket/{FOLDERS[request.param]}"
    copied = Copied(url, tmp_path / "copies")
    copied.fetch()
    return copied, {"cache": cache_url, "dataset": dataset_url}[FOLDERS[request.param]]


def epochs_of(url, count=1, **options):
    ops = [] if open_dataset(url).manifest.tensor_shape else OPS
    given = {"columns": ["sample", "image"], "batch_size": 10, "threads": 2, "ops": ops}
    with tpufeed.Loader(url, **given | options) as loader:
        return [
            [[[int(s), zlib.crc32(image)] for s, image in zip(*batch, strict=True)] for batch in loader]
            for _ in range(count)
        ]


def complaints(text):
    return re.findall(r"(\S+\.shard): this copy of (\S+) was damaged", text)


@pytest.mark.all
@pytest.mark.parametrize(
    ("damage", "options"),
    [("zeros", {}), ("cut off", {}), ("flipped bits", {"processes": 2, "threads": 1})],
    ids=["zeros", "cut off", "flipped bits, by processes"],
)
def test_damaged_copies_cost_no_sample_and_are_fetched_again(site, damage, options, capfd, caplog):
    copied, local = site
    damaged = copied.damage(DAMAGES[damage])
    epochs = 1 if options else 2
    assert epochs_of(copied.url, epochs, local_dir=copied.parent, **options) == epochs_of(local, epochs)
    said = complaints(caplog.text + capfd.readouterr().err)
    if damage != "cut off":  # which its size tells
        assert sorted(path for path, _ in said) == sorted(map(str, damaged)), "each once, by one process"
        assert {where for _, where in said} == {f"{copied.url}/{name}" for name in copied.shards if "index" not in name}
    copied.fetch()
    assert copied.is_sound()


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("change", [zero, lambda data: data.__setitem__(slice(136, 144), bytes([9] * 2 + [0] * 6))])
def test_a_damaged_index_costs_no_sample_and_is_fetched_again(site, change, caplog):
    """Offsets that cannot be, and one that could, so that the record there is not one."""
    copied, local = site
    (index,) = copied.damage(change, index=True, shards=False)
    assert epochs_of(copied.url, 2, local_dir=copied.parent) == epochs_of(local, 2)
    assert [path for path, _ in complaints(caplog.text)] == [str(index)]
    copied.fetch()
    assert copied.is_sound()


@pytest.mark.all
def test_another_process_reads_the_damaged_copy_at_the_same_time(site):
    """What it has mapped stays what it is; it finds the copy that was fetched since when it opens the shard again."""
    copied, local = site
    name, shard = next((name, shard) for name, shard in copied.shards.items() if "index" not in name)
    copied.damage(flip)
    with LocalCopies(copied.store, copied.parent) as other:
        view = other.open(shard)
        before = bytes(view)
        assert epochs_of(copied.url, 2, local_dir=copied.parent) == epochs_of(local, 2)
        copied.fetch()
        assert bytes(view) == before
        assert other.evict_damaged(shard, view)
        assert copied.path(name).exists(), "that one is sound"
        assert bytes(other.open(shard)) == copied.store.read(name)


@pytest.mark.first_cases(1)
def test_the_error_names_the_object_where_its_own_bytes_are_damaged(site, server):
    """It reads by ranges: no damaged download becomes a local copy."""
    copied, _ = site
    for path in copied.damage(zero):
        assert path.exists()
    server.fault("corrupt", operation="read", name="*.tfrecord", calls=None)
    try:
        with pytest.raises(RecordError, match=rf"{copied.url}/train\S*\.tfrecord, record \d+"):
            epochs_of(copied.url, local_dir=copied.parent, timeout_seconds=60)
    finally:
        server.clear_faults()


@pytest.mark.all
@pytest.mark.uses("torch")
def test_torch_samples_survive_damaged_copies(site):
    copied, local = site
    damaged = copied.damage(flip)
    bad = [path.read_bytes() for path in damaged]
    ops = [] if open_dataset(local).manifest.tensor_shape else OPS
    dataset = tpufeed.TFRecordImages(copied.url, columns=["image", "sample"], local_dir=copied.parent, ops=ops)
    samples = np.concatenate([np.asarray(batch) for _, batch in DataLoader(dataset, 10, num_workers=2)])
    assert samples.tolist() == list(range(len(dataset)))
    assert not any(path.exists() and path.read_bytes() in bad for path in damaged), "evicted by the readers"
    copied.fetch()
    assert copied.is_sound()
