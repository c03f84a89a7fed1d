"""Single stages: what is measured of the loader, of decoding and of the transfer."""

import time
from pathlib import Path

import pytest

import tpufeed
from tests.measure.conftest import OPS
from tpufeed.images import CenterCrop, Custom, HorizontalFlip, Resize
from tpufeed.images.device import DeviceOps
from tpufeed.measure import stages

pytestmark = pytest.mark.usefixtures("quiet_host")


def sleep(image, rng):
    time.sleep(0.01)
    return image


def test_slow_images_come_in_smaller_batches(dataset_url: str) -> None:
    ops = [*OPS, Custom("tests.measure.test_stages:sleep")]
    rates = stages.measure_loader(tpufeed.open_dataset(dataset_url), "train", 32, 0.2, ops=ops)
    assert rates.batch_size < 32
    assert 0 < rates.whole <= 1.1 * rates.decoding
    assert rates.reading > rates.whole


def test_device_ops_do_not_run_here(cache_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, parameters = list[object](), DeviceOps.parameters
    monkeypatch.setattr(DeviceOps, "parameters", lambda *given: sent.append(given) or parameters(*given))
    monkeypatch.setattr(HorizontalFlip, "apply", lambda *_: pytest.fail("it ran on the host"))
    stages.measure_loader(tpufeed.open_dataset(cache_url), "train", 8, 0.02, device_ops=[HorizontalFlip(p=1.0)])
    assert sent


def test_images_that_do_not_decode_take_no_part_in_timing(photos: dict[str, bytes]) -> None:
    assert stages.time_decoding([b"no image", photos["china.jpg"]], OPS, 0.05) > 0
    assert stages.time_decoding([b"no image"], OPS, 0.01) == 1.0


def test_time_that_an_op_waits_is_the_op_s(photos: dict[str, bytes]) -> None:
    ops = [Resize(32), CenterCrop(32), Custom("tests.measure.test_stages:sleep")]
    assert stages.time_decoding([photos["rocket.jpg"]], ops, 0.2) < 0.6  # it costs no CPU time


@pytest.mark.uses("jax")
def test_a_transfer_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import jax

    (tmp_path / "accel0").touch()
    monkeypatch.setattr(stages, "_DEVICES", (f"{tmp_path}/accel*",))
    monkeypatch.setattr(stages.importlib.util, "find_spec", lambda name: None if name == "torch_xla" else object())
    found = stages.measure_transfer((8, 8, 3), 4, 0.01)
    assert found.images_per_second is None
    assert "the TPU does not answer" in found.why_not
    devices = jax.devices("cpu")[:2]
    monkeypatch.setattr(jax, "devices", lambda _: devices)
    found = stages.measure_transfer((8, 8, 3), 4, 0.01)
    assert found.images_per_second > 0
    monkeypatch.setattr(stages.importlib.util, "find_spec", lambda _: None)
    assert "neither torch_xla nor jax" in stages.measure_transfer((8, 8, 3), 4, 0.01).why_not


def test_rates_that_differ_between_parts_have_a_span() -> None:
    parts = ((100.0, 1000.0, 200.0), (109.0, 1000.0, 250.0), (105.0, 1200.0, 220.0))
    rates = stages.LoaderRates(105.0, 1060.0, 222.0, 8, "2 threads", parts)
    assert rates.spans == [None, (1000.0, 1200.0), (200.0, 250.0)]
    found = stages.tell_stages_apart(rates, [], [HorizontalFlip()], 0.01)
    assert (found["assembly"].span, found["reading"].span) == (None, (1000.0, 1200.0))
    assert stages.LoaderRates(1.0, 1.0, 1.0, 8, "1 thread").spans == [None] * 3


def test_a_measurement_has_parts_that_make_it_up(dataset_url: str) -> None:
    rates = stages.measure_loader(tpufeed.open_dataset(dataset_url), "train", 4, 0.6, ops=OPS)
    assert len(rates.parts) >= 3
    for place, whole in enumerate((rates.whole, rates.reading, rates.decoding)):
        each = [part[place] for part in rates.parts]
        assert 0.5 * min(each) < whole < 2 * max(each)
