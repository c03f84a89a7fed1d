"""What many tests share: real photographs, and settings of hypothesis and TensorFlow."""

import fcntl
import gc
import hashlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import frameworks, lean
from tests.frameworks import (  # noqa: F401  # hooks
    pytest_addoption,
    pytest_make_collect_report,
    pytest_runtest_call,
    pytest_runtest_setup,
)
from tests.quick_xla import QUICK

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), lean.FOLDER]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK}")  # JAX reads it once
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch: more spin while they wait, and keep cores from other tests
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in what a shell starts with `&`, and in its children
    signal.signal(signal.SIGINT, signal.default_int_handler)

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
for _name, _examples in (("tpufeed", 30), ("long", 300)):  # scripts/test --long passes --hypothesis-profile long
    settings.register_profile(_name, deadline=None, max_examples=_examples, suppress_health_check=_CHECKS)
settings.load_profile("tpufeed")

# The first tier leaves out tests of these. CONTRIBUTING says what is in which tier, and why.
_LATER = {"tensorflow", "keras", "torch_xla", "grain", "ray", "apache_beam", "xprof"}
# Groups that take long. If they came last, one worker would be busy while the others have nothing.
_LONG = (
    "tensorflow",
    "frameworks",
    "repo/examples/",
    "repo/",
    "engines/",
    "adapters/",
    "stream/",
    "faults/",
    "oracle/",
)

_SKIMAGE = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "rocket.jpg")  # camera is grey
_SKLEARN = ("china.jpg", "flower.jpg")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import without the garbage collector, and freeze what is imported: collections need not look through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        frameworks.collected.extend(name for name in lean.sitecustomize.LARGE if name in sys.modules)
        gc.freeze()
        gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a case by the beginning of a long text: some have megabytes, which every process would escape and send."""
    return f"{val[:30]!a}..." if isinstance(val, str | bytes) and len(val) > 100 else None


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by marks, and before xdist reads groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests into tiers and groups, and long groups first."""
    ranks, cases = {}, Counter[str]()
    for item in items:
        few = item.get_closest_marker("first_cases")
        function = item.nodeid.partition("[")[0]
        cases[function] += 1
        later = _LATER.intersection(frameworks.used(item))
        if later or (few and cases[function] > few.args[0]):
            item.add_marker(pytest.mark.all)
        mark = item.get_closest_marker("xdist_group")
        group = mark.args[0] if mark else frameworks.group(item) or frameworks.place(item.path)
        item.add_marker(pytest.mark.xdist_group(group.replace("/", ".")))
        ranks[item] = next((number for number, start in enumerate(_LONG) if group.startswith(start)), len(_LONG)), group
    # Stable: within a file the order stays.
    order = {group: number for number, (_, group) in enumerate(dict.fromkeys(ranks.values()))}
    items.sort(key=lambda item: (ranks[item][0], order[ranks[item][1]]))


_partly_run: set[Path] = set()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    _partly_run.update(item.path for item in items)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _partly_run.add(Path(__file__).parents[1] / report.location[0])


def _folder(package: str, *below: str) -> Path:
    spec = importlib.util.find_spec(package)  # finds, does not import
    assert spec is not None, f"pip install '.[photos]': {package} is missing"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], *below)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all workers of this run."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what this process and those that tests start leave in the folder of temporary files: killed ones do.

    Local copies of remote shards go among the tests' files.
    """
    copies = tmp_path_factory.mktemp("copies")  # which asks where temporary files are
    with (
        tempfile.TemporaryDirectory(prefix="tpufeed-tests-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        Path(folder).chmod(0o1777)  # as /tmp: some tests work as another user
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TPUFEED_LOCAL_DIR", str(copies))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_worker_processes() -> Iterator[None]:
    """Decode in threads, and build in this process, unless a test asks for others: to start hundreds takes minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPUFEED_PROCESSES", "0")
        patch.setattr("tpufeed.engines.choice.available_cores", lambda: 1)
        yield


@pytest.fixture(scope="module", autouse=True)
def _whole_pages(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a file of tests has not run all that its RUNS says of pages, unless only some of its tests have run."""
    yield
    config = request.config
    some = config.option.keyword or any("::" in argument for argument in config.args) or request.session.testsfailed
    if hasattr(request.module, "RUNS") and not some and request.path not in _partly_run:
        from tests.repo.docs.pages import unrun

        left = {page: unrun(page, pattern) for page, pattern in request.module.RUNS.items()}
        assert not any(left.values()), f"no test has run these: {left}"


@pytest.fixture(scope="session")
def once(shared: Path) -> Callable[..., Path]:
    """`once(make, *given)`: the folder that `make(folder, *given)` filled, for all workers; not to be changed."""

    def made(make: Callable[..., object], *given: object) -> Path:
        key = hashlib.sha256(f"{make.__module__}.{make.__qualname__}{given}".encode()).hexdigest()[:12]
        folder = shared / "once" / key / make.__name__
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder.parent / "made").exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder, *given)
                (folder.parent / "made").touch()
        return folder

    return made


def make_photos(folder: Path, count: int, size: str = "160x120", classes: int = 3) -> None:
    """Photographs in folders of their classes."""
    from scripts import make_photos as script  # here, as it imports OpenCV

    width, height = map(int, size.split("x"))
    script.make_photos(folder, count, (height, width), classes=classes)


@pytest.fixture(scope="session")
def photo_files() -> list[Path]:
    """Real photographs, JPEG and PNG, 427 to 640 pixels a side, one of them grey."""
    skimage, sklearn = _folder("skimage", "data"), _folder("sklearn", "datasets", "images")
    files = [*(skimage / name for name in _SKIMAGE), *(sklearn / name for name in _SKLEARN)]
    assert all(file.is_file() for file in files)
    return files


@pytest.fixture(scope="session")
def photos(photo_files: list[Path]) -> dict[str, bytes]:
    """The bytes of `photo_files` by name."""
    return {file.name: file.read_bytes() for file in photo_files}
