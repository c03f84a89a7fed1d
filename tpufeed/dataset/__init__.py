"""The on-disk contract: what a dataset is, how one is read, written, committed and checked."""
