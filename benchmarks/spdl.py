"""SPDL's published comparison with torch's DataLoader, with tpufeed beside both: images a second of its own clock.

SPDL's `examples/multi_thread_preprocessing.py` reads an ImageNet folder, decodes whole images, resizes them to 224x224
and hands over batches of 32: by torchvision, Pillow and a DataLoader, and by `spdl.io` and a pipeline of threads. This
calls its `exp_torch` and `exp_spdl` as they are, with the folder of photographs that is named here, and its
`run_dataloader` for `Loader`, whose batches become tensors (N, 3, 224, 224) and are normalised as in `exp_spdl`.

    batch       uint8 batches
    normalise   float32 batches, by torchvision's Normalize

Its clock starts with the loader: processes and threads start within it. tpufeed decodes in threads, as SPDL does
(`processes=0`), and reads shards of the same bytes; its order is not shuffled either. Each measurement is a process of
its own, loaders take turns. Not taken over: single images, for tpufeed hands over batches, and the copy to a GPU.

    scripts/setup-peers spdl
    python benchmarks/run.py spdl [--script multi_thread_preprocessing.py] [--repeats 5] [--save]

Without `--script` it is .peers/spdl/multi_thread_preprocessing.py, or fetched from GitHub, at the commit that is
pinned below.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.entry import PEERS, ROOT, command_of, make_parser

PYTHON = PEERS / "spdl" / "bin" / "python"
COMMIT = "0a5fedd4bc2d44d5b88a3a209eb16792fa7e0d89"
URL = f"https://raw.githubusercontent.com/facebookresearch/spdl/{COMMIT}/examples/multi_thread_preprocessing.py"
BATCH, BATCHES, SIDE = 32, 100, 224  # the first two are the script's defaults
WORKERS = (1, 2, 4)
KINDS = ("batch", "normalise")
LOADERS = {"torch DataLoader": "exp_torch", "SPDL": "exp_spdl", "tpufeed.Loader": "ours"}


def main(arguments: list[str]) -> None:
    parser = make_parser("spdl", __doc__, repeats=5)
    parser.add_argument("--script", type=Path, help="SPDL's script (default: fetched)")
    parser.add_argument("--row", nargs=4, metavar=("CALL", "WORKERS", "KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.row:
        call, workers, kind, folder = options.row
        print(json.dumps(measure(load_script(options.script), call, int(workers), kind, Path(folder))))
        return
    if not PYTHON.exists():
        sys.exit(f"run.py spdl: {PYTHON} is not there; run scripts/setup-peers spdl")
    with tempfile.TemporaryDirectory(prefix="tpufeed-spdl-") as folder:
        script = options.script or fetch_script(Path(folder))
        make_imagenet(Path(folder), BATCH * BATCHES)
        rows = {
            f"{kind}, {workers} workers, {name}": partial(run, script, call, workers, kind, folder)
            for kind in KINDS
            for workers in WORKERS
            for name, call in LOADERS.items()
        }
        from benchmarks.harness import interleave

        found = interleave(rows, options.repeats, warm_up=0)
    report(found, options.save)


def fetch_script(folder: Path) -> Path:
    if (copy := PEERS / "spdl" / Path(URL).name).exists():
        return copy
    path = folder / Path(URL).name
    try:
        with urllib.request.urlopen(URL, timeout=60) as answer:
            path.write_bytes(answer.read())
    except OSError as error:
        sys.exit(f"run.py spdl: {URL} cannot be read ({error}); fetch it elsewhere, to {copy}")
    return path


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("multi_thread_preprocessing", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def make_imagenet(folder: Path, count: int) -> None:
    """Photographs as torchvision's ImageNet has them, in FOLDER/imagenet, and as shards, in FOLDER/shards."""
    from scripts.make_photos import make_photos

    photos = folder / "imagenet" / "val"
    make_photos(photos, count, (375, 500))
    classes = {path.name: [path.name] for path in photos.iterdir() if path.is_dir()}
    # torchvision reads it in place of ImageNet's archive: what each class is called, and the classes of val.
    save = "import json, sys, torch; torch.save((json.loads(sys.argv[1]), []), sys.argv[2])"
    meta = folder / "imagenet" / "meta.bin"
    subprocess.run([sys.executable, "-c", save, json.dumps(classes), str(meta)], check=True)
    command = [str(Path(sys.executable).with_name("tpufeed")), "shard", str(photos), str(folder / "shards")]
    subprocess.run([*command, "--check", "header"], check=True, capture_output=True)


def run(script: Path, call: str, workers: int, kind: str, folder: str) -> float:
    row = [call, str(workers), kind, folder]
    command = command_of("spdl", "--script", script, "--row", *row, python=PYTHON)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"run.py spdl: {' '.join(row)} failed: {done.stderr.strip()}")
    rate: float = json.loads(done.stdout.splitlines()[-1])
    return rate


def measure(script: Any, call: str, workers: int, kind: str, folder: Path) -> float:
    """Images a second, by the script's clock."""
    if call == "ours":
        import torch

        with torch.no_grad():  # as theirs are called
            images, seconds = script.run_dataloader(our_batches(folder / "shards", workers, kind), BATCHES)
    else:
        images, seconds = getattr(script, call)(
            root_dir=str(folder / "imagenet"),
            split="val",
            num_workers=workers,
            max_items=BATCHES,
            batch_size=BATCH,
            normalize=kind == "normalise",
        )
    if images != BATCH * BATCHES:
        raise ValueError(f"{call} handed over {images} images of {BATCH * BATCHES}")
    rate: float = images / seconds
    return rate


def our_batches(url: Path, workers: int, kind: str) -> Iterator[tuple[Any, Any]]:
    """Batches as `exp_spdl` hands them over. What is imported is imported before the clock starts, as theirs is."""
    import torch

    import tpufeed
    from tpufeed.images import Resize

    normalise = None
    if kind == "normalise":
        from torchvision.transforms import Normalize

        normalise = Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])

    def batches() -> Iterator[tuple[Any, Any]]:
        ops = [Resize((SIDE, SIDE))]
        for images, labels in tpufeed.Loader(
            url, batch_size=BATCH, ops=ops, shuffle=False, processes=0, threads=workers
        ):
            tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
            yield (normalise(tensor.float() / 255) if normalise else tensor), labels

    return batches()


def report(found: dict[str, list[float]], save: str | None) -> None:
    from benchmarks.harness import describe, machine, medians_of, print_table, write_result

    medians = medians_of(found)
    for kind in KINDS:
        rows = [
            [name, *(f"{medians[f'{kind}, {workers} workers, {name}']:,.0f}" for workers in WORKERS)]
            for name in LOADERS
        ]
        columns = ("loader", *(f"{workers} workers" for workers in WORKERS))
        print_table(f"{kind}: images a second, {BATCHES} batches of {BATCH} of 500x375", columns, rows)
    print(describe(machine()))
    if save:
        measured = [
            {"work": kind, "workers": workers, "loader": name,
             "images_per_second": found[f"{kind}, {workers} workers, {name}"]}
            for kind in KINDS
            for workers in WORKERS
            for name in LOADERS
        ]  # fmt: skip
        print(write_result(save, {"script": URL}, measured))
