"""Passwords and tokens in URLs work, and are told to nobody: not in errors, the log, plans, manifests or rejects."""

import base64
import io
import logging
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tpufeed
from tests.test_security import jpeg
from tpufeed.cli.app import app
from tpufeed.dataset.naming import PLAN
from tpufeed.errors import ManifestError, OptionError, TpufeedError, mask_secrets, url_identity
from tpufeed.images import CenterCrop, Resize
from tpufeed.storage.store import open_store

SECRET = "sEcReT"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """A folder of photos, and a dataset of it, as a server has them."""
    folder = tmp_path_factory.mktemp("secrets")
    for number in range(6):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    tpufeed.shard(folder / "photos", folder / "encoded", workers=1)
    return folder


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ann:sEcReT@host/a", "https://***@host/a"),
        ("https://ann:p@sEcReT@host:8080/a b@c", "https://***@host:8080/a b@c"),
        ("https://sEcReT@host/a", "https://***@host/a"),
        ("s3://key:sEcReT@bucket/a", "s3://***@bucket/a"),
        ("simplecache::s3://key:sEcReT@bucket", "simplecache::s3://***@bucket"),
        ("zip://*.jpg::https://host/a.zip?sig=sEcReT", "zip://*.jpg::https://host/a.zip?sig=***"),
        ("https://h/a?X-Goog-Date=1&X-Goog-Signature=sEcReT&n=2", "https://h/a?X-Goog-Date=1&X-Goog-Signature=***&n=2"),
        ("https://h/a?X-Amz-Security-Token=sEcReT%2F", "https://h/a?X-Amz-Security-Token=***"),
        (
            "https://a.blob.core.windows.net/c?sv=2&se=3&sig=sEc/ReT%3D",
            "https://a.blob.core.windows.net/c?sv=2&se=3&sig=***",
        ),
        ("https://h/a?access_token=sEcReT#x", "https://h/a?access_token=***#x"),
        ("https://h/a?API-Key=sEcReT", "https://h/a?API-Key=***"),
        (
            "with url: /upload?uploadType=resumable&upload_id=sEcReT (x)",
            "with url: /upload?uploadType=resumable&upload_id=*** (x)",
        ),
        ("gs://bucket/a@b?c", "gs://bucket/a@b?c"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
        ("https://h/a?id=7&author=me&design=3&monkey=1", "https://h/a?id=7&author=me&design=3&monkey=1"),
        ("/photos/a?key=b", "/photos/a?key=***"),
    ],
)
def test_secrets_of_urls_are_masked(url, shown):
    assert mask_secrets(url) == shown
    assert mask_secrets(shown) == shown


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("https://h/a.png?X-Goog-Date=1&X-Goog-Expires=9&X-Goog-Signature=sEcReT&generation=4", "?generation=4"),
        ("https://h/a.png?X-Amz-Credential=sEcReT%2F1&id=7&X-Amz-Signature=sEcReT", "?id=7"),
        ("https://h/a.png?AWSAccessKeyId=sEcReT&Signature=sEcReT%3D&Expires=14", ""),
        ("https://h/a.png?GoogleAccessId=sEcReT&Expires=3&Signature=sEcReT&w=3", "?w=3"),
        ("https://h/a.png?Expires=1&Policy=sEcReT&Signature=sEcReT&Key-Pair-Id=sEcReT", ""),
        ("https://h/a.png?id=7&sv=3&se=2026&sr=b&sp=r&sig=sEcReT", "?id=7"),
        ("https://h/a.png?sig=sEcReT&sv=3;id=7#top", "?id=7#top"),
        ("https://h/a.png?id=7&st=3&sv=2&expires=1", "?id=7&st=3&sv=2&expires=1"),
        ("https://h/a.png?ID=7&author=me&design=3&&b", "?ID=7&author=me&design=3&&b"),
        ("https://h/a.png", ""),
    ],
)
def test_a_url_is_known_without_its_signature(url, identity):
    assert url_identity(url) == f"https://h/a.png{identity}"
    assert url_identity(url_identity(url)) == url_identity(url)
    assert url_identity(mask_secrets(url)) == url_identity(url)
    assert url_identity(url.replace("https://", "https://ann:sEcReT@")) == f"https://***@h/a.png{identity}"


