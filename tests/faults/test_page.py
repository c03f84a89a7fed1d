"""docs/reliability.md has each of its 21 classes of faults, and names test files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text()
PARTS = re.split(r"^## (\d+)\. .*$", PAGE, flags=re.MULTILINE)
FILES = {
    int(number): re.findall(r"`(tests/[\w/]+\.py)`", text)
    for number, text in zip(PARTS[1::2], PARTS[2::2], strict=True)
}


def test_every_class_names_tests_that_exist():
    assert sorted(FILES) == list(range(1, 22))
    assert [number for number, files in FILES.items() if not files] == []
    assert [name for files in FILES.values() for name in files if not (ROOT / name).is_file()] == []


def test_every_test_of_this_folder_is_named():
    numbered = {str(path.relative_to(ROOT)) for path in Path(__file__).parent.glob("test_[0-9]*.py")}
    assert numbered <= {name for files in FILES.values() for name in files}
