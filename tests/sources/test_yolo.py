"""YOLO's data.yaml as a source, in the layouts in which Ultralytics, Roboflow and CVAT write it."""

import io
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.gcs_server import GcsServer
from tests.sharding.forging import begun
from tests.sharding.outputs import rejects_of, samples_of, texts_of
from tests.sharding.previews import preview_shard
from tests.sources.test_boxes import encoded, spec_of
from tpufeed.cli.app import app
from tpufeed.errors import MissingExtraError, OptionError, SourceError

NAMES = "names: [cat, 'no', dog]\nnc: 3\n"
LINES = {"train": ["0 0.5 0.5 0.5 0.5\n2 0.25 0.25 0.1 0.2\n", "1 0.5 0.5 1 1\n"], "val": ["2 0.1 0.1 0.1 0.1\n"]}
# For which PyYAML raises an IndexError, a KeyError, an AttributeError and an OverflowError.
ODD_VALUES = ("!!int ''", "!!bool x", "!!timestamp x", f"{'1:' * 400}1.5")


@pytest.fixture
def yolo(tmp_path):
    """`yolo(text, lines)` writes data.yaml, with `images/SPLIT/N.png` of 80x60 pixels and their labels."""

    def make(text=None, lines=LINES, images="images/{}", labels="labels/{}"):
        root = tmp_path / "set"
        root.mkdir(exist_ok=True)
        (root / "data.yaml").write_text(text or f"train: images/train\nval: images/val\n{NAMES}")
        for split, each in lines.items():
            (root / images.format(split)).mkdir(parents=True, exist_ok=True)
            (root / labels.format(split)).mkdir(parents=True, exist_ok=True)
            for number, line in enumerate(each):
                (root / images.format(split) / f"{number}.png").write_bytes(encoded())
                if line is not None:
                    data = line if isinstance(line, bytes) else line.encode()
                    (root / labels.format(split) / f"{number}.txt").write_bytes(data)
        return root / "data.yaml"

    return make


def shard(url, folder, **options):
    result = tpufeed.shard(url, folder, **{"workers": 1, "max_rejects": 20, **options})
    tpufeed.verify(result.url, decode="all")
    return result


def boxes_of(sample):
    return np.reshape(sample["boxes"], (-1, 4)).round(3).tolist()


def test_boxes_classes_and_splits(yolo, tmp_path):
    path = yolo()
    result = shard(path, tmp_path / "d")
    assert {name: split.records for name, split in result.manifest.splits.items()} == {"train": 2, "val": 1}
    assert result.manifest.class_names == ("cat", "no", "dog")
    sample = texts_of(result.url)["images/train/0.png"]
    assert boxes_of(sample) == [[20, 15, 60, 45], [16, 9, 24, 21]]
    assert (sample["image/class/label"], sample["image/class/text"]) == ([0, 2], ["cat", "dog"])
    assert spec_of(result, "boxes").type_text == "float32[1 to 2, 4] boxes"
    # The same command continues, and a finished dataset is recognised.
    assert shard(tmp_path / "set", tmp_path / "d2", images=tpufeed.Images(presize=30)).images == 3
    assert boxes_of(texts_of(tmp_path / "d2")["images/train/0.png"])[0] == [10, 7.5, 30, 22.5]
    assert shard(path, tmp_path / "d").manifest == result.manifest  # it is recognised


