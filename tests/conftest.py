"""What many tests share: real photographs, and settings of hypothesis and TensorFlow."""

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.quick_xla import QUICK

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK}")  # JAX reads it once
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch: more spin while they wait, and keep cores from other tests
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in what a shell starts with `&`, and in its children
    signal.signal(signal.SIGINT, signal.default_int_handler)

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
for _name, _examples in (("tpufeed", 30), ("long", 300)):  # scripts/test --long passes --hypothesis-profile long
    settings.register_profile(_name, deadline=None, max_examples=_examples, suppress_health_check=_CHECKS)
settings.load_profile("tpufeed")

# Files with few tests that take long each. If they came last, one worker would be busy while the others have nothing.
_LONG_FILES = (
    "repo/examples/",
    "repo/",
    "engines/",
    "loaders/tf/",
    "loaders/keras/",
    "faults/",
    "oracle/",
    "test_facade",
)

_SKIMAGE = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "rocket.jpg")  # camera is grey
_SKLEARN = ("china.jpg", "flower.jpg")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import without the garbage collector and freeze what is imported: it need not look through all frameworks."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    """Have TensorFlow run its functions as they are: most run once, and to optimise them takes longer than that."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        place = item.path.relative_to(here).as_posix()
        return next((number for number, start in enumerate(_LONG_FILES) if place.startswith(start)), len(_LONG_FILES))

    items.sort(key=rank)  # stable: within a file the order stays


def _folder(package: str, *below: str) -> Path:
    spec = importlib.util.find_spec(package)  # finds, does not import
    assert spec is not None, f"pip install '.[photos]': {package} is missing"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], *below)


@pytest.fixture(scope="session", autouse=True)
def _copies_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the local copies of remote shards among the tests' files, also in the processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPUFEED_LOCAL_DIR", str(tmp_path_factory.mktemp("copies")))
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
    """Fail if a file of tests has not run all that its RUNS says of pages, unless only some of its tests were asked."""
    yield
    config = request.config
    some = config.option.keyword or any("::" in argument for argument in config.args) or request.session.testsfailed
    if hasattr(request.module, "RUNS") and not some:
        from tests.repo.docs.pages import unrun

        left = {page: unrun(page, pattern) for page, pattern in request.module.RUNS.items()}
        assert not any(left.values()), f"no test has run these: {left}"


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
