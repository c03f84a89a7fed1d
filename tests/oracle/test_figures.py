"""Figures, verdicts and proposals of what costs a known time, against a plain account; each proposed command is run."""

import re
import shlex
import shutil

import numpy as np
import pytest

import tpufeed
from tests.cli.conftest import run_here
from tests.gcs_server import GcsServer
from tests.measure.conftest import quiet_host  # noqa: F401  # a fixture
from tests.measure.test_doctor import measure_faster
from tests.oracle.figures import (
    BATCH,
    SECONDS,
    STEP,
    Feed,
    Hands,
    account_clock,
    account_emulator,
    bytes_of,
    draw_epochs,
    seconds_of,
    write_photos,
)
from tpufeed import images as ops_of
from tpufeed.cache import warmup
from tpufeed.images import CenterCrop, Custom, HorizontalFlip, RandomCrop, RandomResizedCrop, Resize
from tpufeed.measure import alternatives, naive
from tpufeed.measure.accelerator import EmulatedAccelerator, Limits
from tpufeed.measure.alternatives import try_alternatives
from tpufeed.measure.bench import BenchOptions, Measurement, measure
from tpufeed.measure.clock import StepClock
from tpufeed.measure.doctor import examine
from tpufeed.measure.feeding import DeviceChoice, feed
from tpufeed.measure.naive import measure_files
from tpufeed.measure.tpu import AcceleratorProfile
from tpufeed.processes.limits import available_cores

pytestmark = pytest.mark.usefixtures("quiet_host")
SEEDS = range(60)
SLOW = ("waits", "spins")
CROP = (Resize(64), CenterCrop(64))
WRITTEN = ("Resize(64)", "CenterCrop(64)")


def slow(name):
    return Custom(f"tests.oracle.figures:{name}")


@pytest.fixture(scope="module")
def photos(once):
    return once(write_photos, 40, (160, 120))


@pytest.fixture(scope="module")
def dataset(once, photos):
    return str(once(_shard, photos))


