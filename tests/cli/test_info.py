"""`tpufeed info`: all that a manifest says, for people and as JSON."""

import json
import re
import shutil
from pathlib import Path

import pytest

import tpufeed
from tests.clips import build, write_source
from tpufeed.dataset.reader import open_dataset
from tpufeed.dataset.selection import parse_selection


@pytest.fixture
def edited(dataset_url, tmp_path):
    """`edited(change)`: a copy of the dataset with another manifest."""

    def edit(change):
        copy = Path(shutil.copytree(dataset_url, tmp_path / "d"))
        manifest = json.loads((copy / "manifest.json").read_text())
        change(manifest)
        (copy / "manifest.json").write_text(json.dumps(manifest))
        return copy

    return edit


def test_many_classes(run, tmp_path, photo_folder):
    photo = next(photo_folder.glob("*/*.jpg"))
    for number in range(23):
        (tmp_path / f"photos/c{number:02}").mkdir(parents=True)
        shutil.copy(photo, tmp_path / f"photos/c{number:02}/p.jpg")
    tpufeed.shard(tmp_path / "photos", tmp_path / "d", workers=1)
    done = run("info", tmp_path / "d")
    assert "23 classes" in done.stdout
    assert "c19" in done.stdout
    assert "c20" not in done.stdout
    assert "... and 3 more; --json lists all" in done.stdout
    assert len(json.loads(run("info", tmp_path / "d", "--json").stdout)["classes"]) == 23


def test_info_and_card_count_the_images_of_all_versions(run, tmp_path, photo_folder):
    photos = sorted(photo_folder.glob("*/*.jpg"))
    for folder, label, photo in zip("aaabb", ["rose", "rose", "tulip", "tulip", "rose"], photos, strict=False):
        (tmp_path / folder / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, tmp_path / folder / label)
    tpufeed.shard(tmp_path / "a", tmp_path / "d", workers=1, splits="train=0.6,val=0.4")
    assert "2 classes: rose 2, tulip 1\n" in run("info", tmp_path / "d").stdout
    tpufeed.append(tmp_path / "b", tmp_path / "d", workers=1)
    assert "2 classes: rose 3, tulip 2\n" in run("info", tmp_path / "d").stdout
    assert "2 classes: rose 2, tulip 1\n" in run("info", f"{tmp_path}/d", "--version", "1").stdout
    assert run("card", tmp_path / "d", "--out", tmp_path / "card.md").returncode == 0
    page = (tmp_path / "card.md").read_text()
    assert "2 classes: rose 3, tulip 2\n" in page
    assert "\nSplits: shares, by a hash of each image's path" in page


def test_the_transform_of_a_cache(run, cache_url):
    cache = open_dataset(cache_url).manifest.cache
    shown = run("info", cache_url).stdout
    assert "cache: raw 32x32, 2 variants of RandomResizedCrop, HorizontalFlip" in shown
    assert re.search(r"op: RandomResizedCrop\(.*size=32, scale=\(0\.08, 1\.0\)", shown)
    lines = shown.splitlines()
    facts = lines[lines.index("cache: raw 32x32, 2 variants of RandomResizedCrop, HorizontalFlip") :]
    made_by = next(number for number, line in enumerate(facts) if line.startswith("made by: "))
    for line in ("  live: none", "  encode: raw", "  seed: 0"):
        assert facts.count(line) == 1
        assert facts.index(line) < made_by
    assert f"fingerprint: {cache.fingerprint}" in shown
    assert f"source digest: {cache.source_digest}" in shown
    facts = json.loads(run("info", cache_url, "--json").stdout)["cache"]
    assert (facts["fingerprint"], facts["variants"], facts["shape"]) == (cache.fingerprint, 2, [32, 32, 3])
    assert [op["op"] for op in facts["ops"]] == ["RandomResizedCrop", "HorizontalFlip"]