@pytest.mark.parametrize(
    ("text", "images", "labels"),
    [
        ("train: ../train/images\nval: ../val/images\ntest: ../test/images\n", "{}/images", "{}/labels"),  # Roboflow
        ("path: ../datasets/set\ntrain: images/train\nval: images/val\n", "images/{}", "labels/{}"),  # Ultralytics
        ("path: .\ntrain: train.txt\nval: val.txt\n", "images/{}", "labels/{}"),  # CVAT
        ("train: [pictures/train]\nval:\n- pictures/val\n", "pictures/{}", "pictures/{}"),  # labels beside images
        ("train: images\\train\nval: .\\images\\val\n", "images/{}", "labels/{}"),  # Windows
    ],
)
def test_layouts_of_tools(text, images, labels, yolo, tmp_path):
    path = yolo(f"{text}names:\n  0: cat\n  1: 'no'\n  2: dog\n", images=images, labels=labels)
    for split, start in (("train", "data/images"), ("val", "./images")):
        lines = "".join(f"{start}/{split}/{number}.png\n" for number in range(len(LINES[split])))
        (path.parent / f"{split}.txt").write_text(lines)
    result = shard(path, tmp_path / "d")
    assert {name: split.records for name, split in result.manifest.splits.items()} == {"train": 2, "val": 1}
    assert boxes_of(texts_of(result.url)[f"{images.format('val')}/0.png"]) == [[4, 3, 12, 9]]
    assert any("test names" in warning for warning in result.warnings) == ("test:" in text)


def test_a_dataset_below_a_folder_called_images(yolo, tmp_path):
    root = yolo(f"train: train\nval: val\n{NAMES}", images="{}/images", labels="{}/labels").parent
    (tmp_path / "images").mkdir()
    result = shard(root.rename(tmp_path / "images/set"), tmp_path / "d")
    assert boxes_of(texts_of(result.url)["val/images/0.png"]) == [[4, 3, 12, 9]]


def test_absolute_folders_elsewhere(yolo, tmp_path):
    root = yolo().parent
    (tmp_path / "settings").mkdir()
    path = tmp_path / "settings/my.yml"
    path.write_text(f"path: {root}\ntrain: images/train\nval: {root}/images/val\n{NAMES}")
    assert sorted(texts_of(shard(path, tmp_path / "d").url)) == [
        "images/train/0.png",
        "images/train/1.png",
        "images/val/0.png",
    ]


def test_polygons_are_boxes_of_their_extent(yolo, tmp_path):
    line = "0 0.25 0.5 0.75 0.25 0.5 0.75\n1 0.5 0.5 0.5 0.5\n2 0 0 0.5 0 0.5 0.5 0 0.5\n"
    result = shard(yolo(lines={"train": [line], "val": [""]}), tmp_path / "d")
    assert boxes_of(texts_of(result.url)["images/train/0.png"]) == [[20, 15, 60, 45], [20, 15, 60, 45], [0, 0, 40, 30]]


def test_polygons_become_masks(yolo, tmp_path):
    line = "0 0.25 0.5 0.75 0.5 0.75 1 0.25 1\n1 0.5 0.25 0.2 0.2\n2 0 0 0.5 0 0.5 0.5 0 0.5\n"
    result = shard(yolo(lines={"train": [line], "val": [""]}), tmp_path / "d", outlines="semantic")
    mask = Image.open(io.BytesIO(samples_of(result.url)["images/train/0.png"]["mask"][0]))
    expected = np.zeros((60, 80), np.uint8)
    expected[30:, 20:60] = 1
    expected[:30, :40] = 3
    assert np.array_equal(mask, expected)


def test_keypoints(yolo, tmp_path):
    text = f"train: images/train\n{NAMES}kpt_shape: [3, 3]\nflip_idx: [0, 2, 1]\n"
    line = "0 0.5 0.5 0.5 0.5 0.25 0.5 2 0.5 0.5 1 0 0 0\n"
    result = shard(yolo(text, {"train": [line]}), tmp_path / "d")
    spec = spec_of(result, "keypoints")
    assert (spec.item_shape, spec.of, spec.flip_pairs) == ((3, 3), "boxes", ((1, 2),))
    assert texts_of(result.url)["images/train/0.png"]["keypoints"] == [20, 30, 2, 40, 30, 1, 0, 0, 0]


