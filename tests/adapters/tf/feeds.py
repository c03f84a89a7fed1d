"""Datasets of TensorFlow, made in one call."""

from typing import Any

import tpufeed

OWN = ("direct", "deterministic", "service", "sharding")


def tf_feed(url: Any, split: str = "train", **options: Any) -> Any:
    """What `to_tf` returns, with its options among those of the loader."""
    own = {name: options.pop(name) for name in OWN if name in options}
    return tpufeed.Loader(url, split, **options).to_tf(**own)
