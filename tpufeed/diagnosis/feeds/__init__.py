"""Loaders that feed devices, each measurement in a process of its own."""
