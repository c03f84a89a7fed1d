"""The protocol of imread_benchmark (github.com/ternaus/imread_benchmark, arXiv 2605.08731): decoders, and a DataLoader.

Its two measurements, with the photographs of scripts/make_photos.py (500x375) in place of ImageNet's validation set.
The protocol is written anew from its `benchmark_single.py` and `benchmark_dataloader.py` (commits 15865fb and 3d4ea6e);
its own code fetches data and decoders from Google Cloud:

    decode      one thread decodes bytes that lie in memory, all to RGB
    DataLoader  torch's, batches of 32, 0, 1 and 2 persistent workers, images passed through as they are

A traversal warms up, and then `--runs` are timed, without the garbage collector; medians. Each row is a process of its
own. Rows that the protocol does not have: tpufeed's own `decode` beside the decoders, and `Loader` beside the
DataLoaders, from shards of the same bytes, whose CRCs it verifies, into one array a batch.

    python benchmarks/run.py imread [--images 2000] [--runs 5] [--save]
"""

import argparse
import gc
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.entry import command_of, make_parser

SIZE, BATCH, WORKERS = (375, 500), 32, (0, 1, 2)
DECODERS = ("opencv", "pillow", "simplejpeg", "tensorflow", "tpufeed")
LOADED = ("opencv", "pillow", "simplejpeg", "tpufeed")  # TensorFlow's threads do not survive a DataLoader's fork
OURS = "Loader"


def main(arguments: list[str]) -> None:
    parser = make_parser("imread", __doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--row", nargs=3, metavar=("NAME", "WORKERS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.row:
        name, workers, folder = options.row
        print(json.dumps(measure(name, workers, Path(folder), options.runs)))
        return
    from benchmarks.harness import describe, interleave, machine, print_table, write_result
    from scripts.make_photos import make_photos

    with tempfile.TemporaryDirectory(prefix="tpufeed-imread-") as folder:
        make_photos(Path(folder, "photos"), options.images, SIZE)
        command = [str(Path(sys.executable).with_name("tpufeed")), "shard", f"{folder}/photos", f"{folder}/shards"]
        subprocess.run([*command, "--check", "header"], check=True, capture_output=True)
        rows = [(name, "-") for name in DECODERS]
        rows += [(name, str(count)) for count in WORKERS for name in (*LOADED, OURS)]
        ways = {f"{name} {workers}": partial(run, name, workers, folder, options.runs) for name, workers in rows}
        found = interleave(ways, 1, warm_up=0)
    rates = {way: statistics.median(results[0]) for way, results in found.items()}
    title = f"images a second, {options.images} of 500x375"
    single = [[name, f"{rates[f'{name} -']:,.0f}"] for name in DECODERS]
    print_table(f"decode, one thread: {title}", ("decoder", "img/s"), single)
    columns = ("loader", *(f"{count} workers" for count in WORKERS))
    loaded = [[name, *(f"{rates[f'{name} {count}']:,.0f}" for count in WORKERS)] for name in (*LOADED, OURS)]
    print_table(f"DataLoader, batches of {BATCH}: {title}", columns, loaded)
    print(describe(machine()))
    if options.save:
        measured = [
            {"loader": name, "workers": workers, "images_per_second": found[f"{name} {workers}"][0]}
            for name, workers in rows
        ]
        print(write_result(options.save, {"images": options.images, "batch": BATCH}, measured))


def run(name: str, workers: str, folder: str, runs: int) -> list[float]:
    command = command_of("imread", "--runs", runs, "--row", name, workers, folder)
    environment = os.environ | {"OPENCV_FOR_THREADS_NUM": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, workers: str, folder: Path, runs: int) -> list[float]:
    """Images a second of each traversal."""
    if name == OURS:
        return time_traversals(our_batches(folder / "shards", int(workers)), runs)
    if name == "tensorflow":  # here, in the process of one row: it is the whole process's, and must come first
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
    decode = decoder(name)
    images = [file.read_bytes() for file in sorted((folder / "photos").rglob("*.jpg"))]
    if workers == "-":
        return time_traversals(lambda: (1 for _ in map(decode, images)), runs)
    from torch.utils.data import DataLoader

    count = int(workers)
    loader: Any = DataLoader(
        Decoded(images, decode),  # type: ignore[arg-type]
        batch_size=BATCH,
        num_workers=count,
        collate_fn=list,
        persistent_workers=count > 0,
    )
    return time_traversals(lambda: map(len, loader), runs)


class Decoded:
    """Images in memory, decoded when they are asked for."""

    def __init__(self, images: list[bytes], decode: Callable[[bytes], Any]) -> None:
        self.images, self.decode = images, decode

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.decode(self.images[index])


def time_traversals(traverse: Callable[[], Iterable[int]], runs: int) -> list[float]:
    """Traverse once, and then `runs` times by the clock, which gives images a second; a step says how many it had."""
    rates = []
    for number in range(1 + runs):
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        images = sum(traverse())
        if number:
            rates.append(images / (time.perf_counter() - start))
        gc.enable()
    return rates


def our_batches(url: Path, processes: int) -> Callable[[], Iterable[int]]:
    import tpufeed
    from tpufeed.images import CenterCrop

    whole = [CenterCrop(SIZE)]  # of images that all have this size
    loader = tpufeed.Loader(url, batch_size=BATCH, processes=processes, remainder="pad", shuffle=False, ops=whole)
    return lambda: (int(mask.sum()) for _, _, mask in loader)


def decoder(name: str) -> Callable[[bytes], Any]:
    """Return a decoder's call for RGB, as the protocol's adapters make it."""
    if name == "opencv":
        import cv2
        import numpy as np

        return lambda data: cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), 1), cv2.COLOR_BGR2RGB)
    if name == "pillow":
        import numpy as np
        from PIL import Image

        return lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    if name == "simplejpeg":
        import simplejpeg

        return lambda data: simplejpeg.decode_jpeg(data, fastdct=False)
    if name == "tensorflow":
        import tensorflow as tf

        return lambda data: tf.io.decode_jpeg(data, channels=3).numpy()
    from tpufeed.images import decoding

    return decoding.decode
