import pytest

from tpufeed.errors import OptionError
from tpufeed.profiling.accelerator import EmulatedAccelerator
from tpufeed.profiling.flops import AcceleratorProfile, custom_profile, profile, profiles

TPUS = ("tpu-v2-8", "tpu-v3-8", "tpu-v4-8", "tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8", "tpu-v7x-4")


def test_each_tpu_has_a_low_and_a_high_rate_and_the_high_one_is_the_default() -> None:
    assert profile("tpu-v3-8-high").images_per_second == 7500
    assert profile("tpu-v3-8-low").images_per_second == 4100
    assert profile("tpu-v3-8") == AcceleratorProfile("tpu-v3-8", 7500)
    for name in TPUS:
        assert profile(f"{name}-low").images_per_second < profile(f"{name}-high").images_per_second
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
