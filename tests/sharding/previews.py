"""The previews, called with the keywords of `shard` and `warmup`."""

from tpufeed.cache import build as cache_build
from tpufeed.cache.options import CacheOptions
from tpufeed.cache.source import RAW_OPTIONS
from tpufeed.sharding import build
from tpufeed.sharding.options import ShardOptions

RUN = {"max_rejects", "overwrite", "allow_augmented", "workers", "engine"}


def _split(keywords, names):
    return (
        {name: value for name, value in keywords.items() if name in names},
        {name: value for name, value in keywords.items() if name not in names},
    )


def preview_shard(src, dst, **keywords):
    """`preview_shard` with the keywords of `shard`."""
    run, options = _split(keywords, RUN)
    return build.preview_shard(src, dst, ShardOptions(**options), **run)


def preview_warmup(src, dst, **keywords):
    """`preview_warmup` with the keywords of `warmup`."""
    run, options = _split(keywords, RUN)
    raw, options = _split(options, RAW_OPTIONS)
    return cache_build.preview_warmup(src, dst, CacheOptions(**options), ShardOptions(**raw), **run)
