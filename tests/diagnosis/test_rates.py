import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.diagnosis.stages.rates import (
    ACCELERATOR,
    ASSEMBLY,
    Figure,
    Storage,
    compose,
    core_shares,
    detect_tpu,
    find_binding,
    needed_rates,
    predict_band,
    predict_idle,
)
from tpufeed.errors import OptionError
from tpufeed.profiling.flops import TPUS, find_tpu

rates = st.floats(1e-3, 1e7)
maybe_rates = st.none() | rates


@pytest.mark.parametrize(("fed", "needed", "idle"), [(50, 100, 50), (100, 100, 0), (300, 100, 0), (1, 100, 99)])
def test_idle_is_the_share_of_its_steps_that_a_device_does_not_get(fed: float, needed: float, idle: float) -> None:
    assert predict_idle(fed, needed) == pytest.approx(idle)


@given(rates, rates, rates)
def test_idle_falls_as_more_is_fed_and_rises_as_more_is_needed(one: float, other: float, rate: float) -> None:
    less, more = sorted((one, other))
    assert 0 <= predict_idle(more, rate) <= predict_idle(less, rate) < 100
    assert predict_idle(rate, less) <= predict_idle(rate, more)
    low, high = predict_band(rate, (less, more))
    assert low <= high


@given(rates, rates)
def test_a_device_that_is_fed_what_it_needs_never_waits(fed: float, needed: float) -> None:
    assert (predict_idle(fed, needed) == 0) == (fed >= needed)


@pytest.mark.parametrize("tpu", TPUS.values(), ids=TPUS)
def test_the_formula_gives_what_the_table_says_of_resnet50(tpu) -> None:
    low, high = needed_rates(tpu, 24.6e9)
    assert (low, high) == pytest.approx((tpu.low, tpu.high), rel=0.01)
    assert needed_rates(tpu, None) == (tpu.low, tpu.high)


@given(st.sampled_from(sorted(TPUS)), st.floats(1e6, 1e13), st.floats(1.01, 100))
def test_a_larger_model_needs_fewer_images(name: str, flops: float, times: float) -> None:
    small, large = needed_rates(TPUS[name], flops), needed_rates(TPUS[name], flops * times)
    assert small[0] < small[1]
    assert large == pytest.approx((small[0] / times, small[1] / times))


@pytest.mark.parametrize("flops", [0.0, -1.0, float("nan"), float("inf")])
def test_flops_are_a_positive_number(flops: float) -> None:
    with pytest.raises(OptionError, match="a number above 0"):
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


@given(st.lists(maybe_rates, max_size=5))
def test_stages_that_overlap_are_as_fast_as_the_slowest(each: list[float | None]) -> None:
    known = [rate for rate in each if rate is not None]
    assert compose(*each) == (min(known) if known else None)


@given(st.floats(1, 1e9), st.floats(1, 1e6), rates)
def test_storage_only_slows_down_and_memory_not_at_all(bandwidth: float, record_bytes: float, rate: float) -> None:
    limit = bandwidth / record_bytes
    ahead = Storage(kind="remote", bytes_per_second=bandwidth)
    assert ahead.through(rate, record_bytes) == pytest.approx(min(limit, rate))
    in_turn = Storage(kind="remote", bytes_per_second=bandwidth, in_turn=True).through(rate, record_bytes)
    assert in_turn < min(limit, rate) * 1.0001
    assert in_turn > min(limit, rate) / 2.0001
    memory = Storage(kind="memory", bytes_per_second=bandwidth)
    assert memory.through(rate, record_bytes) == rate
    assert Storage(kind="disk", why_not="no right to read").through(rate, record_bytes) == rate


@given(st.lists(rates, min_size=1, max_size=3), st.floats(0.1, 1))
def test_shares_add_up_and_the_slowest_stage_has_the_most(each: list[float], efficiency: float) -> None:
    figures = [Figure(name=f"stage {number}", images_per_second=rate) for number, rate in enumerate(each)]
    whole = efficiency / sum(1 / rate for rate in each)
    shares = core_shares(figures, whole)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[ASSEMBLY] == pytest.approx(1 - efficiency, abs=1e-6)
    assert min(shares.values()) >= 0
    alone = {name: share for name, share in shares.items() if name != ASSEMBLY}
    slowest = min(figures, key=lambda figure: figure.images_per_second or 0)
    assert alone[slowest.name] == pytest.approx(max(alone.values()))


def test_what_was_not_measured_has_no_share() -> None:
    assert core_shares([Figure(name="ops", why_not="there are none")], None) == {}
    assert core_shares([Figure(name="ops", why_not="there are none")], 10.0) == {ASSEMBLY: 1.0}


@given(rates, maybe_rates, maybe_rates, maybe_rates)
def test_what_binds_is_the_slowest(
    needed: float, storage: float | None, transfer: float | None, cores: float | None
) -> None:
    overlapping = {"storage": storage, "transfer": transfer}
    found = find_binding(needed, overlapping, cores, {"decoding": 0.8, "reading": 0.2})
    fed = compose(storage, transfer, cores)
    if fed is None or fed >= needed:
        assert found == ACCELERATOR
    elif found == "decoding":
        assert cores == fed
    else:
        assert overlapping[found] == compose(storage, transfer)
        assert overlapping[found] <= 1.1 * fed * 1.0001  # type: ignore[operator]


def test_without_shares_the_loader_as_a_whole_binds() -> None:
    assert find_binding(100, {}, 10, {}) == ASSEMBLY
