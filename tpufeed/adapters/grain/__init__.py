"""Grain: a dataset or cache as a random-access source."""
