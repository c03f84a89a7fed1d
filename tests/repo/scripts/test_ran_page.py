"""docs/what-has-run.md says what the results say."""

import json

import pytest

from benchmarks import ran_page

MACHINE = {
    "cpu": "EPYC",
    "cores": 2,
    "load": 0.1,
    "date": "2026-12-01",
    "numa": "1 NUMA node",
    "architecture": "x86_64",
}


def parts(page):
    """The lines of what has not run, and of what has."""
    before, _, after = page.partition("## Has run")
    return before, after.partition("## Packages")[0]


def test_the_page_is_made_of_the_results():
    assert ran_page.make_page(ran_page.RESULTS) == ran_page.PAGE.read_text()


def test_a_result_moves_its_subject(tmp_path):
    def put(name, result):
        (tmp_path / f"{name}.json").write_text(json.dumps(result))

    put("feed", {"machine": MACHINE})
    not_run, run = parts(ran_page.make_page(tmp_path))
    assert not_run.count("\n| ") == 1 + len(ran_page.SUBJECTS)
    assert "EPYC" not in run

    later = {"windows": {"ok": True}, "colours": {"ok": True}}
    checked = {
        "jax": {"result": "ok", "counters": {"duty": 1.0}, "device ops": later},
        "torch_xla": {"result": "n/a", "reason": "no"},
    }
    host = {**MACHINE, "cores": 224, "numa": "2 NUMA nodes (node 0: 112 cores; node 1: 112 cores)"}
    put("tpu-v5e", {"devices": "TPU", "host": host, "frameworks": checked})
    tried = {"torch_xla": {"result": "ok"}}
    put("tpu-tried", {"devices": "CPU, in place of TPUs", "host": MACHINE, "frameworks": tried})
    put("feed-axion", {"machine": {**MACHINE, "architecture": "aarch64"}})
    line = {"subject": "the long tests", "date": "2026-12-02", "machine": "n2", "command": "x --long", "outcome": "ok"}
    put("by-hand", {"rows": [line]})
    not_run, run = parts(ran_page.make_page(tmp_path))
    moved = (
        "JAX on a TPU",
        "device ops on a TPU",
        "libtpu's counters",
        "more than 2 cores",
        "2 NUMA nodes",
        "an Arm host",
        "the long tests",
    )
    for name in moved:
        assert f"| {name}" in run
        assert f"| {name}" not in not_run
    assert "2026-12-02, n2: ok" in run
    assert "| torch_xla on a TPU" in not_run

    ended = {"platform": "nfs", "seconds": 90.0, "date": "2026-12-03"}
    whole = {"check": "all of it", "result": "ok", "seen": "Debian 13", **ended}
    others = [{"check": word, "result": word, "seen": f"saw {word}\nmore", **ended} for word in ("ok", "FAILED", "n/a")]
    put("platforms", {"rows": [*others, whole]})
    page = ran_page.make_page(tmp_path)
    assert "- **nfs**: 1 ok, 1 failed, 1 not run (2026-12-03)" in page
    assert "- **nfs**, FAILED: failed (saw FAILED)\n- **nfs**, n/a: not run (saw n/a)\n" in page

    put("by-hand", {"rows": [line | {"subject": "the moon"}]})
    with pytest.raises(ValueError, match=r"by-hand.json .*'the moon'"):
        ran_page.make_page(tmp_path)
