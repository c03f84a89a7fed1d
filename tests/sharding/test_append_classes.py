"""Class ids of a dataset that grows by sources which number their classes otherwise: they stay, and names decide."""

import io
import json
import random
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import tpufeed
from tests.sharding.forging import forge
from tpufeed.errors import BuildError, DatasetDamagedError, OptionError, TooManyRejectsError

LABEL, TEXT, NAME = "image/class/label", "image/class/text", "image/filename"
WORDS = ["ant", "bee", "cow", "dog", "emu", "fox", "gnu", "hen"]


def png(seed: int) -> bytes:
    data = io.BytesIO()
    Image.frombytes("RGB", (8, 8), random.Random(seed).randbytes(192)).save(data, "PNG")
    return data.getvalue()


def names_of(classes: list[str], first: int) -> list[tuple[str, str, bytes]]:
    """Name, class and bytes of three images of each class; the name says the class."""
    return [
        (f"{name}-{number}.png", name, png(number))
        for number, name in enumerate([name for name in classes for _ in range(3)], first)
    ]


def folder(place: Path, classes: list[str], first: int, _: random.Random) -> Path:
    for name, label, data in names_of(classes, first):
        (place / label).mkdir(parents=True, exist_ok=True)
        (place / label / name).write_bytes(data)
    return place


def table(place: Path, classes: list[str], first: int, _: random.Random) -> Path:
    place.mkdir()
    lines = ["path,label"]
    for name, label, data in names_of(classes, first):
        (place / name).write_bytes(data)
        lines.append(f"{name},{label}")
    (place / "table.csv").write_text("\n".join(lines))
    return place / "table.csv"


def tars(place: Path, classes: list[str], first: int, _: random.Random) -> Path:
    place.mkdir()
    with tarfile.open(place / "a.tar", "w") as tar:
        for name, label, data in names_of(classes, first):
            for member, content in ((name, data), (f"{name[:-4]}.cls", label.encode())):
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return place / "a.tar"


def hub(place: Path, classes: list[str], first: int, draw: random.Random, several: bool = False) -> Path:
    """Parquet with a ClassLabel, whose list is in any order and has more names than occur."""
    own = [*classes, draw.choice([name for name in WORDS if name not in classes])]
    draw.shuffle(own)
    rows = names_of(classes, first)
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    labels = [own.index(label) for _, label, _ in rows]
    columns = {
        "image": pa.array([{"bytes": data, "path": name} for name, _, data in rows], image),
        "label": pa.array([[one] for one in labels] if several else labels),
    }
    kind = {"names": own, "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": {"feature": kind, "_type": "Sequence"} if several else kind}
    said = {"huggingface": json.dumps({"info": {"features": features}})}
    place.mkdir()
    parquet.write_table(pa.table(columns).replace_schema_metadata(said), place / "train-00000-of-00001.parquet")
    return place


def coco(place: Path, classes: list[str], first: int, draw: random.Random) -> Path:
    """COCO's JSON, whose categories have any ids."""
    numbers = dict(zip(classes, draw.sample(range(90), len(classes)), strict=True))
    images, boxes = [], []
    (place / "images").mkdir(parents=True)
    for number, (name, label, data) in enumerate(names_of(classes, first)):
        (place / "images" / name).write_bytes(data)
        images.append({"id": number, "file_name": name, "width": 8, "height": 8})
        boxes.append({"id": number, "image_id": number, "category_id": numbers[label], "bbox": [1, 1, 4, 4]})
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    content = {"images": images, "annotations": boxes, "categories": categories}
    (place / "instances.json").write_text(json.dumps(content))
    return place / "instances.json"


def check(url: Path) -> tuple[str, ...]:
    """Check that each label is a place of the class that the sample's name says; return the names of classes."""
    dataset = tpufeed.open_dataset(url)
    classes = dataset.manifest.class_names
    for split in dataset.manifest.splits:
        for features in dataset.iter_examples(split):
            name = bytes(features[NAME].values[0]).decode().rpartition("/")[2]
            assert [classes[label] for label in features[LABEL].values] == [name.rpartition("-")[0]]
            assert [bytes(text).decode() for text in features[TEXT].values] == [name.rpartition("-")[0]]
    tpufeed.verify(url)
    return classes


