"""What results, datasets and loaders say of themselves, in a line and in a notebook's table."""

import shutil
from html.parser import HTMLParser

import pytest

import tpufeed
from tpufeed.adapters.device import DeviceStats
from tpufeed.images import RandomResizedCrop
from tpufeed.measure.clock import StepReport
from tpufeed.stream.host import LoaderStats

HOSTILE = "<script>alert(1)</script>"


class Cells(HTMLParser):
    """The texts of a table; any tag but a table's own fails."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.open = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in {"table", "caption", "tr", "th", "td", "br"}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def built(photo_files, tmp_path_factory):
    """A build of a class whose name is HTML, and 30 others, of which the table shows some."""
    folder = tmp_path_factory.mktemp("summary")
    files = [file for file in photo_files if file.suffix == ".jpg"]
    for name in (HOSTILE.replace("/", "_"), *(f"class {number}" for number in range(30))):
        (folder / "photos" / name).mkdir(parents=True)
        shutil.copy(files[len(name) % len(files)], folder / "photos" / name / "a.jpg")
    (folder / "photos" / "class 1" / "b.jpg").write_bytes(b"not an image")
    return tpufeed.shard(folder / "photos", folder / "d", splits="train=0.8,val=0.2", workers=1)


@pytest.fixture(scope="module")
def shown(built):
    """Each object by its class's name; `View` is a dataset."""
    dataset = tpufeed.open_dataset(built.url)
    loader = tpufeed.Loader(dataset, "train", batch_size=4, ops=[RandomResizedCrop(size=32)])
    feed = loader.to_device("cpu")
    next(iter(feed))
    mixture = tpufeed.Mixture({dataset.select(classes=[number]): 1 / 3 for number in range(31)})
    listed = (built, built.manifest, dataset, tpufeed.verify(built.url), loader, feed, mixture, feed.stats())
    found = {type(each).__name__: each for each in listed}
    return {**found, "View": dataset.select(classes=[0]), "LoaderStats": feed.stats().host}


def test_a_line_for_each(shown):
    assert set(shown) == {
        *("BuildResult", "Manifest", "Dataset", "Verified", "Loader", "TorchDeviceFeed", "Mixture"),
        *("DeviceStats", "View", "LoaderStats"),
    }
    for name, each in shown.items():
        text = repr(each)
        assert text.startswith(type(each).__name__ + "(")
        assert "\n" not in text
        assert len(text) < (500 if name.endswith("Stats") else 450 if name == "Mixture" else 250), text
    assert "images=31" in repr(shown["BuildResult"])
    assert "rejects=1" in repr(shown["BuildResult"])
    assert "classes=31" in repr(shown["Dataset"])
    assert "classes=1" in repr(shown["View"])
    assert "27 more" in repr(shown["Mixture"])


def test_a_table_for_each_whose_texts_are_no_html(shown):
    for each in shown.values():
        cells = Cells(each._repr_html_())
        assert cells.texts[0] == type(each).__name__
    for name in ("BuildResult", "Manifest", "Dataset", "Loader", "TorchDeviceFeed", "View"):
        page = shown[name]._repr_html_()
        assert "<script" not in page
        assert HOSTILE.replace("/", "_") in Cells(page).texts
    assert "... and 11 more" in Cells(shown["Dataset"]._repr_html_()).texts
    ((reason, count),) = shown["BuildResult"].rejected.items()
    assert f"{reason}: {count}" in Cells(shown["BuildResult"]._repr_html_()).texts


def test_figures_have_three_digits_and_unknown_ones_are_left_out():
    host = LoaderStats(
        seconds=1.23456, wait_seconds=0.000123456, batches=12345, processes=0, threads=2, prefetch=4, buffer_bytes=7
    )
    assert repr(host) == (
        "LoaderStats(seconds=1.23, wait_seconds=0.000123, batches=12345, processes=0, threads=2, prefetch=4, "
        "buffer_bytes=7)"
    )
    assert repr(DeviceStats(1, 1234.5678, host=host)) == f"DeviceStats(batches=1, wait_seconds=1235, host={host!r})"
    report = StepReport(steps=3, idle_percent=0.0, recompilations=0, wall_seconds=float("inf"))
    assert repr(report) == "StepReport(steps=3, idle_percent=0.0, wall_seconds=inf, recompilations=0)"


def test_secrets_of_urls_are_hidden(built, tmp_path):
    secret = "?token=abcdefghijklmnop"
    shutil.copytree(built.url, tmp_path / f"d{secret}")
    dataset = tpufeed.open_dataset(f"{tmp_path}/d{secret}")
    for text in (repr(dataset), dataset._repr_html_()):
        assert "abcdefghijklmnop" not in text
