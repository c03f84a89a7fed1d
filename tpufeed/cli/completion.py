"""Shell completion: the values that options take, without importing what obeys them."""

import contextlib
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

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

_LARGEST_MANIFEST_BYTES = 64 << 20  # beyond, reading it takes longer than typing a name
_BREAKS = ":="  # of the signs at which bash parts a word, those that stand in values


def complete_bash() -> int:
    """Answer bash, which parts words at `:` and `=` and replaces the last part alone; the exit code."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    joined = list[str]()
    for word in words[: int(os.environ.get("COMP_CWORD") or 0) + 1]:
        after_break = bool(joined) and joined[-1][-1:] in tuple(_BREAKS)
        if joined and (after_break or (word and set(word) <= set(_BREAKS))):
            joined[-1] += word
        else:
            joined.append(word)
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(len(joined) - 1)
    from tpufeed.cli.app import app

    code: Any = 0
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            app(prog_name="tpufeed")
        except SystemExit as end:
            code = end.code
    there = re.match(rf".*[{_BREAKS}]|", joined[-1], re.DOTALL)
    assert there is not None
    option, _, value = there[0].partition("=") if there[0].startswith("--") else ("", "", there[0])
    for line in filter(None, said.getvalue().split("\n")):
        print(line.removeprefix(f"{option}={value}" if option and line.startswith("--") else value))
    return code or 0


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
    from tpufeed.profiling.flops import TPUS

    return one_of(*TPUS)(incomplete)


def models(incomplete: str) -> list[str]:
    """Completes `--model`."""
    from tpufeed.profiling.flops import MODELS

    return one_of(*MODELS)(incomplete)


def devices(incomplete: str) -> list[str]:
    """Completes `--device`."""
    from tpufeed.profiling.flops import profiles

    return one_of(*(f"emulated:{name}" for name in profiles()), "emulated", *REAL_DEVICES, "none")(incomplete)


def splits(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes to the splits of the local dataset that the command line names before."""
    return one_of(*_manifest(ctx).get("splits", {}))(incomplete)


def classes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes to the classes of the local dataset that the command line names before."""
    return one_of(*_manifest(ctx).get("class_names", ()))(incomplete)


def _manifest(ctx: typer.Context) -> dict[str, Any]:
    """Return the manifest of the first dataset named, or nothing. A shell that completes wants silence, not errors."""
    url = ctx.params.get("url")
    # Arguments are not told apart where the line ends in an option that wants a value, which it does here.
    urls: Sequence[str] = [url] if isinstance(url, str) else url or ctx.args
    try:
        path = Path(urls[0], "manifest.json")
        if path.stat().st_size > _LARGEST_MANIFEST_BYTES:
            return {}
        manifest = json.loads(path.read_bytes())
    except (IndexError, OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
