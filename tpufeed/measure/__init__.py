"""Looking into a dataset and into what holds a training step."""
