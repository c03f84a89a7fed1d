"""The type of bytes in memory (`collections.abc.Buffer` from Python 3.12 on)."""

BytesLike = bytes | bytearray | memoryview
