"""Raw images -> dataset."""
