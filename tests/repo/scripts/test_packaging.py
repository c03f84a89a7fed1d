"""The parts of scripts/package-matrix that need no network, and the page on installing."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = ("arm", "artifacts", "available", "bounds", "frameworkless", "matrix", "resolver", "smoke")


@pytest.fixture(autouse=True)
def _packaging(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts/packaging"))
    yield
    for name in MODULES:
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
    assert set(EXTRAS) == set(extras) - {"photos", "docs", "all", "dev"}
    alone = {"torchtpu"}  # takes another torch than xla
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
    assert any(name.startswith("tpufeed/loaders/xla/") for name in files)
    assert check_wheel(_zip(tmp_path / f"whole{end}", files)).startswith(f"whole{end}: ")
    with pytest.raises(ArtifactError, match=r"lacks \['tpufeed/py.typed'\] and has \[\]"):
        check_wheel(_zip(tmp_path / f"less{end}", files - {"tpufeed/py.typed"}))
    with pytest.raises(ArtifactError, match=r"lacks \[\] and has \['tests/conftest.py'\]"):
        check_wheel(_zip(tmp_path / f"more{end}", files | {"tests/conftest.py"}))

    with pytest.raises(ArtifactError, match="not one wheel for all Pythons"):
        check_wheel(_zip(tmp_path / f"whole-cp312-cp312-{platform()}.whl", files))


def _zip(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_what_an_sdist_has_to_hold_is_there():
    from artifacts import NEEDED

    assert [name for name in NEEDED if name != "PKG-INFO" and not (ROOT / name).is_file()] == []


def test_the_page_has_every_extra_and_shows_what_was_measured():
    page = (ROOT / "docs/install.md").read_text()
    shown = dict(re.findall(r"^\| `?(\w+)`? \| .* \| ?([\d,]*) \|$", page, re.MULTILINE))
    extras = set(PROJECT["optional-dependencies"]) - {"photos", "docs", "all", "dev"}
    assert set(shown) == {"none", *extras}
    measured = json.loads((ROOT / "benchmarks/results/packages.json").read_text())["rows"]
    sizes = {case["case"]: f"{case['megabytes']:,}" for case in measured if case["python"] == "3.11"}
    assert shown == {case: sizes.get(case, "") for case in shown}
    bounds = page.partition("## Lower bounds")[2]
    for requirement in PROJECT["dependencies"]:
        version = requirement.partition(">=")[2].removesuffix(".0.80")
        assert version in bounds, requirement
