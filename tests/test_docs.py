"""Every command and program of the pages on sharding, caches, loaders and gs:// runs, among sources of all kinds."""

import csv
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tpufeed
from tests.gcs_server import GcsServer
from tests.one_core import take_one_core
from tpufeed.cli.app import app
from tpufeed.tfrecord.example import Feature, encode_example
from tpufeed.tfrecord.framing import encode_record

ROOT = Path(__file__).parent.parent
AUGMENT = """
def heavy(image, rng):
    return image ^ rng.integers(0, 4, image.shape, "uint8")
"""


def commands_of(page: str, language: str = "bash") -> list[str]:
    return [line for block in blocks_of(page, language) for line in block.splitlines()]


def blocks_of(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, ROOT / "scripts/make_photos.py", folder / "photos", "--count", 60, "--size", "300x225"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    photos = sorted((folder / "photos").glob("*/*.jpg"))
    with (folder / "flowers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "species", "subset", "height_cm", "note"])
        for number, photo in enumerate(photos):
            subset = "val" if number % 6 == 0 else "train"
            writer.writerow(
                [photo.relative_to(folder), photo.parent.name, subset, number / 2, "" if number % 2 else "x"]
            )
    for number, photo in enumerate(photos):
        target = folder / "splits" / ("val" if number % 6 == 0 else "train") / photo.parent.name / photo.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, target)
    (folder / "tars").mkdir()
    for part in range(2):
        with tarfile.open(folder / f"tars/flowers-{part:04d}.tar", "w") as tar:
            for number, photo in enumerate(photos[part::2]):
                for suffix, data in (("jpg", photo.read_bytes()), ("cls", str(number % 3).encode())):
                    info = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    (folder / "foreign").mkdir()
    for part in range(2):
        examples = (
            encode_example({"image": Feature("bytes", [photo.read_bytes()]), "class": Feature("int64", [number % 3])})
            for number, photo in enumerate(photos[part::2])
        )
        (folder / f"foreign/train-{part:05d}-of-00002.tfrecord").write_bytes(b"".join(map(encode_record, examples)))
    return folder


def run_all(commands: list[str], folder: Path, **variables: str) -> None:
    environment = os.environ | variables | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in ("PYTHONPATH", "TPU_SKIP_MDS_QUERY"):  # jax sets the latter for good, and torch_xla stumbles over it
        environment.pop(name, None)
    for line in commands:
        done = subprocess.run(
            line,
            shell=True,
            cwd=folder,
            env=environment,
            preexec_fn=take_one_core,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert done.stdout.strip(), line


def run_here(commands: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `run_all`, in this process, which saves the second that another one takes to start."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("tpufeed.engines.choice.available_cores", lambda: 1)  # no worker processes
    for line in commands:
        program, *words = shlex.split(line)
        assert program == "tpufeed"
        done = CliRunner().invoke(app, words, prog_name=program)
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
        assert done.stdout.strip(), line


def test_the_commands_for_sharding_run_as_they_stand(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = commands_of("shard.md")
    assert len(commands) > 12
    assert {line.split()[1] for line in commands} == {"shard", "info", "verify", "show", "adopt"}
    run_here(commands, sources, monkeypatch)
    assert set(tpufeed.open_dataset(sources / "out/by-folder").manifest.splits) == {"train", "val"}
    table = tpufeed.open_dataset(sources / "out/table")
    assert {spec.name: spec.dtype for spec in table.manifest.features}["height_cm"] == "float32"
    assert tpufeed.open_dataset(sources / "out/tars").manifest.class_names == ("0", "1", "2")
    assert not (sources / "out/never").exists()
    assert (sources / "sheet.png").stat().st_size > 1000


def test_the_commands_for_caches_run_as_they_stand(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("photos", "splits", "flowers.csv"):
        (tmp_path / name).symlink_to(sources / name)
    (tmp_path / "my").mkdir()
    (tmp_path / "my/augment.py").write_text(AUGMENT)
    commands = commands_of("cache.md")
    assert len(commands) > 12
    assert {line.split()[1] for line in commands} == {"shard", "info", "cache"}
    for line in commands:
        if "my.augment" in line:  # is looked for in the folder where the process began
            run_all([line], tmp_path)
        else:
            run_here([line], tmp_path, monkeypatch)
    final = tpufeed.open_dataset(tmp_path / "out/final").manifest.cache
    assert final is not None
    assert [op["op"] for op in final.final] == ["RandomCrop", "HorizontalFlip"]
    heavy = tpufeed.open_dataset(tmp_path / "out/heavy").manifest.cache
    assert heavy is not None
    assert heavy.ops[1] == {"op": "Custom", "version": "2", "target": "my.augment:heavy"}
    assert set(tpufeed.open_dataset(tmp_path / "out/table").manifest.splits) == {"train", "val"}
    assert not (tmp_path / "out/never").exists()


def test_the_program_for_loaders_runs_as_it_stands(sources: Path, tmp_path: Path) -> None:
    tpufeed.shard(sources / "photos", tmp_path / "flowers", workers=1)
    (tmp_path / "program.py").write_text("\n".join(commands_of("loaders.md", "python")))
    run_all([f"{sys.executable} program.py"], tmp_path, TPUFEED_PROCESSES="", PJRT_DEVICE="CPU")


def test_the_commands_for_reports_run_as_they_stand(sources: Path, tmp_path: Path) -> None:
    tpufeed.shard(sources / "photos", tmp_path / "out/photos", workers=1)
    run_all([line for line in commands_of("measuring.md") if " --report out/" in line], tmp_path)
    program = next(block for block in blocks_of("measuring.md", "python") if "write_report" in block)
    (tmp_path / "program.py").write_text(program)
    run_all([f"{sys.executable} program.py && echo done"], tmp_path)
    for name in ("out/bench", "out/doctor", "report"):
        assert "<svg" in (tmp_path / f"{name}.html").read_text()


@pytest.fixture
def gcs(sources: Path, tmp_path: Path) -> Iterator[GcsServer]:
    """The server of the page's own command, with the sources in its bucket."""
    (tmp_path / "photos").symlink_to(sources / "photos")
    for name in ("photos", "tars", "foreign"):
        made_by_adopt = shutil.ignore_patterns("*.json", "*.npy")
        shutil.copytree(sources / name, tmp_path / "buckets/my-bucket" / name, ignore=made_by_adopt)
    shutil.copy(sources / "flowers.csv", tmp_path / "buckets/my-bucket")
    command = [sys.executable, *shlex.split(server_command())[1:]]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("export STORAGE_EMULATOR_HOST=")
        yield GcsServer.attach(url)
        process.terminate()


def server_command() -> str:
    (command,) = (line for line in commands_of("gcs.md") if line.startswith("python -m tests.gcs_server"))
    return command


@pytest.mark.timeout(600)  # a dozen processes that import Google's client
def test_the_commands_for_gcs_run_as_they_stand(gcs: GcsServer, tmp_path: Path) -> None:
    gcs.configure(latency_ms=1)
    commands = [line for line in commands_of("gcs.md") if line != server_command()]
    billed = [line for line in commands if line.startswith("TPUFEED_GCS_USER_PROJECT=")]
    last = [line for line in commands if line.startswith("rm ")]
    assert (len(billed), len(last)) == (1, 1)
    own = [line for line in commands if line not in (*billed, *last)]
    assert {line.split()[1] for line in own} == {"shard", "cache", "adopt", "info", "verify", "show"}
    run_all(own, tmp_path, **gcs.environment())
    names = gcs.names("my-bucket")
    for folder in ("flowers", "table", "from-tars", "flowers-64", "direct", "foreign", "uploaded"):
        assert f"{folder}/manifest.json" in names
    assert tpufeed.open_dataset(tmp_path / "flowers-here").manifest.cache is not None

    gcs.create_bucket("their-bucket", requester_pays=True)
    for name in names:
        if name.startswith("flowers/"):
            gcs.put("their-bucket", name, gcs.get("my-bucket", name))
    run_all(billed, tmp_path, **gcs.environment())

    (tmp_path / "program.py").write_text("\n".join(commands_of("gcs.md", "python")))
    gcs.clear_log()
    run_all([f"{sys.executable} program.py && echo done"], tmp_path, **gcs.environment())
    variants = ["flowers-64/train-v0-", "flowers-64/train-v1-"]
    assert all(gcs.requests(operation="read", name=f"{variant}*") for variant in variants)
    run_all(last, tmp_path)
    assert not list((tmp_path / "stage").iterdir())
