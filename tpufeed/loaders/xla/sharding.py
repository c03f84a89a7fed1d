"""SPMD: which `torch_xla.distributed.spmd.ShardingSpec` each tensor of a batch gets."""

from collections.abc import Iterable, Mapping
from typing import Any

from tpufeed.errors import OptionError


class Shardings:
    """A spec for each column, or one that is fitted to all of them.

    torch_xla applies a spec only to tensors of as many axes as it has and replicates all others, labels for instance,
    without a word. Here one spec alone stands for the tensors of any rank: its axes beyond theirs are left out, theirs
    beyond its own are not split. In a dict a spec fits, or is None for a tensor that every device holds whole.
    """

    def __init__(self, given: Any) -> None:
        self._given = given
        self._fitted: dict[tuple[str, int], Any] = {}

    def check(self, names: Iterable[str], batch_size: int | None, devices: int, processes: int) -> None:
        """Raises OptionError for what would fail in every batch.

        Args:
            names: of the columns, as far as they are known.
            batch_size: of this process, where that is known.
            devices: of this process.
            processes: that read samples of their own.
        """
        for name in names:
            self._find(name)
        specs = list(self._given.values()) if isinstance(self._given, Mapping) else [self._given]
        split = [spec for spec in specs if spec is not None and spec.minibatch]
        if split and batch_size is not None and batch_size % devices:
            raise OptionError(
                f"a batch of {batch_size} cannot be split over the {devices} devices of this process; give a "
                f"batch_size that {devices} divides"
            )
        if processes > 1 and len(split) < len(specs):
            raise OptionError(
                f"{processes} processes read samples of their own, so each holds a part of the global batch only: "
                "give every ShardingSpec minibatch=True"
            )

    def fit(self, name: str, tensor: Any) -> Any:
        """The spec of a tensor of column `name`; None replicates it."""
        spec = self._find(name)
        if spec is None or spec.can_apply(tensor):
            return spec
        axes, shape = tuple(spec.partition_spec), tuple(tensor.shape)
        if isinstance(self._given, Mapping):
            raise OptionError(
                f"the ShardingSpec of {name!r} has {len(axes)} axes, {axes}, but its tensors have {len(shape)}: {shape}"
            )
        if not shape:
            return None
        key = name, len(shape)
        if key not in self._fitted:
            fitted = (*axes, *(None for _ in shape))[: len(shape)]
            self._fitted[key] = type(spec)(spec.mesh, fitted, spec.minibatch)
        return self._fitted[key]

    def _find(self, name: str) -> Any:
        if not isinstance(self._given, Mapping):
            return self._given
        if name not in self._given:
            raise OptionError(
                f"sharding has no ShardingSpec for the column {name!r}, only for {', '.join(map(repr, self._given))}; "
                "give None for one that every device holds whole"
            )
        return self._given[name]
