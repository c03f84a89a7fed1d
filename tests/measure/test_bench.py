"""The bench harness: what is measured, in which turns, and what is said of it."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.frameworks import lazy, need
from tpufeed.cache import warmup
from tpufeed.errors import DatasetNotFoundError, LoaderError, MissingExtraError, OptionError
from tpufeed.images import Resize
from tpufeed.measure import bench as bench_module
from tpufeed.measure import feeding
from tpufeed.measure.bench import BenchOptions, Measurement, bench, measure, measure_apart, middle_run
from tpufeed.measure.clock import StepClock
from tpufeed.measure.naive import NaiveLoader
from tpufeed.measure.results import BenchRun

SAMPLES, BATCH, SIDE = 62, 4, 16
DEVICE = {"device": "emulated", "step_ms": 0.5, "batch_size": BATCH, "steps": 40, "repeats": 1}
CROP = (f"RandomResizedCrop({SIDE})",)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Photographs of noise, no two alike."""
    folder = tmp_path_factory.mktemp("bench")
    rng = np.random.default_rng(0)
    for number in range(SAMPLES):
        path = folder / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).save(path)
    tpufeed.shard(folder / "photos", folder / "shards", workers=1)
    return str(folder / "shards")


@pytest.fixture(scope="module")
def whole(shards: str) -> str:
    """A raw cache of whole images."""
    warmup(shards, f"{shards}-whole", ops=[Resize((24, 24))], workers=1)
    return f"{shards}-whole"


@pytest.fixture(scope="module")
def cached(shards: str) -> str:
    warmup(shards, f"{shards}-cache", size=SIDE, variants=2, workers=1)
    return f"{shards}-cache"


def problems_of(run: BenchRun) -> list[str]:
    """But that this machine is busy."""
    return [problem for problem in run.problems if "late" not in problem]


def one(url: str, loader: str = "numpy", **options: Any) -> BenchRun:
    return measure(Measurement(url=url, loader=loader, options=BenchOptions(**{**DEVICE, **options})))


def made_run(measurement: Measurement, **figures: Any) -> BenchRun:
    return BenchRun(
        label=measurement.loader,
        url=measurement.url,
        loader=measurement.loader,
        source="cache",
        device=measurement.options.choice.label,
        batch_size=BATCH,
        steps=30,
        images=120,
        **figures,
    )


def test_an_honest_loader_on_an_emulated_device(cached: str) -> None:
    run = one(cached)
    assert (run.device, run.source, run.batch_size, run.steps) == ("EMULATED 0.5ms-step", "cache", BATCH, 40)
    assert problems_of(run) == []
    assert run.images == 160
    assert run.first_batch_seconds is not None
    assert run.idle_percent is not None
    assert run.au_percent == pytest.approx(100 - run.idle_percent)
    timeline = run.timeline
    assert len(timeline.wait_seconds) == len(timeline.ready) == 40
    assert timeline.wait_seconds[0] == run.first_batch_seconds
    assert timeline.compute_seconds == (0.0005,) * 40


@pytest.mark.parametrize("loader", ["numpy", "naive"])
@pytest.mark.parametrize("place", ["shards", "cached"])
def test_drained_loaders_have_no_figures_of_a_step(place: str, loader: str, request: pytest.FixtureRequest) -> None:
    ops = CROP if (place, loader) == ("shards", "numpy") else None
    run = one(request.getfixturevalue(place), loader, device="none", step_ms=None, ops=ops)
    assert (run.device, run.problems) == ("none", ())
    assert run.images_per_second is not None
    assert (run.step_ms, run.idle_percent, run.au_percent, run.verdict) == (None, None, None, "")
    assert (len(run.timeline.wait_seconds), run.timeline.compute_seconds) == (40, ())


