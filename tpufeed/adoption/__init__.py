"""TFRecords that others wrote become a dataset."""
