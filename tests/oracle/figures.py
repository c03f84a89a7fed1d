"""Feeds and ops whose costs are known by construction, and a plain account of what figures must say of them."""

import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

STEP = 1.0  # seconds of an emulated step
BATCH = 8
SECONDS = 0.03  # of each op below
FEWEST_STEPS, MOST_LACKING = 20, 0.05  # that a verdict takes


def waits(image, generator):
    """As an op that asks a service, or reads a file."""
    time.sleep(SECONDS)
    return image


def spins(image, generator):
    stop = time.thread_time() + SECONDS
    while time.thread_time() < stop:
        pass
    return image


def write_photos(folder, count, size):
    """Photographs of noise: (width, height) pixels each, in two class folders."""
    for number in range(count):
        path = Path(folder) / "ab"[number % 2] / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (12, 16, 3), np.uint8)
        Image.fromarray(noise).resize(size).save(path, quality=95)
    return folder


class Hands:
    """A clock that stands still but for `sleep`."""

    def __init__(self):
        self.seconds = 50.0

    def now(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds


@dataclass
class Epoch:
    """Batches as (seconds that the loader takes, images), the number that `len` promises, and seconds at the end."""

    batches: list[tuple[float, int]]
    promised: int
    end: float


class Feed:
    """A loader of these epochs. It may drop, shorten or repeat batches."""

    def __init__(self, epochs, hands):
        self.epochs, self.hands, self.begun = epochs, hands, 0

    def __len__(self):
        return self.epochs[max(0, self.begun - 1)].promised

    def __iter__(self):
        epoch = self.epochs[self.begun]
        self.begun += 1
        for seconds, images in epoch.batches:
            self.hands.sleep(seconds)
            yield np.zeros((images, 2, 2, 3), np.uint8), np.zeros(images, np.int64)
        self.hands.sleep(epoch.end)


def draw_epochs(seed):
    """Draw a feed: fast, even or slow, that now and then drops batches or shortens some."""
    draw = random.Random(seed)
    slow, length = draw.choice((0.2, 0.97, 1.04, 2.0)), draw.choice((1, 3, 13, 40))
    fault, epochs = draw.choice(("none", "none", "drops", "last", "some", "empty")), list[Epoch]()
    steps = draw.choice((12, 45))
    while sum(len(epoch.batches) for epoch in epochs) < steps:
        sizes = [BATCH] * length
        if fault == "drops" and draw.random() < 0.5:
            sizes = sizes[: max(1, length // 2)]
        if fault in ("last", "empty"):
            sizes[-1] = 0 if fault == "empty" else draw.randrange(1, BATCH)
        if fault == "some":
            sizes = [draw.choice((BATCH, draw.randrange(BATCH))) for _ in sizes]
        batches = [(slow * STEP * draw.uniform(0.8, 1.2), images) for images in sizes]
        epochs.append(Epoch(batches, length, draw.choice((0.0, 0.3))))
    return epochs


def account_clock(epochs, compute):
    """What a step clock must report of a loop whose steps take `compute` seconds."""
    rows = [each for epoch in epochs for each in epoch.batches]
    wait, ends = sum(seconds for seconds, _ in rows[1:]), sum(epoch.end for epoch in epochs)
    wall = wait + ends + compute * (len(rows) - 1)
    images = sum(images for _, images in rows[1:])
    idle = 100 * (wait + ends) / wall
    return {
        "steps": len(rows),
        "images": sum(images for _, images in rows),
        "images_per_second": images / wall,
        "bytes_per_second": images * (2 * 2 * 3 + 8) / wall,
        "idle_percent": idle,
        "wall_seconds": wall,
        "first_wait_seconds": rows[0][0],
        "blame": "accelerator" if idle < 5 else "data",
        "short_epochs": tuple(
            (number, len(epoch.batches), epoch.promised)
            for number, epoch in enumerate(epochs, 1)
            if len(epoch.batches) < epoch.promised
        ),
    }


def account_emulator(epochs):
    """What an emulated device with a queue of two must report: it is busy for `STEP` with every batch."""
    begins, ends, at, sizes = list[float](), list[float](), 0.0, list[int]()
    for epoch in epochs:
        for seconds, images in epoch.batches:
            at += seconds
            begins.append(max(at, ends[-1] if ends else at))
            ends.append(begins[-1] + STEP)
            sizes.append(images)
            if len(begins) > 2:  # two wait in the queue, so the loader rests until the device takes one
                at = max(at, begins[-3])
        at += epoch.end
    wall, small = ends[-1] - ends[0], sum(images < BATCH for images in sizes)
    lacking = 1 - sum(sizes) / (BATCH * len(sizes))
    idle = 100 - 100 * STEP * (len(sizes) - 1) / wall
    return {
        "steps": len(sizes),
        "images": sum(sizes),
        "images_per_second": sum(sizes[1:]) / wall,
        "idle_percent": idle,
        "au_percent": 100 * STEP * sum(sizes[1:]) / BATCH / wall,
        "judged": len(sizes) > FEWEST_STEPS
        and all(len(epoch.batches) == epoch.promised for epoch in epochs)
        and small <= len(epochs)
        and lacking < MOST_LACKING,
        "band": "highly" if idle >= 20 else "moderately" if idle >= 5 else "not",
    }


def bytes_of(cost):
    """The bytes that the cost of an action names."""
    number, unit = re.match(r"([\d.,]+) (GB|MB)\b", cost).groups()
    return float(number.replace(",", "")) * {"GB": 1e9, "MB": 1e6}[unit]


def seconds_of(cost):
    """The seconds that the cost of an action names."""
    number, unit = re.search(r"about ([\d,]+) (minutes|s)\b", cost).groups()
    return int(number.replace(",", "")) * {"minutes": 60, "s": 1}[unit]
