"""What a build costs in a bucket: against the requests that a server counts, and nothing on a disk."""

import json

import pytest

from tests.cli.conftest import run_here
from tests.gcs_server import GcsServer
from tpufeed.builds.prices import bucket_cost, gets_of_shards
from tpufeed.storage.store import open_store


def test_only_buckets_cost():
    disk, bucket = open_store("here"), open_store("gs://bucket/x")
    assert bucket_cost([disk], disk, 5, 5, 5, 5) is None
    reading = bucket_cost([bucket], disk, 14_200_000, 10**12, 12_000, 15 * 10**11)
    assert (reading.puts, reading.gets, reading.dollars_a_month) == (14_200, 14_200_000, 0)
    assert reading.dollars == pytest.approx(0.071 + 5.68)
    assert list(reading.dollars_elsewhere.values()) == pytest.approx([20, 120])
    writing = bucket_cost([disk], bucket, 10, 10**12, 2, 200 << 20)
    assert (writing.puts, writing.gets, writing.dollars_elsewhere) == (2 * 2 + 7, 8, {})
    assert writing.dollars_a_month == pytest.approx((200 << 20) / 1e9 * 0.02)
    assert gets_of_shards([1, 8 << 20, (8 << 20) + 1]) == 3 + 3 + 4


@pytest.fixture
def gcs():
    with GcsServer() as server:
        yield server


def test_a_dry_run_tells_about_the_requests_of_the_build(gcs, photo_folder, tmp_path, monkeypatch):
    for name, value in gcs.environment().items():
        monkeypatch.setenv(name, value)
    for path in photo_folder.rglob("*.jpg"):
        gcs.put("bucket", f"photos/{path.relative_to(photo_folder)}", path.read_bytes())
    words = ["shard", "gs://bucket/photos", "gs://bucket/flowers", "--shard-size", "60KB", "--workers", "1"]
    said = run_here(*words, "--dry-run").stdout
    assert "requests: about " in said
    assert " more over the internet; " in said
    assert "; prices of Google in November 2026" in said
    cost = json.loads(run_here(*words, "--dry-run", "--json").stdout)["cost"]
    gcs.clear_log()
    assert run_here(*words).returncode == 0
    made = [record.operation for record in gcs.log]
    puts = sum(made.count(each) for each in ("write", "start", "chunk", "list"))
    assert (puts, len(made) - puts) == pytest.approx((cost["puts"], cost["gets"]), rel=0.6)
    assert "requests" not in run_here("shard", photo_folder, tmp_path / "d", "--dry-run").stdout
