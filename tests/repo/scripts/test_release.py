"""The checks of scripts/release, on small trees; and the words of pages and messages, of this one."""

import ast
import importlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHANGELOG = "# Changelog\n\n## 1.2.0 - 2026-02-03\n\n- all of it\n"
CITATION = "version: 1.2.0\ndate-released: 2026-02-03\n"


@pytest.fixture
def release(monkeypatch):
    known = set(sys.modules)
    for folder in ("scripts/proxies", "scripts/packaging"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    yield importlib.import_module("release")
    for name in set(sys.modules) - known:
        if "/scripts/" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


class Tree:
    """A git tree. Its commits are of the days that are given."""

    def __init__(self, root):
        self.root = root
        self.git("init", "-q")

    def git(self, *arguments, day="2026-01-01", hour=12):
        time = f"{day}T{hour:02d}:00:00+0000"
        own = {f"GIT_{who}_{what}": "me" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        own |= {"GIT_AUTHOR_DATE": time, "GIT_COMMITTER_DATE": time}
        subprocess.run(["git", "-C", self.root, *arguments], check=True, capture_output=True, env=os.environ | own)

    def commit(self, files, day="2026-01-01", hour=12):
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        self.git("add", "-A")
        self.git("commit", "-q", "-m", f"commit of {day}", day=day, hour=hour)


@pytest.fixture
def tree(tmp_path):
    tree = Tree(tmp_path)
    files = {"tpufeed/_version.py": '__version__ = "1.2.0"\n', "CHANGELOG.md": CHANGELOG, "CITATION.cff": CITATION}
    tree.commit(files | {"changelog.d/.gitignore": "!.gitignore\n"})
    return tree


def test_a_tree_is_ready_if_all_is_committed_and_says_one_version(release, tree):
    assert "clean" in release.check_tree(tree.root)
    assert release.check_version(tree.root).startswith("1.2.0 of 2026-02-03")


def test_what_is_not_committed_is_named(release, tree):
    (tree.root / "stray.txt").touch()
    with pytest.raises(release.NotReadyError, match=r"1 files .* stray\.txt"):
        release.check_tree(tree.root)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("CHANGELOG.md", "1.2.0 - 2026-02-03", "1.2.0 (not released yet)", "no section `## 1.2.0 - YYYY-MM-DD`"),
        ("changelog.d/7.fixed.md", "", "More.\n", "changelog.d has 7.fixed.md: run towncrier build --version 1.2.0"),
        ("CITATION.cff", "1.2.0", "1.1.0", "no line `version: 1.2.0`"),
        ("CITATION.cff", "02-03", "02-02", "no line `date-released: 2026-02-03`"),
        ("tpufeed/_version.py", "1.2.0", "1.3.0", "no section `## 1.3.0"),
        ("tpufeed/_version.py", "__version__", "version", "no line __version__"),
    ],
)
def test_what_says_another_version_is_named(release, tree, name, old, new, said):
    path = tree.root / name
    path.write_text(path.read_text().replace(old, new) if old else new)
    with pytest.raises(release.NotReadyError, match=said):
        release.check_version(tree.root)


def test_a_version_that_has_a_tag_is_refused(release, tree):
    tree.git("tag", "v1.2.0")
    with pytest.raises(release.NotReadyError, match=r"tag v1\.2\.0 is there"):
        release.check_version(tree.root)


def test_pages_and_messages_say_what_works(release):
    release.check_words(ROOT, release.PUBLISHED, dry=True)


BY_NAME = (
    "pip install tpufeed",
    "run `pip install tpufeed 'numpy<2'`.",
    "pip install 'jax[tpu]' 'tpufeed[gcs]'",
    'RUN pip install "tpufeed[gcs]==1.2.0"',
    "%pip install --quiet tpufeed matplotlib",
    "as `pip install\n'tpufeed[gcs]'` does",
    "as `pip install numpy\n  'tpufeed[gcs]'` does",
    r"RUN pip install \"tpufeed[gcs]==1.2.0\"\\n",
)
BY_PATH = (
    "pip install ./tpufeed",
    "as `pip install\n'./tpufeed[gcs]'` does",
    "needs [a clone](install.md)",
    "pip install 'jax[tpu]' './tpufeed[gcs]'",
    "    pip install '.[torch]' accelerate",
    "%pip install --quiet 'tpufeed @ git+https://host/tpufeed' matplotlib",
)
EITHER = (
    "pip install '/path/to/tpufeed-0.1.0-...whl[tf]'",
    "pip install huggingface_hub  # not tpufeed",
    "pip install numpy\ntpufeed info",
)


