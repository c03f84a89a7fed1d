"""The parts of scripts/package-matrix that need no network, and the page on installing."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = ("arm", "artifacts", "available", "bounds", "matrix", "resolver", "smoke", "wheels")
PROXIES = ("arm64", "chroot", "platform_run", "run")


@pytest.fixture(autouse=True)
def _packaging(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts/proxies"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts/packaging"))
    yield
    for name in (*MODULES, *PROXIES):
        sys.modules.pop(name, None)


def test_lower_bounds_become_exact():
    from bounds import lowest

    given = [
        "numpy>=1.26",
        "ray[default]>=2.40",
        "torch==2.9.*",
        "torch>=2.11,<2.16",
        "tensorflow>=2.18; platform_system != 'Linux'",
    ]
    exact = [
        "numpy==1.26",
        "ray[default]==2.40",
        "torch==2.9.*",
        "torch==2.11",
        "tensorflow==2.18; platform_system != 'Linux'",
    ]
    assert lowest(given) == exact
    for without in ("numpy", "numpy<3"):
        with pytest.raises(ValueError, match="has no lower bound"):
            lowest([without])


def test_every_dependency_has_a_lower_bound_and_every_extra_a_case():
    from bounds import lowest
    from matrix import EXTRAS
    from smoke import CHECKS

    lowest(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"photos", "docs", "all", "dev", "test"}
    alone = {"torchtpu", "tpu-compiler"}  # the one takes another torch than xla, the other has a large libtpu
    assert {f"tpufeed[{','.join(extra for extra in EXTRAS if extra not in alone)}]"} == set(extras["all"])
    assert set(CHECKS) == {"none", *EXTRAS}
    for extra in EXTRAS:
        lowest(extras[extra])


def test_a_wheel_that_there_is_not_for_arm_is_named(monkeypatch, tmp_path):
    from available import NoWheelError, find_wheels

    _serve(monkeypatch, tmp_path, "one-1-cp311-abi3-manylinux2014_aarch64", "two-1-cp311-cp311-manylinux_2_28_x86_64")
    assert find_wheels(["one"], "3.12", "aarch64") == ["one-1-cp311-abi3-manylinux2014_aarch64.whl"]
    with pytest.raises(NoWheelError, match="two") as caught:
        find_wheels(["one", "two>=1"], "3.11", "aarch64")
    assert caught.value.package == "two"
    # pip would take them for those of the machine that asks.
    assert not [each for each in PROJECT["dependencies"] if "platform_machine" in each]


def test_packages_without_a_wheel_for_a_python_are_named(monkeypatch, tmp_path):
    from available import NoWheelError, without_wheels

    wheels = ("abi-1-cp311-abi3", "own-1-cp315-cp315", "free-1-cp314-cp314t", "pure-1-py3-none")
    _serve(monkeypatch, tmp_path, *(f"{each}-manylinux2014_x86_64" for each in wheels))
    asked = ["abi>=1", "own>=1", "free>=1", "pure"]
    assert without_wheels(asked, "3.15") == (["free"], 3)
    assert without_wheels(asked, "3.14t") == (["own", "abi"], 2)
    _serve(monkeypatch, tmp_path, "needs-1-py3-none-manylinux2014_x86_64", needs="nothing")
    with pytest.raises(NoWheelError, match="nothing"):
        without_wheels(["needs"], "3.15")


def _serve(monkeypatch, folder, *wheels, needs=""):
    """Have pip see these wheels and no others; each may need a package."""
    for wheel in wheels:
        name = wheel.partition("-")[0]
        info, needed = f"{name}-1.dist-info", f"Requires-Dist: {needs}\n" if needs else ""
        with zipfile.ZipFile(folder / f"{wheel}.whl", "w") as archive:
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needed}")
            archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {wheel.partition('-1-')[2]}\n")
            archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_a_free_threaded_python_is_refused_before_anything_is_built():
    program = "import runpy, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; runpy.run_path('setup.py')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("tpufeed does not run on free-threaded builds of Python")


def test_cases_and_what_pip_is_asked_for(capsys):
    from matrix import CASES, parse, wanted

    assert parse([]).cases == list(CASES)
    several = parse(["--python", "3.12", "--python", "3.13", "none"])
    assert (several.cases, several.python) == (["none"], ["3.12", "3.13"])
    assert parse(["none"]).python == ["3.11"]
    with pytest.raises(SystemExit):
        parse(["nonsense"])
    assert "there is no case nonsense" in capsys.readouterr().err
    wheel, sdist = Path("/d/tpufeed.whl"), Path("/d/tpufeed.tar.gz")
    assert wanted("none", wheel, sdist) == ["/d/tpufeed.whl"]
    assert wanted("tf", wheel, sdist) == ["/d/tpufeed.whl[tf]"]
    assert wanted("sdist", wheel, sdist) == ["/d/tpufeed.tar.gz"]
    assert "numpy==1.26" in wanted("oldest", wheel, sdist)
    assert wanted("oldest-parquet", wheel, sdist)[-1].startswith("pyarrow==")


def test_a_python_that_is_absent_is_skipped_in_sight():
    from matrix import run_case

    row = run_case("none", "3.99", Path("nowhere.whl"), Path("nowhere.tar.gz"))
    assert row.result == "skipped: no Python 3.99 here"
    assert row.result in row.line()


def test_a_step_that_fails_says_which_and_how_it_ended():
    from matrix import CaseError, call

    with pytest.raises(CaseError, match=r"(?s)smoke.*no such thing"):
        call("smoke", [sys.executable, "-c", "raise SystemExit('no such thing')"], 60)


def test_rows_are_added_and_replaced(tmp_path):
    from matrix import Row, save

    file = tmp_path / "packages.json"
    for row in (
        Row("none", "3.11", 1, 2, 3),
        Row("tf", "3.11"),
        Row("none", "3.11", 4, 5, 6),
        Row("x", "3.9", result="skipped"),
    ):
        save(file, row)
    cases = json.loads(file.read_text())["rows"]
    assert [(case["case"], case["megabytes"]) for case in cases] == [("tf", None), ("none", 6)]


def test_a_wheel_has_all_of_the_package_and_nothing_else(tmp_path):
    from artifacts import EXTENSION, ArtifactError, check_wheel, platform

    files = {f"tpufeed/{path.relative_to(ROOT / 'tpufeed')}" for path in (ROOT / "tpufeed").rglob("*.py")}
    files |= {"tpufeed/py.typed", EXTENSION, "tpufeed-0.dist-info/METADATA"}
    end = f"-cp311-abi3-{platform()}.whl"
    assert any(name.startswith("tpufeed/adapters/xla/") for name in files)
    assert check_wheel(_zip(tmp_path / f"whole{end}", files)).startswith(f"whole{end}: ")
    with pytest.raises(ArtifactError, match=r"lacks \['tpufeed/py.typed'\] and has \[\]"):
        check_wheel(_zip(tmp_path / f"less{end}", files - {"tpufeed/py.typed"}))
    with pytest.raises(ArtifactError, match=r"lacks \[\] and has \['tests/conftest.py'\]"):
        check_wheel(_zip(tmp_path / f"more{end}", files | {"tests/conftest.py"}))
    with pytest.raises(ArtifactError, match=r"lacks \['tpufeed/images/_restart.abi3.so'\]"):
        check_wheel(_zip(tmp_path / f"pure{end}", files - {EXTENSION}))


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("cp312-cp312-manylinux_2_17_x86_64", ["cp312-cp312-manylinux_2_17_x86_64"]),
        ("cp311-abi3-linux_x86_64", ["cp311-abi3-linux_x86_64"]),
        ("cp311-abi3-manylinux_2_38_x86_64", ["cp311-abi3-manylinux_2_38_x86_64"]),
        ("cp311-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64", ["cp311-abi3-manylinux_2_17_aarch64"]),
        ("cp311-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64", ["cp311-abi3-linux_x86_64"]),
        ("cp311-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64", ["cp311-abi3-manylinux_2_17_x86_64"]),
    ],
)
def test_a_wheel_with_a_wrong_tag_is_refused(tmp_path, name, inside):
    from artifacts import MANYLINUX, ArtifactError, check_tag

    platforms = MANYLINUX.format(machine="x86_64")
    tags = [f"cp311-abi3-{each}" for each in reversed(platforms.split("."))]
    whole = f"cp311-abi3-{platforms}"
    assert check_tag(_tagged(tmp_path, whole, tags), platforms) == whole
    with pytest.raises(ArtifactError, match=name):
        check_tag(_tagged(tmp_path, name, inside), platforms)


def _tagged(folder, name, inside):
    said = "Wheel-Version: 1.0\n" + "".join(f"Tag: {tag}\n" for tag in inside)
    return _zip(folder / f"tpufeed-0.1.0-{name}.whl", {"tpufeed-0.1.0.dist-info/WHEEL": said})


def test_a_wheel_that_names_folders_of_its_builder_is_refused(tmp_path):
    from artifacts import EXTENSION, ArtifactError, check_paths

    info = "tpufeed-0.dist-info"
    files = {
        EXTENSION: b"\x7fELF\0libc.so.6\0not a JPEG\0/\0",
        f"{info}/RECORD": "tpufeed/builds/run.py,sha256=a/tmp/b,1\n",
        f"{info}/METADATA": "Project-URL: Source, https://example.com/home/tpufeed\n\nWrite into /tmp/flowers.",
    }
    assert check_paths(_zip(tmp_path / "sound.whl", files)) == "no folder of the builder in 3 files"
    for name, text in (
        (EXTENSION, b"\x7fELF\0libc.so.6\0/srv/pyenv/lib\0"),
        (f"{info}/RECORD", "/root/tpufeed/tpufeed/cli.py,,\n"),
        (f"{info}/METADATA", "Project-URL: Source, file:///home/me/tpufeed\n\n"),
    ):
        with pytest.raises(ArtifactError, match=rf"folders of the machine that built it: {{'{name}': \['/\w+/"):
            check_paths(_zip(tmp_path / "stray.whl", files | {name: text}))
    del files[EXTENSION]
    with pytest.raises(ArtifactError, match=r"lacks tpufeed/images/_restart.abi3.so: was there no C compiler\?"):
        check_paths(_zip(tmp_path / "pure.whl", files))


def _zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name in files:
            archive.writestr(name, files[name] if isinstance(files, dict) else "")
    return path


def test_two_builds_of_an_sdist_have_the_same_bytes(tmp_path):
    from artifacts import repack

    (tmp_path / "run").write_text("#!/bin/sh\n")
    packed = []
    for number, (mode, names) in enumerate(((0o755, "ab"), (0o700, "ba"))):
        (tmp_path / "run").chmod(mode)
        os.utime(tmp_path / "run", (number, number))
        sdist = tmp_path / f"{number}.tar.gz"
        with tarfile.open(sdist, "w:gz") as archive:
            for name in names:
                archive.add(tmp_path / "run", f"tpufeed-0/{name}")
        repack(sdist)
        packed.append(sdist.read_bytes())
    assert packed[0] == packed[1]
    with tarfile.open(tmp_path / "0.tar.gz") as archive:
        members = archive.getmembers()
        assert [(member.name, member.mode) for member in members] == [("tpufeed-0/a", 0o755), ("tpufeed-0/b", 0o755)]
        assert archive.extractfile(members[1]).read() == b"#!/bin/sh\n"


def test_what_an_sdist_has_to_hold_is_there():
    from artifacts import NEEDED

    assert [name for name in NEEDED if name != "PKG-INFO" and not (ROOT / name).is_file()] == []


def test_only_sound_files_come_into_the_folder_and_what_is_missing_is_named(monkeypatch, tmp_path, capsys):
    import wheels
    from artifacts import ArtifactError
    from platform_run import MissingError

    def try_wheel(file, _):
        if file.name == "aarch64":
            raise MissingError("there is no mmdebstrap here: apt-get install mmdebstrap")
        file.wheel = file.work / "tpufeed-1-cp311-abi3-a_x86_64.whl"
        file.wheel.write_text("new")
        wheels.check(file, "a step", step)
        return ""

    def try_sdist(file, _):
        file.sdist = file.work / "tpufeed-1.tar.gz"
        file.sdist.write_text("")
        return ""

    lacking = []

    def step():
        if lacking:
            raise ArtifactError(f"it lacks {lacking}")
        return "seen"

    monkeypatch.setattr(wheels, "install", lambda folder: folder)
    monkeypatch.setattr(wheels, "try_sdist", try_sdist)
    monkeypatch.setattr(wheels, "try_wheel", try_wheel)
    out = tmp_path / "out"
    out.mkdir()
    (out / "tpufeed-0-cp311-abi3-a_x86_64.whl").write_text("old")
    options = ["--out", str(out), "--work", str(tmp_path / "work")]
    assert wheels.main([*options, "--only", "x86_64"]) == 0
    assert {path.name for path in out.iterdir()} == {"tpufeed-1.tar.gz", "tpufeed-1-cp311-abi3-a_x86_64.whl"}
    assert wheels.main(options) == 1
    assert "MISSING: aarch64: there is no mmdebstrap here: apt-get install mmdebstrap" in capsys.readouterr().out
    assert len(list(out.iterdir())) == 2
    lacking.append("all")
    assert wheels.main([*options, "--only", "x86_64"]) == 1
    assert "MISSING: x86_64: a step: it lacks ['all']" in capsys.readouterr().out
    assert [path.name for path in out.iterdir()] == ["tpufeed-1.tar.gz"]
    assert not (tmp_path / "work").exists()


def test_platforms_take_the_wheel_for_their_processor(monkeypatch, tmp_path):
    import run

    monkeypatch.setattr(run.os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    with pytest.raises(SystemExit, match=r"0 wheels for python3\.13 and 0 sdists"):
        run.find(tmp_path, "python3.13")
    sdist, own, arm = (tmp_path / f"tpufeed-1{end}" for end in (".tar.gz", "-a_x86_64.whl", "-a_aarch64.whl"))
    for path in (sdist, own):
        path.write_text("")
    assert run.find(tmp_path, "arm64") == (own, sdist)
    arm.write_text("")
    assert run.find(tmp_path, "arm64") == (arm, sdist)
    assert run.find(tmp_path, "python3.13") == (own, sdist)


def test_the_page_names_the_oldest_glibc():
    from artifacts import MANYLINUX

    (glibc,) = re.findall(r"manylinux_(\d+_\d+)_", MANYLINUX)
    assert f"glibc {glibc.replace('_', '.')} and later" in (ROOT / "docs/install.md").read_text()


def test_the_page_has_every_extra_and_shows_what_was_measured():
    page = (ROOT / "docs/install.md").read_text()
    shown = dict(re.findall(r"^\| `?([\w-]+)`? \| .* \| ?([\d,]*) \|$", page, re.MULTILINE))
    extras = set(PROJECT["optional-dependencies"]) - {"photos", "docs", "all", "dev", "test"}
    assert set(shown) == {"none", *extras}
    measured = json.loads((ROOT / "benchmarks/results/packages.json").read_text())["rows"]
    sizes = {case["case"]: f"{case['megabytes']:,}" for case in measured if case["python"] == "3.11"}
    assert shown == {case: sizes.get(case, "") for case in shown}
    bounds = page.partition("## Lower bounds")[2]
    for requirement in PROJECT["dependencies"]:
        version = requirement.partition(">=")[2].removesuffix(".0.80")
        assert version in bounds, requirement
