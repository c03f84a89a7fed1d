"""Rows that name web URLs: a server that refuses or is dead costs its own rows alone, after tries that are bounded."""

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler

import pytest

import tpufeed
from tests.gcs_server import GcsServer
from tests.sharding.outputs import rejects_of, samples_of
from tests.sharding.previews import preview_shard
from tests.web_server import WebServer
from tpufeed.builds.item import ImageRef, Item
from tpufeed.errors import AccessError, SourceError, TooManyRejectsError
from tpufeed.sources.inputs import files_of, place_of
from tpufeed.storage import filesystem


class Web:
    """A real server of images, whose answers to each path can be set: a status, or several for one after the other."""

    def __init__(self, jpegs):
        self.jpegs, self.answers, self.asked = jpegs, {}, Counter()
        web = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                path = self.path.partition("?")[0]
                web.asked[path] += 1
                answers = web.answers.get((self.command, path), web.answers.get(path, web.answers.get("all", 200)))
                if isinstance(answers, list):
                    answers = answers.pop(0) if answers else 200
                body = web.jpegs[int(path.strip("/").partition(".")[0]) % len(web.jpegs)] if answers == 200 else b""
                self.send_response(answers)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_GET = do_HEAD = answer  # as http.server wants them

            def log_message(self, *_):
                pass

        self.server = WebServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def start_web(small_jpegs, monkeypatch):
    """`start_web()`: another server."""
    monkeypatch.setattr(filesystem, "_WEB_WAITS_SECONDS", (0.0, 0.0))
    started = []

    def start():
        started.append(Web(small_jpegs))
        return started[-1]

    yield start
    for web in started:
        web.server.shutdown()
        web.server.server_close()


@pytest.fixture
def write_table(tmp_path):
    """`write_table(urls)`: a table of them."""

    def write(urls):
        lines = [f"{url},{number % 2}\n" for number, url in enumerate(urls)]
        (tmp_path / "t.csv").write_text("url,label\n" + "".join(lines))
        return tmp_path / "t.csv"

    return write


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("bad", "reason", "cause"),
    [
        (401, "unreachable", "401"),
        (403, "unreachable", "403"),
        (404, "unreadable", "no such file"),
        (410, "unreadable", "no such file"),
        (429, "unreachable", "429"),
        (451, "unreadable", "451"),
        (503, "unreachable", "503"),
        (522, "unreachable", "522"),
        ("http://127.0.0.1:9/1.jpg", "unreachable", "127.0.0.1:9"),
        ("http://nosuch.invalid/1.jpg", "unreachable", "nosuch.invalid"),
        ("no tls", "unreachable", "ssl"),
    ],
)
def test_a_url_that_is_refused_is_a_reject_that_names_row_and_cause(
    bad, reason, cause, start_web, write_table, tmp_path
):
    web = start_web()
    urls = [f"{web.url}/{number}.jpg?size=large" for number in range(6)]
    if isinstance(bad, int):
        web.answers["/1.jpg"] = bad
    else:
        urls[1] = f"https{web.url.removeprefix('http')}/1.jpg" if bad == "no tls" else bad
    result = tpufeed.shard(
        write_table(urls), tmp_path / "d", images=tpufeed.Images(encode="exact"), max_rejects=1, workers=1
    )
    ((path, (found, message)),) = rejects_of(tmp_path / "d").items()
    assert (path, found) == (urls[1], reason)
    assert "row 2 of " in message
    assert cause in message.lower()
    assert sorted(each["image/encoded"][0] for each in samples_of(tmp_path / "d").values()) == sorted(
        web.jpegs[number] for number in (0, 2, 3, 4, 5)
    )
    again = tpufeed.shard(
        write_table(urls), tmp_path / "d", images=tpufeed.Images(encode="exact"), max_rejects=1, workers=1
    )
    assert (again.seconds, again.manifest) == (0, result.manifest)
    with pytest.raises(TooManyRejectsError, match=f"1 {reason}"):
        tpufeed.shard(write_table(urls), tmp_path / "none", max_rejects=0, workers=1)


def test_a_url_that_is_refused_after_it_was_listed(start_web, write_table, tmp_path):
    web = start_web()
    web.answers["GET", "/3.jpg"] = 403
    table = write_table([f"{web.url}/{number}.jpg" for number in range(6)])
    tpufeed.shard(table, tmp_path / "d", max_rejects=1, workers=1)
    assert {path[-5:]: reason for path, (reason, _) in rejects_of(tmp_path / "d").items()} == {"3.jpg": "unreachable"}


