"""Where the paths of tables lead."""

import pytest

from tpufeed.sources.paths import resolve


@pytest.mark.parametrize(
    ("base", "path", "file"),
    [
        ("/data", "a/b.jpg", "a/b.jpg"),
        ("/data", "./a.jpg", "a.jpg"),
        ("/data", "../a.jpg", "/a.jpg"),
        ("/data", "../database/a.jpg", "/database/a.jpg"),
        ("/data", "/data/a.jpg", "a.jpg"),
        ("/data", "/database/a.jpg", "/database/a.jpg"),
        ("/", "a.jpg", "a.jpg"),
        ("/data", "file:///x/a.jpg", "/x/a.jpg"),
        ("/data", "file://localhost/x/a.jpg", "/x/a.jpg"),
        ("/data", "gs://b/a.jpg", "gs://b/a.jpg"),
        ("gs://bucket/t", "a.jpg", "a.jpg"),
        ("gs://bucket/t", "../x/a.jpg", "gs://bucket/x/a.jpg"),
        ("gs://bucket/t", "/x/a.jpg", "/x/a.jpg"),
        ("gs://bucket/t", "file:///x/a.jpg", "/x/a.jpg"),
        ("gs://bucket", "a.jpg", "a.jpg"),
        ("gs://bucket/t", "gs://bucket/t/x/a.jpg", "x/a.jpg"),
        ("gs://bucket/t", "gs://bucket/table/a.jpg", "gs://bucket/table/a.jpg"),
        ("gs://bucket/t", "gs://bucket/t//a.jpg", "gs://bucket/t//a.jpg"),
        ("gs://bucket/t", "gs://bucket/t/../a.jpg", "gs://bucket/t/../a.jpg"),
        ("local:///t", "a.jpg", "a.jpg"),
        ("local:///t", "../a.jpg", "local:///a.jpg"),
    ],
)
def test_where_a_path_leads(base, path, file):
    assert resolve(base, path) == file
