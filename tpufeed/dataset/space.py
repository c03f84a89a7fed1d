"""Whether a build fits where it is to go."""

from tpufeed.errors import BuildError
from tpufeed.storage.store import Store


def check_space(destination: Store, wanted_bytes: float, freed_bytes: int = 0) -> None:
    """Raises BuildError where `wanted_bytes` of shards do not fit, once `freed_bytes` are removed."""
    free = destination.free_bytes()
    if free is not None and wanted_bytes > free + freed_bytes:
        raise BuildError(
            f"{destination.url} has room for {(free + freed_bytes) / 1e6:,.1f} MB; the shards will take about "
            f"{wanted_bytes / 1e6:,.1f} MB. Nothing was changed. Make room, take another destination, or store smaller "
            "images"
        )
