"""Imports JAX, which sets TPU_SKIP_MDS_QUERY; over that torch_xla stumbles in processes that other tests start."""

import os

_before = "TPU_SKIP_MDS_QUERY" in os.environ
import jax  # noqa: E402, F401

if not _before:
    os.environ.pop("TPU_SKIP_MDS_QUERY", None)
