"""File systems of fsspec: chains, and a real web server with its faults."""

import re
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tpufeed.errors import (
    AccessError,
    MissingExtraError,
    ObjectNotFoundError,
    StoreError,
    UnavailableError,
)
from tpufeed.storage import filesystem
from tpufeed.storage.store import open_store


def test_a_url_names_the_same_store_in_fsspec_and_here(tmp_path):
    open_store(str(tmp_path)).put("a/b", b"1")
    assert open_store(f"local://{tmp_path}").read("a/b") == b"1"


def test_a_chain_of_fsspec_s_is_a_store(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("cats/a.jpg", b"1")
    store = open_store(f"zip://::file://{tmp_path}/photos.zip")
    assert [(info.name, info.size_bytes) for info in store.iter_objects()] == [("cats/a.jpg", 1)]
    assert store.read("cats/a.jpg") == b"1"
    assert store.stat("cats/a.jpg").size_bytes == 1
    assert open_store(f"simplecache::local://{tmp_path}").stat("photos.zip") is not None


class RangeHandler(SimpleHTTPRequestHandler):
    """Files of a folder, by ranges as well; `Range` is the standard library's to ignore."""

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or not path.is_file() or "no-ranges" in self.path:
            super().do_GET()
            return
        data = path.read_bytes()[int(wanted[1]) : int(wanted[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


@pytest.fixture
def web_folder(tmp_path):
    """A folder and the URL at which a real server shows it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_web_address_without_the_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtraError, match=r"aiohttp is not installed: pip install .*\[gcs\]'"):
        open_store("http://127.0.0.1:9/photos")


def test_a_web_server_s_folder_is_a_store_to_read_from(web_folder):
    folder, url = web_folder
    (folder / "a.txt").write_bytes(b"0123456789")
    store = open_store(url)
    assert store.read("a.txt") == b"0123456789"
    assert store.read_range("a.txt", 3, 7) == b"3456"
    assert store.stat("a.txt").size_bytes == 10
    assert store.stat("absent") is None
    with pytest.raises(ObjectNotFoundError, match="absent"):
        store.read("absent")
    with pytest.raises(StoreError, match=r"b\.txt.*501"):
        store.put("b.txt", b"x")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (503, UnavailableError),
        (429, UnavailableError),
        (522, UnavailableError),
        (403, AccessError),
        (401, AccessError),
        (404, None),
        (410, None),
    ],
)
def test_an_outage_of_a_server_says_nothing_of_its_objects(status, error, web_folder, monkeypatch):
    monkeypatch.setattr(filesystem, "_WEB_WAITS_SECONDS", (0.0, 0.0))
    folder, url = web_folder
    (folder / "a.txt").write_bytes(b"0123456789")
    store = open_store(url)
    for method in ("do_GET", "do_HEAD"):
        monkeypatch.setattr(RangeHandler, method, lambda self: self.send_error(status))
    calls = (lambda: store.read("a.txt"), lambda: store.read_range("a.txt", 1, 3), lambda: store.stat("a.txt"))
    for call in calls if error else calls[:2]:
        with pytest.raises(error or ObjectNotFoundError, match=r"/a\.txt"):
            call()
    assert error or store.stat("a.txt") is None


def test_listings_of_a_server_are_never_from_a_cache(web_folder):
    folder, url = web_folder
    (folder / "a.txt").write_bytes(b"1")
    store = open_store(url)
    assert [info.name for info in store.iter_objects()] == ["a.txt"]
    (folder / "b.txt").write_bytes(b"2")
    assert [info.name for info in store.iter_objects()] == ["a.txt", "b.txt"]


def test_a_server_that_ignores_ranges_is_a_store_error_and_no_wrong_bytes(web_folder):
    folder, url = web_folder
    (folder / "no-ranges").write_bytes(b"0123456789")
    with pytest.raises(StoreError, match="range"):
        open_store(url).read_range("no-ranges", 3, 7)


@pytest.mark.parametrize("url", ["reference://x", "filecache://x", "dir:///tmp", "zip:///absent/x.zip"])
def test_a_url_that_its_backend_cannot_open_is_a_store_error(url):
    with pytest.raises(StoreError, match=url):
        open_store(url)
