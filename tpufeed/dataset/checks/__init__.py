"""What `verify` checks, part by part."""
