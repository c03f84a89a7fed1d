import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import demo, train
from tpufeed.cli.app import app

ROOT = Path(__file__).parents[3]
ROWS = [
    "raw files, Pillow in one thread",
    "raw files, Pillow in",
    "shards, tf.data as Kaggle's TPU guide writes it",
    "shards, tpufeed.Loader.to_tf",
    "shards, tpufeed.Loader",
    "cache, tpufeed.Loader.to_tf",
    "cache, tpufeed.Loader",
    "cache of whole images, tpufeed.Loader",
    "cache of their DCT images, tpufeed.Loader",
]


def run_demo(*args: object) -> subprocess.CompletedProcess[str]:
    # With the environment that there is: a test installs nothing.
    environment = dict(os.environ, TPUFEED_VENV_READY="1")
    command = [str(ROOT / "scripts" / "demo"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def run_here(run: Callable[..., str], command: list[str], capture: bool = False) -> str:
    """Run tpufeed's commands and the feeds in this process, and others as the demo does."""
    if Path(command[0]).name == "tpufeed":
        done = CliRunner().invoke(app, [*command[1:], "--workers", "1"])
        assert done.exit_code == 0, done.output
        return done.stdout
    if command[2] != "train":
        return run(command, capture=capture)
    with redirect_stdout(io.StringIO()) as said:
        assert train.main(command[3:]) == 0
    return said.getvalue()


def check_closing(output: str, rows: list[dict[str, Any]]) -> None:
    """The last word boasts with no row of which the same output says that it has no verdict."""
    closing = next(line for line in output.splitlines() if line.startswith(("EMULATED: ", "No verdict for any run: ")))
    for row in rows:
        if row["problems"]:
            assert f"{row['label']}: no verdict: " in output
            assert f"with {row['label']}:" not in closing
            assert f"from {row['idle_percent']:.1f} % with {row['label']}" not in closing


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.long)], ids=["here", "as it stands"])
def test_the_demo_shows_every_feed_and_writes_its_figures(
    apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands each feed is a process; here they run in one, as to import TensorFlow takes longer than to feed."""
    for extra in ("tensorflow", "skimage", "sklearn"):
        pytest.importorskip(extra)
    arguments = ["--photos", "18", "--seconds", "0.1", "--keep", str(tmp_path)]
    if apart and Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("the demo runs in .venv, which is not this environment")
    if apart:
        done = run_demo(*arguments)
        assert done.returncode == 0, done.stderr
        output = done.stdout
    else:
        monkeypatch.setattr(demo, "_run", functools.partial(run_here, demo._run))
        monkeypatch.setenv("TPUFEED_PROCESSES", "0")
        with redirect_stdout(io.StringIO()) as said:
            assert demo.main(arguments) == 0
        output = said.getvalue()
    table = [line for line in output.splitlines() if line.strip().startswith("EMULATED tpu-v3-8")]
    for row in ROWS:
        assert any(row in line for line in table), f"{row}: {output}"
    result = json.loads((tmp_path / "demo.json").read_text())
    check_closing(output, result["rows"])
    assert result["about"]["photos"] == 18
    assert result["machine"]["cores"] >= 1
    assert len(result["rows"]) == len(ROWS)
    for row in result["rows"]:
        assert row["device"] == "EMULATED tpu-v3-8"
        assert row["batch_size"] == 4
        assert row["images_per_second"] > 0
        assert 0 <= row["idle_percent"] <= 100
        assert row["mxu_percent"] is None


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="the demo runs in .venv, which is not this environment")
@pytest.mark.long  # the demo of the README runs always, and tests/repo/test_docs.py goes through a bucket
def test_the_demo_goes_through_a_bucket(tmp_path: Path) -> None:
    for extra in ("google.cloud.storage", "gcsfs", "skimage", "sklearn"):
        pytest.importorskip(extra)
    done = run_demo("--gcs", "--photos", 18, "--seconds", 0.1, "--keep", tmp_path)
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith("$ tpufeed ")]
    assert [command.split()[2] for command in commands] == ["shard", "cache", "verify"]
    assert all(word.startswith("gs://bucket/") for command in commands for word in command.split() if "/" in word)
    assert "sound: 36 records" in done.stdout
    result = json.loads((tmp_path / "demo-gcs.json").read_text())
    check_closing(done.stdout, result["rows"])
    assert [row["source"] for row in result["rows"]] == ["shards", "cache", "cache"]
    assert all(row["device"] == "EMULATED tpu-v3-8" and row["images_per_second"] > 0 for row in result["rows"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-gcs.json", "photos"]


def test_the_demo_refuses_what_it_cannot_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.jpg").write_bytes(b"")
    for arguments in (["--photos", "1"], ["--all", "--gcs"], ["--photos", "60", "--keep", str(tmp_path)]):
        with pytest.raises(SystemExit) as end:
            demo.main(arguments)
        assert end.value.code == 2
    assert "not an empty folder" in capfd.readouterr().err
    if Path(sys.prefix) == ROOT / ".venv":  # the command of the README
        done = run_demo("--photos", 1)
        assert (done.returncode, "--photos is at least 3" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    """`bench(*arguments)` runs `run.py train` in this process and returns its exit code and what it printed."""

    def run(*arguments: object) -> tuple[Any, str, str]:
        try:
            code: Any = train.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    folder = tmp_path_factory.mktemp("photos")
    for number in range(12):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (40 + number, 30), (number, 90, 200)).save(path)
    return folder


def test_a_bench_drains_a_loader_for_so_many_steps(photos: Path, bench: Callable[..., Any]) -> None:
    # 12 photos make two batches of 5 an epoch, so three steps take two epochs.
    code, out, _ = bench("--loader", "pil", "--photos", photos, "--device", "none", "--batch", 5, "--steps", 3)
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert (result["loader"], result["device"], result["steps"]) == ("pil", "none", 3)
    assert result["images_per_second"] > 0
    assert (result["step_ms"], result["idle_percent"], result["mxu_percent"]) == (None, None, None)


def test_every_figure_of_an_emulated_bench_says_so(photos: Path, bench: Callable[..., Any]) -> None:
    device = ["--device", "emulated:tpu-v2-8-low"]
    code, out, _ = bench("--loader", "pil-all-cores", "--photos", photos, *device, "--batch", 5, "--steps", 3)
    assert code == 0
    lines = [line for line in out.splitlines() if any(character.isalnum() for character in line)]
    assert [line for line in lines if "EMULATED" not in line] == []
    assert "n/a" in out


def test_a_bench_that_cannot_run_says_why(photos: Path, tmp_path: Path, bench: Callable[..., Any]) -> None:
    photographs = ["--loader", "pil", "--photos", photos]
    for arguments, expected, said in (
        ([*photographs, "--device", "emulated:tpu-v3", "--batch", 5], 2, "did you mean tpu-v3-8"),
        (["--loader", "pil", "--data", tmp_path], 2, ""),
        (["--loader", "numpy", "--data", tmp_path], 2, "holds no dataset"),
        ([*photographs, "--device", "none", "--batch", 50], 1, "gave no batch"),
    ):
        code, _, error = bench(*arguments)
        assert (code, said in error) == (expected, True), error


def row(label: str, rate: float, idle: float, *problems: str) -> dict[str, Any]:
    facts = {"label": label, "url": "u", "loader": "x", "source": "cache", "device": "EMULATED tpu-v3-8"}
    figures = {"batch_size": 128, "steps": 40, "images": 5120, "images_per_second": rate, "idle_percent": idle}
    return {**facts, **figures, "problems": list(problems), "repeats": 1}


def test_the_last_word_is_on_rows_that_have_a_verdict() -> None:
    pillow, shards, cache = row("raw files", 250, 96.5), row("shards", 6000, 20), row("cache", 7500, 0.2)
    (said,) = demo.closing_sentences([pillow, shards, cache])
    assert (
        said
        == "EMULATED: idle falls from 96.5 % with raw files to 0.2 % with cache: 30.0 times as many images a second."
    )
    (said,) = demo.closing_sentences([pillow, row("cache", 250, 96.4)])
    assert said.endswith("no other run improves on that.")
    said, doubt = demo.closing_sentences([row("raw files", 250, 96.5, "7 steps were measured"), shards, cache])
    assert said == "EMULATED: idle 0.2 % with cache. raw files has no verdict to compare it with."
    assert doubt == "EMULATED tpu-v3-8, raw files: no verdict: 7 steps were measured"


@pytest.mark.parametrize(("photos", "batch"), [(2000, 128), (384, 128), (383, 64), (60, 16), (3, 1)])
def test_a_batch_leaves_several_of_its_kind_in_an_epoch(photos: int, batch: int) -> None:
    assert demo.fitting_batch(photos) == batch
