"""`tpufeed card`: the page, its head, its program, and what it refuses."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image

import tpufeed
from tests.clips import build, write_source
from tests.frameworks import lazy
from tpufeed.measure.data_card import _size_category

DatasetCard = lazy("huggingface_hub:DatasetCard")
DatasetCardData = lazy("huggingface_hub.repocard_data:DatasetCardData")


@pytest.fixture
def card_of(run, tmp_path):
    """`card_of(url)`: the page on a dataset."""

    def read(url):
        done = run("card", url, "--out", tmp_path / "card.md")
        assert (done.returncode, done.stderr) == (0, "")
        return (tmp_path / "card.md").read_text()

    return read


def test_the_head_has_fields_of_the_hub(card_of, dataset_url):
    page = card_of(dataset_url)
    data = DatasetCard(page).data
    extra = {"tags", "viewer", "dataset_info"}  # the hub documents these, the class takes any
    assert data.to_dict().keys() - extra <= vars(DatasetCardData()).keys()
    assert (data.size_categories, data.task_categories) == (["n<1K"], ["image-classification"])
    splits = tpufeed.open_dataset(dataset_url).manifest.splits
    assert data.dataset_info["splits"] == [
        {"name": name, "num_bytes": split.total_bytes, "num_examples": split.records} for name, split in splits.items()
    ]


def test_clips_are_for_classes_of_videos(card_of, tmp_path):
    build(write_source(tmp_path / "raw", 4), tmp_path / "set")
    page = card_of(str(tmp_path / "set"))
    assert "task_categories:\n- video-classification\n" in page
    assert "\neach class: 2.\n" in page
    tpufeed.cache.warmup(tmp_path / "set", tmp_path / "cache", size=16, workers=1)
    assert "shape: 4 x 16 x 16 x 3 uint8" in card_of(str(tmp_path / "cache"))


def test_the_page_says_what_info_says(card_of, run, dataset_url, cache_url):
    for url in (dataset_url, cache_url):
        page, facts = card_of(url), json.loads(run("info", url, "--json").stdout)
        for line in facts["understood"]:
            assert line in page
        for number, (name, count) in enumerate(facts["classes"].items()):
            counts = [f"{split['class_counts'][number]}" for split in facts["splits"].values()]
            assert f"| {number} | {name} | {' | '.join(counts)} | {count} |" in page
        assert "rejects: none" in page
        assert facts["content_digest"] in page
        assert "exif: apply" in page or url == cache_url


def test_its_program_loads_the_dataset(card_of, dataset_url, cache_url, capsys, monkeypatch):
    monkeypatch.setenv("TPUFEED_PROCESSES", "0")
    for url, shape in ((dataset_url, "(4, 224, 224, 3)"), (cache_url, "(4, 32, 32, 3)")):
        (program,) = re.findall(r"```python\n(.*?)```", card_of(url), re.DOTALL)
        exec(re.sub(r"batch_size=\d+", "batch_size=4", program), {})
        assert capsys.readouterr().out.strip() == shape


def test_the_program_of_a_small_dataset_without_labels_runs(card_of, photo_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TPUFEED_PROCESSES", "0")
    made = tpufeed.shard(photo_folder, tmp_path / "d", label="none", workers=1)
    (program,) = re.findall(r"```python\n(.*?)```", card_of(made.url), re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out.strip() == f"({min(32, made.images)}, 224, 224, 3)"


def test_a_sheet_lies_beside_it_and_json_names_both(run, dataset_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = json.loads(run("card", dataset_url, "--json").stdout)
    assert facts == {"file": "card.md", "sheet": "card.png", "problems": []}
    assert "](card.png)" in Path("card.md").read_text()
    with Image.open("card.png") as image:
        assert image.width > 320


def edited(url, folder, change):
    copy = Path(shutil.copytree(url, folder))
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def test_names_mean_nothing_in_the_page_and_secrets_are_masked(card_of, dataset_url, tmp_path):
    names = ["a|b", '<b>"x"\n# y', "[z](http://z)\\"]

    def change(manifest):
        manifest["class_names"] = names
        manifest["options"]["source"] = "https://me:pass@host/a.csv?sig=abc"

    page = card_of(edited(dataset_url, tmp_path / 'q"\\ü', change))
    assert yaml.safe_load(page.split("---\n")[1])["pretty_name"] == 'q"\\ü'
    assert "| a\\|b |" in page
    assert '| \\<b\\>"x" \\# y |' in page
    assert "| \\[z\\](http://z)\\\\ |" in page
    assert "https://***@host/a.csv?sig=***" in page
    assert "pass" not in page.replace("password", "")


def test_a_damaged_dataset_is_refused_and_damaged_images_are_named(run, dataset_url, tmp_path):
    out = tmp_path / "card.md"
    broken = edited(dataset_url, tmp_path / "broken", lambda manifest: manifest["splits"]["val"].update(records=1))
    done = run("card", broken, "--out", out)
    assert (done.returncode, done.stdout) == (1, "")
    assert "manifest.json: the counts of split 'val' contradict each other" in done.stderr
    for words, message in (([tmp_path, "--out", out], "holds no dataset"), ([dataset_url, "--out", "x.txt"], ".md")):
        done = run("card", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
    assert not out.exists()
    copy = Path(shutil.copytree(dataset_url, tmp_path / "d"))
    shard = min(copy.glob("train-*.tfrecord"))
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    done = run("card", copy, "--out", out)
    assert done.returncode == 1
    assert done.stderr.startswith(f"warning: {shard}, record 0")
    assert done.stderr.endswith(f"tpufeed verify {copy}\n")
    assert out.exists()


def test_categories_of_size():
    found = [_size_category(count) for count in (1, 999, 1000, 99_999, 10**6, 10**9, 10**12 - 1, 10**12)]
    assert found == ["n<1K", "n<1K", "1K<n<10K", "10K<n<100K", "1M<n<10M", "1B<n<10B", "100B<n<1T", "n>1T"]
