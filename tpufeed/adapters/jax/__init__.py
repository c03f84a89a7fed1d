"""JAX: global arrays over a sharding, from the rows that each process holds."""

from tpufeed.errors import MissingExtraError

try:
    import jax  # noqa: F401  # the files of this folder import it without a guard
except ImportError as error:
    raise MissingExtraError("JAX", "jax") from error
