"""Starts the server by hand: `python -m tests.gcs_server --port 4443 --latency-ms 30`."""

import argparse
import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

from tests.gcs_server.listener import Listener
from tests.gcs_server.objects import Bucket, Conditions, StoredObject, Vault
from tests.gcs_server.world import Settings, World


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    world = World(Vault(md5=not options.no_md5), Settings(options.latency_ms, options.connection_mb_per_second * 1e6))
    for name in options.zonal:
        world.vault.buckets.create(Bucket(name, location="US-CENTRAL1-A", location_type="zone"))
    for name in options.bucket or ([] if options.folder else ["bucket"]):
        world.vault.buckets.create(Bucket(name), replace_rules=True)
    if options.folder:
        _preload(world.vault, options.folder)
    try:
        listener = Listener(world, options.port)
    except OSError as error:
        parser.error(f"--port {options.port}: {error.strerror}")
    listener.start()
    print(f"export STORAGE_EMULATOR_HOST=http://127.0.0.1:{listener.port}", flush=True)
    rapid = contextlib.ExitStack()
    if options.zonal:
        from tests.gcs_server.rapid import RapidServer

        print(f"export STORAGE_EMULATOR_HOST_GRPC={rapid.enter_context(RapidServer(world.vault)).address}", flush=True)
    if options.stop_with_stdin:
        threading.Thread(target=_wait_for_end_of_input, args=(done,), daemon=True).start()
    done.wait()
    rapid.close()
    listener.stop()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.gcs_server", description="A local GCS, in memory.")
    parser.add_argument("--port", type=int, default=0, help="to listen on at 127.0.0.1; 0, the default, is a free one")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="delay of every request")
    parser.add_argument(
        "--connection-mb-per-second", type=float, default=0.0, help="limit of each connection, each way (10^6 bytes)"
    )
    parser.add_argument("--bucket", action="append", help="there from the start; may be repeated")
    parser.add_argument(
        "--zonal", action="append", default=[], help="a zonal (Rapid) bucket, with a server for gRPC; may be repeated"
    )
    parser.add_argument("--folder", type=Path, help="objects to start with: files FOLDER/BUCKET/NAME")
    parser.add_argument("--no-md5", action="store_true", help="objects get a crc32c only: faster uploads")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop at the end of standard input too")
    return parser


def _preload(vault: Vault, folder: Path) -> None:
    for below in sorted(path for path in folder.iterdir() if path.is_dir()):
        vault.buckets.create(Bucket(below.name), replace_rules=True)
        for file in sorted(path for path in below.rglob("*") if path.is_file()):
            name = file.relative_to(below).as_posix()
            vault.store(StoredObject(below.name, name, file.read_bytes(), 0), Conditions())


def _wait_for_end_of_input(done: threading.Event) -> None:
    while os.read(0, 4096):  # sys.stdin would hold a lock that the end of the interpreter wants
        pass
    done.set()


if __name__ == "__main__":
    sys.exit(main())
