"""Class 12: a cache of which a part is missing is no cache, to a loader as to the command that makes it."""

import shutil
from pathlib import Path

import msgspec
import pytest

import tpufeed
from tpufeed import cache
from tpufeed.builds.destination import Destination, Owner
from tpufeed.builds.plan import read_plan
from tpufeed.dataset.naming import MANIFEST, report_name
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DamageError, DatasetExistsError, TpufeedError
from tpufeed.storage.store import open_store

OPTIONS = {"size": 32, "variants": 2, "shard_bytes": "40KB", "workers": 1}


def files_of(folder):
    return [file.name for variant in open_dataset(folder).split("train").variants for file in variant.files]


def read_both_variants(url):
    with tpufeed.Loader(url, batch_size=4) as loader:
        return sum(len(labels) for _ in range(2) for _, labels in loader)


@pytest.mark.all
def test_a_copy_that_lacks_any_file_is_an_error_until_its_command_runs_again(cache_url, dataset_url, tmp_path):
    """As a copy is that was cut off after its manifest. Each file is missing in turn, then cut in its middle."""
    assert read_both_variants(cache_url) == 80
    for number, name in enumerate(files_of(cache_url) * 2):
        folder = Path(shutil.copytree(cache_url, tmp_path / f"{number}"))
        if number < len(files_of(cache_url)):
            (folder / name).unlink()
        else:
            (folder / name).write_bytes((folder / name).read_bytes()[: (folder / name).stat().st_size // 2])
        with pytest.raises(TpufeedError, match=name):
            read_both_variants(folder)
        with pytest.raises(DamageError, match=name):
            tpufeed.verify(folder)
        cache.warmup(dataset_url, folder, **OPTIONS)
        assert (folder / name).read_bytes() == Path(cache_url, name).read_bytes()
        tpufeed.verify(folder)


def test_a_manifest_of_another_cache_is_not_believed(cache_url, dataset_url, cache_copy, tmp_path):
    """Of the same sizes, as raw caches are: the manifest of one over the shards of the other."""
    other = cache.warmup(dataset_url, tmp_path / "other", seed=9, **OPTIONS)
    shutil.copy(tmp_path / "other/manifest.json", cache_copy)
    assert files_of(cache_copy) == files_of(cache_url)
    with pytest.raises(DamageError):
        tpufeed.verify(cache_copy)
    with pytest.raises(DatasetExistsError, match=r"already holds this cache, but it is damaged.*--overwrite"):
        cache.warmup(dataset_url, cache_copy, seed=9, **OPTIONS)
    cache.warmup(dataset_url, cache_copy, seed=9, overwrite=True, **OPTIONS)
    assert open_dataset(cache_copy).content_digest == other.manifest.content_digest


@pytest.mark.parametrize("kept", [[0], [1, 0], [0, 1, 1]])
def test_a_report_of_other_variants_is_not_trusted(kept, cache_copy, dataset_url):
    """The plan that it belongs to was removed. Its first shard may have the name and the bytes of the right one."""
    expected = open_dataset(cache_copy).content_digest
    store = open_store(cache_copy)
    plan = read_plan(store)
    report = Destination(store).read_report(plan.tasks[0], plan.header.run_id)
    shards = tuple(report.shards[variant] for variant in kept)
    store.delete(report_name(0))
    Destination(store, Owner(plan.header.run_id, "")).put_report(msgspec.structs.replace(report, shards=shards))
    store.delete(MANIFEST)
    cache.warmup(dataset_url, cache_copy, **OPTIONS)
    assert open_dataset(cache_copy).content_digest == expected
    assert read_both_variants(cache_copy) == 80