def _shard(folder, photos):
    tpufeed.shard(photos, folder, splits="train=0.6,val=0.4", shards=2, workers=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_clock_and_the_emulator_say_what_a_feed_costs(seed):
    epochs = draw_epochs(seed)
    hands, compute = Hands(), 0.1 + seed % 7
    clock, loader = StepClock(now=hands.now), Feed(epochs, hands)
    timed = clock(loader)
    for _ in epochs:
        for _ in timed:
            hands.sleep(compute)
    report = clock.report()
    for name, figure in account_clock(epochs, compute).items():
        found = getattr(report, name)
        assert found == (pytest.approx(figure) if isinstance(figure, float) else figure), name

    hands, expected = Hands(), account_emulator(epochs)
    device = EmulatedAccelerator(AcceleratorProfile("known", BATCH / STEP), BATCH, hands.now, hands.sleep)
    run = device.run(Feed(epochs, hands), steps=expected["steps"])
    for name in ("steps", "images", "images_per_second", "idle_percent", "au_percent"):
        assert getattr(run, name) == pytest.approx(expected[name], abs=1e-9), name
    if expected["judged"]:
        assert not run.problems
        assert re.match(rf"idle [\d.]+ %: {expected['band']} input-bound", run.verdict)
        assert ("passes" in run.verdict) == (expected["au_percent"] >= 90)
    else:
        assert run.problems
        assert not run.verdict


def test_a_drained_loader_has_the_images_that_it_gave():
    drawn = [epoch for seed in SEEDS for epoch in draw_epochs(seed) if len(epoch.batches) == 13]
    epochs = [epoch for epoch in drawn if min(images for _, images in epoch.batches) < BATCH][:3]
    sizes = [images for epoch in epochs for _, images in epoch.batches]
    run = feed(DeviceChoice("none", "none"), Feed(epochs, Hands()), BATCH, Limits(steps=len(sizes)))
    assert run.images == sum(sizes) < BATCH * len(sizes)


@pytest.mark.parametrize("name", SLOW)
def test_a_loader_counts_what_its_records_and_ops_cost(name, dataset):
    entry = tpufeed.open_dataset(dataset).split("train")
    with tpufeed.Loader(dataset, batch_size=1, ops=[*CROP, slow(name)], threads=2, prefetch=1) as loader:
        batches = [len(batch[0]) for batch in loader]
        stats = loader.stats()
    assert (stats.batches, stats.samples) == (len(batches), sum(batches)) == (entry.records, entry.records)
    framing = 16 * entry.records
    assert stats.read_bytes == sum(shard.bytes for shard in entry.variants[0].shards) - framing
    assert stats.decode_seconds >= stats.samples * SECONDS
    assert stats.wait_seconds >= 0.7 * stats.seconds  # its consumer does nothing
    assert stats.seconds >= stats.samples * SECONDS / 2


@pytest.mark.parametrize("device", ["none", "emulated"])
def test_bench_says_how_long_a_device_waits_for_an_op(device, dataset):
    most, step_seconds = 2 / SECONDS, 0.5 * BATCH * SECONDS / 2  # two threads; the device takes twice as many
    options = {"step_ms": 1e3 * step_seconds} if device == "emulated" else {}
    run = measure(
        Measurement(
            url=dataset,
            loader="numpy",
            options=BenchOptions(
                device=device,
                batch_size=BATCH,
                steps=24,
                threads=2,
                processes=0,
                ops=(*WRITTEN, "tests.oracle.figures:waits"),
                **options,
            ),
        )
    )
    assert 0.4 * most < run.images_per_second < 1.2 * most  # some batches are made before the clock starts
    if device == "emulated":
        assert 40 < run.idle_percent < 85
        assert run.au_percent == pytest.approx(100 - run.idle_percent)
        assert run.images_per_second == pytest.approx(run.au_percent / 100 * BATCH / step_seconds)


@pytest.mark.parametrize("name", SLOW)
def test_the_doctor_names_the_op_that_takes_the_time(name, dataset):
    found = examine(dataset, seconds=4.0, batch_size=BATCH, ops=[*CROP, slow(name)])
    rates = {stage.name: stage.images_per_second for stage in found.stages}
    most = available_cores() / SECONDS  # threads of this process: "quiet_host" has no others
    assert found.binding == "ops"
    assert rates["assembly"] < 1.3 * most
    assert name == "spins" or rates["assembly"] > 0.25 * most  # a busy machine gives it a part of its cores
    assert rates["ops"] < 1.1 * most
    assert rates["decoding"] > 3 * rates["ops"]
    (low, high) = found.idle_percent
    assert low == pytest.approx(100 * (1 - found.fed / found.needed[0]))
    assert high == pytest.approx(100 * (1 - found.fed / found.needed[1]))


@pytest.fixture
def only_present(monkeypatch):
    """No other ways to store the images are tried."""
    monkeypatch.setattr(naive, "try_alternatives", lambda *_, **__: ((), []))


@pytest.mark.usefixtures("only_present")
def test_raw_images_in_a_bucket_are_read_as_a_dataset_would(photos, monkeypatch):
    latency = 0.1
    with GcsServer(["bucket"], latency_ms=1e3 * latency) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for path in photos.rglob("*.jpg"):
            server.put("bucket", f"photos/{path.relative_to(photos)}", path.read_bytes())
        found = measure_files("gs://bucket/photos", CROP, BATCH, 1.0, lambda _: None)
    rates = {name: stage.images_per_second for name, stage in found.stages.items()}
    most = available_cores() / latency
    assert 0.4 * most < rates["reading"] < 1.05 * most
    assert 0.3 * most < rates["assembly"] <= rates["reading"]
    assert found.total_bytes == sum(path.stat().st_size for path in photos.rglob("*.jpg"))


@pytest.mark.usefixtures("only_present")
@pytest.mark.parametrize("name", SLOW)
def test_raw_images_have_the_time_of_the_ops(name, photos):
    found = measure_files(str(photos), [*CROP, slow(name)], BATCH, 0.5, lambda _: None)
    rates = {name: stage.images_per_second for name, stage in found.stages.items()}
    most = available_cores() / SECONDS
    assert rates["assembly"] < 1.05 * most
    assert rates["ops"] < 1.3 * most < rates["decoding"]


def test_a_cache_costs_the_time_of_its_ops(photos, tmp_path):
    images = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))]
    ops = (RandomCrop(64), slow("waits"))
    (raw, *_), notes = try_alternatives("x", images, tmp_path, 0.5, records=10, built=1000, ops=ops, batch_size=BATCH)
    assert not notes
    least = 1000 * 4 * SECONDS / available_cores()  # four variants, on all cores
    assert least <= 1.02 * seconds_of(raw.cost)
    assert seconds_of(raw.cost) <= 2 * least
    assert bytes_of(raw.cost) == pytest.approx(1000 * 4 * 64 * 64 * 3, rel=0.05)
    assert raw.total_bytes == pytest.approx(10 * 4 * 64 * 64 * 3, rel=0.05)