def several(place: Path, classes: list[str], first: int, draw: random.Random) -> Path:
    return hub(place, classes, first, draw, several=True)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kinds", [[folder, table, tars, hub], [coco], [several]], ids=["classes", "boxes", "lists"])
def test_ids_stay_whatever_list_of_classes_a_source_has(kinds, seed, tmp_path):
    draw, known = random.Random(seed), ()
    for step in range(4):
        make, words = draw.choice(kinds), draw.sample(WORDS, draw.randint(2, 5))
        source = make(tmp_path / f"source-{step}", words, 100 * step, draw)
        if step == 0:
            tpufeed.shard(source, tmp_path / "d", splits="train=0.5,val=0.5", workers=1)
        else:
            assert tpufeed.append(source, tmp_path / "d", workers=1).added == 3 * len(words)
        classes = check(tmp_path / "d")
        assert classes[: len(known)] == known
        assert set(words) <= set(classes)
        known = classes
    parts = tmp_path.glob("d/part-*/manifest.json")
    assert all(
        tuple(names) == known[: len(names)] for names in (json.loads(p.read_text())["class_names"] for p in parts)
    )
    tpufeed.compact(tmp_path / "d")
    assert check(tmp_path / "d") == known


def test_a_cache_and_a_mixture_have_the_classes_of_the_grown_dataset(tmp_path):
    draw = random.Random(1)
    tpufeed.shard(folder(tmp_path / "a", ["bee", "cow"], 0, draw), tmp_path / "d", workers=1)
    tpufeed.cache.warmup(tmp_path / "d", tmp_path / "c", size=8, workers=1)
    tpufeed.append(hub(tmp_path / "b", ["cow", "ant", "bee"], 100, draw), tmp_path / "d", workers=1)
    tpufeed.cache.warmup(tmp_path / "d", tmp_path / "c", size=8, workers=1)
    assert check(tmp_path / "c") == check(tmp_path / "d")
    tpufeed.shard(folder(tmp_path / "e", ["ant", "bee"], 200, draw), tmp_path / "other", workers=1)
    mixture = tpufeed.Mixture({tmp_path / "d": 0.5, tmp_path / "other": 0.5})
    with tpufeed.Loader(mixture, columns=["label", "filename"], batch_size=2, lanes=2, processes=0) as loader:
        for (labels, names), _ in zip(loader, range(6), strict=False):
            said = [name.rpartition("/")[2].rpartition("-")[0] for name in names]
            assert [loader.class_names[label] for label in labels] == said


def test_an_append_that_was_interrupted_goes_on_with_the_ids_of_the_dataset(tmp_path):
    draw = random.Random(2)
    tpufeed.shard(folder(tmp_path / "a", ["bee", "cow"], 0, draw), tmp_path / "d", workers=1)
    source = hub(tmp_path / "b", ["cow", "ant"], 100, draw)
    rows = parquet.read_table(next(source.glob("*.parquet")))
    bad = rows.slice(0, 1).set_column(0, "image", [[{"bytes": b"no image", "path": "cow-9.png"}]])
    parquet.write_table(pa.concat_tables([rows, bad.cast(rows.schema)]), next(source.glob("*.parquet")))
    with pytest.raises(TooManyRejectsError):
        tpufeed.append(source, tmp_path / "d", max_rejects=0, workers=1)
    planned = tmp_path / "forged"
    shutil.copytree(tmp_path / "d", planned)
    result = tpufeed.append(source, tmp_path / "d", max_rejects=1, workers=1)
    assert (result.added, result.rejects) == (6, 1)
    assert check(tmp_path / "d")[:2] == ("bee", "cow")
    forge(planned / "part-00002", lambda header, _: header["class_names"].reverse())
    before = (planned / "manifest.json").read_bytes()
    with pytest.raises(BuildError, match="--overwrite"):
        tpufeed.append(source, planned, max_rejects=1, workers=1)
    assert (planned / "manifest.json").read_bytes() == before
    tpufeed.append(source, planned, max_rejects=1, overwrite=True, workers=1)
    assert check(planned)[:2] == ("bee", "cow")


