"""The doctor on small datasets: what it measures is real, and short."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tpufeed
from tpufeed.cache import warmup
from tpufeed.diagnosis import samples
from tpufeed.diagnosis.advice import Provenance
from tpufeed.diagnosis.doctor import DoctorOptions, examine, find_goal
from tpufeed.diagnosis.rawfiles import measure_plainly, read_files
from tpufeed.diagnosis.samples import (
    Sample,
    Scenario,
    restore,
    take_sample,
    try_storages,
    try_workers,
    warm,
    write_sample,
)
from tpufeed.diagnosis.stages import measure
from tpufeed.diagnosis.stages.measure import read_rate
from tpufeed.diagnosis.stages.probing import Order, Prober, Probes, Subject
from tpufeed.engines.engine import available_cores
from tpufeed.errors import DamageError, DatasetNotFoundError, LoaderError, OptionError
from tpufeed.images.flips import HorizontalFlip
from tpufeed.images.ops import Custom
from tpufeed.images.policy import ImagePolicy
from tpufeed.images.windows import CenterCrop, RandomResizedCrop, Resize
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.workers import Workers
from tpufeed.profiling.clock import StepReport, StepTimes, save_steps
from tpufeed.storage.staging.folder import RemoteShard, copy_key, find_folder

OPS = [RandomResizedCrop(32), HorizontalFlip()]
SHORT = DoctorOptions(seconds=1.0, ops=OPS, batch_size=8)
STAGES = ["storage", "reading", "decoding", "ops", "assembly", "transfer"]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From whatever TPU there is, and from the memory that others use."""
    monkeypatch.setattr(samples, "MEMORY", tmp_path)
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
    monkeypatch.setattr(measure, "_DEVICES", ("/nonexistent/accel*",))


def stages_of(diagnosis) -> dict:
    assert [stage.name for stage in diagnosis.stages] == STAGES
    return {stage.name: stage for stage in diagnosis.stages}


def test_every_stage_of_a_dataset_is_measured(dataset_url: str, tmp_path: Path) -> None:
    said: list[str] = []
    found = examine(dataset_url, SHORT, said.append)
    stages = stages_of(found)
    for name in ("reading", "decoding", "assembly"):
        assert stages[name].images_per_second > 0, stages[name].why_not
    assert stages["transfer"].images_per_second is None
    assert "there is no TPU on this host" in stages["transfer"].why_not
    assert found.fed == stages["assembly"].images_per_second
    assert found.idle_percent is not None
    assert "no TPU was named or found: v3-8 is assumed (--tpu)" in found.notes
    assert {"storage", "assembly", "other ways of storing the images"} <= set(said)
    assert json.loads(msgspec.json.encode(found))["split"] == "train"
    assert not list(tmp_path.iterdir())


def test_a_raw_cache_has_nothing_to_decode(cache_url: str) -> None:
    stages = stages_of(examine(cache_url, DoctorOptions(seconds=1.0, batch_size=8)))
    assert stages["reading"].images_per_second > 0
    assert stages["decoding"].why_not == "raw pixels need none"
    assert stages["ops"].why_not == "there are none"
    assert stages["assembly"].images_per_second > 0


def test_fewer_samples_than_a_batch_are_measured_and_said(dataset_url: str) -> None:
    found = examine(dataset_url, DoctorOptions(seconds=1.0, ops=OPS, split="val"))
    assert found.fed
    assert any("fewer than a batch of 128" in note for note in found.notes)


@pytest.fixture(scope="module")
def memory_url(colour_folder: Path) -> str:
    tpufeed.shard(colour_folder, "memory://doctor", shard_bytes="3KB", workers=1)
    return "memory://doctor"


def test_a_remote_dataset_is_measured_as_it_is_staged(memory_url: str) -> None:
    found = examine(memory_url, SHORT)
    stages = stages_of(found)
    assert "over 16 connections" in stages["storage"].detail
    assert "from staged copies" in stages["assembly"].detail
    assert found.fed <= min(stages["storage"].images_per_second, stages["assembly"].images_per_second) * 1.001


def test_a_stage_that_is_too_small_is_advised_to_grow(memory_url: str, tmp_path: Path) -> None:
    options = replace(SHORT, stage_bytes=1, stage_dir=tmp_path / "stage", tpu="v6e-8")
    found = examine(memory_url, options)
    (said,) = [action.do for action in found.actions if action.do.startswith("stage all of it: stage_bytes=")]
    assert f" fits {tmp_path}/stage" in said


