"""`import tpufeed` is light, lazy, and says what is missing."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import tpufeed

HEAVY = {
    *("numpy", "PIL", "cv2", "simplejpeg", "crc32c", "msgspec", "fsspec", "typer", "rich", "yaml"),
    *("tensorflow", "keras", "torch", "torch_xla", "jax", "jaxlib", "ray", "apache_beam", "gcsfs", "google"),
    *("pandas", "pyarrow", "lightning", "matplotlib", "multiprocessing", "concurrent", "asyncio", "subprocess"),
}


def run_fresh(program):
    """What a fresh interpreter prints, as JSON."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_it_loads_no_other_package():
    program = """
import json, sys
before = set(sys.modules)
import tpufeed
print(json.dumps([sorted(before), sorted(set(sys.modules) - before)]))
"""
    before, loaded = map(set, run_fresh(program))
    assert not {name.partition(".")[0] for name in before | loaded} & (HEAVY - {"google"})
    assert {name for name in loaded if name.startswith("tpufeed")} == {"tpufeed"}
    assert {name.partition(".")[0] for name in loaded} <= sys.stdlib_module_names | {"tpufeed"}


def test_asking_what_there_is_loads_nothing_either():
    program = """
import json, sys, tpufeed
dir(tpufeed), tpufeed.__version__, hasattr(tpufeed, "nothing")
print(json.dumps(sorted(sys.modules)))
"""
    assert not {name.partition(".")[0] for name in run_fresh(program)} & (HEAVY - {"google"})


def test_errors_and_world_load_no_framework():
    program = """
import json, sys, tpufeed
tpufeed.errors.TpufeedError, tpufeed.World, tpufeed.open_dataset, tpufeed.shard, tpufeed.cache.warmup
print(json.dumps(sorted(sys.modules)))
"""
    loaded = {name.partition(".")[0] for name in run_fresh(program)}
    assert not loaded & {"tensorflow", "torch", "torch_xla", "jax", "gcsfs", "typer", "rich"}


def test_each_name_is_there_and_stays_the_same_whatever_is_imported():
    """A lazy name that equals a submodule's would become the module as soon as something imports that.

    In a process of its own: TensorFlow and torch_xla, loaded in this order, end it (LLVM's options registered twice).
    """
    program = """
import importlib, json, pkgutil, tpufeed
first = {name: getattr(tpufeed, name) for name in tpufeed.__all__}
again = {name: getattr(tpufeed, name) for name in tpufeed.__all__}
for module in pkgutil.iter_modules(tpufeed.__path__, "tpufeed."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
last = {name: getattr(tpufeed, name) for name in tpufeed.__all__}
star = {}
exec("from tpufeed import *", star)
print(json.dumps([[name, *(other[name] is first[name] for other in (again, last, star))] for name in first]))
"""
    assert run_fresh(program) == [[name, True, True, True] for name in tpufeed.__all__]


def test_only_rooms_are_named_like_submodules():
    submodules = {module.name for module in pkgutil.iter_modules(tpufeed.__path__)}
    assert submodules & set(tpufeed.__all__) == {"cache", "errors", "images"}
    for name in ("cache", "errors", "images"):
        assert getattr(tpufeed, name) is importlib.import_module(f"tpufeed.{name}")


def test_dir_lists_the_public_names():
    assert dir(tpufeed) == sorted(tpufeed.__all__)
    assert len(set(tpufeed.__all__)) == len(tpufeed.__all__)


def test_what_is_not_there():
    with pytest.raises(AttributeError, match="module 'tpufeed' has no attribute 'nothing'"):
        _ = tpufeed.nothing
    with pytest.raises(ImportError):
        exec("from tpufeed import nothing")


BLOCKED = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not here")

sys.meta_path.insert(0, Blocker())
import tpufeed
try:
    tpufeed.{name}({arguments})
except tpufeed.errors.MissingExtraError as error:
    print(json.dumps([str(error), isinstance(error, ImportError), error.exit_code]))
"""


@pytest.mark.parametrize(
    ("name", "blocked", "extra"),
    [
        ("tf_dataset", ["tensorflow"], "tf"),
        ("jax_loader", ["jax"], "jax"),
        ("TFRecordImages", ["torch"], "torch"),
        ("xla_loader", ["torch_xla"], "xla"),
        ("xla_loader", ["torch", "torch_xla"], "xla"),
        ("LaneSampler", ["torch"], "torch"),
        ("device_prefetch", ["torch"], "torch"),
        ("torch_loader", ["torch"], "torch"),
    ],
)
def test_a_missing_package_is_said_with_the_command_that_mends_it(name, blocked, extra):
    program = BLOCKED.format(blocked=blocked, name=name, arguments="'/nowhere'")
    message, is_import_error, code = run_fresh(program)
    assert message.endswith(f"is not installed: pip install 'tpufeed[{extra}]'")
    assert (is_import_error, code) == (True, 2)


def test_other_loaders_need_no_framework():
    program = f"""
{BLOCKED.partition("import tpufeed")[0].format(blocked=["tensorflow", "torch", "torch_xla", "jax"])}
import tpufeed
tpufeed.numpy_loader, tpufeed.open_dataset, tpufeed.shard, tpufeed.cache.warmup, tpufeed.verify, tpufeed.StepClock
print(json.dumps("well"))
"""
    assert run_fresh(program) == "well"
