"""How the doctor goes about it: so much time for each measurement, and going on where one fails."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tpufeed.diagnosis.stages.rates import Goal
from tpufeed.errors import TpufeedError
from tpufeed.loaders.options import LoaderOptions

T = TypeVar("T")

# What the time is shared among; starting processes takes the rest.
_MEASUREMENTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What is asked of one.

    Attributes:
        loader: options of the loader.
        goal: what is to be fed.
        seconds: for all of it, about.
        listener: told what is being measured.
    """

    loader: LoaderOptions
    goal: Goal
    seconds: float
    listener: Callable[[str], None]

    @property
    def each_seconds(self) -> float:
        """For one measurement."""
        return self.seconds / _MEASUREMENTS

    def attempt(self, what: str, measure: Callable[[], T]) -> tuple[T | None, str]:
        """What `measure` gives, and why there is nothing."""
        self.listener(what)
        try:
            return measure(), ""
        except (TpufeedError, OSError) as error:
            return None, str(error) or type(error).__name__
        except MemoryError:
            return None, "there is not enough memory for it"