def test_what_is_staged_is_read_from_there(memory_url: str, tmp_path: Path) -> None:
    store = tpufeed.open_dataset(memory_url).shards
    shards = tpufeed.open_dataset(memory_url).split("train").variants[0].shards
    folder = find_folder(tmp_path / "stage")
    for shard in shards:
        key = copy_key(store.url, RemoteShard(shard.name, shard.bytes, shard.crc32c))
        (folder / f"{key}.shard").write_bytes(store.read_range(shard.name, 0, shard.bytes))
    found = examine(memory_url, replace(SHORT, stage_dir=tmp_path / "stage"))
    said = f"{len(shards)} of {len(shards)} shards staged in {folder}, "
    assert stages_of(found)["storage"].detail.startswith(said)


def test_what_is_not_staged_is_read_in_turn(memory_url: str) -> None:
    found = examine(memory_url, DoctorOptions(seconds=1.0, ops=OPS, batch_size=8, stage_bytes=0, threads=2))
    stages = stages_of(found)
    assert "by ranges in 2 threads, as nothing is staged" in stages["storage"].detail
    assert found.fed == stages["assembly"].images_per_second


def test_raw_images_are_measured_and_sharding_is_advised(colour_folder: Path) -> None:
    found = examine(str(colour_folder), SHORT)
    stages = stages_of(found)
    assert stages["reading"].images_per_second > 0
    assert "Pillow" in stages["decoding"].detail
    assert any("there is no dataset here yet, but images: 40" in note for note in found.notes)
    assert found.fed == stages["assembly"].images_per_second
    assert "there is no TPU on this host" in stages["transfer"].why_not


def test_a_table_s_columns_are_said_where_the_doctor_was_not_told(colour_folder: Path, tmp_path: Path) -> None:
    paths = sorted(colour_folder.glob("red/*"))
    (tmp_path / "t.csv").write_text("\n".join(["path,kind,subset", *(f"{path},red,val" for path in paths)]))
    found = examine(str(tmp_path / "t.csv"), SHORT)
    (said,) = [note for note in found.notes if "--label COLUMN" in note]
    assert "add --split-by COLUMN" in said
    assert said.endswith("; its other columns: kind, subset")
    assert not [note for note in read_files(str(colour_folder), 0.1).notes if "COLUMN" in note]


