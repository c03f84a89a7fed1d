"""Engines run tasks. An engine only passes on small tasks and reports. The data goes through the store."""
