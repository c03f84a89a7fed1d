"""Class 6: an expired token is refreshed once; what is forbidden is asked for once, and the message says what to do."""

import google.auth
import pytest
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError

import tpufeed
from tests.faults.remote import WARM, epochs_of, met, names_of, objects
from tpufeed import cache
from tpufeed.errors import AccessError, TpufeedError
from tpufeed.storage import gcs_requests

SHARD = {"shard_bytes": "30KB", "workers": 1}


class Token(Credentials):
    """Of a person; each refresh gives another token, or fails."""

    def __init__(self, error=None):
        super().__init__()
        self.token, self.error, self.refreshed = "first", error, 0

    def refresh(self, request):
        self.refreshed += 1
        if self.error:
            raise self.error
        self.token = f"token {self.refreshed}"

    @property
    def account(self):
        return "me@example.com"


@pytest.fixture
def with_token(server, monkeypatch):
    """`with_token(error)`: credentials for this process, as outside of tests; only the endpoint is another."""

    def use(error=None):
        token = Token(error)
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        monkeypatch.setenv("API_ENDPOINT_OVERRIDE", server.url)
        monkeypatch.setattr(google.auth, "default", lambda **_: (token, "project"))
        monkeypatch.setattr(gcs_requests, "_sessions", {})
        return token

    return use


@pytest.mark.all
@pytest.mark.parametrize(("operation", "name"), [("list", ""), ("read", "*/photos/*.jpg")])
def test_a_build_whose_token_expires_goes_on_with_another(operation, name, server, kept, with_token):
    token = with_token()
    server.fault("status", operation=operation, name=name, status=401)
    tpufeed.shard(f"{kept}/photos", "gs://bucket/d", **SHARD)
    (hit,) = met(server)
    assert hit.status == 401
    assert token.refreshed == 1
    assert token.token == "token 1"
    assert objects(server, "d") == objects(server, "kept/dataset")
    assert names_of(server, "d") == names_of(server, "kept/dataset")


@pytest.mark.parametrize("copied", [True, False], ids=["copies", "ranges"])
def test_a_loader_whose_token_expires_goes_on_with_another(copied, server, kept, cache_url, with_token, tmp_path):
    token = with_token()
    server.fault("status", operation="read", name="*.tfrecord", status=401, calls=(2,))
    options = {"local_dir": tmp_path} if copied else {"local_bytes": 0}
    assert epochs_of(f"{kept}/cache", **options) == epochs_of(cache_url)
    assert [hit.status for hit in met(server)] == [401]
    assert token.refreshed == 1


@pytest.mark.all
def test_a_token_that_cannot_be_renewed_is_an_error_that_says_how_to_log_in(server, kept, with_token, command):
    with_token(RefreshError("expired"))
    server.fault("status", operation="write", name="d/*.tfrecord", status=401, calls=None)
    words = ["shard", f"{kept}/photos", "gs://bucket/d", "--shard-size", "30KB", "--workers", 1]
    done = command(*words)
    assert done.exit_code == 1
    assert "the credentials do not work: expired; log in with `gcloud auth application-default login`" in done.stderr
    assert len(met(server)) == 1
    assert names_of(server, "d") == {"_tpufeed/plan.jsonl"}
    server.clear_faults()  # as after logging in
    done = command(*words)
    assert done.exit_code == 0, done.output
    assert objects(server, "d") == objects(server, "kept/dataset")


FORBIDDEN = {
    "shard to": (["shard", "{photos}", "gs://private/d"], "storage.objects.get", "gs://private/d/manifest.json", 1),
    "shard from": (["shard", "gs://private/p", "{tmp}/d"], "storage.objects.list", "gs://private/p:", 1),
    "warmup from": (["cache", "warmup", "gs://private/d", "{tmp}/c", "--size", "32"], "storage.objects.get", "", 1),
    "info": (["info", "gs://private/d"], "storage.objects.get", "gs://private/d/manifest.json", 1),
    "verify": (["verify", "gs://private/d"], "storage.objects.get", "gs://private/d/manifest.json", 1),
    "adopt": (["adopt", "gs://private/d"], "storage.objects", "gs://private/d", 1),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_command_asks_once_for_what_is_forbidden(name, server, photo_folder, with_token, command, tmp_path):
    words, permission, url, code = FORBIDDEN[name]
    server.create_bucket("private", refuses=403)
    token = with_token()
    done = command(*(word.format(photos=photo_folder, tmp=tmp_path) for word in words))
    assert done.exit_code == code, done.output  # 2 where a source cannot be listed
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert url in line
    assert "access denied to me@example.com" in line
    assert f"{permission}" in line
    assert "grant me@example.com roles/storage.objectUser on the bucket private" in line
    asked = [(record.operation, record.status) for record in server.log]
    assert asked.count(("layout", 403)) <= 1  # for the bucket's type, where the extra rapid is installed
    assert [status for operation, status in asked if operation != "layout"] == [403]
    assert token.refreshed == 0


@pytest.mark.parametrize("name", ["plan.jsonl", "*.tfrecord"])
def test_a_command_that_may_read_but_not_write_says_so(name, server, kept, with_token, command):
    with_token()
    server.fault("status", operation="write", name=f"d/*{name}", status=403, calls=None)
    done = command("shard", f"{kept}/photos", "gs://bucket/d", "--shard-size", "30KB", "--workers", 1)
    assert done.exit_code == 1
    assert "storage.objects.create is probably missing: grant me@example.com" in done.stderr
    (hit,) = met(server)
    assert f"gs://bucket/{hit.name}: access denied" in done.stderr
    assert "manifest.json" not in names_of(server, "d")


def test_a_loader_asks_once_for_what_is_forbidden(server, kept, with_token):
    with_token()
    server.fault("status", operation="read", name="*-v0-00001-*", status=403, calls=None)
    with pytest.raises(AccessError, match=r"-v0-00001-of-00003\.tfrecord: access denied to me@.*storage\.objects\.get"):
        epochs_of(f"{kept}/cache", local_bytes=0, shuffle=False, lanes=1, threads=1, prefetch=1)
    assert 1 <= len(met(server)) <= 2, "once for each of the two batches in work"


@pytest.mark.parametrize("status", [401, 403])
def test_what_credentials_do_not_open_is_no_bad_photograph(status, server, kept, with_token, tmp_path):
    """Those of the last minutes, say, when the token could not be renewed: the dataset would lack them."""
    with_token(RefreshError("expired"))
    server.fault("status", operation="read", name="*/photos/*/*[05].jpg", status=status, calls=(1, 2, 3))
    try:
        with pytest.raises(TpufeedError, match=r"access denied|credentials do not work"):
            tpufeed.shard(f"{kept}/photos", tmp_path / "d", **SHARD)
    finally:
        assert met(server)
    assert not (tmp_path / "d/manifest.json").exists()
    assert cache.warmup(f"{kept}/dataset", tmp_path / "c", **WARM).images == 80
