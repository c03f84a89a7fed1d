"""`run.py views` on a small dataset: a view reads no record that it leaves out."""

import json

from benchmarks import harness, views


def test_views_read_their_own_records_only(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "write_result", lambda *given, write=harness.write_result: write(*given, tmp_path))
    views.main(["--shards", "20", "--repeats", "1", "--work", str(tmp_path), "--save", "quick"])
    result = json.loads((tmp_path / "quick.json").read_text())
    rows = {row["way"]: row for row in result["rows"]}
    assert tuple(rows) == views.WAYS
    assert rows["whole"]["samples"] == result["about"]["records"] == 20_000
    assert rows["1 % by ids"]["samples"] == 200
    assert rows["one class of ten"]["samples"] == 2_000
    assert rows["1 % by fold"]["samples"] + rows["99 % by fold"]["samples"] == 20_000
    assert all(row["read"] >= 128 and not row["left_out"] for row in rows.values())
    assert "20,000 records" in capsys.readouterr().out