@pytest.fixture(scope="module")
def places(photos, dataset, tmp_path_factory):
    """What the doctor examines: url, ops, and how many actions it proposes at least."""
    folder = tmp_path_factory.mktemp("examined")
    large = write_photos(folder / "large photos", 12, (640, 480))
    tpufeed.shard(
        large,
        folder / "long",
        images=tpufeed.Images(presize=600, presize_mode="long"),
        splits="train=0.5,val=0.5",
        workers=1,
    )
    warmup(dataset, folder / "whole", ops=[Resize(72), CenterCrop(72)], workers=1)
    default = [RandomResizedCrop(64), HorizontalFlip()]
    return {
        "raw": (large, default, 4),
        "raw, resized": (large, [Resize(300), RandomCrop(200)], 4),
        "dataset": (folder / "long", default, 3),
        "dataset, resized": (folder / "long", [Resize(100), RandomCrop(64)], 3),
        "cache": (folder / "whole", default, 1),
    }


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("place", ["raw, resized", "dataset", "raw", "dataset, resized", "cache"])
def test_each_proposed_command_makes_what_it_costs(place, places, tmp_path, monkeypatch):
    monkeypatch.setattr(alternatives, "measure_loader", measure_faster)
    source, ops, least = places[place]
    url, names = shutil.copytree(source, tmp_path / "my data"), {name: getattr(ops_of, name) for name in ops_of.__all__}
    found = examine(str(url), seconds=1.0, batch_size=2, ops=ops, tpu="v6e-8")
    assert len(found.actions) >= least
    for action in found.actions:
        command = re.search(r"tpufeed (?:shard|cache) [^()]*(?:\([^()]*\)[^()]*)*", action.do)
        given = dict(re.findall(r"((?:device_)?ops)=(\[.*?\])(?= and |:|$| \()", action.do))
        options = {name: eval(text, names.copy()) for name, text in given.items()}  # Python of ours
        if command is None and not options:
            assert action.do.startswith(("a batch of", "presize to"))
            continue
        target = str(url)
        if command is not None:
            for each in command[0].rstrip(") ").split(" && "):
                _, *words = shlex.split(each)
                done = run_here(*words, "--workers", "1")
                assert done.returncode == 0, (action.do, done.stderr)
            target = words[2 + (words[0] == "cache")]
        made = tpufeed.open_dataset(target)
        if command is not None and action.cost:
            size = sum(split.total_bytes for split in made.manifest.splits.values())
            assert bytes_of(action.cost) == pytest.approx(size, rel=0.15, abs=60_000), action
            assert seconds_of(action.cost) < 60
        if made.manifest.cache is None:
            options.setdefault("ops", ops)
        side = re.search(r"--presize (\d+)", action.do)
        if side:
            needed = ops[0].size if isinstance(ops[0], Resize) else 64 * 8 // 7
            assert min(made.manifest.sizes.least) >= int(side[1]) >= needed
        with tpufeed.Loader(made, batch_size=2, **options) as loader:
            image = np.asarray(next(iter(loader))[0])
        assert image.shape[1:3] == (ops[-1].size if isinstance(ops[-1], RandomCrop) else 64,) * 2
