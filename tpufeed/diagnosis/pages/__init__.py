"""The report's figures, tables and page."""
