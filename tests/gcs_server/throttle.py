"""A slow link: bytes let through at a rate."""

import time


class Throttle:
    """Sleeps to absolute deadlines, so that what one sleep is late the next makes up for. One thread at a time."""

    def __init__(self, bytes_per_second: float):
        self.bytes_per_second = bytes_per_second
        self.piece_bytes = int(min(max(bytes_per_second / 200, 1 << 10), 256 << 10))
        self._due = 0.0

    def begin(self) -> None:
        """A transfer starts: idle time before it is not made up for."""
        self._due = max(self._due, time.monotonic())

    def take(self, size: int) -> None:
        """Return when the last of `size` bytes is through."""
        self._due += size / self.bytes_per_second
        wait = self._due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
