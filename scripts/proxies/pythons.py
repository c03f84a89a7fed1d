"""Other Pythons than the one of this machine's tests: Debian's of later releases, or one that is installed here.

Everything is below the platform's folder, which has the same files within a chroot and without: virtual environments,
the sdist's tree without its tpufeed/, and what smokes and commands write.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import chroot
from artifacts import unpack
from available import NoWheelError, without_wheels
from chroot import SHARED, VARIABLES, Chroot
from matrix import EXTRAS, PROJECT, TEST_TOOLS, extras_of, find_python, variables
from platform_run import ROOT, CheckError, MissingError, Platform, call, expect

from tpufeed import open_dataset

SUITES = {"3.13": "trixie", "3.14": "forky"}  # Debian never had 3.12
UNSUPPORTED = ("3.15", "3.13t", "3.14t")
LARGE = ("torch", "lightning", "xla", "torchtpu")  # CUDA's libraries, some gigabytes each: pip is asked, no more
LAST = ("ray", "tf", "beam")  # of those in one environment: Keras's smoke wants no TensorFlow, and Beam pins much
TESTS = (
    *("images", "tfrecord", "dataset", "engines", "cli", "storage"),
    *("adoption", "sources", "sharding", "builds", "cache", "processes", "stream", "adapters"),
)
IMPOSSIBLE = ("images/test_restart.py::test_no_mutant_reaches_beyond_its_memory",)  # compiles what is in tpufeed/
TESTED_WITH = "gcs,rapid,report,parquet,annotations"  # none is a framework, and web servers and gs:// want them
TESTS_SECONDS, FEWEST_PASSED = 1500, 4500
# Turns our own DeprecationWarnings into errors in every process of an environment, also with `python -I`.
OWN_WARNINGS = 'import warnings; warnings.filterwarnings("error", category=DeprecationWarning, module="tpufeed")\n'
FILTERS = (
    "error::DeprecationWarning:tpufeed",
    "error::pytest.PytestUnraisableExceptionWarning",
    "error::pytest.PytestUnhandledThreadExceptionWarning",
)


class Here(Chroot):
    """The same for a Python of this machine, without a chroot."""

    def __init__(self, python: Path, shared: Path) -> None:
        super().__init__(Path("/"), shared)
        self.programs = python.parent

    def command(self, command: str | Sequence[object]) -> list[str]:
        return ["bash", "-c", command] if isinstance(command, str) else list(map(str, command))

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        home = Path.home()
        own = {"PATH": f"{self.programs}:{VARIABLES['PATH']}", "HOME": str(home), "PIP_CACHE_DIR": f"{home}/.cache/pip"}
        return super().environment(own | dict(more or {}))


def run(platform: Platform) -> None:
    python = platform.name.removeprefix("python")
    with find(python, platform.work) as (place, folder):
        seen = place.call("python3 --version").strip()
        platform.about = seen if isinstance(place, Here) else chroot.version(place)
        expect(seen.startswith(f"Python {python}."), f"{seen} is not {python}")
        tries = Tries(platform, place, folder)
        platform.check("wheel: smoke, every DeprecationWarning an error", tries.wheel)
        platform.check("sdist, no compiler: smoke", tries.sdist)
        for extra in (name for name in EXTRAS if name not in LARGE + LAST):
            platform.check(f"extra {extra}: smoke", partial(tries.extra, extra))
        platform.check("README's commands: digests as on this machine", tries.commands)
        platform.check("README's programs for JAX and Keras", tries.programs)
        for extra in LAST:
            platform.check(f"extra {extra}: smoke", partial(tries.extra, extra))
        for extra in LARGE:
            platform.check(f"extra {extra}: what pip would install", partial(tries.ask, extra))
        for extra in ("torch", "lightning") if python in SUITES else ():
            platform.check(f"extra {extra}: smoke on Debian's torch", partial(tries.on_debian, extra))
        platform.check("tests that need no framework", tries.tests)
    for other in UNSUPPORTED if python == "3.14" else ():
        platform.check(f"Python {other}: not supported", partial(unsupported, other))


@contextmanager
def find(python: str, work: Path) -> Iterator[tuple[Chroot, str]]:
    """The Python, and the platform's folder as its programs name it."""
    if python in SUITES:
        with chroot.debian(SUITES[python], work / "debian", work, ["python3-torch"]) as place:
            yield place, SHARED
        return
    found = find_python(python)
    if found is None:
        raise MissingError(f"no Python {python} on PATH or of pyenv, and Debian has none: pyenv install {python}")
    yield Here(found, work), str(work)


