"""Dataset -> presized and pre-augmented dataset, in one or more variants."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpufeed.cache.build import warmup

__all__ = ["warmup"]


def __getattr__(name: str) -> Any:
    """Import on first use: workers import `tpufeed.cache.worker` without the code that plans a build."""
    if name == "warmup":
        from tpufeed.cache.build import warmup

        return warmup
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
