"""scripts/judge_audit.py: what counts as a clean audit."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CLEAN = {"name": "numpy", "version": "2.0", "vulns": []}
OURS = {"name": "tpufeed", "skip_reason": "Dependency not found on PyPI"}


def judge(tmp_path, *packages, text=None):
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"dependencies": packages, "fixes": []}) if text is None else text)
    command = [sys.executable, ROOT / "scripts/judge_audit.py", result]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_nothing_found_is_clean(tmp_path):
    done = judge(tmp_path, CLEAN, OURS)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no known vulnerability" in done.stdout


def test_a_finding_is_named_with_what_mends_it(tmp_path):
    finding = {"id": "PYSEC-1", "fix_versions": ["10.3"], "aliases": ["CVE-1"], "description": ""}
    done = judge(tmp_path, CLEAN, {"name": "pillow", "version": "10.0", "vulns": [finding]})
    assert done.returncode == 1
    assert done.stdout == "pillow 10.0: PYSEC-1 (fixed in 10.3)\n"


def test_a_service_that_knows_no_package_has_cleared_none(tmp_path):
    """pip-audit ends with 0 and says that nothing was found."""
    done = judge(tmp_path, {"name": "pillow", "skip_reason": "Dependency not found on PyPI"}, OURS)
    assert done.returncode == 1
    assert done.stdout == "1 of 2 packages could not be looked up: pillow ...\n"


def test_no_result_is_an_error(tmp_path):
    done = judge(tmp_path, text="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "gave no result" in done.stderr
