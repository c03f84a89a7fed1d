"""Temporary door."""

CAN_REWRITE = False


class CannotRewrite(Exception):
    """Reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def add_markers(data: bytes, mcus: int) -> bytes:
    """Raise."""
    raise CannotRewrite("no extension")


def to_baseline(data: bytes) -> bytes:
    """Raise."""
    raise CannotRewrite("no extension")
