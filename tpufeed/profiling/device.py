"""The thread that an emulated accelerator is."""

import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from tpufeed.profiling.fingerprints import Ledger

QUEUE_BATCHES = 2


def next_step(free: float, arrival: float, step_seconds: float) -> tuple[float, float]:
    """`(wait, free again)` of a device that is free at `free` and takes a batch that is there from `arrival` on."""
    wait = max(0.0, arrival - free)
    return wait, free + wait + step_seconds


@dataclass
class Device:
    """The device's thread, its queue of (arrival, images, epoch, batch), and what it has recorded."""

    step_seconds: float
    now: Callable[[], float]
    sleep: Callable[[float], None]
    queue: Queue[tuple[float, int, int, Any] | None] = field(default_factory=lambda: Queue(QUEUE_BATCHES))
    waits: "array[float]" = field(default_factory=lambda: array("d"))
    ready: "array[int]" = field(default_factory=lambda: array("b"))
    images: list[int] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    first_arrival: float = 0.0
    oversleep_seconds: float = 0.0
    aborted: bool = False
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="tpufeed-emulated-accelerator", daemon=True)

    def _run(self) -> None:
        try:
            self._compute()
        except BaseException as error:  # noqa: BLE001  # run() raises it, in the caller's thread
            self.failure = error
            while self.queue.get() is not None:
                pass

    def _compute(self) -> None:
        free, late = None, 0.0
        while True:
            ready = self.queue.qsize()
            item = self.queue.get()
            if item is None:
                return
            if self.aborted:
                continue
            arrival, images, epoch, batch = item
            if free is None:
                free = self.first_arrival = arrival
            wait, free = next_step(free, arrival, self.step_seconds)
            self.waits.append(wait)
            self.ready.append(ready)
            self.images.append(images)
            self.ledger.enter(epoch, batch)  # the device is busy meanwhile
            before, pause = late, free - self.now()
            if pause > 0:
                self.sleep(pause)
                before = 0.0
            late = max(0.0, self.now() - free)
            if len(self.waits) > 1 and self.queue.full():  # else the loader was not held up
                # A thread that is late already stays late for several steps: only what it lost anew counts.
                self.oversleep_seconds += max(0.0, late - before)
            del item, batch  # a device gives a batch's memory back at the end of its step
