"""examples/jax_flowers.py on four CPU devices: as the page says, and killed in the middle."""

import re
from pathlib import Path

import pytest

from tests.quick_xla import QUICK
from tests.repo.examples.conftest import Output

RUNS = {"examples/README.md": "jax_flowers[.]py --data"}

EXAMPLES = Path(__file__).parents[3] / "examples"
# Trainings in one process: a whole one, one that crops on the devices, and one with a SIGKILL in the second epoch, with
# params written and the checkpoint that names them not yet.
PROGRAM = """
import os
import signal
import sys

sys.path.insert(0, sys.argv[1])
import jax_flowers
from pathlib import Path

whole, *arguments = sys.argv[2:]
jax_flowers.main(jax_flowers.parse(arguments))
print("on the device", flush=True)
jax_flowers.main(jax_flowers.parse([*arguments, "--device-ops", "--data", whole, "--out", "device"]))
print("killed", flush=True)


def replace(path, target):
    if (target.parent / "14.npz").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)


rename, Path.replace = Path.replace, replace
jax_flowers.main(jax_flowers.parse([*arguments, "--every", "2", "--out", "killed"]))
"""


def test_it_learns_and_goes_on_after_a_kill_as_if_there_were_none(flowers, workplace, page_arguments, run_example):
    """The devices' rounding is the same each time, so losses come out equal where batches do."""
    devices = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {QUICK}"}
    arguments = page_arguments("jax_flowers.py")
    (workplace / "program.py").write_text(PROGRAM)
    killed = run_example(
        workplace / "program.py", EXAMPLES, flowers.whole_url, *arguments, folder=workplace, returncode=-9, **devices
    )
    whole, device = map(Output, killed.text.partition("killed\n")[0].split("on the device\n"))
    assert device.losses[-1] < 0.8 * device.losses[0]
    assert whole.text.startswith("4 devices (cpu), 1 processes\n")
    assert whole.epochs == list(range(6))
    assert whole.losses[-1] < 0.7 * whole.losses[0]  # 0.28 to 0.56 with four seeds
    assert len(re.findall(r"^epoch .*, [\d,]+ images/s, idle \d+\.\d %$", whole.text, re.MULTILINE)) == 6
    assert float(re.search(r"^accuracy, held out: (\d\.\d+) of 43$", whole.text, re.MULTILINE)[1]) > 0.5

    rest = run_example("jax_flowers.py", *arguments, "--out", "killed", folder=workplace, **devices)
    assert "goes on after step 12, in epoch 1\n" in rest.text  # 9 steps are an epoch
    assert rest.epochs == list(range(1, 6))
    assert rest.losses[1:] == pytest.approx(whole.losses[2:], rel=1e-3)
    assert rest.text.splitlines()[-1] == whole.text.splitlines()[-1]
