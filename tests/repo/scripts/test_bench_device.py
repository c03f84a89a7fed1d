"""`run.py bench-device` on a few images: every row is there, and its figures are possible."""

import json

import pytest

from benchmarks import bench_device, harness
from tpufeed.measure.bench import measure


def test_all_is_measured_once(tmp_path, monkeypatch, capsys):
    for package in ("jax", "skimage", "sklearn"):
        pytest.importorskip(package)
    monkeypatch.setattr(bench_device, "measure_apart", measure)
    monkeypatch.setattr(bench_device, "write_result", lambda *given: harness.write_result(*given, tmp_path))
    monkeypatch.setenv("TPUFEED_PROCESSES", "0")
    few = {name: bench_device.CHAINS[name] for name in ("RandomResizedCrop", "Grayscale")}
    monkeypatch.setattr(bench_device, "CHAINS", few)
    quick = ["--photos", "24", "--batch", "8", "--repeats", "1", "--seconds", "0.01", "--feed-seconds", "0.05"]
    bench_device.main([*quick, "--work", str(tmp_path), "--save", "quick"])
    said = capsys.readouterr().out
    result = json.loads((tmp_path / "quick.json").read_text())
    assert result["about"] == {"photos": 24, "batch_size": 8, "programs": 1}
    kinds: dict[str, list] = {}
    for row in result["rows"]:
        kinds.setdefault(row["measurement"], []).append(row)
    assert [row["way"] for row in kinds["host"]] == list(bench_device.HOST)
    assert all(row["cpu_us"] > 0 and row["images_per_second"] > 0 for row in kinds["host"])
    assert [row["cpu_ratio"] for row in kinds["host"] if row["way"] == row["compared_with"]] == [1, 1]
    drained, *fed = kinds["idle"][::2]  # ops on the device
    assert (drained["idle_percent"], [row["target_percent"] for row in fed]) == (None, [1, 1, 2])
    assert all(row["device"].startswith("EMULATED ") and 0 <= row["idle_percent"] <= 100 for row in fed)
    crop, grey = kinds["device"]
    # Two products: 224 rows of 256 pixels, then 224 pixels of 256, of three colours.
    assert crop["of_products_mflop"] == pytest.approx(2 * 3 * 224 * 256 * (256 + 224) / 1e6)
    assert (grey["of_products_mflop"], grey["v5e-8 MXU %"], grey["numbers"]) == (0, 0, 1)
    assert all(0 < row["v5e-8 memory %"] < 1 for row in (crop, grey))
    assert crop["v5e-8 MB"] > 128 * 3 * (256 * 256 + 224 * 224) / 1e6
    assert grey["v5e-8 MB"] > 128 * 3 * 2 * 256 * 256 / 1e6
    assert all(name in said for name in (*bench_device.HOST, *few, "programs of two epochs of to_jax: 1"))
