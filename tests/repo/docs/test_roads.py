"""Five roads to tpufeed, each from what a user has to what he wants, in an environment made from the wheel.

The programs in `roads/` are written from the pages; commands are those of the pages. What the roads meet on bad input
is below.
"""

import csv
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gcs_server import GcsServer
from tests.quick_xla import COMPILE_ONCE, QUICK
from tests.repo.docs import layouts
from tests.repo.docs.environments import build_wheel, make_environment
from tests.repo.docs.pages import ROOT, make_photos, text_of

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAMS = Path(__file__).parent / "roads"


@pytest.fixture(scope="module")
def python(once: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    (wheel,) = once(build_wheel).glob("*.whl")
    return make_environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    make_photos(folder, 100, "64x48")
    return folder / "photos"


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Run:
    """`run(command)` in an empty folder, with the environment's programs first and nothing of this tree."""
    given = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "TPUFEED_LOCAL_DIR": str(tmp_path)}
    given |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    given |= {"TPUFEED_PROCESSES": "0", "COLUMNS": "1000", "XLA_FLAGS": QUICK}  # worker processes start slowly
    given |= COMPILE_ONCE | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"), "OMP_NUM_THREADS": "1"}
    given["PYTHONPATH"] = str(python.parents[2] / "frameworks")

    def run(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, shell=True, cwd=tmp_path, env=given | variables, capture_output=True, text=True, check=False
        )

    return run


def follow(run: Run, *lines: str, **variables: str) -> str:
    """Run the lines; returns what the last one printed."""
    for line in lines:
        done = run(line, **variables)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def shown(page: str, *lines: str) -> tuple[str, ...]:
    """The commands, if the page has them as they stand."""
    assert all(re.search(rf"^{re.escape(line)}$|`{re.escape(line)}`", text_of(page), re.MULTILINE) for line in lines)
    return lines