def test_images_without_labels_are_counted(yolo, tmp_path):
    path = yolo(lines={"train": ["0 0.5 0.5 0.5 0.5", None, None, ""], "val": [""]})
    (path.parent / "labels/train/lost.txt").write_text("")
    (path.parent / "labels/train/classes.txt").write_text("cat")
    (path.parent / "images/train/notes.md").write_text("")
    result = shard(path, tmp_path / "d")
    assert [len(sample["boxes"]) for _, sample in sorted(texts_of(result.url).items())] == [4, 0, 0, 0, 0]
    assert any("2 images have no label file" in warning for warning in result.warnings)
    assert any("1 label file" in warning and "lost.txt" in warning for warning in result.warnings)
    assert result.listed.ignored_files == {".md": 1}


def test_images_of_one_name_share_their_labels(yolo, tmp_path):
    path = yolo()
    (path.parent / "images/val/0.jpg").write_bytes(encoded())
    result = shard(path, tmp_path / "d")
    samples = texts_of(result.url)
    assert boxes_of(samples["images/val/0.jpg"]) == boxes_of(samples["images/val/0.png"]) == [[4, 3, 12, 9]]
    assert not any("label file" in warning for warning in result.warnings)


def test_labels_may_be_left_out_and_images_dealt_anew(yolo, tmp_path):
    result = shard(yolo(), tmp_path / "d", label="none", splits="all=1")
    assert (list(result.manifest.splits), result.manifest.class_names) == (["all"], ())
    assert len(texts_of(result.url)["images/train/0.png"]["boxes"]) == 8


@pytest.mark.first_cases(11)
@pytest.mark.parametrize(
    ("line", "reason", "said"),
    [
        ("0 0.5 0.5 0.5 0.5\n7 0.5 0.5 0.5 0.5\n", "bad_label", "line 2"),
        ("0.5 0.5 0.5 0.5 0.5\n", "bad_label", "0.5 0.5"),
        ("nan 0.5 0.5 0.5 0.5\n", "bad_label", "nan"),
        ("\n0 0.5 0.5 0.5\n", "bad_box", "line 2"),
        ("0 0.5 0.5 0.5 0.5 0.9\n", "bad_box", "5 numbers"),
        ("0 0.5 0.5 0.5 x\n", "bad_box", "0.5 x"),
        ("0 0.5 0.5 0.5 nan\n", "bad_box", "nan"),
        ("0 20 15 40 30\n", "bad_box", "0 20 15"),
        ("0 0.5 0.5 0 0.5\n", "bad_box", "area"),
        ("0 0.9 0.5 0.9 0.5\n", "bad_box", "outside"),
        (b"\xff\xfe0", "bad_box", "UTF-8"),
        (b" " * (11 << 20), "bad_box", "10 MB"),
    ],
)
def test_bad_lines_are_rejects(line, reason, said, yolo, tmp_path):
    path = yolo(lines={"train": ["0 0.5 0.5 0.5 0.5\n", line], "val": ["0 0.5 0.5 0.5 0.5\n"]})
    result = shard(path, tmp_path / "d")
    ((name, (code, message)),) = rejects_of(result.url).items()
    assert (name, code) == ("images/train/1.png", reason)
    assert said in message
    assert "labels/train/1.txt" in message or said == "outside"
    assert result.images == 2


