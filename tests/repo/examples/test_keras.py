"""examples/keras_flowers.py: as the page says, from Kaggle's TFRecords, and where no TPU answers."""

import re
from pathlib import Path

import pytest

import tpufeed
from tests.repo.examples.conftest import Output
from tests.tfrecords import encode_features, encode_record
from tpufeed.tfrecord.example import Feature

RUNS = {"examples/README.md": "keras_flowers[.]py --data"}

EXAMPLES = Path(__file__).parents[3] / "examples"
# In one process, as TensorFlow takes seconds to import: three starts, then the command of the page, then a TPU that is
# not there. The command for two replicas, which tests/adapters/tf runs, has two devices.
PROGRAM = """
import sys

sys.path.insert(0, sys.argv[1])
import keras_flowers

given = ["--data", "input", "--cache", "cache", "--size", "64", "--batch-size", "16", "--learning-rate", "0.2"]
keras_flowers.main(keras_flowers.parse([*given, "--epochs", "2", "--tpu", "none"]))
print("again")
keras_flowers.main(keras_flowers.parse([*given, "--epochs", "4"]))
print("again")
keras_flowers.main(keras_flowers.parse([*given, "--epochs", "4"]))
print("again")
keras_flowers.main(keras_flowers.parse([*sys.argv[2:], "--out", "page"]))
print("again")
keras_flowers.main(keras_flowers.parse([*given, "--tpu", "local"]))
"""


@pytest.fixture(scope="module")
def kaggle(flowers, tmp_path_factory):
    """TFRecords under Kaggle's keys in folders of splits, of which test has no labels."""
    folder = tmp_path_factory.mktemp("kaggle")
    photos = sorted(Path(flowers.photos).glob("*/*.jpg"))
    classes = sorted({photo.parent.name for photo in photos})
    for split, part in (("train", photos[:40:2] + photos[40:]), ("val", photos[1:40:2]), ("test", photos[:5])):
        target = folder / "input" / split
        target.mkdir(parents=True)
        for shard in range(2):
            records = b"".join(
                encode_record(encode_features(features(photo, classes, split))) for photo in part[shard::2]
            )
            (target / f"{shard:02d}-64x64-{len(part[shard::2])}.tfrec").write_bytes(records)
    (folder / "flowers").symlink_to(flowers.url)
    return folder


def features(photo, classes, split):
    found = {"image": Feature("bytes", [photo.read_bytes()]), "id": Feature("bytes", [photo.stem.encode()])}
    if split != "test":
        found["class"] = Feature("int64", [classes.index(photo.parent.name)])
    return found


@pytest.fixture(scope="module")
def outputs(kaggle, page_arguments, run_example):
    """What the trainings of the program printed, and at last the error."""
    (kaggle / "program.py").write_text(PROGRAM)
    arguments = [EXAMPLES, *page_arguments("keras_flowers.py")]
    return [
        Output(text)
        for text in run_example(kaggle / "program.py", *arguments, folder=kaggle, returncode=1).text.split("again\n")
    ]


def test_it_learns_with_the_command_of_the_page(kaggle, outputs):
    output = outputs[3]
    assert output.epochs == list(range(6))
    assert output.losses[-1] < 0.6 * output.losses[0]  # 0.21 to 0.35 with four seeds
    assert re.search(r"^1 cores, 9 steps of 16 an epoch$", output.text, re.MULTILINE)
    assert re.search(r"^epoch 5: .*, [\d,]+ images/s$", output.text, re.MULTILINE)
    held_out = float(re.search(r"^accuracy, held out: (\d\.\d+) of 43$", output.text, re.MULTILINE)[1])
    assert held_out * 43 == pytest.approx(round(held_out * 43), abs=0.03)  # of 43 images, none of the padding
    assert held_out > 0.5
    assert (kaggle / "page/model.keras").stat().st_size > 10_000


def test_kaggles_records_a_cache_and_a_second_start(kaggle, outputs):
    """And on a host without a TPU, where one is asked for by name, nothing is trained on the CPU instead."""
    first, second, third, _, last = (output.text for output in outputs)
    assert "adopted input: 180 in train, 20 in val" in first
    assert "adopted" not in second
    assert "1 cores, 11 steps of 16 an epoch" in first
    assert "1 cores, 11 steps of 16 an epoch" in second
    assert [output.epochs for output in outputs[:2]] == [[0, 1], [2, 3]]
    assert outputs[1].losses[-1] < 0.8 * outputs[0].losses[0]
    assert "accuracy, held out: " in second
    assert "already trained 4 epochs: give more --epochs" in third
    assert "epoch 3: " not in third
    assert re.findall("accuracy, held out: .*", third) == re.findall("accuracy, held out: .*", second)
    assert not (kaggle / "input/manifest.json").exists()
    assert tpufeed.open_dataset(kaggle / "cache").manifest.cache.variants == 2
    assert re.search(r"no TPU answers as 'local': TPUs not found in the cluster", last)
    assert "To train without one: --tpu none" in last
    assert outputs[-1].epochs == []
    assert "Traceback" not in last