def losses_of(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^loss (\d+\.\d+)", printed, re.MULTILINE)]


def test_a_competition_on_kaggle(run: Run, tmp_path: Path, photos: Path) -> None:
    """Each id of the sample is answered once, in its order, and more is right than the one in five of chance."""
    truth = layouts.write_competition(tmp_path / "leaves", photos)
    commands = (
        "tpufeed shard leaves/train.csv leaves-train --image image_id",
        "tpufeed shard leaves/sample_submission.csv leaves-test --image image_id --label none",
    )
    shutil.copy(PROGRAMS / "kaggle.py", tmp_path)
    printed = follow(run, *shown("kaggle.md", *commands), "python kaggle.py")
    right, seen = map(int, re.findall(r"\d+", printed))
    assert (seen, right > 40) == (80, True)
    with (tmp_path / "submission.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert (head, [image_id for image_id, _ in rows]) == (["image_id", "label"], list(truth))
    assert sum(truth[image_id] == label for image_id, label in rows) > 10


def test_torchvision_moved_to_torch_xla(run: Run, tmp_path: Path, photos: Path) -> None:
    (tmp_path / "photos").symlink_to(photos)
    for program in (PROGRAMS / "torchvision_xla.py", ROOT / "examples/torch_xla_resnet.py"):
        shutil.copy(program, tmp_path)
    printed = follow(
        run,
        *shown("moving.md", "tpufeed shard photos flowers --splits train=0.8,val=0.2"),
        *2 * ["python torchvision_xla.py"],
    )
    assert re.match("resumes in epoch 1 after step 6\n", printed)
    steps = [int(step) for step in re.findall(r"at step (\d+)$", printed, re.MULTILINE)]
    assert steps == [8, 12, 16]  # epochs of 4: the rest of epoch 1 is two steps
    right, seen, ranks = map(int, re.findall(r"\d+", printed.splitlines()[-1]))
    assert (seen, ranks, right > 8) == (21, 4, True)


def test_jax_from_tars_and_parquet(run: Run, tmp_path: Path, photos: Path) -> None:
    files = [(photo.parent.name, photo.read_bytes()) for photo in sorted(photos.glob("*/*.jpg"))]
    (tmp_path / "tars").mkdir()
    for part in range(2):
        with tarfile.open(tmp_path / f"tars/flowers-{part:04d}.tar", "w") as tar:
            for number, (name, data) in enumerate(files[part::4]):
                layouts.add(tar, f"{number}.jpg", data)
                layouts.add(tar, f"{number}.cls", name.encode())
    layouts.write_hub(tmp_path / "hub", [*files[2::4], *files[3::4]])
    commands = ("tpufeed shard 'tars/flowers-{0000..0001}.tar' out/tars", "tpufeed shard hub out/hub")
    shutil.copy(PROGRAMS / "jax_views.py", tmp_path)
    printed = follow(run, *shown("shard.md", *commands), "python jax_views.py")
    again = follow(run, "python jax_views.py")
    assert re.match("resumes after step 10, at {", again)
    steps = re.findall(r"at step (\d+)$", printed + again, re.MULTILINE)
    assert [int(step) for step in steps] == [1, 5, 10, 15, 20]
    losses = losses_of(printed + again)
    assert losses[-1] < 0.8 * losses[0]


def test_beam_over_a_bucket_that_grows(run: Run, tmp_path: Path, photos: Path) -> None:
    """A day's photos, the next day's, then a lost file: the same command makes it again, byte for byte."""
    first, *dataflow = text_of("scaleout.md").split("--engine beam -- \\\n    --runner=DataflowRunner")
    assert dataflow
    command = f"{first.splitlines()[-1]}--engine beam -- --runner=DirectRunner"
    append = "tpufeed append gs://bucket/photos gs://bucket/flowers"
    lost = "flowers/part-00002/train-00000-of-00001.tfrecord"
    with GcsServer(["bucket"]) as server:
        days = sorted(photos.glob("*/*.jpg"))
        for line, day in ((command, days[::2]), (append, days[1::2])):
            for photo in day:
                server.put("bucket", f"photos/{photo.relative_to(photos)}", photo.read_bytes())
            printed = follow(run, line, **server.environment())
        assert "version 2: 50 images added; 50 images skipped: already there" in printed
        before = server.get("bucket", lost)
        server.remove("bucket", lost)
        damaged = run("tpufeed verify gs://bucket/flowers", **server.environment())
        assert damaged.returncode == 1
        assert f"{append} (makes {lost.removeprefix('flowers/')})" in damaged.stderr
        follow(run, append, "tpufeed card gs://bucket/flowers", **server.environment())
        assert server.get("bucket", lost) == before
    assert "| train | 100 | 2 |" in (tmp_path / "card.md").read_text()


def test_from_zero_without_a_framework(run: Run, tmp_path: Path, photos: Path, python: Path) -> None:
    (tmp_path / "photos").symlink_to(photos)
    commands = (
        "tpufeed shard photos flowers --splits train=0.8,val=0.2",
        "tpufeed show flowers --out sheet.png",
        "tpufeed doctor flowers --tpu v5e-8 --seconds 8",
    )
    *lines, doctor = shown("README.md", *commands)
    bare = {"PYTHONPATH": str(python.parents[2] / "required")}
    where = follow(
        run, "python -c 'import importlib.util as u, tpufeed; print(u.find_spec(\"torch\"), tpufeed)'", **bare
    )
    assert re.match(r"None .*/env/lib/", where)
    report = follow(run, *lines, f"{doctor} --seconds 1", **bare)
    assert (tmp_path / "sheet.png").stat().st_size > 1000
    assert re.search(r"^predicted idle: .*%", report, re.MULTILINE)
    assert re.search(r"^1\. .*: tpufeed cache warmup ", report, re.MULTILINE)
    check_refused(
        run(f"{doctor} --report d.html", **bare), 2, r"matplotlib is not installed: pip install '.*\[report\]'"
    )


# Bad input


def check_refused(done: subprocess.CompletedProcess[str], code: int, said: str) -> None:
    """One line says where, and what to do."""
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert re.match(f"error: {said}", done.stderr), done.stderr


def test_no_photos(run: Run, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    check_refused(run("tpufeed shard photos flowers"), 2, r"\S+/photos: no images .* Expected .*photos/cat")
    done = run("tpufeed cache warmup photos flowers --size 64")
    check_refused(done, 2, r"\S+/photos holds no dataset: .* tpufeed shard \S+/photos DATASET, then tpufeed cache")


def test_one_class(run: Run, tmp_path: Path, photos: Path) -> None:
    """It can be meant, so it is a warning."""
    shutil.copytree(photos / "cat", tmp_path / "photos/cat")
    done = run("tpufeed shard photos flowers")
    assert done.returncode == 0
    assert re.fullmatch("warning: all images are in one folder, cat, .* a folder for each class.*\n", done.stderr)


def test_no_internet(run: Run, photos: Path) -> None:
    """Also without a network at all there is an answer within seconds."""
    done = run("unshare --user --map-root-user --net tpufeed info gs://bucket/flowers", NO_GCE_CHECK="true")
    if "unshare" in done.stderr:
        pytest.skip("this system does not let users have a network of their own")
    check_refused(done, 1, "gs://bucket/flowers: .* storage.googleapis.com .* connect this machine to the internet")


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(["right"]) as server:
        yield server


def test_a_wrong_bucket(run: Run, server: GcsServer, photos: Path) -> None:
    for command, code in (
        (f"shard {photos} gs://wrong/flowers", 1),
        ("shard gs://wrong/photos gs://right/flowers", 2),
    ):
        done = run(f"tpufeed {command}", **server.environment())
        check_refused(done, code, ".*gs://wrong/.*: the bucket wrong does not exist .* Create it, or correct the URL")
    program = "import tpufeed; tpufeed.Loader('gs://right/flowers', batch_size=8)"
    done = run(f'python -c "{program}"', **server.environment())
    assert done.returncode == 1
    assert re.search(r"DatasetNotFoundError: gs://right/flowers .* tpufeed shard PHOTOS", done.stderr.splitlines()[-1])
