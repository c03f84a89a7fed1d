"""A source that gives items which a test has made."""

from tpufeed.sources.source import Source


class Listed(Source):
    """`items` are those of the source, which names `ignored_files` besides."""

    what = "list of a test"

    def __init__(self, items, base="memory://s", splits=False, ignored_files=(), are_folders=False):
        self.items, self.base, self.splits, self.ignored_files = items, base, splits, ignored_files
        self.labels_are_names, self.spells_files = are_folders, not are_folders

    def iter_items(self, found):
        found.ignored_files.update(self.ignored_files)
        yield from self.items
