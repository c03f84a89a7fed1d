"""What only several shards together tell: that variants agree on labels, and how many records are of each class."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tpufeed.dataset.checks.shards import UNKNOWN_LABEL, Ints
from tpufeed.dataset.checks.verdicts import Verdict
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.naming import MANIFEST
from tpufeed.errors import Damage

_CLASSES_NAMED = 5


class Tally:
    """Takes the verdicts on all shards, those of a part's variants after one another in their order."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._group: list[Verdict] = []
        self._damages: list[Damage] = []
        self._counts: dict[tuple[str, int], Ints] = {}
        self._unknown: dict[tuple[str, int], int] = {}

    def add(self, split: str, variant: int, verdict: Verdict) -> None:
        """Count a shard's labels and, after the last variant, compare them."""
        if self._manifest.labelled:
            self._count(split, variant, verdict.labels)
        self._group.append(verdict)
        if len(self._group) == len(self._manifest.splits[split].variants):
            self._damages += _iter_group(self._group)
            self._group = []

    def add_damages(self, damages: Iterable[Damage]) -> None:
        """Damages that stand for themselves."""
        self._damages += damages

    def finish(self) -> tuple[Damage, ...]:
        """All damages, by file in the manifest's order, then by record."""
        if self._manifest.class_names:
            self._damages += self._iter_wrong_counts()
        places = {MANIFEST: -1}
        for split in self._manifest.splits.values():
            for variant in split.variants:
                for name in (variant.index.name, *(shard.name for shard in variant.shards)):
                    places[name] = len(places)
        return tuple(sorted(self._damages, key=lambda d: (places[d.shard], -1 if d.record is None else d.record)))

    def _count(self, split: str, variant: int, labels: Ints) -> None:
        known = labels[labels != UNKNOWN_LABEL]
        key, classes = (split, variant), len(self._manifest.class_names)
        if classes:
            self._counts[key] = self._counts.get(key, np.zeros(classes, np.int64)) + np.bincount(
                known, minlength=classes
            )
        self._unknown[key] = self._unknown.get(key, 0) + len(labels) - len(known)

    def _iter_wrong_counts(self) -> Iterator[Damage]:
        for (split, variant), found in self._counts.items():
            expected = np.zeros_like(found)
            stated = self._manifest.splits[split].class_counts[: len(found)]
            expected[: len(stated)] = stated
            # Damaged records are of some class: only more than expected is known to be wrong then.
            wrong = np.flatnonzero(found > expected if self._unknown[split, variant] else found != expected)
            if len(wrong):
                several = len(self._manifest.splits[split].variants) > 1
                each = "; ".join(
                    f"{found[number]} records of class {self._manifest.class_names[number]!r}, not {expected[number]}"
                    for number in wrong[:_CLASSES_NAMED]
                )
                more = f"; and {len(wrong) - _CLASSES_NAMED} more classes" if len(wrong) > _CLASSES_NAMED else ""
                where = f"split {split!r}{f', variant {variant}' if several else ''}"
                yield Damage(MANIFEST, None, None, f"class_counts: {where} has {each}{more}")


def _iter_group(verdicts: Sequence[Verdict]) -> Iterator[Damage]:
    """Damages of one part in all its variants."""
    found: dict[tuple[str, int], Damage] = {}
    base = verdicts[0]
    for verdict in verdicts[1:]:
        known = (base.labels != UNKNOWN_LABEL) & (verdict.labels != UNKNOWN_LABEL)
        for record in map(int, np.flatnonzero(known & (base.labels != verdict.labels))):
            blamed, other = (base, verdict) if base.another and not verdict.another else (verdict, base)
            name = blamed.entry.name
            message = f"label {blamed.labels[record]}; {other.entry.name} has {other.labels[record]}"
            found.setdefault((name, record), Damage(name, record, int(blamed.offsets[record]), message))
    blamed_names = {name for name, _ in found}
    for verdict in verdicts:
        yield from verdict.damages
        if verdict.another is not None and verdict.entry.name not in blamed_names:
            yield verdict.another
    yield from found.values()
