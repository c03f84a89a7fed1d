"""A pytest plugin for environments without frameworks: `-p frameworkless`. What needs one is skipped, and counted."""

import re
from collections.abc import Generator
from typing import Any

import pytest

from tpufeed.errors import MissingExtraError

FRAMEWORKS = (
    *("tensorflow", "keras", "torch", "torch_xla", "torchdata", "lightning", "accelerate", "transformers"),
    *("jax", "ml_dtypes", "orbax", "grain", "ray", "apache_beam", "xprof", "albumentations", "mlflow", "wandb"),
    *("google", "grpc", "gcsfs", "aiohttp", "pyarrow", "matplotlib", "tensorboard", "prometheus_client"),
    *("pycocotools", "yaml", "pillow_heif", "pillow_jxl"),
)
_MISSING = re.compile(rf"No module named '(?P<name>(?:{'|'.join(FRAMEWORKS)})\b[\w.]*)'")
_EXTRA = re.compile(r"\w+ is not installed: pip install .*\[\w+\]'")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    found = _MISSING.search(str(report.longrepr)) if report.failed else None
    if found:
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {found['name']} is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _skip_without_framework())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _skip_without_framework())


def _skip_without_framework() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if not _MISSING.fullmatch(str(error)):
            raise
        raise pytest.skip.Exception(f"{error.name} is not installed") from error
    # A package of an extra that is not in this environment: its test runs where it is. A wrong error of this kind would
    # be skipped, too, so whoever runs the tests says how many must pass (FEWEST_PASSED of the platforms).
    except MissingExtraError as error:
        raise pytest.skip.Exception(str(error)) from error
    except AssertionError as error:
        said = _EXTRA.search(str(error))  # by a command, whose test shows its stderr
        if not said:
            raise
        raise pytest.skip.Exception(said[0]) from error
