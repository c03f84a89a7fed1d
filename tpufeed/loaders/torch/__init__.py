"""torch: host batches of tensors, a map-style dataset, and the way to any device."""