@pytest.mark.all
def test_device_ops_are_left_to_a_device_that_takes_no_time(whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[Any] = []

    def feed(choice: Any, loader: Any, *rest: Any) -> BenchRun:
        fed.append(next(iter(loader)))
        return feeding.feed(choice, loader, *rest)

    monkeypatch.setattr(bench_module, "feed", feed)
    given = {"device_ops": (*CROP, "HorizontalFlip"), "batch_size": 8}  # JAX has 8 devices here
    run = one(whole, **given)
    assert (run.label, run.steps, problems_of(run)) == (f"{whole}, numpy, device ops", 40, [])
    images, *_ = fed[0].values()
    assert images.shape == (8, 24, 24, 3)
    need("jax")
    assert problems_of(one(whole, "jax", device="jax-cpu", step_ms=None, **given)) == []
    assert not isinstance(fed[1][0], np.ndarray)
    one(whole, device="jax-cpu", step_ms=None, **given)  # numpy runs them on the host
    assert [images.shape for images, _ in fed[1:]] == [(8, SIDE, SIDE, 3)] * 2


def test_the_naive_loader_is_what_people_write(shards: str, cached: str) -> None:
    loader = NaiveLoader(tpufeed.open_dataset(shards), "train", BATCH)
    epochs = [list(loader), list(loader)]
    assert len(loader) == len(epochs[0]) == len(epochs[1]) == SAMPLES // BATCH
    images, labels = epochs[0][0]
    assert (images.shape, images.dtype, labels.dtype) == ((BATCH, 224, 224, 3), np.uint8, np.int64)
    assert (images != epochs[1][0][0]).any()
    assert (labels == epochs[1][0][1]).all()
    dataset = tpufeed.open_dataset(cached)
    raw = NaiveLoader(dataset, "train", BATCH)
    for variant in (0, 1, 0):
        first, _ = next(iter(raw))
        stored = next(dataset.iter_examples("train", variant))["image/tensor"].values[0]
        assert first[0].tobytes() == bytes(stored)


def test_an_emulated_tpu_has_an_mfu_and_other_models(cached: str) -> None:
    assert BenchOptions(tpu="v5e-8").choice.label == "EMULATED tpu-v5e-8"
    resnet = one(cached, device="emulated:tpu-v2-8-low", step_ms=None, model="resnet50", steps=3)
    assert resnet.step_ms == pytest.approx(1e3 * BATCH / 1500)
    assert resnet.mfu_percent is not None
    assert resnet.mfu_percent <= 20.6
    heavier = BenchOptions(device="emulated:tpu-v2-8", model="resnet152").choice
    assert heavier.profile is not None
    assert heavier.profile.images_per_second == pytest.approx(2744 * 4.1 / 11.514)
    assert heavier.label == "EMULATED tpu-v2-8 resnet152"


def test_measurements_take_turns_after_the_warm_up(cached: str, shards: str) -> None:
    asked: list[tuple[str, str]] = []
    told: list[str] = []

    def measure(measurement: Measurement) -> BenchRun:
        asked.append((measurement.url, measurement.loader))
        warm_up = len(asked) <= 4  # which is short
        assert measurement.options.limits == ((None, 2.0, 0.0) if warm_up else (None, 30.0, 60.0))
        return made_run(measurement, images_per_second=float(len(asked)))

    options = BenchOptions(repeats=2, batch_size=BATCH, seconds=30.0)
    result = bench([cached, shards], ["numpy", "naive"], options, measure, told.append)
    round_ = [(url, loader) for url in (cached, shards) for loader in ("numpy", "naive")]
    assert asked == round_ * 3
    assert told[0] == f"EMULATED tpu-v3-8 from {cached} by numpy (warm-up)"
    assert told[4] == f"EMULATED tpu-v3-8 from {cached} by numpy"
    assert sum("(warm-up)" in line for line in told) == 4
    assert [(run.url, run.loader) for run in result.runs] == round_
    assert result.runs[0].rates is not None
    assert result.runs[0].rates.values == (5.0, 9.0)  # the warm-up's rate was 1
    assert [place["url"] for place in result.places] == [cached, shards]
    assert msgspec.json.decode(msgspec.json.encode(result), type=dict)["machine"]["cores"] >= 1


def test_the_middle_run_has_the_spread_of_all_and_what_is_wrong_with_any() -> None:
    base = made_run(Measurement(url="u", loader="numpy", options=BenchOptions()), verdict="good")
    runs = [dataclasses.replace(base, images_per_second=rate, steps=int(rate)) for rate in (30.0, 10.0, 20.0)]
    middle = middle_run(runs)
    assert (middle.steps, middle.verdict) == (20, "good")
    assert middle.rates is not None
    assert (middle.rates.median, middle.rates.lowest, middle.rates.highest) == (20, 10, 30)
    runs[0] = dataclasses.replace(runs[0], problems=("it repeats",), verdict="")
    assert middle_run(runs).problems == ("in 1 of 3 repeats: it repeats",)
    assert middle_run(runs).verdict == ""
    unknown = dataclasses.replace(base, images_per_second=None)
    assert middle_run([unknown]).rates is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "emulated:tpu-v3"}, "did you mean tpu-v3-8"),
        ({"device": "emulated"}, "--step-ms 40 --batch 256"),
        ({"device": "xla-gpu"}, "no device 'xla-gpu'; did you mean xla-"),
        ({"device": "none", "step_ms": 3.0}, "step_ms is for the device 'emulated'"),
        ({"tpu": "v9"}, "there is no TPU 'v9'; did you mean"),
        ({"tpu": "v3-8", "device": "none"}, "give only one"),
        ({"model": "resnet-5"}, "there is no model 'resnet-5'; did you mean resnet50"),
        ({"model": "resnet50", "device": "emulated:mlperf-h100"}, "mlperf-h100"),
        ({"model": "resnet50", "device": "none"}, "for emulated TPUs"),
        ({"steps": 1}, "steps is a whole number, at least 2"),
        ({"seconds": 0}, "seconds is a number above 0"),
        ({"seconds": float("inf")}, "at most 86,400, not inf"),
        ({"repeats": 0}, "repeats is a whole number"),
        ({"batch_size": 0}, "batch_size is a whole number"),
        ({"step_ms": -3.0}, "step_ms is a number above 0"),
        ({"ops": ("Blur(3)",)}, "op 'Blur"),
        ({"device_ops": ("Blur(3)",)}, "op 'Blur"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        BenchOptions(**options)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("loaders", "options", "said"),
    [
        (["nunpy"], {}, "there is no loader 'nunpy'; did you mean numpy"),
        ([], {}, "no loader is given"),
        (["xla"], {}, "give --device xla-cpu or xla-tpu"),
        (["jax"], {"device": "xla-cpu"}, "give --device jax-cpu or jax-tpu"),
        (["naive"], {"ops": CROP}, "leave out the ops"),
        (["naive"], {"device_ops": CROP}, "leave out the ops"),
        (["numpy"], {"batch_size": 63}, "has 62 samples, fewer than a batch of 63"),
        (["numpy"], {"split": "val"}, "has no split 'val'. It has train"),
    ],
)
def test_nothing_is_measured_where_something_cannot_be(
    cached: str, loaders: list[str], options: dict[str, Any], said: str
) -> None:
    def never(measurement: Measurement) -> BenchRun:
        raise AssertionError("measured")

    with pytest.raises(OptionError) as raised:
        bench([cached], ["numpy", *loaders] if loaders else [], BenchOptions(**{"batch_size": 4, **options}), never)
    assert said in str(raised.value)
    with pytest.raises(OptionError, match="dataset"):
        bench([])