@pytest.mark.parametrize("published", [False, True])
def test_a_line_that_does_not_work_is_named(release, tmp_path, published):
    wrong, right = (BY_PATH, BY_NAME) if published else (BY_NAME, BY_PATH)
    for name, text in {"README.md": "", "CONTRIBUTING.md": "", "examples/a.py": "", "scripts/a": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for folder in ("docs", "tpufeed"):
        (tmp_path / folder).mkdir()
    page = tmp_path / "docs/page.md"
    page.write_text("\n".join((*right, *EITHER)))
    release.check_words(tmp_path, published, dry=True)
    for line in wrong:
        page.write_text(f"# Page\n{line}\n")
        with pytest.raises(release.NotReadyError) as caught:
            release.check_words(tmp_path, published, dry=True)
        assert caught.value.args[1:] == ("docs/page.md:2",), line


def test_the_release_itself_is_on_the_index(release):
    if release.PUBLISHED:
        release.check_words(ROOT, True, dry=False)
    else:
        with pytest.raises(release.NotReadyError, match="PUBLISHED = True"):
            release.check_words(ROOT, False, dry=False)


CODE = '"""Says."""\n\n\ndef f():\n    """Says it\'s so."""\n    return 1  # one\n'


def result(day, script="feed"):
    return {"machine": {"date": day}, "command": f"python benchmarks/run.py {script} --save", "rows": []}


def put(tree, name, content, day, hour=12):
    tree.commit({f"benchmarks/results/{name}.json": content}, day, hour)


def test_a_result_that_is_older_than_its_code_is_named(release, tree):
    tree.commit({"tpufeed/stream/a.py": CODE, "tpufeed/engines/a.py": CODE, "tpufeed/images/a.c": "1;"}, "2026-01-02")
    put(tree, "young", result("2026-01-02"), "2026-01-03")
    put(tree, "late", result("2026-01-01"), "2026-01-03")  # committed later than it was measured
    put(tree, "tasks", result("2026-01-03", "engines"), "2026-01-03")
    put(tree, "all", result("2026-01-03", "demo"), "2026-01-03")
    put(tree, "undated", {"command": "python benchmarks/run.py feed", "rows": []}, "2026-01-03")
    put(tree, "platforms", {"rows": []}, "2026-01-03")
    assert list(release.find_older(tree.root)[1].values()) == [["late (2026-01-01)", "undated (no date)"]]
    release.find_older.__globals__["last_change"].cache_clear()

    tree.commit({"tpufeed/engines/a.py": CODE.replace("1 ", "2 ")}, "2026-01-03", 13)
    count, older = release.find_older(tree.root)
    assert count == 5
    (change,) = (change for change, names in older.items() if change.startswith("2026-01-03"))
    assert older[change] == ["all (2026-01-03)", "tasks (2026-01-03)"]
    with pytest.raises(release.NotReadyError, match="4 of 5") as caught:
        release.check_dates(tree.root)
    assert any("tasks (2026-01-03)" in line for line in caught.value.args)


@pytest.mark.parametrize(
    ("name", "code", "is_older"),
    [
        ("stream/a.py", CODE.replace("so.", 'not so, "really" isn\'t.'), False),
        ("stream/a.py", CODE.replace("# one", "# two"), False),
        ("stream/a.py", CODE.replace("return 1", "return 2"), True),
        ("stream/a.py", CODE.replace("return 1", "return '''Says.'''"), True),
        ("stream/b.py", "b = 1\n", True),
        ("images/a.c", "2;", True),
        ("cli/a.py", "a = 1\n", False),
    ],
)
def test_only_a_change_of_what_the_code_does_makes_a_result_older(release, tree, name, code, is_older):
    tree.commit({"tpufeed/stream/a.py": CODE, "tpufeed/images/a.c": "1;"}, "2026-01-02")
    put(tree, "feed", result("2026-01-02"), "2026-01-02", 13)
    tree.commit({f"tpufeed/{name}": code}, "2026-01-02", 14)
    assert bool(release.find_older(tree.root)[1]) == is_older


def test_code_counts_from_the_day_of_its_merge(release, tree):
    tree.commit({"tpufeed/stream/a.py": CODE}, "2026-01-02")
    tree.git("checkout", "-q", "-b", "side")
    tree.commit({"tpufeed/stream/a.py": CODE.replace("1 ", "2 ")}, "2026-01-03")
    tree.git("checkout", "-q", "-")
    put(tree, "feed", result("2026-01-04"), "2026-01-04")
    assert not release.find_older(tree.root)[1]
    release.find_older.__globals__["last_change"].cache_clear()
    tree.git("merge", "-q", "--no-ff", "-m", "merged", "side", day="2026-01-05")
    assert release.find_older(tree.root)[1]


@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("tests/stream/test_a.py", ["python3.14"]),
        ("tests/gcs_server/a.py", ["python3.14", "fulldisk"]),
        ("examples/slurm/a.py", ["slurm"]),
        ("scripts/proxies/pythons.py", ["python3.14"]),
        ("scripts/proxies/slurm.py", ["slurm"]),
        ("scripts/packaging/smoke.py", ["python3.14", "slurm", "fulldisk"]),
        ("tpufeed/stream/a.py", ["python3.14", "slurm", "fulldisk"]),
        ("docs/a.md", []),
    ],
)
def test_a_platform_is_older_than_the_tests_and_scripts_that_it_runs(release, tree, name, older):
    tree.commit({"tpufeed/stream/a.py": CODE}, "2026-01-02")
    row = {"check": "all of it", "date": "2026-01-03"}
    rows = [row | {"platform": platform} for platform in ("python3.14", "slurm", "fulldisk")]
    put(tree, "platforms", {"rows": [*rows, row | {"platform": "slurm", "check": "another"}]}, "2026-01-03")
    assert release.find_older(tree.root) == (3, {})
    release.find_older.__globals__["last_change"].cache_clear()
    tree.commit({name: "changed = 1\n"}, "2026-01-04")
    said = [name for names in release.find_older(tree.root)[1].values() for name in names]
    assert said == [f"scripts/platforms {platform} (2026-01-03)" for platform in older]


