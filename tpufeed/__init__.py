"""tpufeed: raw images in, a fed TPU training step out."""

__version__ = "0.1.0"
