"""Python runs this as it starts: the folder is on the PYTHONPATH of what tests start.

It saves two thirds of the processor time that frameworks take to be imported, for what no test needs: packages that
none of tpufeed's extras brings, torch.compile, what metrics need that no test has, and the garbage collector.
"""

import gc
import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# Keras, TensorFlow, torchmetrics and Albumentations import these if they find them; and who asks: Keras imports JAX
# from other modules when it runs on it.
UNUSED = dict.fromkeys(("sklearn", "pandas", "matplotlib", "IPython"), "keras.")
UNUSED |= {"jax": ("tensorflow.lite.", "keras.src.callbacks."), "scipy": "lightning_utilities."}
UNUSED |= {"torch": "albumentations.pytorch."}
SERVICES = "pymongo", "google.cloud.bigquery", "google.cloud.pubsub", "google.cloud.dataflow"
UNUSED |= dict.fromkeys(SERVICES, "apache_beam.")
# Of torch.compile, which torch imports for the first optimizer, and torch_xla at once, and of tensors without values.
STUBS = ["torch._dynamo", "torch._inductor", "torch_xla.stablehlo", "torch_xla.experimental.gru"]
STUBS += ["torch._meta_registrations", "torch_xla._internal.decomp_registration", "torch.ao.quantization.pt2e"]
# Of metrics of sound and texts, and of their plots, which import scipy, transformers and matplotlib.
STUBS += [f"torchmetrics.{name}" for name in ("audio", "text", "functional.audio", "functional.text", "utilities.plot")]
WITHIN = tuple(f"{name}." for name in STUBS)
LARGE = ("tensorflow", "keras", "torch", "torch_xla", "lightning", "transformers", "jax", "grain", "ray", "apache_beam")


class Nothing(type):
    """Of classes that have any name, are false, and give back what they are called with: decorators without effect."""

    def __call__(cls, given=None, *_, **__):
        return cls if given is None else given

    def __bool__(cls):
        return False

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})


class Stub(ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        return getattr(Nothing("stub", (), {}), name)


class Lean:
    """Finds modules, and loads those of a compiler."""

    @staticmethod
    def find_spec(name, path=None, _=None):
        if name in UNUSED:
            frame = sys._getframe(1)
            while frame and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if frame and frame.f_globals.get("__name__", "").startswith(UNUSED[name]):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in STUBS or name.startswith(WITHIN):
            return ModuleSpec(name, Lean, is_package=True)
        if name in LARGE and (spec := PathFinder.find_spec(name, path)) and spec.loader:
            spec.loader.exec_module = quietly(spec.loader.exec_module)
            return spec
        return None

    @staticmethod
    def create_module(spec):
        return Stub(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def quietly(execute):
    def run(module):
        collects = gc.isenabled()
        gc.disable()
        try:
            execute(module)
            if module.__name__ == "torch":
                make_generators(module)
        finally:
            if collects:
                if __name__ == "sitecustomize":  # pytest has garbage of tests, which would stay
                    gc.freeze()
                gc.enable()

    return run


def make_generators(torch):
    """Import what generators need from torch 2.13 on, and what `torch._meta_registrations` would import."""
    try:
        torch.Generator()
    except RuntimeError:
        importlib.import_module("torch._prims.rng_prims")


sys.meta_path.insert(0, Lean)
