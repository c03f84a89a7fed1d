"""What the examples train on: 200 photographs in five classes as a dataset and as a cache; and how they are run."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import tpufeed
from tests.conftest import make_photos
from tests.quick_xla import COMPILE_ONCE, QUICK
from tests.repo.docs.pages import commands, ran
from tpufeed import cache
from tpufeed.images import CenterCrop, Resize

ROOT = Path(__file__).parents[3]
PHOTOS = 200
SIDE = 64


@dataclass(frozen=True)
class Flowers:
    """`folder` holds the photos in class folders, `flowers` (splits train and val) and `flowers-64`, a raw cache."""

    folder: Path
    train_records: int
    val_records: int

    @property
    def photos(self) -> str:
        """Raw images."""
        return str(self.folder / "photos")

    @property
    def url(self) -> str:
        """JPEGs of 160x120 and upright ones, in several shards."""
        return str(self.folder / "flowers")

    @property
    def cache_url(self) -> str:
        """uint8 64x64, two variants of a random crop and flip in train."""
        return str(self.folder / "flowers-64")

    @property
    def whole_url(self) -> str:
        """uint8 72x72: a raw cache of whole images."""
        return str(self.folder / "flowers-72")


@pytest.fixture(scope="session")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> Flowers:
    folder = tmp_path_factory.mktemp("examples")
    make_photos(folder / "photos", PHOTOS, classes=5)
    tpufeed.shard(folder / "photos", folder / "flowers", shard_bytes="200KB", splits="train=0.8,val=0.2", workers=1)
    cache.warmup(folder / "flowers", folder / "flowers-64", size=SIDE, variants=2, shard_bytes="300KB", workers=1)
    cache.warmup(folder / "flowers", folder / "flowers-72", ops=[Resize(72), CenterCrop(72)], workers=1)
    splits = tpufeed.open_dataset(folder / "flowers").manifest.splits
    return Flowers(folder, splits["train"].records, splits["val"].records)


@pytest.fixture
def workplace(flowers: Flowers, tmp_path: Path) -> Path:
    """A folder with `flowers` in it, as examples/README.md has it."""
    (tmp_path / "flowers").symlink_to(flowers.url)
    return tmp_path


@pytest.fixture(scope="session")
def page_arguments() -> Callable[[str], list[str]]:
    """`page_arguments(name)`: how examples/README.md starts examples/NAME on a CPU, for a test that does so."""
    pattern = r"^(?:\w+=\S+ )*python examples/(\S+) (--data flowers .*)"
    lines = [line for line in commands("examples/README.md") if re.match(pattern, line)]
    by_name = {re.match(pattern, line)[1]: line for line in lines}  # type: ignore[index]
    assert len(by_name) == len(lines)

    def arguments(name: str) -> list[str]:
        ran(by_name[name])
        return re.match(pattern, by_name[name])[2].split()  # type: ignore[index]

    return arguments


@dataclass(frozen=True)
class Output:
    """What an example printed. Its epochs are told in lines like `epoch 3: loss 0.512, ...`."""

    text: str

    @property
    def losses(self) -> list[float]:
        """Of the epochs, in turn."""
        return [float(loss) for loss in re.findall(r"^epoch \d+\b.*?\bloss (\d+\.\d+)", self.text, re.MULTILINE)]

    @property
    def epochs(self) -> list[int]:
        """Their numbers."""
        return [int(number) for number in re.findall(r"^epoch (\d+)\b", self.text, re.MULTILINE)]


@pytest.fixture(scope="session")
def run_example() -> Callable[..., Output]:
    """`run_example(name, *arguments, folder, returncode=0, **variables)` runs examples/NAME in `folder`.

    `variables` are of its environment; None takes one away. One CPU device, unless they say more. The file may be
    another one, by its whole path.
    """

    def run(name: str | Path, *arguments: object, folder: Path, returncode: int = 0, **variables: str | None) -> Output:
        given: dict[str, str | None] = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PJRT_DEVICE": "CPU",
            "CPU_NUM_DEVICES": "1",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": QUICK,
            "TPU_NAME": None,
            "TPU_SKIP_MDS_QUERY": None,  # jax sets it for good, and torch_xla stumbles over it
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TPUFEED_PROCESSES": "0",  # worker processes take a second to start, for each of several loaders
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            **COMPILE_ONCE,
        }
        environment = {k: v for k, v in (os.environ | given | variables).items() if v is not None}
        command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == returncode, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return Output(done.stdout + (done.stderr if returncode else ""))

    return run
