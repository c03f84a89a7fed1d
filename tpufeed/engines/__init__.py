"""Engines run tasks: an engine carries references and yields what becomes of them; data goes through the store."""
