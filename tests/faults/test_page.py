"""docs/reliability.md has a row for each class of faults that a test file of this folder makes happen."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_class_has_a_row_and_a_test():
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE)
    tests = [path.name.split("_")[1] for path in sorted(Path(__file__).parent.glob("test_[0-9]*.py"))]
    assert [f"{int(number):02d}" for number in rows] == tests
