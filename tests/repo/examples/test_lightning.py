"""examples/lightning_flowers.py in this process: it learns, and goes on in mid-epoch after a run that failed."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.frameworks import lazy

pl = lazy("lightning.pytorch")

RUNS = {"examples/README.md": "lightning_flowers[.]py"}

EXAMPLE = Path(__file__).parents[3] / "examples/lightning_flowers.py"
TOLD = r"^epoch (\d+): loss (\d+\.\d+) of 144 images, (\d\.\d+) of 43 right, [\d,]+ images/s a rank, idle \d+\.\d %$"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("lightning_flowers", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _without_xla(monkeypatch):
    """Lightning tries to import torch_xla, which aborts the process after the tensorflow of other tests."""
    monkeypatch.setattr("lightning.fabric.accelerators.xla._XLA_AVAILABLE", False)


class PowerCut(Exception):
    pass


def test_it_learns_and_goes_on_in_mid_epoch_as_if_nothing_had_happened(
    example, flowers, page_arguments, tmp_path, capsys, monkeypatch
):
    def run(out):
        given = [*page_arguments("lightning_flowers.py"), "--data", flowers.url, "--every", "4"]
        example.main(example.parse([*given, "--out", str(tmp_path / out)]))

    def lines():
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]

    def losses(told):
        return [float(line.split()[3]) for line in told]

    run("whole")
    whole = lines()
    assert len(whole) == 4
    assert all(re.match(TOLD, line) for line in whole), whole
    assert losses(whole)[-1] < 0.75 * losses(whole)[0]  # 0.25 to 0.41 with four seeds

    def fail(self, trainer, *given):
        saves(self, trainer, *given)
        if trainer.global_step == 14:  # 9 steps are an epoch; the last checkpoint is of step 12
            raise PowerCut

    saves = pl.callbacks.ModelCheckpoint.on_train_batch_end
    with monkeypatch.context() as patch:
        patch.setattr(pl.callbacks.ModelCheckpoint, "on_train_batch_end", fail)
        with pytest.raises(PowerCut):
            run("failed")
    assert losses(lines()) == losses(whole)[:1]
    run("failed")
    rest = lines()
    assert losses(rest) == pytest.approx(losses(whole)[1:], rel=1e-3)
    assert all(re.match(TOLD, line) for line in rest), rest  # 144 images, those before the failure among them
