"""Clips of JPEG frames: `Loader` beside torch's DataLoader and a loop, both of which read frames by OpenCV.

Each gives batches of clips: one random crop and one flip for all frames of a clip. `Loader` reads shards of the frames
as they are, and shards made with `--presize`. It and the DataLoader have two workers. The loop is one process without
torch. Beside clips a second there is the CPU time of a clip, in all processes: other work on the machine changes it
less.

Frames are windows that move over a photograph. Each loader is a process of its own. They take turns, and medians are
given.

    python benchmarks/run.py clips [--repeats 5] [--seconds 4] [--work FOLDER] [--save]
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.bands import workers_of
from benchmarks.entry import ROOT, command_of, make_parser

WORKERS, BATCH = 2, 8


class Work(NamedTuple):
    """Clips that are loaded: how many, frames of each, height and width of these, the crop, the side of `--presize`."""

    clips: int
    frames: int
    size: tuple[int, int]
    crop: int
    presize: int


WORKS = {
    "16 frames of 320x240, crops of 112": Work(96, 16, (240, 320), 112, 128),
    "8 frames of 1280x720, crops of 224": Work(48, 8, (720, 1280), 224, 256),
}
OURS, PRESIZED, TORCH, LOOP = "tpufeed.Loader", "tpufeed.Loader, --presize", "DataLoader, OpenCV", "loop, OpenCV"


def main(arguments: list[str]) -> None:
    parser = make_parser("clips", __doc__, repeats=5, keeps=True)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement, after a warm-up")
    parser.add_argument("--row", nargs=3, metavar=("LOADER", "WORK", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.row:
        loader, name, folder = options.row
        print(json.dumps(measure(batches_of(loader, WORKS[name], Path(folder)), options.seconds)))
        return
    from benchmarks.harness import describe, interleave, machine, print_table, write_result

    with tempfile.TemporaryDirectory(prefix="tpufeed-clips-") as temporary:
        rows, cells = list[dict[str, Any]](), list[list[str]]()
        for name, work in WORKS.items():
            folder = (options.work or Path(temporary)) / name
            make(work, folder)
            ways = {way: partial(run, way, name, folder, options.seconds) for way in (OURS, PRESIZED, TORCH, LOOP)}
            found = interleave(ways, options.repeats, warm_up=0)
            medians = {
                way: [statistics.median(column) for column in zip(*each, strict=True)] for way, each in found.items()
            }
            for way, each in found.items():
                rates, milliseconds = zip(*each, strict=True)
                row = {"measurement": "loader", "work": name, "loader": way}
                rows.append(row | {"clips_per_second": rates, "cpu_ms_per_clip": milliseconds})
                rate, cost = medians[way]
                ratios = [f"{ours[0] / rate:.2f} / {cost / ours[1]:.2f}" for ours in (medians[OURS], medians[PRESIZED])]
                cells.append([name, way, f"{rate:,.1f}", f"{cost:.1f}", *ratios])
    columns = ("clips", "loader", "clips/s", "CPU ms", "tpufeed to it, by time / CPU", "presized to it")
    print_table("loader", columns, cells, 2)
    print(describe(machine()))
    if options.save:
        about = {"workers": WORKERS, "batch": BATCH, "seconds": options.seconds}
        print(write_result(options.save, about, rows))


def make(work: Work, folder: Path) -> None:
    """Write the frames and both datasets, unless they are there."""
    import cv2

    if (folder / "presized/manifest.json").exists():
        return
    photo = cv2.imread(str(Path(cv2.__file__).parents[1] / "sklearn/datasets/images/china.jpg"))
    assert photo is not None, "pip install '.[photos]': china.jpg is missing"
    height, width = work.size
    for number in range(work.clips):
        random = np.random.default_rng(number)
        place = folder / "files" / f"class{number % 8}" / f"{number:04d}"
        place.mkdir(parents=True, exist_ok=True)
        start, step = random.uniform(0, 100, 2), random.uniform(-4, 4, 2)
        for frame in range(work.frames):
            top, left = np.clip(start + step * frame, 0, 100).astype(int)
            image = cv2.resize(photo[top : top + 300, left : left + 300 * width // height], (width, height))
            noise = random.normal(0, 3, image.shape)  # as a camera has it
            image = np.clip(image + noise, 0, 255).astype(np.uint8)
            cv2.imwrite(str(place / f"{frame:05d}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 92])
    command = [str(Path(sys.executable).with_name("tpufeed")), "shard", str(folder / "files")]
    for target, more in (("shards", []), ("presized", ["--presize", str(work.presize)])):
        subprocess.run(
            [*command, str(folder / target), "--frames", str(work.frames), *more], check=True, capture_output=True
        )


def run(loader: str, name: str, folder: Path, seconds: float) -> list[float]:
    command = command_of("clips", "--seconds", seconds, "--row", loader, name, folder)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENCV_FOR_THREADS_NUM": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"run.py clips: {loader}, {name} failed: {done.stderr.strip()}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(batches: Iterator[Any], seconds: float) -> list[float]:
    """Clips a second after a warm-up, and milliseconds of CPU time a clip in this process and its workers."""
    for _ in range(2 * WORKERS + 1):
        next(batches)
    clips, start, spent = 0, time.perf_counter(), cpu_seconds()
    while time.perf_counter() - start < seconds:
        clips += len(next(batches)[1])
    return [clips / (time.perf_counter() - start), (cpu_seconds() - spent) / clips * 1e3]


def cpu_seconds() -> float:
    own = os.getpid()
    stats = [
        Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in [own, *workers_of(own)]
    ]
    return sum(int(found[11]) + int(found[12]) for found in stats) / os.sysconf("SC_CLK_TCK")


def batches_of(loader: str, work: Work, folder: Path) -> Iterator[Any]:
    """Batches of (clips, labels)."""
    if loader in (OURS, PRESIZED):
        import tpufeed
        from tpufeed.images import HorizontalFlip, RandomResizedCrop
        from tpufeed.images.protocols import Op

        ops: list[Op] = [RandomResizedCrop(work.crop), HorizontalFlip()]
        url = folder / ("shards" if loader == OURS else "presized")
        return iter(tpufeed.Loader(url, batch_size=BATCH, ops=ops, repeat=True, processes=WORKERS))
    files = Folders(folder / "files", work)
    if loader == LOOP:
        return loop(files)
    import torch
    from torch.utils.data import DataLoader

    order = torch.utils.data.RandomSampler(files, num_samples=1000 * len(files))
    batches: Any = DataLoader(files, BATCH, sampler=order, num_workers=WORKERS)  # type: ignore[arg-type]
    return iter(batches)


def loop(files: "Folders") -> Iterator[Any]:
    random = np.random.default_rng(0)
    while True:
        clips, labels = zip(*(files[number] for number in random.integers(len(files), size=BATCH)), strict=True)
        yield np.stack(clips), np.array(labels)


class Folders:
    """Folders of frames, of which each is read as uint8 (frames, height, width, channels) when it is asked for."""

    def __init__(self, folder: Path, work: Work) -> None:
        self.crop, self.random = work.crop, np.random.default_rng()
        self.clips = [
            (sorted(map(str, place.iterdir())), int(place.parent.name[5:])) for place in sorted(folder.glob("*/*"))
        ]

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> Any:
        import cv2

        frames, label = self.clips[index]
        clip = np.empty((len(frames), self.crop, self.crop, 3), np.uint8)
        for number, path in enumerate(frames):
            image = cv2.imread(path)
            assert image is not None, path
            if not number:
                top, left, height, width = self.window(*image.shape[:2])
                is_flipped = self.random.random() < 0.5
            image = cv2.resize(image[top : top + height, left : left + width], (self.crop, self.crop))
            image = cv2.flip(image, 1) if is_flipped else image
            cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=clip[number])
        return clip, label

    def window(self, height: int, width: int) -> tuple[int, int, int, int]:
        """One of RandomResizedCrop, as torchvision draws it."""
        for _ in range(10):
            area = height * width * self.random.uniform(0.08, 1)
            ratio = math.exp(self.random.uniform(math.log(3 / 4), math.log(4 / 3)))
            cut = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if cut[0] <= height and cut[1] <= width:
                top, left = (
                    int(self.random.integers(side - of + 1)) for side, of in zip((height, width), cut, strict=True)
                )
                return top, left, *cut
        side = min(height, width)
        return (height - side) // 2, (width - side) // 2, side, side