@pytest.mark.parametrize(
    "form", ["https://h/a?key={}", "https://h/?id=7&code={}", "gs://b/a?token={}.png", "s3://b?sig={}"]
)
def test_what_may_name_an_image_tells_images_apart(form):
    names = {url_identity(form.format(value)) for value in ("photos/1.jpg", "photos/2.jpg", "photos/1.jpg")}
    assert len(names) == 2
    assert {url_identity(name) for name in names} == names
    assert "photos" not in "".join(names)


@pytest.mark.parametrize("name", ["a/b?sig=1.png", "a?key=x&token=y", "C:\\a?sig=1", "photos/a.png"])
def test_the_name_of_a_file_is_no_url(name):
    assert url_identity(name) == name


class Guarded(SimpleHTTPRequestHandler):
    """Files for those who know the token, or the password."""

    protocol_version = "HTTP/1.1"

    def send_head(self):
        basic = base64.b64encode(f"ann:{SECRET}".encode()).decode()
        if f"token={SECRET}" not in self.path and self.headers.get("Authorization") != f"Basic {basic}":
            self.send_error(403)
            return None
        start, _, stop = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        path = Path(self.translate_path(self.path))
        if not start or not path.is_file():
            return super().send_head()
        data = path.read_bytes()
        part = data[int(start) : int(stop) + 1 if stop else None]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        return io.BytesIO(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def host(datasets):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Guarded, directory=str(datasets))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("url", ["http://{host}/encoded?token={secret}", "http://ann:{secret}@{host}/encoded"])
def test_a_url_with_a_secret_works_and_tells_it_nobody(url, host, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "tpufeed")
    url = url.format(host=host, secret=SECRET)
    assert tpufeed.verify(url).records == 6
    options = {"ops": [Resize(32), CenterCrop(32)], "batch_size": 3, "local_dir": tmp_path}
    with tpufeed.Loader(url, **options) as loader:
        assert sum(len(labels) for _, labels in loader) == 6
    store = open_store(url)
    for fail in (
        lambda: store.read("none"),
        lambda: tpufeed.open_dataset(url).split("none"),
        lambda: store.put("a", b""),
    ):
        with pytest.raises(TpufeedError) as caught:
            fail()
        assert SECRET not in repr(caught.value)
        assert caught.value.__cause__ is None or SECRET not in str(caught.value.__cause__)
    result = CliRunner().invoke(app, ["info", f"{url}&x=1" if "?" in url else f"{url}/none"])
    assert SECRET not in caplog.text
    assert result.output


def test_no_secret_is_stored(host, datasets, tmp_path):
    """Neither the source's secrets nor those of a table's rows are; the build continues if the URL is given again."""
    signed = f"http://{host}/photos/b/3.jpg?token={SECRET}"
    (datasets / "t.csv").write_text(f"path,label\nphotos/b/1.jpg,x\n{signed},y\nhttp://{host}/none?token={SECRET},y\n")
    source = f"http://ann:{SECRET}@{host}/t.csv"
    result = tpufeed.shard(source, tmp_path / "out", workers=1, max_rejects=1)
    assert result.images == 2
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and path.name != Path(PLAN).name:
            assert SECRET.encode() not in path.read_bytes(), path
    header, *_ = (tmp_path / "out" / PLAN).read_text().splitlines()
    assert SECRET not in header
    assert tpufeed.shard(source, tmp_path / "out", workers=1, max_rejects=1).earlier_images == 2
    (tmp_path / "out/manifest.json").unlink()
    next((tmp_path / "out/_tpufeed/reports").iterdir()).unlink()
    assert tpufeed.shard(source, tmp_path / "out", workers=1, max_rejects=1).images == 2


def test_a_manifest_elsewhere_would_show_the_secret(host, tmp_path):
    with pytest.raises(OptionError, match=r"\*\*\*@"):
        tpufeed.adopt(f"http://ann:{SECRET}@{host}/encoded", tmp_path)


def test_a_manifest_that_is_none_says_nothing_of_the_token(host, datasets):
    (datasets / "manifest.json").write_text("{")
    with pytest.raises(ManifestError, match=r"token=\*\*\*"):
        tpufeed.open_dataset(f"http://{host}?token={SECRET}")
