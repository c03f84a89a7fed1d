"""All steps of a release but the upload: see scripts/release."""

import argparse
import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from artifacts import read_wheel
from dates import GitError, find_older, git
from run import PROXIES
from wheels import MACHINES

from benchmarks import ran_page

ROOT = Path(__file__).parents[2]
# Whether the package index has tpufeed. The commit of the first release says True: `words` then asks pages for the name
# alone where it asks for a clone or a wheel now. Errors know by themselves what works (`errors.install_command`).
# Most of these lines become right by
# sed -i "s#\./tpufeed#tpufeed#g; s#'\.\[#'tpufeed[#; s#    \# a clone (install.md)##" docs/*.md examples/*.py
PUBLISHED = False

# A line of a command; as code in a paragraph it may go on in the next one. `--find-links` is where the wheel is.
_INSTALL = r"pip install(?! --find-links)(?:\n *|(?=\s))(?:[^\n`#]|\n {0,3}(?=['\"]))*?(?<=[\s'\"])"
_BY_NAME = re.compile(_INSTALL + r"tpufeed(?:\[[\w,]+\])?(?:==[\w.]+)?['\"\\]*(?=[\s`\"\\)]|$)(?! @)", re.MULTILINE)
_BY_PATH = re.compile(_INSTALL + r"(?:\./tpufeed|\.\[|tpufeed @)|not on the package index|clone\]? ?\(install.md")
_PAGES = ("README.md", "docs", "examples")