def test_the_shape_of_a_cache_of_clips(run, tmp_path):
    build(write_source(tmp_path / "raw", 2), tmp_path / "set")
    tpufeed.cache.warmup(tmp_path / "set", tmp_path / "cache", size=16, workers=1)
    shown = run("info", tmp_path / "cache").stdout
    assert "cache: raw 16x16, 1 variant of " in shown
    assert "  shape: 4 x 16 x 16 x 3 uint8" in shown


def test_odd_cases_rejects_and_options(run, edited):
    def change(manifest):
        manifest["odd"] = {"exif_rotated": 3, "cmyk": 1200}
        manifest["rejects"] = {"truncated": 2}
        manifest["options"] |= {"exif": "apply", "sizes": [1000, 2], "nothing": None}

    copy = edited(change)
    shown = run("info", copy).stdout
    assert "odd cases: 3 exif_rotated, 1,200 cmyk" in shown
    assert "rejects: 2 truncated" in shown
    assert "  exif: apply" in shown
    assert "  sizes: (1,000, 2)" in shown
    assert "nothing" not in shown
    facts = json.loads(run("info", copy, "--json").stdout)
    assert (facts["odd"], facts["rejects"]) == ({"exif_rotated": 3, "cmyk": 1200}, {"truncated": 2})
    assert facts["data_url"] is None


@pytest.mark.all
def test_shards_that_lie_elsewhere(run, edited, dataset_url):
    copy = edited(lambda manifest: manifest.update(data_url=dataset_url))
    for shard in copy.glob("*.tfrecord"):
        shard.unlink()
    assert f"shards are at: {dataset_url}" in run("info", copy).stdout
    assert json.loads(run("info", copy, "--json").stdout)["data_url"] == dataset_url
    assert run("verify", copy).stdout.startswith("sound: 30 records")
    assert run("show", copy, "--out", copy / "sheet.png").returncode == 0


def test_what_made_it(run, dataset_url):
    shown = run("info", dataset_url).stdout
    assert f"made by: tpufeed {tpufeed.__version__} shard, from " in shown
    assert "features: image/encoded bytes, image/class/label int64" in shown


def counted(shown):
    """Images by class, from the table that `info` prints."""
    found = re.findall(r"^\W*\d+\W+(astronaut|cat|coffee)\b.*?(\d+)\W*$", shown, re.MULTILINE)
    return {name: int(count) for name, count in found}


