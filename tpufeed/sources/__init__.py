"""The kinds of raw images: one file per kind, all with one Protocol."""
