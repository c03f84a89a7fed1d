"""The doctor on small datasets: what it measures is real, and short."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.measure.conftest import OPS, make_cost, write_images
from tpufeed.cache import warmup
from tpufeed.errors import DamageError, DatasetNotFoundError, OptionError
from tpufeed.images import Custom, HorizontalFlip
from tpufeed.images.ops import CenterCrop, Resize
from tpufeed.measure import alternatives, doctor, stages
from tpufeed.measure.clock import SavedSteps, StepReport, StepTimes
from tpufeed.measure.doctor import examine
from tpufeed.measure.stages import LoaderRates, measure_loader
from tpufeed.measure.tpu_compiler import ProgramCost

pytestmark = pytest.mark.usefixtures("quiet_host")
SHORT: dict = {"seconds": 1.0, "ops": OPS, "batch_size": 8}
STAGES = ["storage", "reading", "decoding", "ops", "assembly", "transfer"]


def stages_of(diagnosis) -> dict:
    assert [stage.name for stage in diagnosis.stages] == STAGES
    return {stage.name: stage for stage in diagnosis.stages}


@pytest.mark.all
def test_every_stage_of_a_dataset_is_measured(dataset_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUFEED_PROCESSES", "2")
    said: list[str] = []
    found = examine(dataset_url, **SHORT, listener=said.append)
    stages = stages_of(found)
    for name in ("storage", "reading", "decoding", "assembly"):
        assert stages[name].images_per_second > 0, stages[name].why_not
    assert "later epochs read the page cache" in stages["storage"].detail
    assert "2 processes x 1 thread" in stages["assembly"].detail
    assert stages["transfer"].images_per_second is None
    assert "there is no TPU on this host" in stages["transfer"].why_not
    assert found.fed == stages["assembly"].images_per_second
    assert found.idle_percent is not None
    assert any("v3-8 is assumed" in note for note in found.notes)
    assert {"storage", "assembly", "other ways to store the images"} <= set(said)
    assert json.loads(msgspec.json.encode(found))["split"] == "train"


def test_a_raw_cache_has_nothing_to_decode(cache_url: str) -> None:
    stages = stages_of(examine(cache_url, seconds=1.0, batch_size=8))
    assert stages["reading"].images_per_second > 0
    assert stages["reading"].detail.startswith("CRCs verified, pixels copied")
    assert stages["decoding"].why_not == "raw pixels need no decoding"
    assert stages["ops"].why_not == "there are none"
    assert stages["assembly"].images_per_second > 0


@pytest.mark.all
def test_of_device_ops_the_host_s_part_is_measured(
    dataset_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, shapes = str(tmp_path / "cache"), []
    warmup(dataset_url, url, ops=[Resize(40), CenterCrop(40)], workers=1)
    transfer = stages.measure_transfer
    monkeypatch.setattr(doctor, "measure_transfer", lambda *given: shapes.append(given[0]) or transfer(*given))
    found = examine(url, seconds=1.0, batch_size=8, device_ops=OPS)
    of_host = stages_of(found)
    assert found.fed == of_host["assembly"].images_per_second
    assert of_host["reading"].detail.startswith("CRCs verified, pixels copied")
    assert of_host["ops"].why_not == "the device runs them all"
    assert any(note.startswith("the device runs RandomResizedCrop, HorizontalFlip: ") for note in found.notes)
    found = examine(url, seconds=1.0, batch_size=8, device_ops=[HorizontalFlip()], ops=[CenterCrop(36)])
    assert stages_of(found)["ops"].images_per_second > 0
    assert shapes == [(40, 40, 3), (36, 36, 3)]


def measure_faster(*args: Any, **options: Any) -> LoaderRates:
    """Measure alternatives as faster than they are: what a second measures on a busy host varies."""
    found = measure_loader(*args, **options)
    return replace(found, whole=1000 * found.whole, parts=())


@pytest.mark.parametrize("cached", [False, True])
def test_ops_on_the_device_are_advised(
    cached: bool, dataset_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alternatives, "measure_loader", measure_faster)
    url, arguments = dataset_url, "device_ops=[RandomResizedCrop(32), HorizontalFlip()]"
    do = f"read a cache of whole images with {arguments}: "
    if cached:
        url, do = str(tmp_path / "cache"), f"run ops on the device: give Loader ops=[] and {arguments}"
        warmup(dataset_url, url, ops=[Resize(40), CenterCrop(40)], workers=1)
    found = examine(url, **(SHORT | {"tpu": "v6e-8"}))
    (action,) = (action for action in found.actions if action.do.startswith(do))
    assert "the device's own time for the ops is not counted" in action.cost
    assert action.images_per_second > found.fed


@pytest.mark.all
@pytest.mark.parametrize("encode", ["raw", "jpeg", "dct"])
def test_device_ops_of_a_remote_cache_are_measured_from_local_copies(dataset_url: str, encode: str) -> None:
    url = f"memory://doctor-{encode}"
    warmup(dataset_url, url, ops=[Resize(48), CenterCrop(48)], encode=encode, workers=1)
    found = examine(url, seconds=1.0, batch_size=8, device_ops=OPS)
    assert "from local copies" in stages_of(found)["assembly"].detail
    found = examine(url, **SHORT)
    assert not [note for note in found.notes if "could not be tried" in note]


@pytest.mark.parametrize("scheme", ["", "memory://doctor-kept"])
def test_images_of_other_pixels_are_measured(scheme: str, tmp_path: Path) -> None:
    for number in range(16):
        Image.fromarray(np.full((20, 30), 999 + number, np.uint16)).save(tmp_path / f"{number}.png")
    url = f"{scheme or tmp_path}/d"
    tpufeed.shard(tmp_path, url, images=tpufeed.Images(pixels="keep"), workers=1)
    warmup(url, f"{url}-raw", ops=[CenterCrop(16)], workers=1)
    found = examine(url, seconds=1.0, batch_size=8, ops=[CenterCrop(16)])
    assert found.fed
    assert [note for note in found.notes if "other ways to store them are not tried" in note]
    assert examine(f"{url}-raw", seconds=1.0, batch_size=8).fed


def test_raw_images_have_no_device_ops(colour_folder: Path) -> None:
    with pytest.raises(OptionError, match="dataset or cache"):
        examine(str(colour_folder), device_ops=OPS)


def test_live_ops_of_a_raw_cache_are_measured(cache_url: str) -> None:
    stages = stages_of(examine(cache_url, seconds=1.0, batch_size=8, ops=[HorizontalFlip()]))
    assert stages["ops"].images_per_second > 0


@pytest.mark.all
@pytest.mark.parametrize(("share", "told"), [(0.75, True), (1.5, False)])
def test_ops_are_told_from_decoding_where_they_do_not_make_it_cheaper(
    share: float, told: bool, dataset_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "time_decoding", lambda *_: share)
    found = stages_of(examine(dataset_url, **SHORT))
    if told:
        assert found["ops"].images_per_second == pytest.approx(3 * found["decoding"].images_per_second)
    else:
        assert found["decoding"].images_per_second > 0
        assert "which they make cheaper" in found["ops"].why_not


@pytest.mark.all
@pytest.mark.parametrize("encode", ["jpeg", "dct"])
def test_colours_are_timed_as_loaders_make_them(
    encode: str, dataset_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[bool]()
    monkeypatch.setattr(stages, "time_decoding", lambda *options: given.append(options[-2]) or 1.0)
    warmup(dataset_url, tmp_path / "cache", ops=[Resize(48), CenterCrop(48)], encode=encode, workers=1)
    examine(str(tmp_path / "cache"), **SHORT)
    assert given == [encode == "jpeg"], "whether samples of colours are repeated"


def test_fewer_samples_than_a_batch_are_measured_and_said(dataset_url: str) -> None:
    found = examine(dataset_url, seconds=1.0, ops=OPS, split="val")
    assert found.fed
    assert any("fewer than a batch of 128" in note for note in found.notes)


def test_a_mixture_is_measured_with_the_storage_of_its_heaviest_source(dataset_url: str, tmp_path: Path) -> None:
    few = str(tmp_path / "few")
    tpufeed.shard(write_images(tmp_path / "colours", 6), few, workers=1)
    found = examine(f"{few}=0.7,{dataset_url}=0.3", **SHORT)
    assert found.fed
    assert stages_of(found)["storage"].images_per_second > 0
    assert any(note.startswith(f"storage was measured at {few},") for note in found.notes)


@pytest.fixture(scope="module")
def memory_url(colour_folder: Path) -> str:
    tpufeed.shard(colour_folder, "memory://doctor", shard_bytes="3KB", workers=1)
    return "memory://doctor"


@pytest.mark.all
def test_a_remote_dataset_is_measured_from_local_copies(memory_url: str, tmp_path: Path) -> None:
    found = examine(memory_url, **SHORT)
    stages = stages_of(found)
    assert f"over 16 connections; later epochs read local copies in {tmp_path / 'copies'}" in stages["storage"].detail
    assert "from local copies" in stages["assembly"].detail
    assert found.fed == stages["assembly"].images_per_second


@pytest.mark.all
def test_a_remote_dataset_that_no_copies_hold_is_limited_by_its_storage(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "free_bytes", lambda _: 0)
    found = examine(memory_url, **SHORT)
    stages_found = stages_of(found)
    assert "later epochs read from there again" in stages_found["storage"].detail
    assert found.fed == min(stages_found[name].images_per_second for name in ("storage", "assembly"))


@pytest.mark.all
def test_raw_images_are_measured_and_sharding_is_advised(colour_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "measure_loader", measure_faster)
    found = examine(str(colour_folder), **(SHORT | {"tpu": "v6e-8"}))
    stages = stages_of(found)
    assert stages["reading"].images_per_second > 0
    assert "Pillow" in stages["decoding"].detail
    assert any("images: 40" in note for note in found.notes)
    assert found.fed == stages["assembly"].images_per_second
    assert any(
        f"tpufeed shard {colour_folder} {colour_folder}-shards && tpufeed cache warmup {colour_folder}-shards "
        f"{colour_folder}-32 --size 32" in action.do
        for action in found.actions
    )
    assert not [note for note in found.notes if "could not be tried" in note]


@pytest.mark.all
def test_a_damaged_record_is_said_and_the_doctor_goes_on(copy: Path) -> None:
    shard = sorted(copy.glob("train-*.tfrecord"))[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    found = examine(str(copy), **SHORT)
    assert any("is damaged" in note and "tpufeed verify" in note for note in found.notes)
    assert found.fed, stages_of(found)["assembly"].why_not


def test_where_nothing_can_be_read_there_is_no_prediction(copy: Path, tmp_path: Path) -> None:
    for shard in copy.glob("train-*.tfrecord"):
        shard.write_bytes(bytes(byte ^ 1 for byte in shard.read_bytes()))
    assert examine(str(copy), **SHORT).verdict.startswith("no prediction: none of the records")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    found = examine(str(tmp_path / "raw"), **SHORT)
    assert found.verdict.startswith("no prediction: none of the files")
    assert any("gone.jpg" in note for note in found.notes)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("processes", [0, 1])
def test_an_op_that_fails_leaves_no_prediction(
    processes: int, dataset_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUFEED_PROCESSES", str(processes))
    name = "fail" if processes == 0 else "die"
    ops = [*OPS, Custom(f"tests.measure.test_doctor:{name}")]
    found = examine(dataset_url, seconds=1.0, ops=ops, batch_size=8)
    assert found.verdict.startswith("no prediction: ")
    stages_found = stages_of(found)
    assert stages_found["assembly"].images_per_second is None
    assert ("out of ideas" if name == "fail" else "exit code 3") in stages_found["assembly"].why_not
    assert stages_found["storage"].images_per_second > 0


def fail(image, rng):
    raise ValueError("out of ideas")


def die(image, rng):
    os._exit(3)


def test_a_step_sets_the_rate_that_is_needed_at_most(cache_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_step(step: str, tpu: str, batch_size: int, listener: Any) -> ProgramCost:
        listener("compiling")
        assert (step, tpu, batch_size) == ("train.py:make_step", "v5e-8", 32)
        return make_cost(least_seconds=0.004)

    monkeypatch.setattr(doctor, "cost_of_step", compile_step)
    found = examine(cache_url, seconds=1.0, batch_size=256, tpu="v5e-8", step="train.py:make_step")
    assert found.needed == (64_000, 64_000)
    assert (found.need, found.model) == ("64,000", "train.py:make_step at its fastest")
    assert any("at least 4 ms for 32 images on a device (bandwidth: " in note for note in found.notes)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"split": "test"}, OptionError, "has no split 'test'. It has"),
        ({"tpu": "v5e8"}, OptionError, "did you mean v5e-8"),
        ({"model": "resnet5"}, OptionError, "did you mean resnet50"),
        ({"steps": Path("/nowhere/steps.json")}, OptionError, "cannot be read"),
        ({"profile": Path("/nowhere/logs")}, OptionError, "no folder /nowhere/logs"),
        ({"seconds": 0.0}, OptionError, "seconds is a number between 1 and 600"),
        ({"model": "resnet50", "flops_per_sample": 1e9}, OptionError, "either a model, "),
        ({"model": "resnet50", "step": "train.py:make_step"}, OptionError, "either a model, "),
        ({"batch_size": 0}, OptionError, "batch_size is a whole number, at least 1"),
    ],
)
def test_what_cannot_be_asked(dataset_url: str, options: dict, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        examine(dataset_url, **options)


@pytest.mark.all
@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_images_of_one_size_need_no_ops(
    colour_folder: Path, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alternatives, "measure_loader", measure_faster)
    url = f"{scheme}{tmp_path}/alike" if not scheme else "memory://doctor-alike"
    tpufeed.shard(colour_folder, url, images=tpufeed.Images(presize=32, presize_mode="fit"), workers=1)
    found = examine(url, **(SHORT | {"tpu": "v6e-8", "ops": [HorizontalFlip()]}))
    assert stages_of(found)["assembly"].images_per_second > 0
    (raw,) = (action for action in found.actions if action.do.startswith("warm a raw cache"))
    assert "--op 'Resize" in raw.do
    assert "--op 'HorizontalFlip" in raw.do


def test_neither_dataset_nor_images(tmp_path: Path, colour_folder: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DatasetNotFoundError, match=r"dataset.*images"):
            examine(str(folder), **SHORT)
    for ops in ([HorizontalFlip()], []):  # no ops are none, not the default
        with pytest.raises(OptionError, match="images of different sizes"):
            examine(str(colour_folder), **(SHORT | {"ops": ops}))


def test_an_empty_split(colour_folder: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "lopsided")
    tpufeed.shard(colour_folder, url, splits="train=0.999999,val=0.000001", workers=1)
    with pytest.raises(OptionError, match="'val' is empty"):
        examine(url, split="val")


def test_a_saved_run_that_waits_on_tracing_is_believed(cache_url: str, tmp_path: Path) -> None:
    report = StepReport(steps=50, idle_percent=1.0, tracing_percent=40.0, wall_seconds=9.0)
    saved = SavedSteps("tpufeed-steps", 1, report, StepTimes())
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(saved))
    found = examine(cache_url, seconds=1.0, batch_size=8, steps=tmp_path / "run.json")
    assert found.actions[0].do.startswith("your step waits for tracing")
    assert any(note.startswith(f"{tmp_path / 'run.json'}: ") for note in found.notes)


@pytest.mark.all
def test_a_file_that_is_no_profile(cache_url: str, tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(b"no protobuf at all" * 9)
    with pytest.raises((OptionError, DamageError)):
        examine(cache_url, profile=tmp_path)


def test_an_encoded_cache_is_measured_with_its_live_ops(dataset_url: str, tmp_path: Path) -> None:
    url = str(tmp_path / "cache")
    warmup(dataset_url, url, ops=[Resize(48), CenterCrop(40)], live=OPS, encode="jpeg", workers=1)
    found = examine(url, seconds=1.0, batch_size=8)
    assert found.fed
    assert stages_of(found)["decoding"].images_per_second > 0