def test_info_as_json_says_the_truth(run, dataset_url, cache_url):
    for url in (dataset_url, cache_url):
        dataset = open_dataset(url)
        done = run("info", url, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        facts = json.loads(done.stdout)
        assert facts["url"] == url
        assert facts["content_digest"] == dataset.content_digest
        assert facts["classes"] == {"astronaut": 10, "cat": 10, "coffee": 10}
        assert facts["options"]["command"] == ("shard" if url == dataset_url else "cache warmup")
        assert (facts["cache"] is None) == (url == dataset_url)
        for name, split in dataset.manifest.splits.items():
            shards = [*Path(url).glob(f"{name}-*.tfrecord")]
            assert facts["splits"][name]["images"] == split.records
            assert facts["splits"][name]["class_counts"] == list(split.class_counts)
            assert facts["splits"][name]["shards"] == len(shards)
            sizes = [shard.stat().st_size for shard in shards]
            assert facts["splits"][name]["bytes"] == sum(sizes)


def test_info_as_a_table(run, dataset_url, cache_url):
    done = run("info", dataset_url)
    assert (done.returncode, done.stderr) == (0, "")
    for name, split in open_dataset(dataset_url).manifest.splits.items():
        assert re.search(rf"{name} .* {split.records} .* 1 .* {len(split.variants[0].shards)} ", done.stdout)
    assert counted(done.stdout) == {"astronaut": 10, "cat": 10, "coffee": 10}
    assert f"content digest: {open_dataset(dataset_url).content_digest}" in done.stdout
    assert "cache: raw 32x32, 2 variants of RandomResizedCrop, HorizontalFlip" in run("info", cache_url).stdout


def test_info_counts_classes_beside_an_empty_split(run, photo_folder, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "d", splits="train=0.999999,val=0.000001", workers=1)
    assert counted(run("info", tmp_path / "d").stdout) == {"astronaut": 10, "cat": 10, "coffee": 10}


@pytest.mark.all
def test_names_that_a_terminal_might_take_amiss(run, dataset_url, tmp_path):
    """As mark-up, as characters that it does not have, and as bytes that are no character."""
    place = tmp_path / "x[/red][bold]x größe 猫 b\udcffd"
    place.parent.mkdir()
    place.symlink_to(dataset_url)
    done = run("info", place, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert counted(done.stdout)["astronaut"] == 10
    assert str(tmp_path) in run("info", place, "--json").stdout
    assert run("info", place / "no", PYTHONIOENCODING="ascii").returncode == 2


@pytest.mark.parametrize("flags", [["classes=coffee,astronaut"], ["fold=0/2"], ["classes=cat", "ids=kept"]], ids=str)
def test_a_view(flags, run, dataset_url, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dataset = open_dataset(dataset_url)
    view = dataset.select(**parse_selection(flags))
    words = [word for text in flags for word in ("--select", text)]
    facts = json.loads(run("info", dataset_url, *words, "--json").stdout)
    assert (facts["selected"], facts["content_digest"]) == (view.selection.text, view.content_digest)
    assert facts["dataset_digest"] == dataset.content_digest
    assert facts["selected_from"] == {split: len(dataset.samples(split)) for split in ("train", "val")}
    labels = {split: [view.label_of(each) for each in labels_of(view, split)] for split in ("train", "val")}
    for split, of_split in facts["splits"].items():
        assert of_split["images"] == len(labels[split])
        assert of_split["class_counts"] == [labels[split].count(number) for number in range(len(view.class_names))]
    counts = {name: sum(each.count(number) for each in labels.values()) for number, name in enumerate(view.class_names)}
    assert facts["classes"] == counts
    shown = run("info", dataset_url, *words).stdout
    assert f"selected: {view.selection.text}: {sum(counts.values())} of 30 samples" in shown
    assert f"content digest: {view.content_digest}" in shown
    for number, (name, count) in enumerate(counts.items()):
        assert re.search(rf"^ +{number} +{name} .* {count} *$", shown, re.MULTILINE)
    whole = json.loads(run("info", dataset_url, "--json").stdout)
    assert whole.keys() == facts.keys() - {"selected", "selected_from", "dataset_digest"}


def labels_of(view, split):
    return [features["image/class/label"].values[0] for features in view.iter_examples(split)]


@pytest.mark.first_cases(6)
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["classes=cats"], "has no class 'cats'; did you mean cat?"),
        (["classes=9"], "has no class '9'"),
        (["classes="], "expected classes=cat,dog"),
        (["ids=keep"], "expected ids=kept"),
        (["ids=kept"], "select needs classes"),
        (["fold=5/5"], "folds are numbered 0 to 4"),
        (["fold=1"], "(0, 5)"),
        (["fold=0/2", "fold=1/2"], "given twice"),
        (["samples={}/nowhere.npy", "split=val"], "nowhere.npy cannot be read"),
        (["samples={}/ids.txt", "split=val"], "no sample 99 in split 'val'"),
        (["samples={}/ids.txt"], "give split='train'"),
        (["drop={}/empty.txt", "split=val"], "empty.txt: expected ids of samples"),
        (["drop={}/table.csv", "split=val"], "(a, b)"),
        (["classes=cat", "split=test"], "has no split 'test'"),
        (["fold=0/2", "without_fold=0/2"], "the view would be empty"),
    ],
    ids=str,
)
def test_views_that_cannot_be_are_refused(flags, message, run, dataset_url, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ids.txt").write_text("1\n99\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    words = [word for text in flags for word in ("--select", text.format(tmp_path))]
    for command in (["info"], ["show", "--out", tmp_path / "s.png"], ["cache", "warmup", tmp_path / "c"]):
        done = run(
            *command[: 1 + (command[0] == "cache")], dataset_url, *command[1 + (command[0] == "cache") :], *words
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert message in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"ids.txt", "empty.txt", "table.csv", "tpufeed-classes"}
