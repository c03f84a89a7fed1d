import re
from typing import Any

import pytest

from tpufeed.errors import OptionError
from tpufeed.profiling.accelerator import EmulatedAccelerator
from tpufeed.profiling.flops import (
    MODELS,
    TPUS,
    AcceleratorProfile,
    custom_profile,
    find_model,
    mfu_percent,
    profile,
    profiles,
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
    assert mfu_percent(1000, 197e9, tpu, chips=1) == pytest.approx(100)
    assert mfu_percent(1000, 197e9, tpu) == pytest.approx(12.5)


def test_mfu_is_none_where_a_part_is_not_known() -> None:
    tpu = TPUS["v5e-8"]
    assert [mfu_percent(None, 1.0, tpu), mfu_percent(1.0, None, tpu), mfu_percent(1.0, 1.0, None)] == [None] * 3


@pytest.mark.parametrize(("flops", "chips"), [(0.0, 1), (1.0, 0)])
def test_mfu_of_nothing_is_refused(flops: float, chips: int) -> None:
    with pytest.raises(OptionError, match="positive"):
        mfu_percent(1.0, flops, TPUS["v3-8"], chips)


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
    with pytest.raises(OptionError, match=r"did you mean resnet50\?.*--flops-per-sample"):
        training_flops("resnet51")


def test_the_cost_grows_with_the_area() -> None:
    assert training_flops("resnet50", 448) == pytest.approx(4 * 24.6e9)
    assert training_flops("efficientnet_b4", 380) == training_flops("efficientnet_b4")
    with pytest.raises(OptionError, match="not 0"):
        training_flops("resnet50", 0)


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
    assert profile("tpu-v3-8-high").images_per_second == 7500
    assert profile("tpu-v3-8-low").images_per_second == 4100
    assert profile("tpu-v3-8") == AcceleratorProfile("tpu-v3-8", 7500)
    for name in TPUS:
        assert profile(f"tpu-{name}-low").images_per_second < profile(f"tpu-{name}-high").images_per_second
    assert len(profiles()) == 3 * len(TPUS) + 2


def test_mlperf_s_gpus_take_their_own_batch_in_their_own_time() -> None:
    for name, seconds in (("mlperf-h100", 0.224), ("mlperf-a100", 0.435)):
        known = profile(name)
        assert known.batch_size == 400
        assert EmulatedAccelerator(known, 400).step_seconds == pytest.approx(seconds, rel=1e-3)


def test_an_unknown_profile_names_the_nearest_and_all() -> None:
    with pytest.raises(OptionError, match=r"did you mean tpu-v3-8\?.*tpu-v6e-8-low.*") as raised:
        profile("tpu-v3_8")
    assert "mlperf-h100" in str(raised.value)


def test_a_profile_of_one_s_own_is_a_step_time() -> None:
    own = custom_profile(40, 256)
    assert own.images_per_second == pytest.approx(6400)
    assert EmulatedAccelerator(own, own.batch_size or 0).step_seconds == pytest.approx(0.040)
    assert own.name == "40ms-step"


@pytest.mark.parametrize(("step_ms", "batch"), [(0, 8), (-1, 8), (float("nan"), 8), (float("inf"), 8), (40, 0)])
def test_a_profile_of_no_time_or_no_images_is_none(step_ms: float, batch: int) -> None:
    with pytest.raises(OptionError):
        custom_profile(step_ms, batch)


def test_another_model_takes_as_many_flops_a_second() -> None:
    other = profile("tpu-v3-8").training("resnet152")
    assert other.images_per_second == pytest.approx(7500 * 4.1 / 11.514)
    assert other.name == "tpu-v3-8 resnet152"
    assert profile("tpu-v3-8").training("resnet50").images_per_second == pytest.approx(7500)


def test_a_model_is_for_tpus_and_has_to_be_known() -> None:
    with pytest.raises(OptionError, match="mlperf-h100 trains on ResNet-50 only"):
        profile("mlperf-h100").training("resnet152")
    with pytest.raises(OptionError, match="resnet152"):
        profile("tpu-v3-8").training("resnet_153")
