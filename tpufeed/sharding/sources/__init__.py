"""The kinds of raw images: a file a kind, all of one Protocol."""
