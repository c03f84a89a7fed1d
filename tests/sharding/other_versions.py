"""An fsspec file system in memory whose versions are those of some services."""

import hashlib

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class OtherVersions(MemoryFileSystem):
    """Gives versions as some services do: from the content, without quotes in a listing, or not at all."""

    store, pseudo_dirs = {}, [""]  # as fsspec has them
    protocol = "otherversions"
    versions = "quoted"

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("otherversions://"))

    def _change(self, info, quote=""):
        changed = {name: value for name, value in info.items() if name not in ("created", "modified")}
        if info["type"] == "file" and self.versions != "none":
            changed["ETag"] = quote + hashlib.md5(self.store[info["name"]].getvalue()).hexdigest() + quote
        return changed

    def info(self, path, **options):
        return self._change(super().info(path, **options), '"' if self.versions == "quoted" else "")

    def ls(self, path, detail=True, **options):
        found = super().ls(path, detail=True, **options)
        return [self._change(info) if detail else info["name"] for info in found]

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **options):
        found = super().find(path, maxdepth, withdirs, detail=True, **options)
        return {name: self._change(info) for name, info in found.items()} if detail else list(found)


fsspec.register_implementation("otherversions", OtherVersions, clobber=True)
