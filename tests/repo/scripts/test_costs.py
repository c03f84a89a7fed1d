"""benchmarks/scale.md: the arithmetic, and that the page shows its present outcome."""

from types import SimpleNamespace

import pytest

from benchmarks import costs, scale_page
from tpufeed.stream.options import LoaderOptions


def test_the_page_shows_what_the_results_come_to():
    text = "\n".join(scale_page.iter_lines(scale_page.RESULTS))
    start, stop = scale_page.MARKS
    assert scale_page.PAGE.read_text().partition(start)[2].partition(stop)[0].strip() == text


def test_a_bucket_s_rate_doubles_every_twenty_minutes():
    """As many requests as 5,000, 10,000 a second and so on let through, or a little more as it grows all the time."""
    assert costs.bucket_seconds(0) == 0
    assert costs.bucket_seconds(5_000) == pytest.approx(1, rel=1e-3)
    first = 5_000 * 1200 / 0.6931
    assert costs.bucket_seconds(first) == pytest.approx(1200, rel=1e-3)
    assert costs.bucket_seconds(3 * first) == pytest.approx(2400, rel=1e-3)


def test_the_slowest_of_all_bounds_decides():
    dataset = costs.Dataset("made up", 1_000_000, 100_000, "photo")
    lines = list(costs.iter_dataset_lines(dataset, costs.Measured({"photo": 100.0}, 1e-5)))
    assert "- Listing, on one host: 1,000,000 / 1,000 pages x 0.2 s: **3.3 min**." in lines
    assert "- Planning, on one host: 1,000,000 x 10.0 us = **10 s**." in lines
    (one,) = [line for line in lines if line.startswith("| 1 |")]
    assert one == "| 1 | 10 min to 17 min | 50 s | 3.2 min | 10 min to 17 min |"
    (forty,) = [line for line in lines if line.startswith("| 40 |")]
    assert forty == "| 40 | 16 s to 26 s | 1.2 s | 3.2 min | 3.2 min |"
    (build,) = [line for line in lines if line.startswith("| build |")]
    shards, pages = 786, 1_000
    a, b = pages + 6 * shards, 1_000_000 + 4 * shards
    assert build == f"| build | {a:,} | {b:,} | ${a * 5e-6 + b * 4e-7:,.2f} | 0.10 TB | $0 | $2 | $12 |"


def test_requests_of_a_start_do_not_grow_with_the_pod():
    """tests/dataset/test_pods.py counts what real loaders ask for."""
    assert len({costs.start_requests(hosts, 56) for hosts in costs.PODS}) == 1
    assert costs.start_requests(64, 56) == 58 + 56 * 4 + 640
    assert costs.start_requests(1, 0) == 2 + 32 + 640


def test_a_loader_s_defaults(monkeypatch):
    """What the page says of them, for the cores of the hosts of TPUs: a process per core."""
    from tpufeed.stream import executor as workers

    monkeypatch.delenv("TPUFEED_PROCESSES")
    manifest = SimpleNamespace(splits={}, tensor_shape=None)
    url = "gs://bucket/made-up"
    dataset = SimpleNamespace(url=url, shards=SimpleNamespace(url=url), manifest=manifest)
    for cores in (2, 16, 96, 224):
        monkeypatch.setattr(workers, "available_cores", lambda cores=cores: cores)
        planned = workers.plan_workers([dataset], LoaderOptions())
        assert planned.processes == cores


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "0.5 s"), (59, "59 s"), (90, "1.5 min"), (5400, "1.5 h"), (360_000, "100 h")]
)
def test_times_in_words(seconds, text):
    assert costs.hours(seconds) == text
