"""Four roads to tpufeed, each from its guide's own code to a trained model, in an environment made from the wheel.

The programs in `roads/` are written in the way of a guide; commands are those of the pages. What the roads meet on bad
input is below.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gcs_server import GcsServer
from tests.quick_xla import COMPILE_ONCE, QUICK
from tests.repo.docs.environments import build_wheel, make_environment
from tests.repo.docs.pages import commands, make_photos

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAMS = Path(__file__).parent / "roads"


@pytest.fixture(scope="module")
def python(once: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    (wheel,) = once(build_wheel).glob("*.whl")
    return make_environment(tmp_path_factory.mktemp("environment") / "env", wheel)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    make_photos(folder, 100, "160x120")
    return folder / "photos"


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Run:
    """`run(command)` in an empty folder, with the environment's programs first and nothing of this tree."""
    given = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "TPUFEED_LOCAL_DIR": str(tmp_path)}
    given |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    given |= {"TPUFEED_PROCESSES": "0", "COLUMNS": "1000", "XLA_FLAGS": QUICK}  # worker processes start slowly
    given |= COMPILE_ONCE | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"), "OMP_NUM_THREADS": "1"}

    def run(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, shell=True, cwd=tmp_path, env=given | variables, capture_output=True, text=True, check=False
        )

    return run


def follow(run: Run, folder: Path, photos: Path, lines: list[str], name: str) -> str:
    """Run the commands on photos, then the program; returns what it printed, without a source in sight."""
    (folder / "photos").symlink_to(photos)
    shutil.copy(PROGRAMS / name, folder)
    for line in [*lines, f"python {name}"]:
        done = run(line)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    where = run("python -c 'import tpufeed; print(tpufeed.__file__)'").stdout
    assert "/env/lib/" in where
    return done.stdout


def check_learned(printed: str, val: int) -> None:
    """Losses fall, and after the best epoch more is right than the one in five of chance."""
    losses = [float(loss) for loss in re.findall(r"^loss (\d+\.\d+)", printed, re.MULTILINE)]
    assert losses[-1] < 0.95 * losses[0], printed
    counts = re.findall(r"(\d+) of (\d+) right$", printed, re.MULTILINE)
    assert {int(seen) for _, seen in counts} == {val}
    assert max(int(right) for right, _ in counts) > 0.4 * val, printed


def test_from_kaggle_s_tpu_guide(run: Run, tmp_path: Path, photos: Path) -> None:
    line = next(line for line in commands("kaggle.md") if line.startswith("tpufeed shard photos flowers "))
    check_learned(follow(run, tmp_path, photos, [line], "kaggle.py"), val=21)
    assert (tmp_path / "model.keras").exists()


def test_from_lightning_s_tpu_pages(run: Run, tmp_path: Path, photos: Path) -> None:
    check_learned(follow(run, tmp_path, photos, first_commands("flowers"), "lightning_tpu.py"), val=21)
    assert (tmp_path / "model.ckpt").exists()


def test_from_tpu_utility(run: Run, tmp_path: Path, photos: Path) -> None:
    check_learned(follow(run, tmp_path, photos, first_commands("flowers", "flowers-64"), "tpu_utility.py"), val=21)
    assert (tmp_path / "model.pt").exists()


def test_from_jax_with_orbax(run: Run, tmp_path: Path, photos: Path) -> None:
    printed = follow(run, tmp_path, photos, first_commands("flowers"), "jax_orbax.py")
    again = run("python jax_orbax.py")
    assert again.returncode == 0, again.stderr[-3000:]
    assert re.match(r"goes on after step 20, at {.*'epoch': 2, .*'samples': 16}", again.stdout)  # epochs of 9 steps
    found = re.findall(r"^loss (\d+\.\d+) at step (\d+)$", printed + again.stdout, re.MULTILINE)
    assert [int(step) for _, step in found] == [1, 10, 20, 30, 40]
    assert float(found[-1][0]) < 0.9 * float(found[0][0])


def first_commands(*made: str) -> list[str]:
    """The commands of concepts.md, with which the pages begin, that make these datasets."""
    return [line for line in commands("concepts.md") if re.search(rf" (?:{'|'.join(made)})(?: --|$)", line)]


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


def test_a_full_disk(run: Run, tmp_path: Path, photos: Path) -> None:
    """In a namespace of its own, where a disk of 100 kB can be mounted."""
    (tmp_path / "small").mkdir()
    inner = f"mount -t tmpfs -o size=100k none small && exec tpufeed shard {photos} small/flowers"
    done = run(f"unshare --user --map-root-user --mount sh -c '{inner}'")
    if "unshare" in done.stderr:
        pytest.skip("this system does not let users mount")
    check_refused(done, 1, r"\S+/small/flowers has room for 0\.1 MB\. .* Make room")


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
        ("info gs://wrong/flowers", 1),
    ):
        done = run(f"tpufeed {command}", **server.environment())
        check_refused(done, code, ".*gs://wrong/.*: the bucket wrong does not exist .* Create it, or correct the URL")
    program = "import tpufeed; tpufeed.Loader('gs://right/flowers', batch_size=8)"
    done = run(f'python -c "{program}"', **server.environment())
    assert done.returncode == 1
    assert re.search(r"DatasetNotFoundError: gs://right/flowers .* tpufeed shard PHOTOS", done.stderr.splitlines()[-1])
