"""`tpufeed compact` and `tpufeed prune`, and a cache of a dataset that has grown: what they say and refuse."""

import json
import shutil

import pytest

from tpufeed.dataset.reader import open_dataset


@pytest.fixture
def grown(run, photo_folder, tmp_path):
    """A dataset of version 3, whose shards are all small."""
    photos = [tmp_path / "photos" / str(number) for number in range(3)]
    for number, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))):
        target = photos[number % 3] / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    url = str(tmp_path / "a d")
    assert run("shard", photos[0], url).returncode == 0
    for folder in photos[1:]:
        assert run("append", folder, url).returncode == 0
    return url


@pytest.mark.all
def test_compact_and_prune_say_what_they_did(run, grown):
    done = run("compact", grown)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("version 4: joined 3 shards to 1;")
    assert second == f"to remove the small shards: tpufeed prune '{grown}'"
    assert run("compact", grown).stdout == f"{grown}: nothing to join. It stays at version 4\n"
    told = run("prune", grown, "--keep", "2", "--dry-run").stdout.splitlines()
    assert told[0].startswith("would remove version 1, 2: ")
    assert told[0].endswith(". Kept: 3, 4")
    assert told[1] == "nothing was changed"
    assert run("prune", grown).stdout.startswith("removed version 1, 2, 3: 10 files, ")
    assert run("prune", grown).stdout == f"{grown}: nothing to remove. It has version 4\n"
    assert run("verify", grown).returncode == 0


def test_results_as_json(run, grown):
    found = json.loads(run("compact", grown, "--json").stdout)
    assert {name: found[name] for name in ("url", "version", "shards_before", "shards")} == {
        "url": grown,
        "version": 4,
        "shards_before": 3,
        "shards": 1,
    }
    found = json.loads(run("prune", grown, "--json").stdout)
    assert (found["kept"], found["removed"], found["files"]) == ([4], [1, 2, 3], 10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compact", "{nothing}"], "holds no dataset to compact"),
        (["prune", "{nothing}"], "holds no dataset to prune"),
        (["prune", "{dataset}", "--keep", "0"], "keep is a whole number, at least 1"),
    ],
)
def test_what_cannot_be_is_refused_with_exit_code_2(words, message, run, dataset_url, tmp_path):
    done = run(*(word.format(nothing=tmp_path / "nothing", dataset=dataset_url) for word in words))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


@pytest.mark.all
def test_a_cache_says_which_version_of_its_source_it_covers(run, grown, tmp_path):
    cache = tmp_path / "c"
    assert run("cache", "warmup", grown, cache, "--size", "32").returncode == 0
    assert "  source_version: 3" in run("info", cache).stdout.splitlines()
    shutil.copytree(next(tmp_path.glob("photos/0")), tmp_path / "again" / "new")
    assert run("append", tmp_path / "again", grown).returncode == 0
    done = run("cache", "warmup", grown, cache, "--size", "32")
    assert "version 2: 10 images added" in done.stdout
    assert "  source_version: 4" in run("info", cache).stdout.splitlines()
    assert open_dataset(cache).number == 2


@pytest.mark.all
def test_an_append_tells_its_own_rejects_and_those_of_all_versions(run, grown, photo_folder, tmp_path):
    for number, folder in enumerate(("first", "second")):
        target = tmp_path / folder / "cat"
        target.mkdir(parents=True)
        (target / f"{folder}.jpg").write_bytes(next(photo_folder.glob("*/*.jpg")).read_bytes())
        for bad in range(number + 1):
            (target / f"{folder}{bad}.jpg").write_bytes(f"no image {folder} {bad}".encode())
    told = json.loads(run("append", tmp_path / "first", grown, "--dry-run", "--json").stdout)
    assert (told["version"], told["probed_rejects"]) == (4, 1)
    assert "version 4: 2 images to add" in run("append", tmp_path / "first", grown, "--dry-run").stdout
    assert json.loads(run("append", tmp_path / "first", grown, "--json").stdout)["rejects"] == {"not_an_image": 1}
    done = run("append", tmp_path / "second", grown)
    assert "rejected: 2 images (2 not_an_image)" in done.stdout
    assert f"{grown}/part-00005/rejects.jsonl" in done.stdout
    assert "rejected by all versions together: 3 images" in done.stdout
    again = json.loads(run("append", tmp_path / "photos/0", grown, "--json").stdout)
    assert (again["added"], again["rejects"], again["rejects_of_all_versions"]) == (0, {}, {"not_an_image": 3})


@pytest.mark.all
def test_what_is_refused_is_refused_by_a_dry_run(run, grown, photo_folder):
    for words in (
        ("append", photo_folder, grown, "--unset", "colour"),
        ("append", photo_folder, grown, "--max-rejects", "some"),
        ("shard", photo_folder, grown, "--append", "--encode", "png"),
        ("shard", photo_folder, f"{grown}-other", "--allow-different"),
    ):
        told, done = run(*words, "--dry-run"), run(*words)
        assert (told.returncode, told.stderr) == (2, done.stderr)
    told, done = run("append", photo_folder, grown, "--dry-run"), run("append", photo_folder, grown)
    assert (
        told.stdout == done.stdout == f"nothing new: all 30 images are already in {grown}, which stays at version 3\n"
    )
