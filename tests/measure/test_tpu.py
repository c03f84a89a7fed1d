"""FLOPs, MFU, the profiles of accelerators, and the counters of libtpu."""

import re
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tpufeed.errors import OptionError
from tpufeed.measure import tpu
from tpufeed.measure.tpu import (
    MODELS,
    TPUS,
    TpuCounters,
    find_model,
    mfu_percent,
    profile,
    profiles,
    read_counters,
    training_flops,
)


def test_resnet50_costs_what_the_rates_of_tpus_are_reckoned_with() -> None:
    assert training_flops("resnet50") == pytest.approx(24.6e9)


@pytest.mark.parametrize("tpu", TPUS.values(), ids=TPUS)
def test_the_rates_of_tpus_are_the_mfu_they_say(tpu: Any) -> None:
    assert mfu_percent(tpu.low, training_flops("resnet50"), tpu) == pytest.approx(20.5, abs=0.1)
    assert mfu_percent(tpu.high, training_flops("resnet50"), tpu) == pytest.approx(37.5, abs=0.2)


def test_mfu_by_hand() -> None:
    tpu = TPUS["v5e-8"]
    assert mfu_percent(1000, 197e9, tpu) == pytest.approx(12.5)
    assert [mfu_percent(None, 1.0, tpu), mfu_percent(1.0, None, tpu), mfu_percent(1.0, 1.0, None)] == [None] * 3
    with pytest.raises(OptionError, match="flops_per_sample is"):
        mfu_percent(1.0, 0.0, tpu)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("ResNet-50", "resnet50"),
        ("efficientnet-b0", "efficientnet_b0"),
        ("ViT-B/16", "vit_b_16"),
        ("EfficientNetV2S", "efficientnet_v2_s"),
        ("wide_resnet50_2", "wide_resnet50_2"),
    ],
)
def test_names_as_people_write_them(written: str, name: str) -> None:
    assert find_model(written) == name


def test_no_two_names_are_the_same_to_people() -> None:
    assert len({re.sub("[^a-z0-9]", "", name) for name in MODELS}) == len(MODELS)


def test_an_unknown_model_names_the_nearest_and_the_way_out() -> None:
    with pytest.raises(OptionError, match=r"resnet50.*--flops-per-sample"):
        training_flops("resnet51")


def test_families_grow_as_they_should() -> None:
    for family in (
        ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
        tuple(f"efficientnet_b{number}" for number in range(8)),
        ("vit_b_32", "vit_b_16", "vit_l_16", "vit_h_14"),
        ("convnext_tiny", "convnext_small", "convnext_base", "convnext_large"),
    ):
        costs = [training_flops(name) for name in family]
        assert costs == sorted(costs)


def test_each_tpu_has_a_low_and_a_high_rate_and_the_high_one_is_the_default() -> None:
    assert (profile("tpu-v3-8-low").images_per_second, profile("tpu-v3-8-high").images_per_second) == (4100, 7500)
    assert (profile("tpu-v3-8").name, profile("tpu-v3-8").images_per_second) == ("tpu-v3-8", 7500)
    for name in TPUS:
        assert profile(f"tpu-{name}-low").images_per_second < profile(f"tpu-{name}-high").images_per_second
    assert len(profiles()) == 3 * len(TPUS) + 2


def test_mlperf_s_gpus_take_their_own_batch_in_their_own_time() -> None:
    for name, seconds in (("mlperf-h100", 0.224), ("mlperf-a100", 0.435)):
        known = profile(name)
        assert known.batch_size == 400
        assert 400 / known.images_per_second == pytest.approx(seconds, rel=1e-3)


def test_an_unknown_profile_names_the_nearest_and_all() -> None:
    with pytest.raises(OptionError, match=r"tpu-v3-8.*mlperf-h100.*tpu-v6e-8-low"):
        profile("tpu-v3_8")


def test_another_model_takes_as_many_flops_a_second() -> None:
    other = profile("tpu-v3-8").training("resnet152")
    assert other.images_per_second == pytest.approx(7500 * 4.1 / 11.514)
    assert other.name == "tpu-v3-8 resnet152"
    assert profile("tpu-v3-8").training("resnet50").images_per_second == pytest.approx(7500)
    with pytest.raises(OptionError, match="mlperf-h100"):
        profile("mlperf-h100").training("resnet152")


def install(monkeypatch: pytest.MonkeyPatch, get_metric: Any, name: str = "tpumonitoring") -> None:
    """Install a libtpu whose monitoring answers with `get_metric`; without it there is no monitoring."""
    libtpu, sdk = ModuleType("libtpu"), ModuleType("libtpu.sdk")
    libtpu.sdk = sdk  # type: ignore[attr-defined]
    if get_metric is not None:
        setattr(sdk, name, SimpleNamespace(get_metric=get_metric))
    monkeypatch.setitem(sys.modules, "libtpu", libtpu)
    monkeypatch.setitem(sys.modules, "libtpu.sdk", sdk)


@pytest.mark.parametrize(
    ("values", "percent"),
    [
        (["10.0", "30.0"], 20.0),
        ([12.5, 13.5, 16.0], 14.0),
        (["42%"], 42.0),
        (["nan", "8.0"], 8.0),
        (["0.00", "0.00"], 0.0),  # a TPU that says it did nothing is known to have done nothing
        ([], None),
        ([""], None),
        (["nan"], None),
        (["n/a"], None),
        ([None], None),
        (object(), None),
        ("42", None),  # two digits
        (["101.0", "7.0"], None),
        (["-1"], None),
    ],
)
def test_the_mean_over_the_cores_and_no_answer_is_none(
    monkeypatch: pytest.MonkeyPatch, values: Any, percent: float | None
) -> None:
    install(monkeypatch, lambda _: SimpleNamespace(data=lambda: values))
    assert read_counters() == (TpuCounters(percent, percent) if percent is None else pytest.approx((percent, percent)))


@pytest.mark.parametrize("name", ["tpumonitoring", "monitoring"])  # the newer and the older name
@pytest.mark.parametrize("missing", [None, "tensorcore_util", "duty_cycle_pct"])
def test_a_counter_that_is_missing_takes_no_other_along(
    monkeypatch: pytest.MonkeyPatch, name: str, missing: str | None
) -> None:
    known = {"tensorcore_util": ["10.0", "30.0"], "duty_cycle_pct": ["100.0", "80.0"]}
    known.pop(missing or "", None)
    install(monkeypatch, lambda metric: SimpleNamespace(data=lambda: known[metric]), name)  # libtpu raises as well
    assert read_counters() == (
        None if missing == "tensorcore_util" else 20.0,
        None if missing == "duty_cycle_pct" else 90.0,
    )


def test_without_monitoring_and_without_libtpu_there_are_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert read_counters() == TpuCounters(None, None)
    monkeypatch.setitem(sys.modules, "libtpu", None)
    assert read_counters() == TpuCounters(None, None)


def test_a_counter_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = list[str](), threading.Event()

    def get_metric(name: str) -> Any:
        asked.append(name)
        if name == "duty_cycle_pct":
            go_on.wait()
        return SimpleNamespace(data=lambda: ["30.0"])

    install(monkeypatch, get_metric)
    monkeypatch.setattr(tpu, "_COUNTER_SECONDS", 0.1)
    try:
        assert read_counters() == TpuCounters(30.0, None)
        assert read_counters() == TpuCounters(None, None)  # the first one still hangs
        assert asked == ["tensorcore_util", "duty_cycle_pct"]
    finally:
        go_on.set()
