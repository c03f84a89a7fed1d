"""Rejects: the inputs that a build cannot take, and the number of them that it allows before it fails."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tpufeed.builds.destination import Destination, Reject, Report
from tpufeed.dataset.naming import REJECTS
from tpufeed.errors import OptionError, TooManyRejectsError
from tpufeed.text import format_counts

_FEWEST = 10
_SHOWN = 3


def allowed_rejects(budget: str | int | None, inputs: int) -> int:
    """Return how many of `inputs` a build may reject for a budget like "1%", "0.5%", 20 or "20".

    The default is 1 %, but at least 10. Raises OptionError.
    """
    if budget is None:
        return max(_FEWEST, inputs // 100)
    match = re.fullmatch(r"\s*(?:([0-9]{1,18})|([0-9]+(?:\.[0-9]+)?)\s*%)\s*", str(budget))
    if match is None or (match.group(2) and float(match.group(2)) > 100):
        raise OptionError(f"{budget!r} is not a budget for rejects. Write it like 1% or 20")
    return int(match.group(1) or inputs * float(match.group(2)) / 100 + 1e-6)  # 29 % of 100 are 29


@dataclass(slots=True)
class Rejects:
    """Rejects in the reports of a build, which may reject `allowed` of its `inputs`."""

    _destination: Destination
    _inputs: int
    _allowed: int
    _by_task: dict[int, tuple[Reject, ...]] = field(default_factory=dict)
    count: int = 0

    def add(self, report: Report) -> None:
        """Add a task's rejects."""
        if report.rejects:
            self._by_task[report.task] = report.rejects
            self.count += len(report.rejects)

    def put(self) -> list[Reject]:
        """Put rejects.jsonl, and return what it holds: all rejects in the order of the tasks."""
        rejects = [reject for task in sorted(self._by_task) for reject in self._by_task[task]]
        self._destination.put(REJECTS, b"".join(msgspec.json.encode(reject) + b"\n" for reject in rejects))
        return rejects

    def check(self) -> None:
        """Put rejects.jsonl and raise TooManyRejectsError if there are more than the budget allows."""
        if self.count <= self._allowed:
            return
        rejects = self.put()
        raise too_many(
            Counter(reject.reason for reject in rejects),
            rejects,
            self._inputs,
            self._allowed,
            f"{self._destination.url}/{REJECTS} names each. Correct the source and run this again with --overwrite, or "
            "without, and with a higher --max-rejects: it continues from here",
        )


def too_many(
    by_reason: Mapping[str, int], some: Sequence[Reject], inputs: int, allowed: int, advice: str
) -> TooManyRejectsError:
    """Return the error for rejects beyond the budget: `by_reason` counts them, and the first of `some` are shown."""
    # The most frequent first.
    reasons = format_counts(dict(sorted(by_reason.items(), key=lambda each: (-each[1], each[0]))))
    shown = sorted(some, key=lambda reject: -by_reason[reject.reason])[:_SHOWN]
    first = "; ".join(f"{reject.path}: {reject.message}" for reject in shown)
    return TooManyRejectsError(
        f"{sum(by_reason.values()):,} of {inputs:,} inputs cannot be taken so far ({reasons}), and {allowed:,} "
        f"are allowed. The first: {first}. {advice}"
    )
