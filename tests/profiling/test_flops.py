import re
from typing import Any

import pytest

from tpufeed.errors import OptionError
from tpufeed.profiling.flops import MODELS, TPUS, compiled_flops, find_model, mfu_percent, training_flops


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


def test_jax_counts_a_matmul_and_a_convolution_as_by_hand() -> None:
    import jax
    import jax.numpy as jnp

    def compiled(function: Any, *shapes: tuple[int, ...]) -> Any:
        return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile()

    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert compiled_flops(compiled(jnp.matmul, (8, 16), (16, 4))) == 2 * 8 * 16 * 4
    assert compiled_flops(compiled(convolve, (2, 8, 8, 3), (3, 3, 3, 5))) == 2 * (2 * 6 * 6 * 5) * (3 * 3 * 3)


class Compiled:
    def __init__(self, costs: Any) -> None:
        self.costs = costs

    def cost_analysis(self) -> Any:
        if isinstance(self.costs, Exception):
            raise self.costs
        return self.costs


def test_older_releases_of_jax_gave_a_list() -> None:
    assert compiled_flops(Compiled([{"flops": 12.0}])) == 12


@pytest.mark.parametrize(
    "costs", [None, [], {}, {"flops": -1.0}, {"flops": 0.0}, {"flops": float("nan")}, NotImplementedError("no")]
)
def test_no_analysis_is_none_and_never_zero(costs: Any) -> None:
    assert compiled_flops(Compiled(costs)) is None


def test_what_cannot_be_asked_is_none() -> None:
    assert compiled_flops(object()) is None