class NotReadyError(Exception):
    """A step of the release fails; each argument is a line that says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="do all steps, and list what is not ready")
    dry = parser.parse_args(arguments).dry_run
    try:
        commit = git(ROOT, "rev-parse", "--short", "HEAD").strip()
    except GitError as error:
        print(f"scripts/release: {error}", file=sys.stderr)
        return 1
    steps: dict[str, Callable[[], str]] = {
        "tree": partial(check_tree, ROOT),
        "version": partial(check_version, ROOT),
        "words": partial(check_words, ROOT, PUBLISHED, dry),
        "check": partial(run_script, "check"),
        "docs": partial(run_script, "docs"),
        "platforms": partial(check_platforms, ROOT),
        "dates": partial(check_dates, ROOT),
        "files": make_files,
    }
    failed = []
    for name, step in steps.items():
        start = time.monotonic()
        try:
            lines, result = [step()], "ok"
        except (NotReadyError, GitError) as error:
            lines, result = list(error.args), "FAILED"
            failed.append(name)
        print(f"{name:<11}{result:<8}{time.monotonic() - start:5.0f} s  {lines[0]}", flush=True)
        print("".join(f"{'':<28}{line}\n" for line in lines[1:]), end="", flush=True)
        if failed and not dry:
            break
    if failed:
        print(f"\nnot ready: {', '.join(failed)}")
        return 1
    print(f"\nleft to a person, at {commit}:")
    if not PUBLISHED:
        print("    set PUBLISHED = True in scripts/packaging/release.py, commit, and run scripts/release")
    version = read_version(ROOT)
    print(f"    git tag -a v{version} -m 'tpufeed {version}'\n    git push origin v{version}")
    print(f"    twine upload dist/tpufeed-{version}*")
    return 0


def check_tree(root: Path) -> str:
    changed = [line[3:] for line in git(root, "status", "--porcelain").splitlines()]
    if changed:
        raise NotReadyError(f"{len(changed)} files are not committed: {shorten(changed)}; commit or remove them")
    return f"clean, at {git(root, 'log', '-1', '--format=%h %s').strip()}"


def read_version(root: Path) -> str:
    found = re.search(r'^__version__ = "(.+)"$', (root / "tpufeed/_version.py").read_text(), re.MULTILINE)
    if found is None:
        raise NotReadyError('tpufeed/_version.py has no line __version__ = "...": pyproject.toml takes it from there')
    return found[1]


def check_version(root: Path) -> str:
    """The package, CHANGELOG.md and CITATION.cff say the same version and day. No fragment is left, the tag is new."""
    version, problems = read_version(root), []
    sections = re.split(r"^## ", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    dated = [re.match(rf"\[?{re.escape(version)}\]? - (\d{{4}}-\d\d-\d\d)\n", section) for section in sections]
    day = next((found[1] for found in dated if found), None)
    if day is None:
        problems.append(f"CHANGELOG.md has no section `## {version} - YYYY-MM-DD`")
    if fragments := sorted(path.name for path in (root / "changelog.d").glob("*.md")):
        problems.append(f"changelog.d has {shorten(fragments)}: run towncrier build --version {version}")
    citation = (root / "CITATION.cff").read_text()
    for line in (f"version: {version}", *([f"date-released: {day}"] if day else [])):
        if line not in citation.replace("'", "").replace('"', "").splitlines():
            problems.append(f"CITATION.cff has no line `{line}`")
    if git(root, "tag", "--list", f"v{version}").strip():
        problems.append(f"the tag v{version} is there already: raise __version__ in tpufeed/_version.py")
    if problems:
        raise NotReadyError(*problems)
    return f"{version} of {day}, in tpufeed, CHANGELOG.md and CITATION.cff"


def check_words(root: Path, published: bool, dry: bool) -> str:
    """Pages say what works: the name alone if the index has it; else a clone or a wheel, in messages as well."""
    pattern, places = (
        (_BY_PATH, _PAGES) if published else (_BY_NAME, (*_PAGES, "CONTRIBUTING.md", "scripts", "tpufeed"))
    )
    wrong = []
    for place in places:
        folder = root / place
        for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
            if not path.is_dir() and path.suffix in (".md", ".py", ".ipynb", ".sh", ""):
                text = path.read_text()
                lines = sorted({text.count("\n", 0, found.start()) + 1 for found in pattern.finditer(text)})
                wrong += [f"{path.relative_to(root)}:{line}" for line in lines]
    if wrong:
        expected = "the name alone, without ./ and .[" if published else "a clone or a wheel, as docs/install.md does"
        raise NotReadyError(f"{len(wrong)} lines do not say what works: say {expected}", *wrong)
    if not published and not dry:
        raise NotReadyError("set PUBLISHED = True in scripts/packaging/release.py: the release will be on the index")
    return f"pages and errors install tpufeed from {'the index' if published else 'a clone or a wheel'}"


def run_script(name: str) -> str:
    done = subprocess.run([ROOT / "scripts" / name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        raise NotReadyError(f"scripts/{name} ended with {done.returncode}", *lines[-15:])
    return f"scripts/{name}"


def make_files() -> str:
    """Sdist and wheels in dist: scripts/wheels puts none there that fails twine check, abi3audit or another check."""
    version, how = read_version(ROOT), "of this tree, built before"
    if find_stale(ROOT, version):
        print("files: scripts/wheels builds them, in up to an hour ...", file=sys.stderr, flush=True)
        run_script("wheels")
        how = "built by scripts/wheels"
    stale = find_stale(ROOT, version)
    if stale:
        raise NotReadyError(*stale)
    return f"{', '.join(('sdist', *MACHINES))} in dist, {how}"


def find_stale(root: Path, version: str) -> list[str]:
    """Files of the release that dist lacks, or that hold something else than the tree: a line each."""
    tracked = git(root, "ls-files", "-z").split("\0")[:-1]
    there = {name: (root / name).read_bytes() for name in tracked if (root / name).is_file()}
    grafts = tuple(
        f"{name}/" for name in re.findall(r"^graft (\S+)$", (root / "MANIFEST.in").read_text(), re.MULTILINE)
    )
    problems, times = [], []
    for pattern in (f"tpufeed-{version}.tar.gz", *(f"tpufeed-{version}-*_{machine}.whl" for machine in MACHINES)):
        paths = list((root / "dist").glob(pattern))
        if len(paths) != 1:
            problems.append(f"dist has {len(paths)} files {pattern}, not one")
            continue
        times.append(paths[0].stat().st_mtime)
        if paths[0].suffix == ".whl":
            held = {name: data for name, data in read_wheel(paths[0]).items() if name.endswith((".py", "py.typed"))}
            expected = {name for name in tracked if name.startswith("tpufeed/") and name.endswith((".py", "py.typed"))}
        else:
            held, expected = read_sdist(paths[0]), {name for name in tracked if name.startswith(grafts)}
        differ = [name for name in sorted(held.keys() | expected) if name not in there or held.get(name) != there[name]]
        if differ:
            problems.append(f"dist/{paths[0].name} is not of this tree: {shorten(differ)}")
    if times and min(times) < times[0]:  # what only pyproject.toml and README.md tell a wheel is in the sdist
        problems.append("dist has a wheel that is older than the sdist, from which it should be built")
    return problems


def read_sdist(path: Path) -> dict[str, bytes]:
    """Its files but those that the build writes."""
    files = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            content = archive.extractfile(member) if member.isfile() else None
            if content and name not in ("PKG-INFO", "setup.cfg") and ".egg-info/" not in name:
                files[name] = content.read()
    return files


def check_platforms(root: Path) -> str:
    """Each platform of scripts/platforms has a result without failures, and the page says what the results say."""
    rows = json.loads((root / "benchmarks/results/platforms.json").read_text())["rows"]
    ran = {row["platform"] for row in rows if row["check"] == ran_page.WHOLE and row["result"] == "ok"}
    problems = [f"{name}: run scripts/platforms --save {name}" for name in PROXIES if name not in ran]
    problems += [f"{row['platform']}, {row['check']}: FAILED" for row in rows if row["result"] == "FAILED"]
    if ran_page.make_page(root / "benchmarks/results") != (root / "docs/what-has-run.md").read_text():
        problems.append("docs/what-has-run.md is older: run python benchmarks/run.py ran-page --write")
    if problems:
        raise NotReadyError(*problems)
    return f"{len(ran)} of {len(PROXIES)}, as docs/what-has-run.md says"


def check_dates(root: Path) -> str:
    results, older = find_older(root)
    if older:
        lines = (f"{change}: {', '.join(names)}" for change, names in sorted(older.items()))
        count = sum(map(len, older.values()))
        raise NotReadyError(f"{count} of {results} are older than the last change of the code they measure:", *lines)
    return f"{results} results are younger than the code that they measure"


def shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


if __name__ == "__main__":
    sys.exit(main())
