"""Objects in the memory of this process (memory://), for tests and experiments."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tpufeed.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from tpufeed.storage.local import temporary_folder
from tpufeed.storage.store import ObjectInfo, Store, check_name

_lock = threading.Lock()
_objects: dict[str, tuple[bytes, int]] = {}
_generation = iter(range(1, 1 << 62))


class MemoryStore(Store):
    """A `Store` whose objects live as long as the process. No other process sees them."""

    shared = False
    conditional = True
    generations = True

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") if url != "memory://" else url
        self._root = f"{self.url.removeprefix('memory://').strip('/')}/".removeprefix("/")

    def read(self, name: str, version: str = "") -> bytes:
        with _lock:
            found = _objects.get(self._key(name))
        if found is None:
            raise ObjectNotFoundError(f"{self.url}/{name}: no such object")
        data, generation = found
        if version not in ("", str(generation)):
            raise ObjectChangedError(f"{self.url}/{name}: it is generation {generation} now, not {version}")
        return data

    def read_range(self, name: str, start: int, stop: int, version: str = "") -> bytes:
        return self.read(name, version)[start:stop]

    def stat(self, name: str) -> ObjectInfo | None:
        with _lock:
            found = _objects.get(self._key(name))
        return None if found is None else ObjectInfo(name, len(found[0]), str(found[1]))

    def iter_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        start = self._key(prefix.rstrip("/")) + "/" if prefix else self._root
        skip = len(self._root)
        with _lock:
            found = [(key, len(data), version) for key, (data, version) in _objects.items() if key.startswith(start)]
        yield from (ObjectInfo(key[skip:], size, str(version)) for key, size, version in sorted(found))

    def iter_folders(self) -> Iterator[str]:
        yield from {info.name.split("/", 1)[0] for info in self.iter_objects() if "/" in info.name}

    def put(self, name: str, data: bytes, replaces: ObjectInfo | None = None) -> ObjectInfo:
        with _lock:
            key = self._key(name)
            found = _objects.get(key)
            if found is not None and (replaces is None or str(found[1]) != replaces.version):
                raise ObjectExistsError(f"{self.url}/{name} exists already")
            _objects[key] = bytes(data), next(_generation)
            return ObjectInfo(name, len(data), str(_objects[key][1]))

    def put_file(self, name: str, path: Path, replaces: ObjectInfo | None = None) -> ObjectInfo:
        return self.put(name, path.read_bytes(), replaces)

    def delete(self, name: str, version: str = "") -> None:
        with _lock:
            found = _objects.get(self._key(name))
            if found is not None and version in ("", str(found[1])):
                del _objects[self._key(name)]

    def temporary_folder(self) -> AbstractContextManager[Path]:
        return temporary_folder()

    def _key(self, name: str) -> str:
        return self._root + check_name(name)
