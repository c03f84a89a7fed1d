"""Samples as small datasets, and what they would give stored otherwise or with ops on the device."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import tpufeed
from tests.measure.conftest import OPS
from tpufeed.cache import warmup
from tpufeed.dataset.reader import Dataset
from tpufeed.images import ColorJitter, HorizontalFlip, RandAugment, Rotate
from tpufeed.images.description import parse_op
from tpufeed.images.ops import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from tpufeed.images.protocols import Op
from tpufeed.measure.alternatives import name_beside, plan_device_ops, try_alternatives, try_device_ops, write_sample
from tpufeed.measure.prediction import Alternative
from tpufeed.measure.sampling import take_sample

pytestmark = pytest.mark.usefixtures("quiet_host")


def attempt(folder: Path, url: str, images: Sequence[bytes], **more) -> tuple[tuple[Alternative, ...], list[str]]:
    return try_alternatives(url, images, folder, 0.02, **{"records": 1_000_000, "ops": OPS, "batch_size": 8, **more})


@pytest.fixture
def images(dataset_url: str) -> list[bytes]:
    return take_sample(tpufeed.open_dataset(dataset_url), "train", 10.0)[0][:16]


def test_a_sample_dataset_holds_the_samples(dataset_url: str, tmp_path: Path) -> None:
    images, damaged = take_sample(tpufeed.open_dataset(dataset_url), "train", 10.0)
    assert len(set(images)) == tpufeed.open_dataset(dataset_url).split("train").records
    assert not damaged
    made = write_sample(tmp_path / "sample", images[:12])
    assert set(take_sample(made, "train", 10.0)[0]) == set(images[:12])


def test_a_raw_sample_holds_the_pixels(tmp_path: Path) -> None:
    pixels = [bytes([shade]) * (8 * 8 * 3) for shade in range(6)]
    dataset = write_sample(tmp_path / "raw", pixels, (8, 8, 3))
    with tpufeed.Loader(dataset, batch_size=2, shuffle=False, threads=1) as loader:
        assert {image.tobytes() for batch in loader for image in batch} == set(pixels)


def test_raw_caches_are_tried_with_their_bytes_and_commands(
    dataset_url: str, images: list[bytes], tmp_path: Path
) -> None:
    (raw, whole), notes = attempt(tmp_path, dataset_url, images)
    assert not notes  # images of 60 pixels are not presized
    assert raw.record_bytes == 32 * 32 * 3 + 400
    assert raw.cost.startswith("13.9 GB for 4 variants, about ")
    assert raw.do == f"warm a raw cache: tpufeed cache warmup {dataset_url} {dataset_url}-32 --size 32 --variants 4"
    assert raw.sent == 1
    assert whole.record_bytes == 37 * 37 * 3 + 400
    assert whole.cost.startswith("4.5 GB, about ")
    assert whole.sent == pytest.approx((37 / 32) ** 2)
    assert whole.do == (
        "read a cache of whole images with device_ops=[RandomResizedCrop(32), HorizontalFlip()]: "
        f"tpufeed cache warmup {dataset_url} {dataset_url}-whole-37 --op 'Resize(37)' --op 'CenterCrop(37)'"
    )


def test_coefficients_are_tried_where_the_device_runs_all_ops_and_the_sides_fit(
    dataset_url: str, images: list[bytes], tmp_path: Path
) -> None:
    (_, whole, coded), notes = attempt(tmp_path, dataset_url, images, ops=[RandomResizedCrop(28), HorizontalFlip()])
    assert not notes
    assert coded.do == (
        "read a cache of their DCT coefficients, which the device decodes, with device_ops=[RandomResizedCrop(28), "
        f"HorizontalFlip()]: tpufeed cache warmup {dataset_url} {dataset_url}-whole-32-dct --op 'Resize(32)' "
        "--op 'CenterCrop(32)' --encode dct"
    )
    assert coded.record_bytes < whole.record_bytes
    assert coded.sent == pytest.approx(whole.sent * 56 / (3 * 32))


def test_what_the_device_already_runs_it_runs_over_all_alternatives(
    dataset_url: str, images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (raw,), notes = attempt(tmp_path, dataset_url, images, ops=[Resize(40), CenterCrop(40)], device_ops=OPS)
    assert not notes
    assert raw.do.endswith(f"{dataset_url}-40 --op 'Resize(40)' --op 'CenterCrop(40)'")
    assert "variants" not in raw.cost  # all would be the same
    assert raw.sent == 1


def test_ops_of_a_cache_are_left_to_the_device(dataset_url: str, cache_url: str, tmp_path: Path) -> None:
    warmup(dataset_url, tmp_path / "cache", ops=[Resize(40), CenterCrop(40)], workers=1)
    whole, crops = tpufeed.open_dataset(tmp_path / "cache"), tpufeed.open_dataset(cache_url)

    def attempt_on_device(cache: Dataset, *ops: Op) -> tuple[tuple[Alternative, ...], list[str]]:
        return try_device_ops(cache, "train", cache, 0.02, ops=ops, batch_size=8)

    (found,), notes = attempt_on_device(whole, RandAugment(), *OPS)
    assert not notes
    assert found.do == (
        "run ops on the device: give Loader ops=[RandAugment()] and device_ops=[RandomResizedCrop(32), "
        "HorizontalFlip()] (RandAugment runs on the host only)"
    )
    assert found.sent == pytest.approx((40 / 32) ** 2)
    assert found.total_bytes == whole.split("train").total_bytes
    assert attempt_on_device(crops, *OPS) == ((), [])  # its crops are not cropped again
    assert attempt_on_device(whole, *OPS, Rotate(10)) == ((), [])
    (found,), _ = attempt_on_device(crops, HorizontalFlip())
    assert found.do.endswith("ops=[] and device_ops=[HorizontalFlip()]")


FLIP, JITTER, TURN = HorizontalFlip(), ColorJitter(0.4), Rotate(10)


@pytest.mark.parametrize(
    ("ops", "size", "plan"),
    [
        ([RandomResizedCrop((100, 224)), FLIP], None, (2, 0, 2)),
        ([Resize(99), CenterCrop(90), RandomCrop(80), FLIP], None, (2, 0, 2)),
        ([Resize(99), RandomCrop(80)], None, (2, 0, 1)),
        ([RandomResizedCrop(80), TURN, FLIP, JITTER], None, (2, 2, 2)),
        ([RandomResizedCrop(80), FLIP, TURN], None, None),
        ([TURN, RandomResizedCrop(80)], None, None),  # whole images of any size would have to be turned
        ([RandomCrop(80), FLIP], None, None),
        ([Resize(99), CenterCrop(90)], None, None),  # a cache has their results
        ([TURN, Resize(90), JITTER], (100, 90), (0, 1, 2)),
        ([CenterCrop(90)], (100, 90), None),
        ([], (100, 90), None),
    ],
    ids=str,
)
def test_the_last_ops_run_on_the_device(
    ops: list[Op], size: tuple[int, int] | None, plan: tuple[int, int, int] | None
) -> None:
    found = plan_device_ops(ops, size)
    assert (found and tuple(map(len, found))) == plan
    if found:
        assert [*found.host, *found.device] == [*ops[len(ops) - len(found.host) - len(found.device) :]]


def test_whole_images_have_a_margin_around_the_crop() -> None:
    for ops, cached in (
        ([RandomResizedCrop((100, 224))], (Resize(256), CenterCrop(256))),
        ([Resize(99), RandomCrop(80)], (Resize(99), CenterCrop(99))),
    ):
        found = plan_device_ops(ops)
        assert found is not None
        assert found.cached == cached


def test_ops_are_written_so_that_commands_read_them(images: list[bytes], tmp_path: Path) -> None:
    ops = (Resize((40, 48)), RandomResizedCrop(224, scale=(0.5, 1.0)), JITTER, RandAugment(magnitude=3))
    words = shlex.split(attempt(tmp_path, "x", images, ops=ops)[0][0].do.partition(": ")[2])
    assert [parse_op(word) for word, flag in zip(words[1:], words, strict=False) if flag == "--op"] == [*ops]
    assert "RandomResizedCrop(224, scale=(0.5, 1.0))" in words


def test_commands_can_be_pasted_into_a_shell(images: list[bytes], tmp_path: Path) -> None:
    (raw,), _ = attempt(tmp_path, "my flowers", images, ops=(CenterCrop(32),))
    assert shlex.split(raw.do.partition(": ")[2])[3:7] == ["my flowers", "my flowers-32", "--op", "CenterCrop(32)"]


def test_photographs_are_presized_as_sharding_does(photos: dict[str, bytes], tmp_path: Path) -> None:
    large = [photos["china.jpg"], photos["flower.jpg"]]
    (shard, presized, *_), _ = attempt(tmp_path, "photos/", [*large * 4, b"no image"], are_files=True)
    assert shard.do == "make shards of the files: tpufeed shard photos/ photos-shards"
    assert presized.do == "presize to 37: tpufeed shard photos/ photos-presized-37 --presize 37"
    assert presized.record_bytes < len(min(large, key=len)) / 10


@pytest.mark.parametrize(
    ("ops", "side"),
    [
        ([RandomResizedCrop((30, 40))], 46),
        ([HorizontalFlip(), Resize(60), RandomCrop(40)], 60),
        ([Resize((40, 50))], 50),
        ([Resize(4), CenterCrop(4)], 8),
        ([CenterCrop(40)], None),  # its pixels would show more of the image
        ([Rotate(10), RandomCrop(40)], None),
    ],
    ids=str,
)
def test_images_are_presized_to_what_the_first_ops_need(
    ops: list[Op], side: int | None, photos: dict[str, bytes], tmp_path: Path
) -> None:
    found, _ = attempt(tmp_path, "photos/", [photos["china.jpg"]] * 4, ops=ops, are_files=True)
    commands = [one.do.partition(": ")[2] for one in found if one.do.startswith("presize")]
    assert commands == ([] if side is None else [f"tpufeed shard photos/ photos-presized-{side} --presize {side}"])


def test_a_dataset_is_presized_by_what_made_it(photos: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    for name in ("china.jpg", "flower.jpg"):
        (folder / name).write_bytes(photos[name])
    url = tpufeed.shard(folder, tmp_path / "made", splits="train=1", seed=3, workers=1).url
    large, manifest = [photos["china.jpg"], photos["flower.jpg"]], tpufeed.open_dataset(url).manifest
    (presized, *_), _ = attempt(tmp_path, url, large, manifest=manifest)
    assert presized.do == "presize to 37: give --presize 37 and a new DST to the `tpufeed shard` that made it"
    adopted = msgspec.structs.replace(manifest, options={"command": "adopt", "source": str(folder)})
    found, _ = attempt(tmp_path / "other", url, large, manifest=adopted)
    assert not [one for one in found if one.do.startswith("presize")]  # no command does that


def test_what_cannot_be_tried_is_said(images: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found, notes = attempt(tmp_path / "file", "photos/", images, are_files=True)
    assert not found
    assert len(notes) == 3
    assert all("could not be tried" in note and "Not a directory" in note for note in notes)
    bad = [b"no image", b"none either"]
    assert attempt(tmp_path, "photos/", bad, are_files=True) == ((), [])  # no build would take them


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("photos", "photos-224"),
        ("photos/", "photos-224"),
        ("gs://b/raw/train-*.tar", "gs://b/raw/train-224"),
        ("a/tars/{0..9}.tar", "a/tars-224"),
        ("my photos/flowers.csv", "'my photos/flowers-224'"),
        ("../flowers", "../flowers-224"),
        ("train=a.json,val=b.json", "DATASET-224"),
        ("*.parquet", "DATASET-224"),
        ("https://x.org/a?b=c", "DATASET-224"),
    ],
)
def test_names_of_results_are_beside_their_source(url: str, name: str) -> None:
    assert name_beside(url, "224") == name
