"""From made-up measurements to a diagnosis and advice."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.errors import OptionError
from tpufeed.measure.prediction import (
    ASSEMBLY,
    DECODING,
    OPS,
    READING,
    TRANSFER,
    Alternative,
    Evidence,
    Goal,
    Measurements,
    Storage,
    detect_tpu,
    find_goal,
    needed_rates,
    predict,
    predict_band,
)
from tpufeed.measure.results import Diagnosis, Stage
from tpufeed.measure.tpu import TPUS, find_tpu

GOAL = Goal("v3-8", "resnet50", (4100.0, 7500.0), 8)
MEMORY = Storage(bytes_per_second=5e9, room=1e12, detail="page cache")
BUCKET = Storage(bytes_per_second=90e6, room=20e9, detail="90 MB/s")
TOTAL = 90e9
STAGES = {
    READING: Stage(name=READING, images_per_second=50_000, detail="CRCs verified"),
    DECODING: Stage(name=DECODING, images_per_second=2000),
    OPS: Stage(name=OPS, images_per_second=12_000),
    TRANSFER: Stage(name=TRANSFER, why_not="there is no TPU on this host"),
}

rates = st.floats(1e-3, 1e7)


def measurements(
    loader: float | None = 1500, transfer: float | None = None, why_not: str = "", reading: float = 50_000, **others
) -> Measurements:
    stages = STAGES | {
        ASSEMBLY: Stage(name=ASSEMBLY, images_per_second=loader, why_not=why_not),
        READING: replace(STAGES[READING], images_per_second=reading),
        TRANSFER: replace(STAGES[TRANSFER], images_per_second=transfer),
    }
    return Measurements(
        **{
            "split": "train",
            "record_bytes": 90_000,
            "total_bytes": TOTAL,
            "storage": MEMORY,
            "stages": stages,
            **others,
        }
    )


def diagnose(measured: Measurements, goal: Goal = GOAL, evidence: tuple[Evidence, ...] = ()) -> Diagnosis:
    return predict(measured, goal, "gs://bucket/flowers", {"cores": 2}, evidence)


def other(rate: float, do: str = "presize", record_bytes: float = 26_000, total_bytes: float = 26e9) -> Alternative:
    return Alternative(do=do, images_per_second=rate, record_bytes=record_bytes, total_bytes=total_bytes, cost="2 GB")


def test_jpegs_bind_at_decoding() -> None:
    found = diagnose(measurements(alternatives=(other(4500), other(48_000, "raw", 150_000))))
    assert found.fed == 1500
    assert found.binding == "decoding"
    assert found.idle_percent == pytest.approx((100 * (1 - 1500 / 4100), 80))
    assert found.verdict.startswith("predicted: v3-8 with resnet50 waits 63 to 80 % of its time for data")
    assert "decoding, which takes 75 % of an image's time" in found.verdict
    best, second = found.actions
    assert best.factor == pytest.approx(32)
    assert best.idle_percent == (0, 0)
    assert second.factor == pytest.approx(3)
    assert second.idle_percent == pytest.approx((0, 40))
    assert [stage.name for stage in found.stages] == [
        *("storage", "reading", "decoding", "ops", "assembly", "transfer"),
    ]
    assert "75 % of an image's time" in found.stages[2].detail
    assert found.stages[-1].images_per_second is None
    assert found.stages[-1].why_not == "there is no TPU on this host"


def test_a_rate_that_varied_gives_ranges() -> None:
    varied = measurements(alternatives=(replace(other(4500), span=(4000.0, 5000.0)),))
    stages = {**varied.stages, ASSEMBLY: replace(varied.stages[ASSEMBLY], span=(1230.0, 1640.0))}
    found = diagnose(replace(varied, stages=stages))
    assert (found.fed, found.fed_span) == (1500, (1230, 1640))
    assert found.idle_percent == pytest.approx((100 * (1 - 1500 / 4100), 80))
    assert " waits 60 to 84 % of its time" in found.verdict  # 1,640 of 4,100, and 1,230 of 7,500
    (action,) = found.actions
    assert action.effect == "3.0x, 4,000 to 5,000 images a second, idle 0 to 47 %"
    limited = diagnose(replace(varied, stages=stages, storage=replace(BUCKET, bytes_per_second=135e6)))
    assert (limited.fed, limited.fed_span) == (1500, (1230, 1500))
    slow = diagnose(replace(varied, stages=stages, storage=BUCKET))
    assert (slow.fed, slow.fed_span) == (1000, None)  # storage limits it to that in all parts


def test_a_host_that_is_fast_enough_but_for_moments_says_so() -> None:
    fast = measurements(loader=8000)
    stages = {**fast.stages, ASSEMBLY: replace(fast.stages[ASSEMBLY], span=(6000.0, 9000.0))}
    found = diagnose(replace(fast, stages=stages))
    assert found.binding == "accelerator"
    assert "At the lowest rate that was measured it waits up to 20 % of its time" in found.verdict
    assert "lowest" not in diagnose(fast).verdict


def test_the_cores_that_would_feed_it_follow_from_the_loader_s_rate() -> None:
    assert diagnose(measurements(loader=1500)).cores_needed == (6, 10)  # 2 cores x 4100 / 1500, and x 7500 / 1500
    assert diagnose(measurements(loader=None, why_not="no record can be read")).cores_needed is None


def test_a_bucket_that_no_copy_holds_binds_and_holds_down_what_else_would_help() -> None:
    found = diagnose(measurements(storage=BUCKET, alternatives=(other(4500), other(48_000, "raw", 150_000, 150e9))))
    assert (found.fed, found.binding) == (1000, "storage")
    presize, *rest = found.actions
    assert not rest  # raw pixels are more bytes: they come more slowly than JPEGs
    assert presize.images_per_second == pytest.approx(90e6 / 26_000)
    assert "from memory it is 4,500" in presize.cost


def test_a_bucket_whose_copies_fit_limits_the_first_epoch_only() -> None:
    found = diagnose(measurements(storage=BUCKET, total_bytes=20e9))
    assert (found.fed, found.binding) == (1500, "decoding")
    assert any(note.startswith("the first epoch waits for storage: 1,000 images a second") for note in found.notes)
    fast = replace(BUCKET, bytes_per_second=900e6)
    assert not diagnose(measurements(storage=fast, total_bytes=20e9)).notes


def test_what_fits_once_it_is_smaller_comes_from_memory() -> None:
    (presize,) = diagnose(measurements(storage=BUCKET, alternatives=(other(4500, total_bytes=9e9),))).actions
    assert (presize.factor, presize.images_per_second) == (pytest.approx(4.5), 4500)


def test_a_slow_transfer_binds() -> None:
    found = diagnose(measurements(transfer=300, alternatives=(other(4500),)))
    assert (found.fed, found.binding) == (300, "transfer")
    assert found.actions == ()  # nothing on the host would help


def test_the_transfer_of_larger_images_is_slower() -> None:
    whole = replace(other(4500), sent=1.5)
    (found,) = diagnose(measurements(transfer=6000, alternatives=(whole,))).actions
    assert found.images_per_second == 4000
    assert "the transfer limits it to that rate, from memory it is 4,500" in found.cost


def test_where_nothing_binds_there_is_nothing_to_do() -> None:
    found = diagnose(measurements(loader=20_000, alternatives=(other(48_000),)))
    assert found.binding == "accelerator"
    assert found.idle_percent == (0, 0)
    assert found.actions == ()
    assert "only the accelerator binds" in found.verdict


def test_a_loader_that_fails_leaves_no_prediction_but_all_the_stages() -> None:
    found = diagnose(measurements(loader=None, why_not="record 7 of train-0 is damaged"))
    assert (found.fed, found.idle_percent) == (None, None)
    assert found.verdict == "no prediction: record 7 of train-0 is damaged"
    assert found.stages[1].images_per_second == 50_000
    assert found.stages[4].why_not == "record 7 of train-0 is damaged"


@pytest.mark.parametrize(("batch", "advised"), [(128, True), (None, False), (1024, False), (512, False), (8, True)])
def test_small_batches_leave_the_mxu_idle(batch: int | None, advised: bool) -> None:
    found = diagnose(measurements(loader=20_000), replace(GOAL, batch_size=batch))
    assert [action.do for action in found.actions] == (
        [f"a batch of {batch // 8} per core leaves the MXU idle: use 128 (1,024 on this host)"]
        if advised and batch
        else []
    )


def test_a_step_that_waits_on_tracing_is_said_first() -> None:
    evidence = Evidence("tracing", "run.json: your step waits on tracing (40 % of the time)")
    found = diagnose(measurements(alternatives=(other(4500),)), evidence=(evidence,))
    assert found.actions[0].do.startswith("your step waits for tracing")
    assert found.actions[0].cost == evidence.says
    assert len(found.actions) == 2


def test_a_run_that_waited_where_nothing_binds_is_to_be_looked_at() -> None:
    data, tracing = Evidence("data", "run.json: highly input-bound"), Evidence("tracing", "it traces")
    (action,) = diagnose(measurements(loader=20_000), evidence=(data,)).actions
    assert action.do.startswith("look at the run rather than at the data")
    (action,) = diagnose(measurements(loader=20_000), evidence=(data, tracing)).actions
    assert action.do.startswith("your step waits for tracing")
    assert diagnose(measurements(), evidence=(data,)).actions == ()


def test_a_way_to_the_device_that_was_not_measured_is_said() -> None:
    said = "; the transfer to the device is not counted (n/a)"
    for rate in (1500, 20_000):
        assert diagnose(measurements(loader=rate)).verdict.endswith(said)
        counted = measurements(loader=rate, transfer=50_000)
        assert said not in diagnose(counted).verdict


storages = st.builds(
    Storage, bytes_per_second=st.none() | st.floats(1e5, 1e11), room=st.sampled_from([0, TOTAL, 10**12])
)
alternatives = st.builds(
    other, st.floats(1, 1e6), st.text(min_size=1, max_size=3), st.floats(100, 1e6), st.floats(1, 1e12)
)


@given(st.floats(1, 1e6), storages, st.none() | st.floats(1, 1e6), st.lists(alternatives, max_size=4))
def test_of_any_measurements_a_sound_diagnosis(
    loader: float, storage: Storage, transfer: float | None, tried: list[Alternative]
) -> None:
    measured = measurements(
        loader=loader,
        storage=storage,
        transfer=transfer,
        alternatives=tuple(tried),
    )
    found = diagnose(measured)
    assert found.fed is not None
    assert found.fed <= loader
    assert found.idle_percent is not None
    assert 0 <= found.idle_percent[0] <= found.idle_percent[1] < 100
    assert (found.binding == "accelerator") == (found.idle_percent[1] == 0)
    if found.binding == "transfer":
        assert transfer == found.fed
    if found.binding == "storage":
        assert storage.limit(90_000, TOTAL) <= found.fed * 1.1001  # type: ignore[operator]
    factors = [action.factor for action in found.actions]
    assert all(factor is not None and factor >= 1.05 for factor in factors)
    assert factors == sorted(factors, reverse=True)  # type: ignore[type-var]
    for action in found.actions:
        assert action.idle_percent is not None
        assert action.idle_percent[1] < found.idle_percent[1]
        assert action.images_per_second <= (transfer or float("inf"))  # type: ignore[operator]


@given(st.floats(1, 1e6), st.floats(1.01, 10), storages)
def test_a_faster_loader_never_feeds_less(loader: float, times: float, storage: Storage) -> None:
    less, more = (diagnose(measurements(loader=rate, storage=storage)).fed for rate in (loader, loader * times))
    assert less is not None
    assert more is not None
    assert less <= more


@pytest.mark.parametrize(("fed", "needed", "idle"), [(50, 100, 50), (100, 100, 0), (300, 100, 0), (1, 100, 99)])
def test_idle_is_the_share_of_its_steps_that_a_device_does_not_get(fed: float, needed: float, idle: float) -> None:
    assert predict_band(fed, (needed, 2 * needed)) == pytest.approx((idle, 100 * max(0, 1 - fed / needed / 2)))


@given(rates, rates, rates, rates)
def test_idle_falls_as_more_is_fed_and_rises_as_more_is_needed(one: float, two: float, low: float, high: float) -> None:
    (less, more), needed = sorted((one, two)), (min(low, high), max(low, high))
    (best, worst), (low_idle, high_idle) = predict_band(more, needed), predict_band(less, needed)
    assert 0 <= best <= low_idle <= high_idle < 100
    assert best <= worst <= high_idle
    assert (worst == 0) == (more >= needed[1])


@pytest.mark.parametrize("tpu", TPUS.values(), ids=TPUS)
def test_the_formula_gives_what_the_table_says_of_resnet50(tpu) -> None:
    low, high = needed_rates(tpu, 24.6e9)
    assert (low, high) == pytest.approx((tpu.low, tpu.high), rel=0.01)
    assert needed_rates(tpu, None) == (tpu.low, tpu.high)


@pytest.mark.parametrize("flops", [0.0, -1.0, float("nan"), float("inf")])
def test_flops_are_a_positive_number(flops: float) -> None:
    with pytest.raises(OptionError, match="above 0"):
        needed_rates(find_tpu("v3-8"), flops)


@pytest.mark.parametrize(
    ("accelerator_type", "name", "chips", "high"),
    [
        ("v3-8", "v3-8", 4, 7500),
        ("v2-32", "v2-8", 4, 2744),  # the part of a slice that is this host's
        ("v5litepod-8", "v5e-8", 8, 24024),
        ("v5litepod-4", "v5e-4", 4, 12012),
        ("v5litepod-1", "v5e-1", 1, 3003),
        ("V6E-4", "v6e-4", 4, 55975.5),
        ("v5p-8", "v5p-8", 4, 27988),
        ("v4-16", "v4-8", 4, 16768),
        ("tpu7x-8", "v7x-4", 4, 140671),
    ],
)
def test_the_tpu_of_this_host_is_found_in_its_environment(
    accelerator_type: str, name: str, chips: int, high: float
) -> None:
    found = detect_tpu({"TPU_ACCELERATOR_TYPE": accelerator_type})
    assert found is not None
    assert (found.name, found.chips, found.high) == (name, chips, pytest.approx(high))


@pytest.mark.parametrize("value", ["", "v9-8", "a100", "v3", "v3-x", "-8"])
def test_where_there_is_no_tpu_none_is_found(value: str) -> None:
    assert detect_tpu({"TPU_ACCELERATOR_TYPE": value}) is None
    assert detect_tpu({}) is None


@given(st.floats(1, 1e9), st.floats(1, 1e6), st.floats(1, 1e12))
def test_storage_limits_what_does_not_fit_nearer(bandwidth: float, record_bytes: float, total: float) -> None:
    storage = Storage(bytes_per_second=bandwidth, room=1e9)
    assert storage.limit(record_bytes, total) == (None if total <= 1e9 else pytest.approx(bandwidth / record_bytes))
    assert Storage(why_not="no right to read").limit(record_bytes, total) is None


def test_what_is_to_be_fed() -> None:
    goal, notes = find_goal("tpu-v5e-8", None, None, None, {})
    assert (goal.tpu, goal.model, goal.needed, goal.devices) == ("v5e-8", "resnet50", (13_133, 24_024), 8)
    assert notes == ()
    goal, notes = find_goal(None, "ResNet-152", None, None, {"TPU_ACCELERATOR_TYPE": "v5litepod-4"})
    assert (goal.tpu, goal.model, goal.devices) == ("v5e-4", "resnet152", 4)
    assert goal.needed[1] == pytest.approx(4 * 197e12 * 0.375 / (11.514e9 * 6))
    assert notes == ("v5e-4 is the TPU of this host",)
    goal, notes = find_goal(None, None, 1e9, None, {})
    assert goal.model == "1 GFLOPs per sample"
    assert [note for note in notes if "v3-8" in note] == list(notes)
