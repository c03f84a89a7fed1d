"""Wait for local copies in tests; loaders never wait, as they read by ranges until a copy is there."""

import time


def wait_copied(copies, shard, seconds):
    """Wait until a shard that is fetched can be opened, and return its bytes; None after `seconds`."""
    deadline = time.monotonic() + seconds
    while (view := copies.open(shard)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return view