def test_failures_that_pass_cost_no_row(start_web, write_table, tmp_path):
    web = start_web()
    web.answers |= {f"/{number}.jpg": [503, 503] for number in range(6)}  # of HEAD and then GET, which are one try
    web.answers |= {("GET", f"/{number}.jpg"): [429, 503] for number in range(6, 9)}
    table = write_table([f"{web.url}/{number}.jpg" for number in range(9)])
    result = tpufeed.shard(table, tmp_path / "d", max_rejects=0, workers=1)
    assert sum(split.records for split in result.manifest.splits.values()) == 9


@pytest.mark.all
@pytest.mark.parametrize("is_up", [False, True])
def test_many_rows_of_a_dead_server_take_few_requests(is_up, start_web, write_table, tmp_path):
    web, dead = start_web(), start_web()
    dead.answers["all"] = 503
    if not is_up:
        dead.server.shutdown()
        dead.server.server_close()
    urls = [f"{web.url}/{number}.jpg" for number in range(20)]
    urls += [f"{dead.url}/{number}.jpg" for number in range(1000)]
    result = tpufeed.shard(write_table(urls), tmp_path / "d", max_rejects="100%", workers=1)
    assert result.manifest.rejects == {"unreachable": 1000}
    assert sum(split.records for split in result.manifest.splits.values()) == 20
    assert sum(dead.asked.values()) < 300
    with pytest.raises(TooManyRejectsError, match="1,000 unreachable"):
        preview_shard(write_table(urls), tmp_path / "none")


def test_what_most_rows_died_of_is_said_first(start_web, write_table, tmp_path):
    web = start_web()
    web.answers |= {f"/{number}.jpg": 403 for number in range(10, 16)}
    web.jpegs = [b"none", *web.jpegs[1:20]]
    table = write_table([f"{web.url}/{number}.jpg" for number in range(16)])
    with pytest.raises(TooManyRejectsError, match=r"6 unreachable.* 403"):
        tpufeed.shard(table, tmp_path / "d", max_rejects=2, workers=1)


def test_a_bucket_that_refuses_stops_the_build(write_table, tmp_path, monkeypatch):
    with GcsServer(md5=False) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        server.fault("status", status=403, calls=None)
        with pytest.raises((AccessError, SourceError), match="denied"):
            tpufeed.shard(write_table(["gs://bucket/1.jpg", "gs://bucket/2.jpg"]), tmp_path / "d", max_rejects="100%")
    assert not (tmp_path / "d/manifest.json").exists()


def test_a_mask_whose_server_refuses(start_web, small_jpegs, tmp_path):
    web = start_web()
    web.answers["/1.jpg"] = 403
    (tmp_path / "0.jpg").write_bytes(small_jpegs[0])
    lines = "".join(f"0.jpg,{web.url}/{number}.jpg\n" for number in range(3))
    (tmp_path / "t.csv").write_text(f"path,other\n{lines}")
    options = {"image_columns": {"other": "other:image"}, "max_rejects": 1, "workers": 1}
    result = tpufeed.shard(tmp_path / "t.csv", tmp_path / "d", **options)
    assert result.manifest.rejects == {"unreachable": 1}
    ((_, message),) = rejects_of(tmp_path / "d").values()
    assert "row 2" in message
    assert "'other'" in message


def test_the_preview_keeps_to_the_same_budget(start_web, write_table, tmp_path):
    web = start_web()
    web.answers["/1.jpg"] = 403
    table = write_table([f"{web.url}/{number}.jpg" for number in range(6)])
    assert preview_shard(table, tmp_path / "d").splits["train"].inputs == 6
    with pytest.raises(TooManyRejectsError, match="1 unreachable"):
        preview_shard(table, tmp_path / "d", max_rejects=0)


def test_the_files_of_a_sample_are_its_image_and_its_further_images():
    mask = ImageRef("mask.png", 5, "2")
    assert files_of(Item("a.jpg", 3, "1")) == (ImageRef("a.jpg", 3, "1"),)
    item = Item("row 7", 3, "1", file="t.parquet", offset=9, row=7, leaf="image.bytes", images=(mask,))
    assert files_of(item) == (ImageRef("t.parquet", 3, "1", 9, 7, "image.bytes"), mask)
    assert list(map(place_of, files_of(item))) == ["parquet:t.parquet:7:image.bytes", "mask.png"]