def test_a_damaged_record_is_said_and_the_doctor_goes_on(copy: Path) -> None:
    shard = sorted(copy.glob("train-*.tfrecord"))[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    found = examine(str(copy), SHORT)
    assert any("records looked at is damaged" in note and "tpufeed verify" in note for note in found.notes)
    assert found.fed, stages_of(found)["assembly"].why_not


def test_where_nothing_can_be_read_there_is_no_prediction(copy: Path, tmp_path: Path) -> None:
    for shard in copy.glob("train-*.tfrecord"):
        shard.write_bytes(bytes(byte ^ 1 for byte in shard.read_bytes()))
    assert examine(str(copy), SHORT).verdict == "no prediction: none of the records that were looked at can be read"
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    found = examine(str(tmp_path / "raw"), SHORT)
    assert found.verdict == "no prediction: none of the files can be read"
    assert any("gone.jpg" in note for note in found.notes)


def test_an_op_that_fails_leaves_no_prediction(dataset_url: str) -> None:
    ops = [*OPS, Custom("tests.diagnosis.test_doctor:fail")]
    found = examine(dataset_url, DoctorOptions(seconds=1.0, ops=ops, batch_size=8))
    assert found.verdict.startswith("no prediction: ")
    stages = stages_of(found)
    assert stages["assembly"].images_per_second is None
    assert "out of ideas" in stages["assembly"].why_not
    assert stages["storage"].images_per_second > 0


def fail(image, rng):
    raise ValueError("out of ideas")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"split": "test"}, OptionError, "has no split 'test'; it has"),
        ({"tpu": "v5e8"}, OptionError, "did you mean v5e-8"),
        ({"model": "resnet5"}, OptionError, "did you mean resnet50"),
        ({"ops": [HorizontalFlip()]}, OptionError, "differ in size"),
        ({"steps": Path("/nowhere/steps.json")}, OptionError, "cannot be read"),
        ({"profile": Path("/nowhere/logs")}, OptionError, "no folder /nowhere/logs"),
    ],
)
def test_what_cannot_be_asked(dataset_url: str, options: dict, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        examine(dataset_url, DoctorOptions(**options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seconds": 0.0}, "seconds are between 1 and 600"),
        ({"model": "resnet50", "flops_per_sample": 1e9}, "not both"),
        ({"batch_size": 0}, "batch_size is a whole number, at least 1"),
        ({"threads": 0}, "threads is a whole number"),
        ({"stage_bytes": "many"}, "many"),
    ],
)
def test_options_that_cannot_be(options: dict, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        DoctorOptions(**options)


def test_neither_dataset_nor_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(DatasetNotFoundError, match=r"neither a dataset.*nor images"):
        examine(str(tmp_path), SHORT)
    with pytest.raises(DatasetNotFoundError, match=r"neither a dataset.*nor images"):
        examine(str(tmp_path / "missing"), SHORT)


def test_an_empty_split(colour_folder: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "lopsided")
    tpufeed.shard(colour_folder, url, split="train=0.999999,val=0.000001", workers=1)
    with pytest.raises(OptionError, match="split 'val' is empty, so there is nothing to measure"):
        examine(url, DoctorOptions(split="val"))


def test_a_saved_run_that_waits_on_tracing_is_believed(cache_url: str, tmp_path: Path) -> None:
    report = StepReport(steps=50, idle_percent=1.0, tracing_percent=40.0, wall_seconds=9.0)
    save_steps(tmp_path / "run.json", report, StepTimes())
    found = examine(cache_url, DoctorOptions(seconds=1.0, batch_size=8, steps=tmp_path / "run.json"))
    assert found.actions[0].do.startswith("your step waits on tracing, not on data")
    assert any(note.startswith(f"{tmp_path / 'run.json'}: ") for note in found.notes)


def test_a_file_that_is_no_profile(cache_url: str, tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(b"no protobuf at all" * 9)
    with pytest.raises((OptionError, DamageError)):
        examine(cache_url, DoctorOptions(profile=tmp_path))


def test_what_is_to_be_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    goal, notes = find_goal(DoctorOptions(tpu="tpu-v5e-8"))
    assert (goal.tpu, goal.model, goal.needed, goal.devices) == ("v5e-8", "resnet50", (13_133, 24_024), 8)
    assert notes == ()
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    goal, notes = find_goal(DoctorOptions(model="ResNet-152"))
    assert (goal.tpu, goal.model, goal.devices) == ("v5e-4", "resnet152", 4)
    assert goal.needed[1] == pytest.approx(4 * 197e12 * 0.375 / (11.514e9 * 6))
    assert notes == ("v5e-4 is the TPU of this host",)
    goal, _ = find_goal(DoctorOptions(flops_per_sample=1e9))
    assert goal.model == "1 GFLOPs a sample"


def test_a_sample_dataset_holds_the_samples(dataset_url: str, tmp_path: Path) -> None:
    sample = take_sample(tpufeed.open_dataset(dataset_url), "train", 10.0, count=12)
    assert len(set(sample.images)) == 12
    made = tpufeed.open_dataset(write_sample(tmp_path / "sample", sample))
    assert set(take_sample(made, "train", 10.0, count=10**6).images) == set(sample.images)


def test_a_raw_sample_holds_the_pixels(dataset_url: str, tmp_path: Path) -> None:
    sample = take_sample(tpufeed.open_dataset(dataset_url), "train", 10.0, count=6)
    pixels = warm(sample, [CenterCrop(32)], 10.0)
    url = write_sample(tmp_path / "raw", pixels, (32, 32, 3))
    with tpufeed.numpy_loader(url, batch_size=2, shuffle=False, threads=1) as loader:
        images = {image.tobytes() for batch in loader for image in batch}
    assert images == set(pixels.images)


def test_a_presized_sample_is_smaller(photos: dict[str, bytes]) -> None:
    sample = Sample([photos["china.jpg"], photos["rocket.jpg"], b"no image"])
    made = restore(sample, ImagePolicy(presize_px=64, quality=90), 10.0)
    assert len(made.images) == 2
    assert made.image_bytes < sample.image_bytes / 4


def test_parts_run_in_worker_processes(dataset_url: str) -> None:
    subject = Subject(dataset_url, "train", LoaderOptions(ops=OPS))
    with Probes(subject, Workers(2, 1)) as probes:
        processes = [child.process for child in probes._children]
        assert probes.measure("all", 0.02) > 0
        assert probes.measure_one("decoding", 0.02) > 0
        assert all(process.poll() is None for process in processes)
    assert all(process.returncode is not None for process in processes)


def test_a_worker_process_that_dies_is_an_error(dataset_url: str) -> None:
    with Probes(Subject(dataset_url, "train", LoaderOptions(ops=OPS)), Workers(1, 1)) as probes:
        process = probes._children[0].process
        process.kill()
        process.wait()
        with pytest.raises(LoaderError, match="a worker process of the doctor died"):
            probes.measure("reading", 0.02)


def test_what_a_worker_process_fails_with_is_said(dataset_url: str) -> None:
    options = LoaderOptions(ops=[*OPS, Custom("tests.diagnosis.test_doctor:fail")])
    with pytest.raises(LoaderError, match="out of ideas"):
        Probes(Subject(dataset_url, "train", options), Workers(1, 1))


def test_all_threads_are_counted(dataset_url: str) -> None:
    prober = Prober(Subject(dataset_url, "train", LoaderOptions(ops=OPS)))
    calls: list[int] = []

    def work(start: int, memory, buffer) -> int:
        calls.append(start)
        return 16

    prober._all = work  # type: ignore[method-assign]
    assert prober.measure(Order("all", 3, 0.01)) > 0
    assert len(set(calls)) > 1  # over all of the sample, not the same block again


def test_bytes_a_second_are_counted_until_there_are_no_more() -> None:
    read: list[int] = []

    def take(piece: int) -> int:
        read.append(piece)
        return 1000

    assert read_rate(range(50), take, 4, 60.0) > 0
    assert sorted(read) == list(range(50))
    assert read_rate([], take, 2, 60.0) == 0


@pytest.mark.parametrize(
    ("rates", "detail", "kind"),
    [
        ((1e9, 5e9), "disk, 1 GB/s; from the page cache 5 GB/s", "disk"),
        ((4e9, 5e9), "page cache, 4 GB/s", "memory"),
    ],
)
def test_files_that_come_faster_when_they_are_read_again_come_from_a_disk(
    rates: tuple[float, float], detail: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shard").write_bytes(bytes(1000))
    monkeypatch.setattr(measure, "is_in_memory", lambda _: False)
    left = iter(rates)
    monkeypatch.setattr(measure, "read_rate", lambda pieces, read, *_: [read(one) for one in pieces] and next(left))
    found = measure._measure_local([tmp_path / "shard"], 1.0)
    assert (found.detail, found.bytes_per_second, found.kind) == (detail, rates[0], kind)


def test_transfers_are_counted_without_the_first() -> None:
    times = iter([0.0, 0.5, 1.0, 1.5, 2.0])
    calls: list[int] = []
    assert measure.repeat(lambda: calls.append(1), 2.0, lambda: next(times)) == pytest.approx(2.0)
    assert len(calls) == 5


def test_transfers_go_to_every_device() -> None:
    jax = pytest.importorskip("jax")
    batch = np.zeros((16, 8, 8, 3), np.uint8)
    assert measure.repeat(measure.put_by_jax(batch, jax.devices("cpu")[:2]), 0.01) > 0


def test_a_tpu_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(measure, "_DEVICES", (f"{tmp_path}/accel*",))
    monkeypatch.setattr(measure.importlib.util, "find_spec", lambda name: None if name == "torch_xla" else object())
    found = measure.measure_transfer((8, 8, 3), 4, 0.01)
    assert found.images_per_second is None
    assert "the TPU does not answer" in found.why_not
    monkeypatch.setattr(measure.importlib.util, "find_spec", lambda _: None)
    assert "neither torch_xla nor jax" in measure.measure_transfer((8, 8, 3), 4, 0.01).why_not


def scenario_of(url: str, folder: Path, **options) -> Scenario:
    dataset = tpufeed.open_dataset(url)
    return Scenario(
        url=url,
        source="encoded",
        provenance=Provenance("photos/"),
        records=1_000_000,
        sample=take_sample(dataset, "train", 10.0, count=16),
        options=LoaderOptions(ops=OPS, batch_size=8, **options),
        ops=tuple(OPS),
        size=(32, 32),
        folder=folder,
        seconds=0.02,
    )


def test_threads_that_are_left_out_are_tried(dataset_url: str, tmp_path: Path) -> None:
    cores = available_cores()
    scenario = scenario_of(dataset_url, tmp_path, threads=cores + 1, processes=0)
    found = try_workers(scenario, tpufeed.open_dataset(dataset_url), "train", Workers(0, cores + 1), 0.0)
    assert found is not None
    assert found.do.startswith("use ")
    assert found.do.endswith(": leave out --processes and --threads")
    assert found.images_per_second > 0


@pytest.mark.parametrize(
    ("now", "assembly", "do"),
    [
        (Workers(2, 1), 0.2, "use 2 threads of the training process itself: --processes 0 --threads 2"),
        (Workers(2, 1), 0.19, None),  # handing over takes too little to be saved
        (Workers(1, 1), 0.9, None),
        (Workers(0, 2), 0.9, None),
    ],
)
def test_threads_of_this_process_are_tried_where_handing_over_takes_long(
    now: Workers, assembly: float, do: str | None, dataset_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "plan_workers", lambda *_: now)
    scenario = scenario_of(dataset_url, tmp_path)
    found = try_workers(scenario, tpufeed.open_dataset(dataset_url), "train", now, assembly)
    assert (found and found.do) == do


def test_a_raw_cache_is_tried_with_its_bytes_and_its_command(dataset_url: str, tmp_path: Path) -> None:
    found = {one.kind: one for one in try_storages(scenario_of(dataset_url, tmp_path))}
    assert list(found) == ["raw"]  # images of 60 pixels are not presized
    raw = found["raw"]
    assert raw.record_bytes == 32 * 32 * 3 + 400
    assert raw.cost.startswith("13.9 GB for 4 variants, about ")
    assert raw.do == f"warm a raw cache: tpufeed cache warmup {dataset_url} CACHE --size 32 --variants 4"


def test_commands_can_be_pasted_into_a_shell(dataset_url: str, tmp_path: Path) -> None:
    scenario = replace(scenario_of(dataset_url, tmp_path), url="my flowers", ops=(CenterCrop(32),))
    (raw,) = try_storages(scenario)
    assert not isinstance(raw, str), raw
    assert shlex.split(raw.do.partition(": ")[2])[3:7] == ["my flowers", "CACHE", "--op", repr(CenterCrop(32))]


def test_photographs_are_presized_as_sharding_does(photos: dict[str, bytes], tmp_path: Path, dataset_url: str) -> None:
    large = photos["china.jpg"], photos["flower.jpg"]
    scenario = replace(scenario_of(dataset_url, tmp_path), sample=Sample([*large] * 4))
    presized = next(one for one in try_storages(scenario) if not isinstance(one, str))
    assert presized.do == "presize to 37: tpufeed shard photos/ DATASET-37 --presize 37"
    assert presized.record_bytes < len(min(large, key=len)) / 10


def test_an_encoded_cache_is_tried_raw_with_its_live_ops(dataset_url: str, tmp_path: Path) -> None:
    url = str(tmp_path / "cache")
    warmup(dataset_url, url, ops=[Resize(48), CenterCrop(40)], final=OPS, encode="jpeg", workers=1)
    found = examine(url, DoctorOptions(seconds=1.0, batch_size=8))
    assert found.fed
    assert not [note for note in found.notes if "could not be tried" in note]
    scenario = replace(scenario_of(url, tmp_path / "samples"), source="other", cached=(40, 40, 3))
    (raw,) = try_storages(scenario)
    assert not isinstance(raw, str), raw
    assert "--encode raw" in raw.do
    assert raw.record_bytes == 40 * 40 * 3 + 400


def test_what_cannot_be_tried_is_said(dataset_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    scenario = replace(scenario_of(dataset_url, tmp_path), folder=tmp_path / "file", source="files")
    tried = list(try_storages(scenario))
    assert len(tried) == 2
    assert all(isinstance(one, str) and "could not be tried" in one and "Not a directory" in one for one in tried)


def test_files_that_no_build_takes_are_no_way(dataset_url: str, tmp_path: Path) -> None:
    scenario = replace(scenario_of(dataset_url, tmp_path), sample=Sample([b"no image", b"none either"]), source="files")
    assert list(try_storages(scenario)) == []


def test_plain_python_is_measured_over_what_it_can_decode(photos: dict[str, bytes]) -> None:
    sample = Sample([b"no image", photos["china.jpg"]])
    assert measure_plainly(sample, 32, 1, 0.05) > 0
    assert measure_plainly(Sample([b"no image"]), 32, 1, 0.01) == 0


def test_files_that_cannot_be_read_are_named(tmp_path: Path, photos: dict[str, bytes]) -> None:
    (tmp_path / "good.jpg").write_bytes(photos["rocket.jpg"])
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere")
    found = read_files(str(tmp_path), 10.0)
    assert found.count == 2
    assert len(found.sample.images) == 1
    assert any(
        "1 of those looked at cannot be read, the first: " in note and "gone.jpg" in note for note in found.notes
    )
