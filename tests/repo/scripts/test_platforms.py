"""scripts/platforms: its rows, its table and what it says where it cannot run. The platforms themselves need root."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "scripts/proxies"


@pytest.fixture(autouse=True)
def folder_on_path(monkeypatch):
    for name in ("scripts/packaging", "scripts/proxies"):
        monkeypatch.syspath_prepend(str(ROOT / name))
    yield
    for name in ("run", "platform_run", "chroot", "matrix", "artifacts", "bounds"):
        sys.modules.pop(name, None)


def platforms(*arguments):
    return subprocess.run(
        [ROOT / "scripts/platforms", *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_without_a_name_it_lists_what_there_is():
    listed = platforms()
    assert listed.returncode == 0
    import run

    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(run.PROXIES)
    for proxy in run.PROXIES.values():
        assert (FOLDER / f"{proxy.module}.py").exists()


def test_an_unknown_name_is_refused_before_anything_is_built():
    refused = platforms("slurm", "solaris")
    assert refused.returncode == 2
    assert "no platform solaris; there are python3.12" in " ".join(refused.stderr.split())


def test_a_check_is_a_row(tmp_path, capsys):
    from platform_run import CheckError, MissingError, Platform, call, expect, need

    platform = Platform("here", tmp_path, Path("a.whl"), Path("a.tar.gz"))
    assert platform.check("prints", lambda: call([sys.executable, "-c", "print(7)"], 60).strip())
    assert not platform.check("counts", lambda: str(expect(not platform.rows, "1 image of 2")))
    assert not platform.check("exits", lambda: call([sys.executable, "-c", "raise SystemExit('no disk')"], 60))
    assert not platform.check("ends", lambda: call([sys.executable, "-c", "import time; time.sleep(60)"], 0.5))
    assert not platform.check("needs", lambda: need("no-such-program", "some-package"))
    found = [(row.result, row.seen) for row in platform.rows]
    assert found[:2] == [("ok", "7"), ("FAILED", "1 image of 2")]
    assert found[2][0] == found[3][0] == "FAILED"
    assert "exit code 1\nno disk" in found[2][1]
    assert "took more than 0.5 s" in found[3][1]
    assert found[4] == ("n/a", "there is no no-such-program here: apt-get install some-package")
    assert "1 image of 2" in capsys.readouterr().out
    assert issubclass(CheckError, Exception)
    assert issubclass(MissingError, Exception)


def test_a_platform_without_what_it_needs_is_no_failure(tmp_path, monkeypatch):
    import run
    from platform_run import MissingError, Platform

    def without(_platform):
        raise MissingError("this needs root")

    monkeypatch.setitem(sys.modules, "nowhere", type(sys)("nowhere"))
    monkeypatch.setattr(sys.modules["nowhere"], "run", without, raising=False)
    monkeypatch.setitem(run.PROXIES, "nowhere", run.Proxy("nowhere", "nothing"))
    platform = Platform("nowhere", tmp_path / "work", Path("a.whl"), Path("a.tar.gz"))
    assert run.run(platform, keep=False)
    (row,) = platform.rows
    assert (row.check, row.result, row.seen) == ("all of it", "n/a", "this needs root")
    assert not platform.work.exists()


def test_rows_of_a_platform_replace_its_earlier_ones(tmp_path, monkeypatch):
    import run
    from platform_run import Platform

    monkeypatch.setattr(run, "RESULTS", tmp_path / "platforms.json")
    for name, seen in (("a", "1"), ("b", "2"), ("a", "3")):
        platform = Platform(name, tmp_path, Path("a.whl"), Path("a.tar.gz"))
        platform.check("it", lambda seen=seen: seen)
        run.save(platform)
    result = json.loads((tmp_path / "platforms.json").read_text())
    assert [(row["platform"], row["seen"]) for row in result["rows"]] == [("b", "2"), ("a", "3")]
    assert list(result) == ["machine", "command", "about", "rows"]
