"""The run of all benchmarks: its commands are those that the scripts take, and what fails is named."""

import ast
import re

import pytest

from benchmarks import figures, run
from benchmarks.entry import RESULTS, ROOT


def test_each_result_is_measured_again():
    made = {"scale-build", "scale-plan", "scale-workers"}
    made |= {figure.name for figure in (*figures.FIGURES, *figures.NAMED)}
    others = {*figures.ELSEWHERE, *figures.DECIDED}
    assert {path.stem for path in RESULTS.glob("*.json")} == made | others
    assert not made & others
    assert sum(figure.minutes for figure in (*figures.FIGURES, *figures.PAGES)) < 120


@pytest.mark.parametrize("figure", [*figures.FIGURES, *figures.NAMED, *figures.PAGES], ids=lambda figure: figure.name)
def test_its_options_are_those_of_the_script(figure):
    assert figure.name in run.find_scripts()
    source = (ROOT / f"benchmarks/{figure.name.replace('-', '_')}.py").read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    (maker,) = (call for call in calls if ast.unparse(call.func) in ("make_parser", "argparse.ArgumentParser"))
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in maker.keywords}
    known = set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', source)) | {f"--{name}" for name in given}
    if ast.unparse(maker.func) == "make_parser" and given.get("save") != "False":
        known.add("--save")
    assert {word for word in figures.words(figure) if word.startswith("--")} <= known


def test_what_fails_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(figures, "LOGS", ROOT / "build/figures-of-the-test")
    figures.LOGS.mkdir(parents=True, exist_ok=True)
    said = figures.run(figures.Figure("no-such", 1))
    assert said == "no-such: exit status 2, see build/figures-of-the-test/no-such.log"
    assert figures.run(figures.Figure("soak", 0.001)).startswith("soak: was stopped after 0.002 minutes")
    assert "no-such" in capsys.readouterr().out
