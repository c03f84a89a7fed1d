"""docs/errors.md: every class of the tree with a real message, and every warning of the package."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.provoked import provoke_all
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


def test_builtins_and_exit_codes_are_told():
    for name, text in SECTIONS.items():
        builtins = [base.__name__ for base in getattr(errors, name).__bases__ if base.__module__ == "builtins"]
        if name != "TpufeedError":
            assert all(f"`{base}`" in text for base in builtins), name


def test_the_messages_are_real(tmp_path, photos):
    pytest.importorskip("google.auth")
    with pytest.MonkeyPatch.context() as patch:
        found = provoke_all(tmp_path, photos["rocket.jpg"], patch)
    assert set(found) == CLASSES - {"TpufeedError"}
    for name, message in found.items():
        (shown,) = re.findall(r"```text\n(.*?)\n```", SECTIONS[name], re.DOTALL)
        pattern = re.escape(shown).replace(r"\ \ \.\.\.", ".*")
        pattern = re.sub(r"\d+", r"\\d+", pattern)
        assert re.fullmatch(pattern, message.strip(), re.DOTALL), (name, message)


def test_the_program_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out == "not built yet\n"


def test_every_warning_is_there():
    table = re.sub(r"\s+", " ", PAGE.partition("## Warnings")[2])
    missing = []
    for path in sorted((ROOT / "tpufeed").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(
                ("logger.warning", "LOGGER.warning")
            ):
                continue
            text = node.args[0]
            if isinstance(text, ast.Constant):
                parts = [part.strip(" ;:,.") for part in re.split(r"%\S*\w", text.value)]
                if any(map(str.strip, parts)) and not any(len(part) > 8 and part[:60] in table for part in parts):
                    missing.append(f"{path.relative_to(ROOT)}: {text.value}")
    assert missing == []
