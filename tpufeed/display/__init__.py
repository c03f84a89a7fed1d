"""What a person sees of tpufeed's objects and work: progress, short descriptions, and tables in notebooks."""
