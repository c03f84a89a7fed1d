"""The headers of the six formats that tpufeed takes, one file a format; `tpufeed.images.header` is the way in."""
