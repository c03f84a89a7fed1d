"""Plain Python with Pillow, as people write it first: its loader, and what raw files give with it."""

import json
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.measure.conftest import OPS
from tests.tfrecords import encode_example, encode_record
from tpufeed.cache import warmup
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import OptionError
from tpufeed.images import CenterCrop
from tpufeed.measure import naive
from tpufeed.measure.naive import NaiveLoader, measure_files, measure_pillow
from tpufeed.measure.prediction import Measurements

pytestmark = pytest.mark.usefixtures("quiet_host")


def files_of(url: Path) -> Measurements:
    return measure_files(str(url), OPS, 8, 0.01, lambda _: None)


@pytest.mark.all
def test_the_columns_of_a_table_are_asked_for(colour_folder: Path, tmp_path: Path) -> None:
    paths = sorted(colour_folder.glob("red/*"))
    (tmp_path / "t.csv").write_text("\n".join(["path,kind,subset", *(f"{path},red,val" for path in paths)]))
    assert [note for note in files_of(tmp_path / "t.csv").notes if "--label COLUMN" in note]
    assert not [note for note in files_of(colour_folder).notes if "COLUMN" in note]


def test_files_that_cannot_be_read_are_named(tmp_path: Path, photos: dict[str, bytes]) -> None:
    (tmp_path / "good.jpg").write_bytes(photos["rocket.jpg"])
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere")
    found = files_of(tmp_path)
    assert found.total_bytes == 2 * found.record_bytes
    assert any("cannot be read, the first: " in note and "gone.jpg" in note for note in found.notes)


def test_a_listing_that_is_cut_off_is_said_and_its_sample_is_of_all(
    colour_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = files_of(colour_folder)
    assert not [note for note in found.notes if "cut off" in note]
    assert not [one.cost for one in found.alternatives if "for the first" in one.cost]
    monkeypatch.setattr(naive, "_SAMPLES", 8)
    monkeypatch.setattr(naive, "_LISTING_SECONDS", -1.0)
    found = files_of(colour_folder)
    assert any("more than 8. Listing them took longer" in note for note in found.notes)
    assert all("for the first 8 images" in one.cost for one in found.alternatives)


def test_pillow_is_measured_over_what_it_can_decode(photos: dict[str, bytes]) -> None:
    assert measure_pillow([b"no image", photos["china.jpg"]], OPS, 1, 0.05) > 0
    assert measure_pillow([b"no image"], OPS, 1, 0.01) == 0


def test_records_of_other_tools_are_fed(colour_folder: Path, tmp_path: Path) -> None:
    data = [path.read_bytes() for path in sorted(colour_folder.glob("*/*.png"))[:6]]
    records = [{"img": image, "kind": number % 3} for number, image in enumerate(data)]
    (tmp_path / "train.tfrecord").write_bytes(b"".join(map(encode_record, map(encode_example, records))))
    tpufeed.adopt(tmp_path, image_key="img", label_key="kind")
    ((images, labels),) = NaiveLoader(open_dataset(tmp_path), "train", 6)
    assert (images.shape, labels.tolist()) == ((6, 224, 224, 3), [0, 1, 2] * 2)


def test_of_lists_of_labels_the_first_is_fed_and_coefficients_are_refused(colour_folder: Path, tmp_path: Path) -> None:
    rows = [{"path": str(path), "label": ["b"] * (len(path.stem) % 2)} for path in colour_folder.glob("*/*.png")]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    url = tpufeed.shard(tmp_path / "t.jsonl", tmp_path / "d", workers=1).url
    ((_, labels),) = NaiveLoader(open_dataset(url), "train", len(rows))
    assert sorted(labels.tolist()) == sorted(len(row["label"]) - 1 for row in rows)
    cache = warmup(url, tmp_path / "dct", ops=[CenterCrop(32)], encode="dct", workers=1)
    with pytest.raises(OptionError, match="8-bit RGB"):
        NaiveLoader(open_dataset(cache.url), "train", 2)


def test_a_view_is_fed_alone_with_its_labels(dataset_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dataset = open_dataset(dataset_url)
    view = dataset.select(classes=[dataset.class_names[2], dataset.class_names[0]])
    labels = np.concatenate([labels for _, labels in NaiveLoader(view, "train", 2)])
    stored = [features["image/class/label"].values[0] for features in view.iter_examples("train")]
    assert labels.tolist() == [{2: 0, 0: 1}[label] for label in stored][: len(labels)]
    assert len(labels) == len(stored) // 2 * 2
