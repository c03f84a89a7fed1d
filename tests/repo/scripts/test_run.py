"""The entry of the benchmarks, and the form of their results."""

import json
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.entry import RESULTS, ROOT, command_of
from benchmarks.harness import flatten, nest, read_result, write_result


def test_it_lists_the_scripts(capsys):
    assert run.main([]) == 0
    listed = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +\S", listed, re.MULTILINE) for name in ("feed", "scale-page", "plot"))
    assert "harness" not in listed


def test_a_script_gets_its_options():
    done = subprocess.run(command_of("gil", "--help"), capture_output=True, text=True, check=True)
    assert "run.py gil" in done.stdout
    assert "--repeats" in done.stdout


def test_an_unknown_name_is_refused(capsys):
    assert run.main(["no-such"]) == 2
    assert "no-such" in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_results_have_one_form(file):
    if file.stem.startswith("tpu-"):
        pytest.skip("a page of scripts/check-tpu")
    result = json.loads(file.read_text())
    assert list(result) == ["machine", "command", "about", "rows"]
    assert result["rows"]
    assert all(isinstance(row, dict) for row in result["rows"])


def test_each_result_backs_a_sentence():
    pages = [
        ROOT / "README.md",
        ROOT / "benchmarks/scale.md",
        ROOT / "benchmarks/published.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    text = "".join(page.read_text() for page in pages)
    cited = re.findall(r"results/([\w*-]+)\.json", text)
    ran = (ROOT / "docs/what-has-run.md").read_text().partition("## Has run")[2].partition("## Packages")[0]
    cited += re.findall(r"\d, ([\w-]+): ", ran)
    cited += ["ops", "by-hand"]  # by a comment of tpufeed/images/affine.py, and by the page of what has run
    results = {file.stem for file in RESULTS.glob("*.json")}
    assert [name for name in sorted(results) if not any(fnmatch(name, each) for each in cited)] == []


def test_a_result_is_read_as_it_was_written(tmp_path: Path):
    found = {"jpeg": {"ours": {"median": 2.0}, "theirs": {"why_not": "absent"}}, "raw": {"ours": {"median": 3.0}}}
    write_result("mine", {"photos": 3}, flatten(found, "work", "loader"), tmp_path)
    result = read_result("mine", tmp_path)
    assert result["about"] == {"photos": 3}
    assert result["rows"][0] == {"work": "jpeg", "loader": "ours", "median": 2.0}
    assert nest(result["rows"], "work", "loader") == found
    assert nest(result["rows"], "work", value="median", loader="ours") == {"jpeg": 2.0, "raw": 3.0}
    assert nest(result["rows"], "loader", value="median", work="jpeg") == {"ours": 2.0, "theirs": None}
    assert flatten({"a": {"b": [1, 2]}}, "x", "y", value="us") == [{"x": "a", "y": "b", "us": [1, 2]}]
