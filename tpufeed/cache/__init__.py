"""Dataset -> presized and pre-augmented dataset, in one or more variants."""

from tpufeed.cache.build import warmup

__all__ = ["warmup"]
