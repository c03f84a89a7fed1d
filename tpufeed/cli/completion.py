"""Shell completion: the values that options take, without importing what obeys them."""

from collections.abc import Callable

# The same names stand where they are obeyed, in modules that import numpy and more. A test compares them.
ENGINES = ("local", "ray", "beam")
LOADERS = ("numpy", "torch", "tf", "tf-direct", "xla", "jax", "naive")
REAL_DEVICES = ("xla-cpu", "xla-tpu", "jax-cpu", "jax-tpu")
POLICIES = {
    "exif": ("apply", "ignore"),
    "cmyk": ("rgb", "reject"),
    "alpha": ("white", "black", "reject"),
    "deep": ("scale", "reject"),
    "greyscale": ("keep", "rgb", "reject"),
    "animated": ("first", "reject"),
    "extension": ("sniff", "reject"),
    "damaged": ("mend", "reject"),
}


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Completes to these."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def policies(incomplete: str) -> list[str]:
    """Completes `--policy`."""
    return one_of(*(f"{name}={choice}" for name, choices in POLICIES.items() for choice in choices))(incomplete)


def ops(incomplete: str) -> list[str]:
    """Completes the name of an op."""
    from tpufeed import images

    return one_of(*(name for name in images.__all__ if name != "Custom"))(incomplete)


def tpus(incomplete: str) -> list[str]:
    """Completes `--tpu`."""
    from tpufeed.profiling.tpu import TPUS

    return one_of(*TPUS)(incomplete)


def models(incomplete: str) -> list[str]:
    """Completes `--model`."""
    from tpufeed.profiling.tpu import MODELS

    return one_of(*MODELS)(incomplete)


def devices(incomplete: str) -> list[str]:
    """Completes `--device`."""
    from tpufeed.profiling.tpu import profiles

    return one_of(*(f"emulated:{name}" for name in profiles()), "emulated", *REAL_DEVICES, "none")(incomplete)
