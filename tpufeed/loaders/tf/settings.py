"""Settings of TensorFlow that have to be made before it is imported."""

import os
import sys

# Read by TensorFlow when it is imported, and never again. Its retries stay its own: 10, after 1 to 32 s each.
GCS_SETTINGS = {
    # A file is open for each lane, with a buffer of this size: the default of 64 MiB is 1 GiB for 16 lanes, and a part
    # that ends within a shard reads up to that much too much. Each buffer is a new connection: fewer MiB cost more.
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "8",
    # Without a byte for so long a request is given up and tried again; by default after 60 s.
    "GCS_REQUEST_IDLE_TIMEOUT_SECS": "20",
    "GCS_REQUEST_CONNECTION_TIMEOUT_SECS": "20",  # by default 120
    # For a whole request; with 3600 one that trickles holds up its lane for an hour.
    "GCS_READ_REQUEST_TIMEOUT_SECS": "300",
    "GCS_METADATA_REQUEST_TIMEOUT_SECS": "60",
}


def set_gcs_defaults() -> None:
    """Settings for TensorFlow's gs:// client that the user has not made; in vain once TensorFlow is imported."""
    if "tensorflow" not in sys.modules:
        for name, value in GCS_SETTINGS.items():
            os.environ.setdefault(name, value)
