"""examples/grain_flowers.py: as the page says, and stopped in the middle; without torch."""

from pathlib import Path

import pytest

from tests.repo.examples.conftest import Output

RUNS = {"examples/README.md": "grain_flowers[.]py"}

EXAMPLES = Path(__file__).parents[3] / "examples"
# Three trainings in one process: a whole one, one that is stopped in the second epoch, with params written and the
# checkpoint that names them not yet, and the rest of that.
PROGRAM = """
import sys

sys.path.insert(0, sys.argv[1])
import grain_flowers
from pathlib import Path

assert "torch" not in sys.modules and "tensorflow" not in sys.modules
grain_flowers.main(grain_flowers.parse(sys.argv[2:]))


def replace(path, target):
    if (target.parent / "14.npz").exists():
        raise InterruptedError
    return rename(path, target)


stopped = grain_flowers.parse([*sys.argv[2:], "--every", "2", "--out", "stopped"])
rename, Path.replace = Path.replace, replace
try:
    grain_flowers.main(stopped)
except InterruptedError:
    print("stopped")
Path.replace = rename
grain_flowers.main(stopped)
assert "torch" not in sys.modules and "tensorflow" not in sys.modules
"""


def test_it_learns_and_goes_on_with_the_very_next_sample(workplace, page_arguments, run_example):
    (workplace / "program.py").write_text(PROGRAM)
    arguments = page_arguments("grain_flowers.py")
    text = run_example(workplace / "program.py", EXAMPLES, *arguments, folder=workplace).text
    whole, rest = map(Output, text.split("stopped\n"))
    assert whole.epochs == [*range(6), 0]
    assert whole.losses[5] < 0.8 * whole.losses[0]
    assert rest.text.startswith("goes on after step 12\n")  # 9 steps are an epoch
    assert rest.epochs == list(range(1, 6))
    assert rest.losses[1:] == pytest.approx(whole.losses[2:6], rel=1e-3)
    accuracies = [line for line in text.splitlines() if line.startswith("accuracy, held out: ")]
    assert len(accuracies) == 2
    assert accuracies[0] == accuracies[1]
