"""What `adopt` makes of other tools' TFRecords: which files, what they hold, which keys mean what."""
