"""`import tpufeed` is light, lazy, and says what is missing."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import tpufeed
from tpufeed.errors import install_command

HEAVY = {
    *("numpy", "PIL", "cv2", "simplejpeg", "crc32c", "msgspec", "fsspec", "typer", "rich", "yaml"),
    *("tensorflow", "keras", "torch", "torch_xla", "jax", "jaxlib", "grain", "ray", "apache_beam", "gcsfs", "google"),
    *("pandas", "pyarrow", "lightning", "matplotlib", "multiprocessing", "concurrent", "asyncio", "subprocess"),
}


def run_fresh(program):
    """Return what a fresh interpreter prints, decoded as JSON."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.all
def test_what_is_loaded_follows_what_is_asked_for():
    """Importing tpufeed loads no other package, nor does listing its names; most names load no framework."""
    program = """
import json, sys
before = set(sys.modules)
import tpufeed
imported = set(sys.modules)
dir(tpufeed), tpufeed.__version__, hasattr(tpufeed, "nothing")
asked = set(sys.modules)
tpufeed.errors.TpufeedError, tpufeed.World, tpufeed.open_dataset, tpufeed.shard, tpufeed.cache.warmup
print(json.dumps([sorted(names) for names in (before, imported, asked, sys.modules)]))
"""
    before, imported, asked, at_last = map(set, run_fresh(program))
    assert not {name.partition(".")[0] for name in imported | asked} & (HEAVY - {"google"})
    loaded = imported - before
    assert {name for name in loaded if name.startswith("tpufeed")} == {"tpufeed", "tpufeed._version"}
    assert {name.partition(".")[0] for name in loaded} <= sys.stdlib_module_names | {"tpufeed"}
    frameworks = {"tensorflow", "torch", "torch_xla", "jax", "gcsfs", "typer", "rich"}
    assert not {name.partition(".")[0] for name in at_last} & frameworks


@pytest.mark.all
def test_each_name_is_there_and_stays_the_same_whatever_is_imported():
    """A lazy name that equals a submodule's would become the module as soon as something imports that.

    It runs in another process: TensorFlow and torch_xla, loaded in this order, end it (LLVM registers options twice).
    """
    program = """
import gc, importlib, json, os, pkgutil, tpufeed
gc.disable()  # collections take a second beside all frameworks
os.environ["KERAS_BACKEND"] = "jax"
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
    with pytest.raises(AttributeError, match=r"'tpufeed' .*'nothing'"):
        _ = tpufeed.nothing
    with pytest.raises(ImportError):
        exec("from tpufeed import nothing")


def test_a_big_endian_machine_is_refused():
    program = "import sys; sys.byteorder = 'big'; import tpufeed"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: tpufeed reads numbers as little-endian machines store them" in done.stderr


def test_an_older_python_is_refused():
    program = "import sys; sys.version_info, sys.version = (3, 10, 13), '3.10.13 (main)'; import tpufeed"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: tpufeed needs Python 3.11 or later; this is 3.10.13." in done.stderr.splitlines()[-1]


BLOCKED = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not here")

sys.meta_path.insert(0, Blocker())
if "torch" not in {blocked!r}:
    sys.modules["torch"] = type(sys)("torch")  # is there; to import the real one would take seconds
import tpufeed
tpufeed.Loader, tpufeed.open_dataset, tpufeed.shard, tpufeed.cache.warmup, tpufeed.verify, tpufeed.StepClock
said = {{}}
for name in {names!r}:
    try:
        find = tpufeed.Loader if name.startswith("to_") else tpufeed
        getattr(find, name)("/nowhere")
    except tpufeed.errors.MissingExtraError as error:
        said[name] = [str(error), isinstance(error, ImportError), error.exit_code]
print(json.dumps(said))
"""
EXTRAS = {
    "to_jax": "jax",
    "grain_source": "grain",
    "TFRecordImages": "torch",
    "LaneSampler": "torch",
    "device_loader": "torch",
    "to_torch": "torch",
    "to_xla": "xla",
}


@pytest.mark.all
@pytest.mark.parametrize(
    ("blocked", "names"),
    [(["tensorflow", "torch", "torch_xla", "jax", "grain"], list(EXTRAS)), (["torch_xla"], ["to_xla"])],
    ids=["no framework", "torch alone"],
)
def test_a_missing_package_is_said_with_the_command_that_mends_it(blocked, names):
    """The other names need no framework."""
    said = run_fresh(BLOCKED.format(blocked=blocked, names=names))
    assert list(said) == names
    for name, (message, is_import_error, code) in said.items():
        assert message.endswith(f"is not installed: {install_command(EXTRAS[name])}"), name
        assert (is_import_error, code) == (True, 2)
