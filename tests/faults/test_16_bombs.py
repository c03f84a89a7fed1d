"""Class 16: small files that unfold into memory, refused or cut off, within a limit that the system enforces."""

import json
import struct
import subprocess
import sys
import zlib

import pytest

# Builds two datasets of a folder with all address space but 900 MB forbidden; the peak of resident memory is printed.
LIMITED = """
import resource, sys
import cv2, simplejpeg, PIL.Image
import tpufeed
from tpufeed.sharding import build, worker
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (900 << 20), resource.RLIM_INFINITY))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for encode in ("keep", "png"):
    images = tpufeed.Images(encode=encode)
    tpufeed.shard(sys.argv[1], f"{sys.argv[2]}-{encode}", workers=1, max_rejects=100, images=images)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
MOST_KILOBYTES = 300_000


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, pixels, *chunks, depth=8, colour=0):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def zeros(size):
    """As many MiB of zeros as fit into `size`, deflated to a thousandth: one block, again and again."""
    pack, blocks = zlib.compressobj(9, wbits=-15), size >> 20
    block = pack.compress(bytes(1 << 20)) + pack.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\xda" + block * blocks + b"\x03\x00" + struct.pack(">I", ((blocks << 20) % 65521) << 16 | 1)


@pytest.fixture(scope="module")
def bombs():
    """By name: bytes, and the reason to refuse them or None where they are harmless to take."""
    line, gigabyte = zlib.compress(bytes(9 * 8)), zeros(1 << 30)
    huge = zeros(20_000 * 2501 + (1 << 20))
    return {
        "pixels.png": (png(20_000, 20_000, huge, depth=1), "too_large"),
        "more than its header.png": (png(8, 8, gigabyte), None),
        "text.png": (png(8, 8, line, chunk(b"zTXt", b"a\0\0" + gigabyte)), None),
        "profile.png": (png(8, 8, line, chunk(b"iCCP", b"a\0\0" + gigabyte)), None),
        "header.bmp": (
            b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, 60_000, 60_000, 1, 24, *[0] * 6),
            "too_large",
        ),
        "screen.gif": (
            b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;",
            "too_large",
        ),
    }


@pytest.mark.all
def test_bombs_cost_no_memory(bombs, photo_folder, tmp_path):
    (tmp_path / "p/a").mkdir(parents=True)
    photo = min(photo_folder.glob("*/*.jpg"))
    (tmp_path / "p/a/photo.jpg").write_bytes(photo.read_bytes())
    for name, (data, _) in bombs.items():
        (tmp_path / "p/a" / name).write_bytes(data)
    assert sum(len(data) for data, _ in bombs.values()) < 8 << 20
    command = [sys.executable, "-c", LIMITED, tmp_path / "p", tmp_path / "d"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MOST_KILOBYTES
    for encode in ("keep", "png"):
        rejects = [json.loads(line) for line in (tmp_path / f"d-{encode}/rejects.jsonl").read_text().splitlines()]
        found = {line["path"].removeprefix("a/"): line["reason"] for line in rejects}
        assert "photo.jpg" not in found
        assert {name: found.get(name) for name, (_, reason) in bombs.items() if reason} == {
            name: reason for name, (_, reason) in bombs.items() if reason
        }
