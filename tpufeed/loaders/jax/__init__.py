"""JAX: global arrays over a sharding, from the rows that each process owns."""

from tpufeed.errors import MissingExtraError

try:
    import jax  # noqa: F401  # its files import it without a guard of their own
except ImportError as error:
    raise MissingExtraError("JAX", "jax") from error