class Tries:
    """What is tried on one Python."""

    def __init__(self, platform: Platform, place: Chroot, folder: str) -> None:
        self.work, self.place, self.folder = platform.work, place, folder
        self.asked = f"{folder}/{Path(shutil.copy(platform.wheel, self.work)).name}"
        self.source = f"{folder}/{Path(shutil.copy(platform.sdist, self.work)).name}"
        shutil.rmtree(self.work / "sdist", ignore_errors=True)
        tree = unpack(platform.sdist, self.work / "sdist")
        shutil.rmtree(tree / "tpufeed")  # the installed one is tried
        self.tree = f"{folder}/sdist/{tree.name}"

    def wheel(self) -> str:
        strict = {"PYTHONWARNINGS": "error::DeprecationWarning", "PYTHONDEVMODE": "1"}  # of the processes it starts
        self.venv("core", self.asked)
        self.smoke("core", "none", ["-X", "dev", "-W", "error::DeprecationWarning"], strict)
        return self.versions("core")

    def sdist(self) -> str:
        self.venv("from-source")
        pip = [f"{self.folder}/from-source/bin/pip", "install", "-q", self.source]
        self.place.call(pip, 600, {"CC": "false"})
        self.smoke("from-source", "no-compiler")
        return "installed and ran without the C extension"

    def extra(self, name: str) -> str:
        with no_wheel_is_missing():
            self.venv("extras", self.wanted(name))
        with variables(name) as environment:
            self.smoke("extras", name, (), environment)
        return self.versions("extras", name)

    def ask(self, name: str) -> str:
        """What pip would install for the extra."""
        with no_wheel_is_missing():
            said = self.place.call([f"{self.folder}/core/bin/pip", "install", "--dry-run", self.wanted(name)], 600)
        new = said.partition("Would install ")[2].split()
        found = [f"{package} {version}" for package, _, version in (each.rpartition("-") for each in new)]
        return ", ".join(each for each in found if each.split()[0].replace("-", "_") in packages(name))

    def on_debian(self, name: str) -> str:
        self.venv("system", self.wanted(name), system=True)
        with variables(name) as environment:
            self.smoke("system", name, (), environment)
        return self.versions("system", "torch")

    def commands(self) -> str:
        """Run README's commands as they stand. Raises CheckError if they make other datasets than this machine's."""
        page = (ROOT / "README.md").read_text()
        blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
        lines = [line for line in "".join(blocks).splitlines() if line.startswith("tpufeed ")]
        expect(len(lines) == 7, f"README.md has {len(lines)} commands; expected were 7")
        self.venv("extras", self.wanted("report"))
        there, here = self.work / "readme", self.work / "readme-here"
        for each in (there, here):
            shutil.rmtree(each, ignore_errors=True)
        make = [sys.executable, ROOT / "scripts/make_photos.py", there / "photos"]
        call([*make, "--count", 200, "--size", "320x240"], 120)
        shutil.copytree(there / "photos", here / "photos")
        self.place.call(f"set -e; cd {self.folder}/readme; {'; '.join(lines)}", 300, self.path("extras"))
        expect("<svg" in (there / "bench.html").read_text(), "bench.html has no plot")
        for line in lines:
            if line.split()[1] in ("shard", "cache"):
                words = [sys.executable, "-m", *shlex.split(line)]
                call(words, 120, cwd=here, environment=os.environ | {"PYTHONPATH": str(ROOT)})
        seen = []
        for name in ("flowers", "flowers-224"):
            digests = {open_dataset(each / name).manifest.content_digest for each in (there, here)}
            expect(len(digests) == 1, f"{name}: the content digest here is another: {digests}")
            seen.append(f"{name} {min(digests)[:12]}")
        return f"{len(lines)} commands; {', '.join(seen)}"

    def programs(self) -> str:
        """Run README's programs for JAX and Keras on what its commands made."""
        programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        self.venv("extras", self.wanted("keras"))
        seen = []
        for name, result in (("jax", r"loss [\d.]+"), ("keras", r"'accuracy': [\d.]+")):
            (code,) = (each for each in programs if f"import {name}\n" in each)
            (self.work / "readme/program.py").write_text(code)
            with variables(name) as environment:
                said = self.place.call(f"cd {self.folder}/readme && ../extras/bin/python program.py", 300, environment)
            found = re.search(result, said)
            expect(found is not None, f"{name}: no {result} in\n{said[-2000:]}")
            seen.append(f"{name}: {found[0]}")
        return ", ".join(seen)

    def tests(self) -> str:
        """The sdist's tests against the installed wheel."""
        self.venv("tests", f"{self.asked}[{TESTED_WITH}]", *TEST_TOOLS, "pytest-xdist", "huggingface_hub")
        pytest = [f"{self.folder}/tests/bin/python", "-m", "pytest", "-q", "-m", "not long"]
        pytest += ["-n", 2, "--dist", "loadgroup", "-o", "filterwarnings=" + "\n".join(FILTERS)]
        pytest += [f"--deselect=tests/{name}" for name in IMPOSSIBLE]
        line = f"cd {self.tree} && exec {shlex.join(map(str, pytest))} {' '.join(f'tests/{name}' for name in TESTS)}"
        said = self.place.call(line, TESTS_SECONDS, self.path("tests"))
        counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|skipped)", said.splitlines()[-1])}
        expect(counts.get("passed", 0) > FEWEST_PASSED, f"fewer than {FEWEST_PASSED:,} passed: {said[-300:]}")
        return f"{counts['passed']:,} passed, {counts.get('skipped', 0):,} skipped"

    def venv(self, name: str, *requirements: str, system: bool = False) -> None:
        """Make the environment if it is not there, and install into it."""
        venv = self.work / name
        if not (venv / "bin/pip").exists():
            self.place.venv(f"{self.folder}/{name}", system=system)
            (site,) = venv.glob("lib/python3.*/site-packages")
            (site / "own_warnings.pth").write_text(OWN_WARNINGS)
        if requirements:
            self.place.call([f"{self.folder}/{name}/bin/pip", "install", "-q", "--no-compile", *requirements], 1200)

    def smoke(
        self, venv: str, case: str, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        folder = self.work / f"smoke-{case}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        program = [f"{self.tree}/scripts/packaging/smoke.py", case, f"{self.folder}/{folder.name}"]
        self.place.call([f"{self.folder}/{venv}/bin/python", *options, "-I", *program], 600, environment)
        shutil.rmtree(folder)

    def versions(self, venv: str, extra: str = "") -> str:
        """Like "jax 0.12.0": what the environment has of an extra's packages, or of the core's."""
        names = packages(extra) if extra else ["numpy", "opencv_python_headless"]
        found = "{d.name.lower().replace('-', '_'): d.version for d in distributions()}"
        code = f"from importlib.metadata import distributions; has = {found}; "
        code += f"print(', '.join(f'{{name}} {{has[name]}}' for name in {names} if name in has))"
        return self.place.call([f"{self.folder}/{venv}/bin/python", "-I", "-c", code], 60).strip()

    def path(self, venv: str) -> dict[str, str]:
        return {"PATH": f"{self.folder}/{venv}/bin:{self.place.environment()['PATH']}"}

    def wanted(self, extra: str) -> str:
        return f"{self.asked}[{','.join(extras_of(extra))}]"


@contextmanager
def no_wheel_is_missing() -> Iterator[None]:
    """Make a MissingError of pip's words that a package has no wheel."""
    try:
        yield
    except CheckError as error:
        package = NoWheelError(str(error)).package
        if package:
            raise MissingError(f"pip finds no {package} for this Python") from None
        raise


def packages(extra: str) -> list[str]:
    """Names of what an extra asks for, with `_`."""
    return [re.split(r"[^\w-]", each)[0].replace("-", "_") for each in PROJECT["optional-dependencies"][extra]]


def unsupported(python: str) -> str:
    """Which core packages have no wheel. Raises CheckError if all have one: then the docs should name this Python."""
    missing, others = without_wheels(PROJECT["dependencies"], python)
    expect(bool(missing), f"all {others} wheels of the core are there: try this Python, and say so in docs/install.md")
    return f"no wheel of {', '.join(missing)}; {others} others have one"