def test_a_listed_image_that_is_missing(yolo, tmp_path):
    path = yolo(f"train: train.txt\n{NAMES}")
    (path.parent / "train.txt").write_text("images/train/0.png\nimages/train/gone.png\n")
    result = shard(path, tmp_path / "d")
    assert rejects_of(result.url)["images/train/gone.png"][0] == "unreadable"
    assert not any("no label file" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "names"),
        ("train: images/train\n", "names"),
        ("train: images/train\nnames: cat\n", "names"),
        ("train: images/train\nnames: []\n", "empty"),
        ('train: "a\\0b"\nnames: [cat]\n', "train"),
        ("train: nowhere://x\nnames: [cat]\n", "nowhere"),
        ("train: images/train\nnames: [cat, no]\n", "names"),  # YAML's false
        ("train: images/train\nnames: [cat, cat]\n", "cat"),
        ("names: [cat]\n", "train"),
        ("train: images/train\nnames: [cat]\nnc: 2\n", "nc"),
        ("train: 7\nnames: [cat]\n", "train"),
        ("train: nowhere\nnames: [cat]\n", "nowhere"),
        ("test: nowhere\nnames: [cat]\n", "folders"),
        ("train: 'x\n", "YAML"),
        ("train: images/train\nnames: [cat]\nkpt_shape: [17, 4]\n", "kpt_shape"),
        ("train: images/train\nnames: [cat]\nkpt_shape: [2, 3]\nflip_idx: [1, 1]\n", "flip_idx"),
        ("!!python/object/apply:os.system ['true']\n", "YAML"),
        *((f"train: images/train\nnames: [cat]\nnc: {value}\n", "YAML") for value in ODD_VALUES),
        ("train: images/train\nnames: {<<: {0: cat}}\n", "merge"),  # a few lines of them can take all memory
        pytest.param(f"train: images/train\nnames: [cat]\n#{'x' * (1 << 20)}", "1 MB", id="large"),
    ],
)
def test_a_yaml_that_cannot_be_understood(text, said, yolo, tmp_path):
    with pytest.raises(SourceError, match=said) as caught:
        shard(yolo(text), tmp_path / "d")
    assert "data.yaml" in str(caught.value)


def test_no_labels_at_all(yolo, tmp_path):
    with pytest.raises(SourceError, match=r"labels/train/0\.txt"):
        shard(yolo(lines={"train": [None], "val": [None]}), tmp_path / "d")


@pytest.mark.parametrize(
    "options",
    [
        {"boxes": tpufeed.Boxes(column="b")},
        {"columns": {"a": "int64"}},
        {"label": "kind"},
        {"split_by": "folder"},
        {"masks": "m"},
    ],
)
def test_options_that_contradict_the_file(options, yolo, tmp_path):
    with pytest.raises(OptionError):
        shard(yolo(), tmp_path / "d", **options)


def test_a_folder_with_another_yaml_is_a_folder_of_images(yolo, tmp_path):
    path = yolo("train: 7 epochs\n", {"cat": [""], "dog": [""]}, "{}", "{}")
    assert shard(path.parent, tmp_path / "d").manifest.class_names == ("cat", "dog")


def test_without_the_package(yolo, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtraError, match="annotations"):
        shard(yolo(), tmp_path / "d")


def test_preview_and_append(yolo, tmp_path):
    path = yolo()
    assert set(preview_shard(path, tmp_path / "d").splits) == {"train", "val"}
    shard(path, tmp_path / "d")
    more = yolo(lines={**LINES, "val": [*LINES["val"], "0 0.5 0.5 0.5 0.5\n"]})
    done = CliRunner().invoke(app, ["append", str(more), str(tmp_path / "d")])
    assert done.exit_code == 0, done.stderr
    assert boxes_of(texts_of(tmp_path / "d")["images/val/1.png"]) == [[20, 15, 60, 45]]


def test_the_same_command_continues(yolo, bytes_of, tmp_path):
    path = yolo()
    shard(path, tmp_path / "d")
    expected = bytes_of(tmp_path / "d")
    shard(path, begun(tmp_path / "d"))
    assert bytes_of(tmp_path / "d") == expected


@pytest.mark.all
def test_a_bucket(yolo, monkeypatch, tmp_path):
    path = yolo()
    with GcsServer(process=True) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        for file in path.parent.rglob("*.*"):
            server.put("bucket", f"set/{file.relative_to(path.parent)}", file.read_bytes())
        local = shard(path, tmp_path / "d").manifest.content_digest
        assert shard("gs://bucket/set", "gs://bucket/d").manifest.content_digest == local
        server.put("bucket", "data.yaml", f"path: set\ntrain: images/train\nval: images/val\n{NAMES}".encode())
        assert shard("gs://bucket/data.yaml", "gs://bucket/e").manifest.content_digest == local
