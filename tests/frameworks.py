"""Frameworks in tests: imported when a test first uses them, and a test whose framework is missing is skipped.

    tf, DataLoader = lazy("tensorflow"), lazy("torch.utils.data:DataLoader")

Collecting the tests imports no framework then. A test with the mark `uses("tensorflow", ...)`, or in the folder of a
framework, runs in one process with all others of this framework: see `group`.
"""

import functools
import gc
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tpufeed.errors import MissingExtraError

# Packages of extras; some environments have none of them.
OPTIONAL = (
    *("tensorflow", "keras", "torch", "torch_xla", "torchdata", "lightning", "accelerate", "transformers"),
    *("jax", "ml_dtypes", "orbax", "grain", "ray", "apache_beam", "xprof", "albumentations", "mlflow", "wandb"),
    *("google", "grpc", "gcsfs", "aiohttp", "pyarrow", "matplotlib", "tensorboard", "prometheus_client"),
    *("pycocotools", "yaml", "pillow_heif", "pillow_jxl", "pydicom", "imagecodecs"),
    *("absl", "torchvision", "huggingface_hub", "IPython", "nbclient", "nbformat"),
)
_MISSING = re.compile(rf"No module named '(?P<name>(?:{'|'.join(OPTIONAL)})\b[\w.]*)'")
_EXTRA = re.compile(r"\w+ is not installed: pip install .*\[\w+\]'")
REQUIRE = "--require-frameworks"


class Lazy:
    """A module, or one of its names, that is imported when it is first used; assigning to it changes the module."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    @property
    def _itself(self) -> Any:
        module, _, name = self._name.partition(":")
        found = load(module)
        return getattr(found, name) if name else found

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_pytest", "__")) and name != "__version__":  # for these pytest asks all that a file has
            raise AttributeError(name)
        return getattr(self._itself, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._itself, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._itself, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._itself(*given, **named)

    def __getitem__(self, key: Any) -> Any:
        return self._itself[key]

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._itself)


def lazy(name: str) -> Any:
    """Like "jax", "jax.numpy" or "jax.sharding:Mesh"."""
    return Lazy(name)


def load(module: str) -> ModuleType:
    """Import a framework, without what tests/lean leaves out."""
    if module in sys.modules:
        return sys.modules[module]
    before = "TPU_SKIP_MDS_QUERY" in os.environ
    try:
        return importlib.import_module(module)
    finally:
        _unfrozen.add(module)
        if not before:  # JAX sets it, and torch_xla stumbles over it in processes that other tests start
            os.environ.pop("TPU_SKIP_MDS_QUERY", None)
        settle()


collected: list[str] = []  # what collecting the tests has imported
_unfrozen: set[str] = set()
_settled: set[str] = set()


def freeze() -> None:
    """Freeze what was imported: collections need not look through it. Between tests: a frozen cycle is never freed."""
    if _unfrozen:
        _unfrozen.clear()
        gc.collect()
        gc.freeze()


def settle() -> None:
    """Have TensorFlow run its functions as they are: most run once, and to optimise them takes longer than that."""
    if "tensorflow" in sys.modules and "tensorflow" not in _settled:
        _settled.add("tensorflow")
        sys.modules["tensorflow"].config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def need(name: str) -> None:
    """Skip the test if the framework is missing, without importing it here."""
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


# The folders of frameworks, and the groups of tests that share a process.
_FOLDERS = {
    "adapters/tf": "tensorflow",
    "adapters/keras": "keras",
    "adapters/torch": "torch",
    "adapters/xla": "torch_xla",
    "adapters/jax": "jax",
    "adapters/grain": "grain",
}
_GROUPS = {"tensorflow", "keras", "torch", "jax"}


def group(item: pytest.Item) -> str | None:
    """Return the framework with whose other tests this one shares a process, or None: those of a file share one."""
    names = _GROUPS.intersection(used(item))
    return names.pop() if len(names) == 1 else ("frameworks" if names else None)


def used(item: pytest.Item) -> list[str]:
    """Return the frameworks that the test needs, by its folder and its marks."""
    named = [name for mark in item.iter_markers("uses") for name in mark.args]
    folder = place(item.path).rpartition("/")[0]
    return named + ([_FOLDERS[folder]] if folder in _FOLDERS else [])


@functools.cache
def place(path: Path) -> str:
    """Return the path of a test file below tests/."""
    return path.relative_to(Path(__file__).parent).as_posix()


# A test is skipped in which something asks for a package that is not there; with --require-frameworks it fails.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(REQUIRE, action="store_true", help="fail if a package of an extra is missing, instead of skipping")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    missing = report.failed and not collector.config.getoption(REQUIRE) and _MISSING.search(str(report.longrepr))
    if missing:
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {missing['name']} is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    settle()
    freeze()
    return (yield from _skip_if_missing(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _skip_if_missing(item))


def _skip_if_missing(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        for name in used(item):
            need(name)
        return (yield)
    except ModuleNotFoundError as error:
        if not _MISSING.fullmatch(str(error)):
            raise
        reason, cause = f"{error.name} is not installed", error
    # Of the code under test, whose error is right. A wrong error of this kind is skipped, too: where all is installed,
    # --require-frameworks finds it, and scripts/platforms says how many tests must pass.
    except MissingExtraError as error:
        reason, cause = str(error), error
    except AssertionError as error:
        said = _EXTRA.search(str(error))  # by a command, whose test shows its stderr
        if not said:
            raise
        reason, cause = said[0], error
    if item.config.getoption(REQUIRE):
        raise cause
    raise pytest.skip.Exception(reason) from cause
