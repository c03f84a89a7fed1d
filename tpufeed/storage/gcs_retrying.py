"""How long faults of the network and of the service are waited out, and in what steps."""

import logging
import random
import time
from dataclasses import dataclass

from tpufeed.errors import UnavailableError, mask_secrets

_logger = logging.getLogger(__name__)
# The system's, as a seeded generator gives all workers the same pauses and would take draws from the user's.
_random = random.SystemRandom()
_TRIES_BEFORE_A_WARNING = 3


@dataclass(frozen=True, slots=True)
class Patience:
    """What is waited for, and for how long.

    Attributes:
        deadline_seconds: after so long without progress a call gives up.
        first_pause_seconds: the longest pause before the second try; it doubles with each further one.
        longest_pause_seconds: where the doubling ends. What the server asks for comes on top.
        unreachable_seconds: as `deadline_seconds`, where a name does not resolve or no emulator runs.
        connect_seconds: for a connection, and for each piece of an upload to leave.
        read_seconds: for the next bytes.
    """

    deadline_seconds: float = 120
    first_pause_seconds: float = 1
    longest_pause_seconds: float = 32
    unreachable_seconds: float = 10
    connect_seconds: float = 10
    read_seconds: float = 30


class TransientError(Exception):
    """One try failed in a way that the next may not.

    Attributes:
        retry_after_seconds: how long the server asks to wait.
    """

    def __init__(self, message: str, retry_after_seconds: float = 0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnreachableError(TransientError):
    """There is no such host, or nobody listens there: more often a wrong address than a matter of time."""


class ChecksumError(TransientError):
    """The bytes that arrived are not those that were sent, so that all are to be sent again."""


class UnauthorizedError(Exception):
    """HTTP 401: the token is not valid, or no longer."""


class Tries:
    """The tries of one call.

    Attributes:
        failed: how many of them failed so far.
        refreshed: credentials were refreshed since there was progress.
    """

    def __init__(self, where: str, patience: Patience) -> None:
        self._where, self._patience = where, patience
        self._started = self._moved = time.monotonic()
        self._unreachable_since: float | None = None
        self.failed = self._in_a_row = 0
        self.refreshed = False

    def progress(self) -> None:
        """Bytes went through that never did before: the deadline and the pauses start anew."""
        self._moved = time.monotonic()
        self._in_a_row = 0
        self.refreshed = False
        self._unreachable_since = None

    def pause_after(self, error: TransientError) -> float:
        """How many seconds to wait before the next try.

        Raises:
            UnavailableError: there is no time left for one.
        """
        self.failed += 1
        self._in_a_row += 1
        now = time.monotonic()
        left = self._moved + self._patience.deadline_seconds - now
        if isinstance(error, UnreachableError):
            self._unreachable_since = now if self._unreachable_since is None else self._unreachable_since
            left = min(left, self._unreachable_since + self._patience.unreachable_seconds - now)
        else:
            self._unreachable_since = None
        if left <= 0:
            raise UnavailableError(
                f"{self._where}: gave up after {self.failed} tries in {now - self._started:.1f} s, the last "
                f"{now - self._moved:.1f} s without progress; the last one failed by: {error}"
            ) from error
        longest = min(self._patience.longest_pause_seconds, self._patience.first_pause_seconds * 2**self._doublings)
        pause = min(error.retry_after_seconds + _random.uniform(0, longest), left)
        level = logging.INFO if self._in_a_row < _TRIES_BEFORE_A_WARNING else logging.WARNING
        said = mask_secrets(str(error))
        _logger.log(level, "%s: try %d failed, the next is in %.1f s: %s", self._where, self.failed, pause, said)
        return pause

    @property
    def _doublings(self) -> int:
        return min(self._in_a_row - 1, 30)
