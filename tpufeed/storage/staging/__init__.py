"""Verified local copies of remote shards, fetched ahead of need; `tpufeed.storage.staging.stage` is the way in."""
