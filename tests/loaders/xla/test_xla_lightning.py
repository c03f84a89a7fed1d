"""A LightningModule fed by xla_loader, by Lightning's own handling of dataloaders on XLA devices.

Of Lightning only the question whether there is a TPU is answered by the script; collectives as well where there are
four CPU devices, on which torch_xla has none.
"""

import json

import pytest

import tpufeed


def host_epochs(url, rank=0, size=1):
    with tpufeed.numpy_loader(url, columns=["sample"], batch_size=5, world=(rank, size), processes=0) as loader:
        return {str(epoch): [samples.tolist() for samples in loader] for epoch in range(2)}


@pytest.fixture(scope="module")
def one(run_script, cache_url, tmp_path_factory):
    out = tmp_path_factory.mktemp("lightning")
    run_script("xla/xla_lightning.py", cache_url, 1, out)
    return {name: json.loads((out / f"{name}.json").read_text()) for name in ("whole", "left", "0")}


def test_a_module_trains_on_one_device(one, cache_url):
    assert one["whole"]["strategy"] == "SingleDeviceXLAStrategy"
    assert one["whole"]["loader"] == "XlaLoader"
    assert one["whole"]["kept by XLAStrategy"]
    assert one["whole"]["epochs"] == host_epochs(cache_url)  # Lightning's own look at it costs no epoch
    assert one["whole"]["validated"] == [*range(26)] * 2


def test_a_checkpoint_in_mid_epoch_goes_on_with_exactly_the_rest(one, cache_url):
    left, resumed = one["left"], one["0"]["epochs"]
    assert len(left["1"]) == 3
    assert {"0": left["0"], "1": left["1"] + resumed["1"]} == host_epochs(cache_url)
    assert list(resumed) == ["1"]


@pytest.mark.long
def test_a_module_trains_on_four_devices_without_a_sampler(run_script, cache_url, tmp_path):
    run_script("xla/xla_lightning.py", cache_url, 4, tmp_path, devices=4)
    validated = []
    for rank in range(4):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (found["strategy"], found["loader"]) == ("XLAStrategy", "XlaLoader")
        assert found["epochs"] == host_epochs(cache_url, rank, 4)
        validated += found["validated"]
    assert sorted(validated) == sorted([*range(26)] * 2)