def test_a_framework_that_is_not_installed_is_named(cached: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"\[tf\]"):
        bench([cached], ["numpy", "tf"], BenchOptions(batch_size=4))
    with pytest.raises(MissingExtraError, match=r"\[jax\]"):
        bench([cached], ["numpy"], BenchOptions(batch_size=4, device="jax-tpu"))


def test_a_device_that_is_not_there_says_what_to_do_instead(cached: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_tpu(platform: str) -> list[Any]:
        raise RuntimeError("Unable to initialize backend 'tpu'")

    monkeypatch.setattr(lazy("jax"), "devices", no_tpu)
    with pytest.raises(OptionError, match=r"'tpu'.*emulated:tpu-v3-8 .*jax-cpu"):
        one(cached, device="jax-tpu", step_ms=None)


def apart(url: str, loader: str = "numpy", **options: Any) -> BenchRun:
    return measure_apart(Measurement(url=url, loader=loader, options=BenchOptions(**{**DEVICE, **options})))


@pytest.mark.parametrize(
    ("run", "device"),
    [
        pytest.param(one, "jax-cpu", marks=pytest.mark.uses("jax")),
        pytest.param(apart, "xla-cpu", marks=[pytest.mark.uses("torch_xla"), pytest.mark.long, pytest.mark.all]),
    ],
)
def test_real_steps_train_on_images_without_labels(run: Any, device: str, shards: str, tmp_path: Path) -> None:
    shutil.copytree(Path(shards).parent / "photos/cat", tmp_path / "photos")
    shutil.copytree(Path(shards).parent / "photos/dog", tmp_path / "photos/dog")
    for name, options in {"none": {"label": "none"}, "few": {"unlabelled": "keep"}}.items():
        url = tpufeed.shard(tmp_path / "photos", tmp_path / name, workers=1, **options).url
        assert run(url, ops=CROP, device=device, step_ms=None, batch_size=8, steps=3).steps == 3


def test_real_steps_and_the_naive_loader_take_8_bit_rgb_alone(tmp_path: Path) -> None:
    for number in range(BATCH):
        Image.fromarray(np.full((SIDE, SIDE), number, np.uint16)).save(tmp_path / f"{number}.png")
    tpufeed.shard(tmp_path, tmp_path / "kept", images=tpufeed.Images(pixels="keep"), workers=1)
    for options in ({"device": "jax-cpu", "step_ms": None}, {"loader": "naive"}):
        with pytest.raises(OptionError, match="8-bit RGB"):
            one(str(tmp_path / "kept"), **options)


@pytest.mark.all
def test_another_process_gives_the_run_and_the_error(cached: str, tmp_path: Path) -> None:
    run = apart(cached, steps=25)
    assert run.steps == 25
    assert len(run.timeline.ready) == 25
    with pytest.raises(DatasetNotFoundError, match="holds no dataset"):
        apart(str(tmp_path))


@pytest.mark.all
def test_a_process_that_dies_is_an_error_and_leaves_nothing(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying.py").write_text(
        "import os, pathlib\n"
        "def op(image, rng):\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "    os.write(2, b'killed by a test\\n')\n"
        "    os._exit(3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(LoaderError, match="exit code 3: killed by a test"):
        apart(shards, ops=(*CROP, "dying:op"), processes=0, threads=1)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


@pytest.mark.all
@pytest.mark.parametrize(
    ("loader", "device", "module"),
    [("jax", "jax-cpu", "jax"), pytest.param("xla", "xla-cpu", "torch_xla", marks=pytest.mark.long)],
)
def test_a_real_step_is_fed_in_a_process_of_its_own(
    cached: str, loader: str, device: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bench_module.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # with eight devices of JAX a batch of 4 is too small
    run = apart(cached, loader, device=device, step_ms=None, steps=22)
    assert (run.device, run.steps, run.problems) == (device, 22, ())
    assert run.verdict
    assert run.compile_seconds is not None
    assert run.compile_seconds > 0
    assert run.idle_percent is not None
    assert run.au_percent is None


def test_few_steps_or_few_batches_have_no_verdict(cached: str) -> None:
    for device in ({}, {"device": "none", "step_ms": None}):
        run = one(cached, **device, steps=10)
        assert "9 steps were measured" in run.problems[0]
    run = one(cached, batch_size=25)
    assert problems_of(run)[0].startswith("an epoch has 2 batches of 25")
    assert run.verdict == ""


def test_a_real_device_s_compiling_first_batch_and_steady_state_are_told_apart(
    cached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    taken = []

    def step(batch: Any) -> None:
        nonlocal seconds
        assert batch[0].shape == (BATCH, SIDE, SIDE, 3)
        seconds += 1.0 if taken else 30.0
        taken.append(len(batch[0]))

    monkeypatch.setattr(feeding, "open_step", lambda _: step)
    monkeypatch.setattr(feeding, "StepClock", lambda: StepClock(now=lambda: seconds))
    monkeypatch.setattr(bench_module, "find_spec", lambda name: name)
    run = one(cached, device="jax-cpu", step_ms=None, steps=25)
    assert (run.device, run.steps, len(taken)) == ("jax-cpu", 25, 25)
    assert (run.wall_seconds, run.step_ms, run.idle_percent) == (pytest.approx(24), pytest.approx(1000), 0)
    assert run.timeline.compute_seconds[0] == pytest.approx(30)
    assert run.mxu_percent is None
    assert run.verdict.startswith("fed: 0.0 %")

    real = NaiveLoader.__iter__  # one that ends early
    monkeypatch.setattr(
        NaiveLoader, "__iter__", lambda self: (batch for _, batch in zip(range(9), real(self), strict=False))
    )
    run = one(cached, "naive", device="jax-cpu", step_ms=None, steps=30)
    assert run.problems == ("the loader ended early: epoch 1 had 9 batches of 15; 3 short epochs in all",)
    assert run.verdict == ""
