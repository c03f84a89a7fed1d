"""Single stages: what is measured of the loader, of decoding and of the transfer."""

import time
from pathlib import Path

import pytest

import tpufeed
from tests.measure.conftest import OPS
from tpufeed.images import Custom
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


def test_images_that_do_not_decode_take_no_part_in_timing(photos: dict[str, bytes]) -> None:
    assert stages.time_decoding([b"no image", photos["china.jpg"]], OPS, 0.05) > 0
    assert stages.time_decoding([b"no image"], OPS, 0.01) == 1.0


def test_a_transfer_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
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
