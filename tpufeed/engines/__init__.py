"""Engines run tasks. An engine only passes on small tasks and reports; the data goes through the store."""
