"""docs/errors.md: every class of the tree, and its program."""

import re
from pathlib import Path

from tpufeed import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/errors.md").read_text()
CLASSES = {
    name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.TpufeedError)
}
SECTIONS = {
    section.split("\n", 1)[0]: section
    for section in re.split(r"^### ", PAGE.partition("## Warnings")[0], flags=re.M)[1:]
}


def test_every_class_has_its_section_and_remedy():
    assert set(SECTIONS) == CLASSES, "docs/errors.md: a section for each class of tpufeed/errors.py, and no other"
    assert [name for name, text in SECTIONS.items() if "**Remedy**: " not in text] == ["TpufeedError"]


def test_the_order_is_that_of_the_tree():
    assert list(SECTIONS) == re.findall(r"^[| +-]*(\w+Error)", errors.__doc__, re.MULTILINE)


def test_the_program_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out == "not built yet\n"
