"""Make a dataset of TFRecords that others wrote."""
