"""A folder of photographs, one of odd files among them, and what a build leaves behind."""

import io
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed

ROOT = Path(__file__).parents[2]
PHOTOS = 90


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory):
    """90 photographs of 12 kB in three class folders."""
    folder = tmp_path_factory.mktemp("sharding") / "photos"
    command = [sys.executable, ROOT / "scripts/make_photos.py", folder, "--count", PHOTOS, "--size", "160x120"]
    subprocess.run([*map(str, command), "--classes", "3"], check=True, capture_output=True)
    return folder


def _encode(image, image_format, **options):
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def odd_files(photos):
    """Files of all kinds by name: those that are taken as they are, encoded anew, and refused."""
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


@pytest.fixture(scope="session")
def bytes_of():
    """`bytes_of(folder)`: shards, indexes and rejects by name: all of which has to be the same."""

    def read(folder):
        names = (".tfrecord", ".npy", "rejects.jsonl")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name.endswith(names)}

    return read


@pytest.fixture(scope="session")
def build_options():
    """Those of `undisturbed`: many small shards in two splits."""
    return {"shard_bytes": "40KB", "split": "train=0.8,val=0.2"}


@pytest.fixture(scope="session")
def undisturbed(photo_folder, build_options, tmp_path_factory):
    """A build that nothing came in the way of; not to be changed."""
    return tpufeed.shard(photo_folder, tmp_path_factory.mktemp("resume") / "undisturbed", workers=1, **build_options)


@pytest.fixture
def unfinished(undisturbed, tmp_path):
    """A build that ended just before its manifest."""
    shutil.copytree(undisturbed.url, tmp_path / "d")
    (tmp_path / "d/manifest.json").unlink()
    return tmp_path / "d"
