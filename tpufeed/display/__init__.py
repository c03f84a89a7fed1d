"""Progress bars, short descriptions of objects, and their tables in notebooks."""
