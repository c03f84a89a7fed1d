"""The fingerprint: one number for one cache, on every machine, in every process and from release to release."""

import os
import subprocess
import sys

import msgspec
import pytest

from tpufeed.cache.options import CacheOptions, fingerprint
from tpufeed.images import Custom, HorizontalFlip, RandomCrop, RandomResizedCrop

DIGEST = "0123456789abcdef0123456789abcdef"
CROP, FLIP = RandomResizedCrop(size=224), HorizontalFlip()
GOLDEN = {
    "defaults": ({}, "297fbb976c4f20a4de529f2756804fd9"),
    "everything": (
        {
            "ops": [CROP, FLIP, Custom("my.augment:heavy", "2")],
            "live": [RandomCrop(192)],
            "variants": 4,
            "encode": "jpeg",
            "quality": 80,
            "seed": 7,
            "shard_bytes": "64MB",
        },
        "a46147356524bbf5e472ef5dfce90785",
    ),
}


def fingerprint_of(digest=DIGEST, **keywords):
    """Return the fingerprint that `warmup` gives a cache of a dataset."""
    options = CacheOptions(**keywords)
    return fingerprint(digest, msgspec.json.decode(msgspec.json.encode({"source_digest": digest, **options.to_dict()})))


@pytest.mark.parametrize("name", GOLDEN)
def test_fingerprints_are_those_of_the_first_release(name):
    """If these literals change, every cache that users have is orphaned."""
    keywords, expected = GOLDEN[name]
    assert fingerprint_of(**keywords) == expected


@pytest.mark.all
def test_a_fingerprint_is_the_same_in_every_process():
    program = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('fingerprints', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(*[module.fingerprint_of(**keywords) for keywords, _ in module.GOLDEN.values()])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == [expected for _, expected in GOLDEN.values()], done.stderr


def test_the_order_of_names_is_none():
    identity = {"seed": 0, "ops": [{"op": "Resize", "size": 3}]}
    assert fingerprint(DIGEST, identity) == fingerprint(DIGEST, dict(reversed(identity.items())))


def test_everything_that_changes_bytes_changes_the_fingerprint():
    ops = [CROP, FLIP]
    different = [
        {"ops": ops},
        {"ops": [FLIP, CROP]},
        {"ops": [CROP]},
        {"ops": [RandomResizedCrop(size=225), FLIP]},
        {"ops": [RandomResizedCrop(size=224, scale=(0.09, 1.0)), FLIP]},
        {"ops": [CROP, HorizontalFlip(0.25)]},
        {"ops": [CROP, Custom("my.augment:heavy")]},
        {"ops": [CROP, Custom("my.augment:heavy", "2")]},
        {"ops": ops, "live": [FLIP]},
        {"ops": ops, "variants": 2},
        {"ops": ops, "encode": "png"},
        {"ops": ops, "encode": "jpeg"},
        {"ops": ops, "encode": "webp"},
        {"ops": ops, "encode": "jpeg", "quality": 91},
        {"ops": ops, "seed": 1},
        {"ops": ops, "shard_bytes": 10**6},
    ]
    found = [fingerprint_of(**keywords) for keywords in different]
    assert len({*found, fingerprint_of("f" * 32, ops=ops)}) == len(different) + 1


def test_what_changes_no_bytes_leaves_the_fingerprint():
    assert fingerprint_of(quality=91) == fingerprint_of()  # raw pixels know no quality
    assert fingerprint_of(encode="png", quality=91) == fingerprint_of(encode="png")
    assert fingerprint_of(ops=[RandomResizedCrop([224, 224]), FLIP]) == fingerprint_of(
        ops=(RandomResizedCrop((224, 224)), HorizontalFlip(p=0.5))
    )
    assert fingerprint_of(size=224) == fingerprint_of(ops=None, live=None) == fingerprint_of(ops=[CROP, FLIP])
