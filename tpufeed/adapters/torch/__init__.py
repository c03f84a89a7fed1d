"""torch: host batches of tensors, a map-style dataset, and the way to any device."""

from tpufeed.errors import MissingExtraError

try:
    import torch  # noqa: F401  # the files of this folder import it without a guard
except ImportError as error:
    raise MissingExtraError("torch", "torch") from error
