"""How many files of annotations are in memory."""

from tpufeed.sources.source import MOST_ANNOTATION_BYTES, chunks_of


def test_few_large_files_are_in_memory_at_once():
    """Thousands of files with holes take no room on a disk, and 10 MB each in memory."""
    assert [len(chunk) for chunk in chunks_of(range(9000), lambda _: 100)] == [4096, 4096, 808]
    assert {len(chunk) for chunk in chunks_of(range(70), lambda _: MOST_ANNOTATION_BYTES)} == {7}
    assert list(chunks_of([], len)) == []
