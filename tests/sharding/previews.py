"""`preview`, called with the keywords of `shard`, `append` and `warmup`."""

from tpufeed.builds.run import preview
from tpufeed.cache.options import CacheOptions
from tpufeed.cache.recipe import CacheRecipe
from tpufeed.sharding.append import AppendRecipe
from tpufeed.sharding.build import shard_recipe
from tpufeed.sources.options import ShardOptions

RUN = {"max_rejects", "overwrite", "workers", "engine"}


def _split(keywords, names):
    return (
        {name: value for name, value in keywords.items() if name in names},
        {name: value for name, value in keywords.items() if name not in names},
    )


def preview_shard(src, dst, *, append=False, allow_different=False, **keywords):
    """The preview of `shard`."""
    run, options = _split(keywords, RUN)
    return preview(shard_recipe(src, ShardOptions(**options), append, allow_different), dst, **run)


def preview_append(src, dst, *, unset=(), **keywords):
    """The preview of `append`."""
    run, given = _split(keywords, RUN)
    return preview(AppendRecipe(src, given=given, unset=unset), dst, **run)


def preview_warmup(src, dst, *, allow_augmented=False, **keywords):
    """The preview of `warmup`."""
    run, options = _split(keywords, RUN)
    return preview(CacheRecipe(src, CacheOptions(**options), allow_augmented), dst, **run)
