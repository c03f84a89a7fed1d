"""`tpufeed.Loader` and what hands its batches to frameworks, each in a folder of its own."""
