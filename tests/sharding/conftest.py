"""Folders of photographs and of odd files, builds of them, and a command that is killed at exact moments."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.conftest import make_photos
from tests.forked import Forked
from tpufeed.cli.app import app
from tpufeed.dataset.naming import DIGESTS
from tpufeed.sharding.inventory import Inventory
from tpufeed.sources.kinds import find_source
from tpufeed.sources.options import ShardOptions
from tpufeed.storage.store import open_store

PHOTOS = 90


@pytest.fixture(scope="session")
def photo_folder(once):
    """90 photographs of 12 kB in three class folders."""
    return once(make_photos, PHOTOS)


def _encode(image, image_format, **options):
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def odd_files(photos):
    """Files of all kinds by name: kept as they are, encoded again, and refused."""
    cat, coffee, grey = (
        Image.open(io.BytesIO(photos[name])).resize((150, 100), Image.Resampling.LANCZOS)
        for name in ("chelsea.png", "coffee.png", "camera.png")
    )
    turned = Image.Exif()
    turned[0x0112] = 6
    jpeg, png = _encode(cat, "JPEG", quality=92), _encode(coffee, "PNG")
    broken_scan = bytearray(jpeg)
    middle = len(jpeg) // 2
    broken_scan[middle : middle + 400] = np.random.default_rng(3).bytes(400)
    broken_png = bytearray(png)
    broken_png[len(png) // 2] ^= 0x20
    return {
        "kept": {
            "cat/photo.jpg": jpeg,
            "cat/grey.jpg": _encode(grey, "JPEG"),
            "coffee/photo.png": png,
            "coffee/grey.png": _encode(grey, "PNG"),
            "coffee/a name, 猫\n.jpeg": _encode(coffee, "JPEG", quality=85, progressive=True),
        },
        "changed": {
            "cat/cmyk.jpg": _encode(cat.convert("CMYK"), "JPEG", quality=95),
            "cat/turned.jpg": _encode(cat, "JPEG", quality=95, exif=turned),
            "coffee/picture.webp": _encode(coffee, "WEBP", quality=95),
            "coffee/alpha.png": _encode(coffee.convert("RGBA"), "PNG"),
        },
        "refused": {
            "cat/broken scan.jpg": bytes(broken_scan),
            "cat/truncated.jpg": jpeg[: len(jpeg) * 2 // 3],
            "cat/empty.jpg": b"",
            "coffee/text.jpg": b"this is no photograph\n" * 20,
            "coffee/broken.png": bytes(broken_png),
            "coffee/half.png": png[: len(png) // 2],
        },
    }


@pytest.fixture(scope="session")
def odd_folder(odd_files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding") / "odd"
    for kind in odd_files.values():
        for name, data in kind.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    (folder / "readme.txt").write_text("not an image, and not named like one")
    return folder


@pytest.fixture
def tree(tmp_path):
    """`tree(*names)`: a folder of files, whose content does not matter to a listing."""

    def make(*names):
        for name in names:
            path = tmp_path / "source" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode("utf-8", "surrogateescape"))
        return tmp_path / "source"

    return make


@pytest.fixture
def take():
    """`take(url, **options)`: the inventory of a source, and its inputs in the order of the dataset."""
    with ExitStack() as stack:

        def make(url, **options):
            checked = ShardOptions(**options)
            source = find_source(open_store(url).url, checked)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            inventory = stack.enter_context(closing(Inventory(Path(folder), source, checked)))
            return inventory, [item for split in inventory.splits for item, _ in inventory.iter_inputs(split)]

        yield make


@pytest.fixture(scope="session")
def small_jpegs():
    """Forty JPEGs of 32x24, no two alike."""
    noise = np.random.default_rng(1).integers(0, 255, (40, 24, 32, 3), np.uint8)
    return [_encode(Image.fromarray(image), "JPEG") for image in noise]


@pytest.fixture(scope="session")
def bytes_of():
    """`bytes_of(folder)`: the files that must be equal, by name: shards, indexes and rejects."""

    def read(folder):
        names = (".tfrecord", ".npy", "rejects.jsonl")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name.endswith(names)}

    return read


@pytest.fixture(scope="session")
def build_options():
    """Options of `undisturbed`: many small shards in two splits."""
    return {"shard_bytes": "40KB", "splits": "train=0.8,val=0.2"}


@pytest.fixture(scope="session")
def undisturbed(photo_folder, build_options, tmp_path_factory):
    """A build that nothing disturbed; not to be changed."""
    return tpufeed.shard(photo_folder, tmp_path_factory.mktemp("resume") / "undisturbed", workers=1, **build_options)


@pytest.fixture
def unfinished(undisturbed, tmp_path):
    """A build that ended just before its manifest."""
    shutil.copytree(undisturbed.url, tmp_path / "d")
    (tmp_path / "d/manifest.json").unlink()
    return tmp_path / "d"


class Command:
    """Runs `tpufeed shard` in a new process group, with faults at exact moments: see hook/sitecustomize.py."""

    def __init__(self, folder, source, flags):
        self.folder, self.source, self.flags = folder, source, flags
        folder.mkdir()
        shutil.copy(Path(__file__).with_name("hook") / "sitecustomize.py", folder)
        self.orders = []
        self.temporary = folder.with_name("temporary")
        self.temporary.mkdir(exist_ok=True)
        self.environment = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        }

    def order(self, event, match, do, nth=1, place="any"):
        """Execute `do` at the nth audit event (0: each) whose name and path match these patterns."""
        self.orders.append({"event": event, "match": match, "do": do, "nth": nth, "place": place})

    def fired(self, number=0):
        """Return how often an order was carried out."""
        return self.count(f"{number}.fired")

    def count(self, name):
        """Return what the hook has counted under a name."""
        file = self.folder / name
        return file.stat().st_size if file.exists() else 0

    def start(self, destination, *further_flags, before=()):
        """Start the process. `before` are the words of a command that runs it."""
        (self.folder / "orders.json").write_text(json.dumps(self.orders))
        words = ["shard", self.source, destination, *self.flags, *further_flags]
        if not before:
            return Forked(words, self.folder / "sitecustomize.py", self.environment)
        return subprocess.Popen(
            list(map(str, (*before, Path(sys.executable).with_name("tpufeed"), *words))),
            env=self.environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, destination, *further_flags, before=()):
        """Run the process to its end."""
        process = self.start(destination, *further_flags, before=before)
        out, err = process.communicate()
        assert "Traceback" not in out + err, err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run_here(self, destination, *further_flags):
        """Run the command in this process, without orders: most of the time of `run` is the start of Python."""
        words = ["shard", self.source, destination, *self.flags, *further_flags]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(self.temporary))
            done = CliRunner().invoke(app, list(map(str, words)), prog_name="tpufeed", env={"COLUMNS": "80"})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    def run_killed(self, destination, *further_flags):
        """Run the process until the first order kills it."""
        process = self.start(destination, *further_flags)
        _, err = process.communicate()
        assert (process.returncode, self.fired()) == (-signal.SIGKILL, 1), err


@pytest.fixture
def command(flawed_folder, build_options, tmp_path):
    """`command()`: a fresh `Command` with its own orders, for `flawed_folder` and `build_options`."""
    flags = ["--shard-size", build_options["shard_bytes"], "--splits", build_options["splits"]]

    def make(source=flawed_folder, flags=flags):
        return Command(tmp_path / f"hook-{len(list(tmp_path.glob('hook-*')))}", source, flags)

    return make


@pytest.fixture(scope="session")
def flawed_folder(photo_folder, tmp_path_factory):
    """86 photographs and four broken files, so that rejects.jsonl has lines."""
    folder = tmp_path_factory.mktemp("faults") / "photos"
    shutil.copytree(photo_folder, folder)
    for number, path in enumerate(sorted(folder.glob("*/*.jpg"))[5::25]):
        path.write_bytes(path.read_bytes()[: 3000 * number])
    return folder


@pytest.fixture(scope="session")
def expected(flawed_folder, build_options, bytes_of, tmp_path_factory):
    """The files that an undisturbed build of `flawed_folder` makes: bytes by name."""
    result = tpufeed.shard(flawed_folder, tmp_path_factory.mktemp("faults") / "expected", workers=1, **build_options)
    assert result.rejects == 4
    return bytes_of(result.url)


@pytest.fixture(scope="session")
def is_whole(expected, bytes_of):
    """`is_whole(folder)`: the bytes of an undisturbed build, and no other files but manifest, plan and reports."""

    def check(folder):
        shards = sum(name.endswith(".tfrecord") for name in expected)
        others = ["_tpufeed/plan.jsonl", DIGESTS, *(f"_tpufeed/reports/{number:06d}.json" for number in range(shards))]
        found = {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if not path.is_dir()}
        assert found == {*expected, "manifest.json", *others}
        assert not (Path(folder) / "_tpufeed/tmp").exists()
        assert bytes_of(folder) == expected
        return True

    return check
