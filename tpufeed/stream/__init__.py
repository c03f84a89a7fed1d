"""A dataset becomes batches on the host. Knows no framework."""