def test_classes_of_another_order_are_refused_and_more_of_them_are_taken(tmp_path):
    draw = random.Random(3)
    tpufeed.shard(folder(tmp_path / "a", ["bee", "cow"], 0, draw), tmp_path / "d", workers=1)
    more = folder(tmp_path / "b", ["cow", "ant"], 100, draw)
    options = {"append": True, "allow_different": True, "workers": 1}
    with pytest.raises(OptionError, match=r"class 0 .*'bee'.*'ant'"):
        tpufeed.shard(more, tmp_path / "d", classes=["ant", "bee", "cow"], **options)
    assert not (tmp_path / "d/part-00002").exists()
    tpufeed.shard(more, tmp_path / "d", classes=["bee", "cow", "dog", "ant"], **options)
    assert check(tmp_path / "d") == ("bee", "cow", "dog", "ant")


def test_a_list_of_the_first_build_holds_for_names_and_not_for_numbers_of_another_list(tmp_path):
    draw = random.Random(4)
    first = folder(tmp_path / "a", ["bee", "cow"], 0, draw)
    tpufeed.shard(first, tmp_path / "d", classes=["cow", "bee"], workers=1)
    tpufeed.append(hub(tmp_path / "b", ["bee", "cow"], 100, draw), tmp_path / "d", workers=1)
    assert check(tmp_path / "d") == ("cow", "bee")
    # A label that is not in the list is a reject; without the list it is a new class.
    more = hub(tmp_path / "e", ["dog", "bee"], 200, draw)
    result = tpufeed.append(more, tmp_path / "d", workers=1)
    assert (result.added, result.manifest.rejects) == (3, {"bad_label": 3})
    more = hub(tmp_path / "f", ["dog", "bee"], 300, draw)
    tpufeed.append(more, tmp_path / "d", unset=["classes"], workers=1)
    classes = check(tmp_path / "d")
    assert classes[:2] == ("cow", "bee")
    assert "dog" in classes


def test_given_classes_in_another_order_are_names_in_a_first_build_as_well(tmp_path):
    source = hub(tmp_path / "b", ["bee", "cow", "dog"], 100, random.Random(5))
    tpufeed.shard(source, tmp_path / "d", classes=["dog", "ant", "cow", "bee", *WORDS[4:]], workers=1)
    assert check(tmp_path / "d")[:4] == ("dog", "ant", "cow", "bee")


def test_given_classes_without_a_name_of_the_source_rename_its_classes(tmp_path):
    source = hub(tmp_path / "b", ["bee", "cow"], 100, random.Random(5))
    own = json.loads(parquet.read_schema(next(source.glob("*.parquet"))).metadata[b"huggingface"])
    names = [f"my {name}" for name in own["info"]["features"]["label"]["names"]]
    tpufeed.shard(source, tmp_path / "d", classes=names, workers=1)
    for features in tpufeed.open_dataset(tmp_path / "d").iter_examples("train"):
        name = bytes(features[NAME].values[0]).decode().rpartition("/")[2].rpartition("-")[0]
        assert bytes(features[TEXT].values[0]).decode() == f"my {name}"


@pytest.mark.parametrize("make", [folder, several, coco])
def test_verify_finds_names_that_an_older_append_has_replaced(make, tmp_path):
    tpufeed.shard(make(tmp_path / "a", ["bee", "cow"], 0, random.Random(7)), tmp_path / "d", workers=1)
    path = tmp_path / "d/manifest.json"
    content = json.loads(path.read_text())
    content["class_names"].append(content["class_names"].pop(0))
    path.write_text(json.dumps(content))
    with pytest.raises(DatasetDamagedError) as caught:
        tpufeed.verify(tmp_path / "d")
    assert len([damage for damage in caught.value.damages if TEXT in damage.message]) == 6