def test_what_results_measure_is_there(release):
    dates = sys.modules["dates"]
    programs = [f"scripts/proxies/{proxy.module}.py" for proxy in release.PROXIES.values()]
    run = [path for paths in dates.RUN.values() for path in paths]
    assert all((ROOT / path).exists() for path in (*dates.PLATFORM, *dates.COMMON, *programs, *run))
    assert {proxy.module for proxy in release.PROXIES.values()}.issuperset(dates.RUN)
    for script, rooms in dates.MEASURED.items():
        assert (ROOT / f"benchmarks/{script.replace('-', '_')}.py").is_file(), script
        assert all((ROOT / "tpufeed" / room).exists() for room in rooms), script


def imported(file):
    """Modules of tests/ that a file imports."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    names = {name for node in nodes for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names))}
    bases = [ROOT / name.replace(".", "/") for name in names if name and name.startswith("tests.")]
    return [path for base in bases for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]


def test_tests_of_platforms_import_nothing_else(release):
    suite = [ROOT / path for path in sys.modules["dates"].SUITE]
    for file in (file for path in suite for file in ([path] if path.is_file() else path.rglob("*.py"))):
        others = [module for module in imported(file) if not any(module.is_relative_to(path) for path in suite)]
        assert not others, f"{file} imports {others}: name them in dates.IMPORTED"


def write_files(tree):
    """The files of a release in dist, as the tree is."""
    dist = tree.root / "dist"
    dist.mkdir(exist_ok=True)
    with tarfile.open(dist / "tpufeed-1.2.0.tar.gz", "w:gz") as archive:
        for name in ("tpufeed/_version.py", "tpufeed/py.typed", "tpufeed/a.c", "docs/a.md", "README.md"):
            archive.add(tree.root / name, f"tpufeed-1.2.0/{name}")
        archive.add(tree.root / "README.md", "tpufeed-1.2.0/PKG-INFO")
    for machine in ("x86_64", "aarch64"):
        with zipfile.ZipFile(dist / f"tpufeed-1.2.0-cp311-abi3-linux_{machine}.whl", "w") as archive:
            for name in ("tpufeed/_version.py", "tpufeed/py.typed"):
                archive.write(tree.root / name, name)
            archive.writestr("tpufeed-1.2.0.dist-info/METADATA", "")


def test_files_that_are_not_of_the_tree_are_named(release, tree):
    tree.commit({"MANIFEST.in": "graft tpufeed\ngraft docs\n", "README.md": "r", ".gitignore": "dist"})
    tree.commit({"docs/a.md": "a", "tpufeed/py.typed": "", "tpufeed/a.c": "1;"})
    assert len(release.find_stale(tree.root, "1.2.0")) == 3
    write_files(tree)
    assert release.find_stale(tree.root, "1.2.0") == []

    tree.commit({"docs/a.md": "b"})
    (said,) = release.find_stale(tree.root, "1.2.0")
    assert said.endswith("tpufeed-1.2.0.tar.gz is not of this tree: docs/a.md")
    write_files(tree)
    tree.commit({"README.md": "s", "docs/new.md": "n"})
    (said,) = release.find_stale(tree.root, "1.2.0")
    assert said.endswith("README.md, docs/new.md")
    tree.git("rm", "-q", "docs/new.md")
    write_files(tree)
    (tree.root / "tpufeed/_version.py").write_text("changed = 1\n")
    assert len(release.find_stale(tree.root, "1.2.0")) == 3
    write_files(tree)
    os.utime(tree.root / "dist/tpufeed-1.2.0-cp311-abi3-linux_x86_64.whl", (1, 1))
    assert "older than the sdist" in release.find_stale(tree.root, "1.2.0")[0]
    (tree.root / "dist/tpufeed-1.2.0.tar.gz").unlink()
    assert "0 files tpufeed-1.2.0.tar.gz" in release.find_stale(tree.root, "1.2.0")[0]


def test_platforms_that_did_not_run_or_failed_are_named(release, tmp_path):
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    run = {"check": "all of it", "result": "ok", "seen": "Debian", "seconds": 1.0, "date": "2026-01-01"}

    def check(rows):
        (tmp_path / "benchmarks/results/platforms.json").write_text(json.dumps({"rows": rows}))
        release.check_platforms(tmp_path)

    def write_page():
        page = release.ran_page.make_page(tmp_path / "benchmarks/results")
        (tmp_path / "docs/what-has-run.md").write_text(page)

    (tmp_path / "docs/what-has-run.md").write_text("")
    rows = [run | {"platform": name} for name in release.PROXIES]
    with pytest.raises(release.NotReadyError, match="ran-page --write"):
        check(rows)
    write_page()
    check(rows)
    failed = run | {"platform": "nfs", "check": "locks", "result": "FAILED"}
    for changed, said in ((rows[1:], f"{rows[0]['platform']}: run scripts/platforms"), ([*rows, failed], "nfs, locks")):
        with pytest.raises(release.NotReadyError, match=said):
            check(changed)


def run_main(release, monkeypatch, root, *arguments, **replaced):
    monkeypatch.setattr(release, "ROOT", root)
    monkeypatch.setattr(release, "PUBLISHED", True)
    ran = []
    for name in ("check_tree", "check_words", "check_platforms", "check_dates", "make_files", "run_script"):
        step = replaced.get(name, lambda *_: "done")
        monkeypatch.setattr(release, name, lambda *given, name=name, step=step: ran.append(name) or step(*given))
    return release.main(list(arguments)), ran


def test_a_dry_run_does_all_steps_and_a_release_stops(release, tree, monkeypatch, capsys):
    def refuse(*_):
        raise release.NotReadyError("no good", "says why")

    code, ran = run_main(release, monkeypatch, tree.root, "--dry-run")
    assert (code, len(ran)) == (0, 7)
    said = capsys.readouterr().out
    assert "git tag -a v1.2.0" in said
    assert "twine upload dist/tpufeed-1.2.0*" in said
    code, ran = run_main(release, monkeypatch, tree.root, "--dry-run", check_words=refuse, check_dates=refuse)
    assert (code, len(ran)) == (1, 7)
    said = capsys.readouterr().out
    assert said.endswith("not ready: words, dates\n")
    assert "upload" not in said
    code, ran = run_main(release, monkeypatch, tree.root, check_words=refuse)
    assert (code, ran) == (1, ["check_tree", "check_words"])


def test_what_is_no_clone_is_said_in_a_line(release, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    code, ran = run_main(release, monkeypatch, tmp_path)
    assert (code, ran) == (1, [])
    said = capsys.readouterr().err
    assert said.startswith(f"scripts/release: {tmp_path} is no clone")
    assert said.count("\n") == 1
    monkeypatch.setenv("PATH", "")
    assert run_main(release, monkeypatch, tmp_path)[0] == 1
    assert capsys.readouterr().err == "scripts/release: git is missing: install it\n"


def test_a_script_that_fails_shows_its_last_lines(release, tmp_path, monkeypatch):
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts/check"
    script.write_text("#!/bin/sh\nseq 30\necho wrong >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    with pytest.raises(release.NotReadyError, match="scripts/check ended with 3") as caught:
        release.run_script("check")
    assert caught.value.args[-1] == "wrong"
    assert len(caught.value.args) == 16
