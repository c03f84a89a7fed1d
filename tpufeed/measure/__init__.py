"""Measure loaders and the stages that feed a training step, and look into datasets."""
