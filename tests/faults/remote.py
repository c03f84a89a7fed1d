"""A bucket to strike, what is looked up in it, and what runs in processes that are killed, which import it by name."""

import os
import time
import zlib
from collections.abc import Iterable

import tpufeed
from tests.gcs_server import GcsServer
from tpufeed import cache
from tpufeed.cli.app import app
from tpufeed.errors import TpufeedError
from tpufeed.storage import gcs_transfers
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.gcs_requests import Patience

BUCKET = "gs://bucket"
QUICK = Patience(deadline_seconds=30, first_pause_seconds=0.01, longest_pause_seconds=0.05, read_seconds=10)
# A stall is given up soon; so is, now and then, what a busy machine is slow at.
WAKEFUL = Patience(deadline_seconds=30, first_pause_seconds=0.01, longest_pause_seconds=0.05, read_seconds=0.3)
HURRY = Patience(deadline_seconds=0.2, first_pause_seconds=0.05, longest_pause_seconds=0.05, read_seconds=10)
SLEEPY = Patience(deadline_seconds=600, first_pause_seconds=600, longest_pause_seconds=600)  # fails once, then waits

# As if each were the first of its kind: by what is retried, after which pause.
RULES = {
    "429": {"action": "status", "status": 429, "retry_after": 0.05},
    "503": {"action": "status", "status": 503, "calls": (1, 2)},
    "reset before": {"action": "reset"},
    "reset in mid-body": {"action": "reset_midway"},
    "reset after": {"action": "lose_response"},
    "stall": {"action": "stall", "seconds": 0.6},
}
CHUNK_BYTES = 256 << 10  # as small as the service has them
WARM = {"shard_bytes": "40KB", "size": 32, "variants": 2, "workers": 1}
LARGE = {"shard_bytes": "1MB", "size": 128, "workers": 1}  # shards of some chunks


def be(patience: Patience) -> None:
    """Have all stores of this process as patient as that."""
    GcsStore.__init__.__defaults__ = (patience,)


def met(server: GcsServer, fault: str = "*", wait_seconds: float = 10) -> list:
    """The requests that met this fault, as soon as there is one: a stall is logged when it is over."""
    deadline = time.monotonic() + wait_seconds
    while not (found := [record for record in server.requests(fault=fault) if record.fault]):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return found


def objects(server: GcsServer, folder: str) -> dict[str, bytes]:
    """Shards, indexes and rejects below a folder of the bucket, by name: all of which has to be the same."""
    names = (".tfrecord", ".npy", "rejects.jsonl")
    return {
        name.rpartition("/")[2]: server.get("bucket", name)
        for name in server.names("bucket")
        if name.startswith(f"{folder}/") and name.endswith(names)
    }


def names_of(server: GcsServer, folder: str) -> set[str]:
    """All that is below a folder of the bucket."""
    return {name[len(folder) + 1 :] for name in server.names("bucket") if name.startswith(f"{folder}/")}


def epochs_of(url: object, count: int = 1, **options: object) -> list[list[list[tuple[int, int]]]]:
    """Epochs of batches of (sample, CRC of its pixels)."""
    with tpufeed.Loader(url, **{"columns": ["sample", "image"], "batch_size": 4, "threads": 2, **options}) as it:
        return [[pairs(*batch) for batch in it] for _ in range(count)]


def until_error(loader: Iterable[tuple], error: type[TpufeedError]) -> tuple[list[list[tuple[int, int]]], str]:
    """The batches up to the error, as in `epochs_of`, and its message; it has to come."""
    found = []
    try:
        for batch in loader:
            found.append(pairs(*batch))
    except error as caught:
        return found, str(caught)
    raise AssertionError(f"no {error.__name__}")


def pairs(samples: object, images: object) -> list[tuple[int, int]]:
    return [(int(sample), zlib.crc32(image)) for sample, image in zip(samples, images, strict=True)]


# In processes that are killed.


def warm_in_chunks(environment: dict[str, str], source: str, destination: str) -> None:
    """A cache whose shards go up in chunks; a fault is waited out for minutes."""
    os.environ.update(environment)
    be(SLEEPY)
    gcs_transfers.SMALL_BYTES, gcs_transfers.CHUNK_BYTES = 1 << 10, CHUNK_BYTES
    cache.warmup(source, destination, **LARGE)


def read_copied(environment: dict[str, str], url: str, folder: str) -> None:
    """An epoch from local copies, made for the next one, too; a fault is waited out for minutes."""
    os.environ.update(environment)
    be(SLEEPY)
    with tpufeed.Loader(url, local_dir=folder, batch_size=4) as loader:
        list(loader)
        time.sleep(600)


def run_command(environment: dict[str, str], words: list[str]) -> None:
    """The command line."""
    os.environ.update(environment)
    app(words)
