"""Inputs that a build does not take, and how many of them it may lose before it counts as failed."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tpufeed.build.commit import Reject, Report, put
from tpufeed.build.plan import Owner
from tpufeed.dataset.naming import REJECTS
from tpufeed.errors import OptionError, TooManyRejectsError
from tpufeed.storage.store import Store

_FEWEST = 10
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class RejectBudget:
    """Limit of rejects: at most `count`, or `share` of all inputs. By default 1 %, and 10 of however few."""

    count: int | None = None
    share: float | None = None

    def allowed(self, inputs: int) -> int:
        """Rejects that are within the budget."""
        if self.count is not None:
            return self.count
        return max(_FEWEST, inputs // 100) if self.share is None else int(inputs * self.share + 1e-6)  # 29 of 100


def parse_budget(text: str | int | None) -> RejectBudget:
    """The budget of "1%", "0.5%", 20 or "20"; None is the default. Raises OptionError."""
    if text is None:
        return RejectBudget()
    match = re.fullmatch(r"\s*(?:([0-9]{1,18})|([0-9]+(?:\.[0-9]+)?)\s*%)\s*", str(text))
    if match is None or (match.group(2) and float(match.group(2)) > 100):
        raise OptionError(f"{text!r} is no budget for rejects; write it like 1% or 20")
    return RejectBudget(int(match.group(1))) if match.group(1) else RejectBudget(share=float(match.group(2)) / 100)


class Rejects:
    """Rejects in the reports of a build of `inputs` inputs."""

    def __init__(self, store: Store, budget: RejectBudget, inputs: int, owner: Owner) -> None:
        self._store, self._inputs, self._owner = store, inputs, owner
        self._allowed = budget.allowed(inputs)
        self._by_task: dict[int, tuple[Reject, ...]] = {}
        self.count = 0

    def add(self, report: Report) -> None:
        """Take note of a task's."""
        if report.rejects:
            self._by_task[report.task] = report.rejects
            self.count += len(report.rejects)

    @property
    def all(self) -> list[Reject]:
        """All rejects in the order of the tasks."""
        return [reject for task in sorted(self._by_task) for reject in self._by_task[task]]

    def put(self) -> dict[str, int]:
        """Put rejects.jsonl, and return how many there are by reason code."""
        put(self._store, REJECTS, b"".join(msgspec.json.encode(reject) + b"\n" for reject in self.all), self._owner)
        return dict(sorted(Counter(reject.reason for reject in self.all).items()))

    def check(self) -> None:
        """Raises TooManyRejectsError, having put rejects.jsonl, where there are more than the budget allows."""
        if self.count <= self._allowed:
            return
        raise too_many(
            self.put(),
            self.all,
            self._inputs,
            self._allowed,
            f"{self._store.url}/{REJECTS} names each. Mend the source and build with --overwrite, or run the same "
            "command again with a higher --max-rejects: it goes on from here",
        )


def too_many(
    by_reason: Mapping[str, int], some: Sequence[Reject], inputs: int, allowed: int, advice: str
) -> TooManyRejectsError:
    """Return the error for rejects beyond the budget: `by_reason` counts them, the first of `some` are shown."""
    counted = Counter(by_reason).most_common()  # what most died of comes first
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counted)
    shown = sorted(some, key=lambda reject: -by_reason[reject.reason])[:_SHOWN]
    first = "; ".join(f"{reject.path}: {reject.message}" for reject in shown)
    return TooManyRejectsError(
        f"{sum(by_reason.values()):,} of {inputs:,} inputs cannot be taken so far ({reasons}); {allowed:,} are "
        f"allowed. The first: {first}. {advice}"
    )
