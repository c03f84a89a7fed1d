import re
from typing import Any

import pytest

from tpufeed.errors import OptionError
from tpufeed.profiling.flops import MODELS, TPUS, find_model, mfu_percent, training_flops


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
