"""Run by test_compiling.py on one CPU device: writes down what clock and counts say of torch_xla's loaders.

xla_clock.py OUT PROGRAM, a program that is run here as well, to import torch_xla but once: docs/measuring.md's
"""

# ruff: noqa: E402
import contextlib
import gc
import io
import json
import os
import runpy
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

gc.disable()  # until all is imported
os.environ["PJRT_DEVICE"] = "CPU"
import torch
import torch_xla
from torch_xla.debug import profiler
from torch_xla.distributed.parallel_loader import MpDeviceLoader, ParallelLoader
from torch_xla.utils import keyd_queue

import tpufeed
from tpufeed.adapters import device as device_loaders
from tpufeed.measure.clock import StepClock
from tpufeed.measure.compiling import compile_advice, wait_for_xla, xla_counts

gc.freeze()  # collections need not look through torch_xla
gc.enable()

SYNC, LOOK, COMPUTE = 3.0, 2.0, 5.0


class FakeTime:
    """Moves by SYNC in each torch_xla.sync and by LOOK in each look of this thread at what another has ready."""

    def __init__(self):
        self.seconds = 0.0
        self.thread = threading.get_ident()
        self.sync, self.get, self.result = torch_xla.sync, keyd_queue.Queue.get, Future.result

    def now(self):
        return self.seconds

    def __enter__(self):
        def sync(*args, **options):
            self.seconds += SYNC
            return self.sync(*args, **options)

        def get(queue):
            if threading.get_ident() == self.thread:
                self.seconds += LOOK
            return self.get(queue)

        def result(future):
            self.seconds += LOOK
            return self.result(future)

        torch_xla.sync, keyd_queue.Queue.get, Future.result = sync, get, result
        device_loaders.perf_counter = self.now
        return self

    def __exit__(self, *_):
        torch_xla.sync, keyd_queue.Queue.get, Future.result = self.sync, self.get, self.result
        device_loaders.perf_counter = time.perf_counter


class Source:
    """Batches of ones; slow, or one that fails."""

    def __init__(self, batches=5, rows=lambda _: 8, seconds=0.0, fails_at=None):
        self.batches, self.rows, self.seconds, self.fails_at = batches, rows, seconds, fails_at

    def __len__(self):
        return self.batches

    def __iter__(self):
        for number in range(self.batches):
            time.sleep(self.seconds)
            if number == self.fails_at:
                raise ValueError("rotten")
            yield torch.ones(self.rows(number), 16), torch.ones(self.rows(number))


def times(clock):
    seen = clock.timeline()
    return [seen.wait_seconds, seen.sync_seconds, seen.compute_seconds]


def exact(loader_of):
    """With a clock that moves by what happens only."""
    with FakeTime() as fake:
        clock = StepClock(now=fake.now)
        for _ in clock(loader_of()):
            fake.seconds += COMPUTE
        report = clock.report()
    return {
        "times": times(clock),
        "idle": report.idle_percent,
        "sync": report.sync_percent,
        "wall": report.wall_seconds,
        "first": report.first_compute_seconds,
        "images": report.images,
        "bytes": report.bytes_per_second,
    }


def two_epochs_of_one():
    with FakeTime() as fake:
        clock, loader = StepClock(now=fake.now), MpDeviceLoader(Source(1), torch_xla.device())
        for _ in range(2):
            for _ in clock(loader):
                fake.seconds += COMPUTE
        report = clock.report()
    return {"times": times(clock), "wall": report.wall_seconds, "first": report.first_compute_seconds}


def left_early():
    """Leaves nothing of the clock's in the loader."""
    loader = MpDeviceLoader(Source(50), torch_xla.device())
    clock = StepClock()
    for _ in clock(loader):
        break
    rest = "next_item" in vars(loader._parallel_loader)
    loader._parallel_loader.close()
    return {"steps": clock.report().steps, "rest": rest, "short": clock.report().short_epochs}


def traced():
    """`StepTrace` syncs by itself."""
    with FakeTime() as fake:
        clock = StepClock(now=fake.now)
        for _ in clock(MpDeviceLoader(Source(4), torch_xla.device())):
            with profiler.StepTrace("step"):
                fake.seconds += COMPUTE
    return times(clock)


def short():
    said = []
    threading.excepthook = lambda args: said.append(str(args.exc_value))
    clock = StepClock()
    given = len(list(clock(MpDeviceLoader(Source(9, fails_at=4), torch_xla.device()))))
    threading.excepthook = threading.__excepthook__
    return {"given": given, "said": said, "short": clock.report().short_epochs, "notes": clock.report().notes}


def trained(loader):
    """A step that has a graph for each number of rows."""
    weight = torch.ones(16, 16, device=torch_xla.device(), requires_grad=True)
    clock = StepClock()
    for values, _ in clock(loader):
        torch.tanh(values @ weight).sum().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
    report = clock.report()
    return {
        "blame": report.blame,
        "verdict": report.verdict,
        "idle": report.idle_percent,
        "sync": report.sync_percent,
        "tracing": report.tracing_percent,
        "compiled": report.compile_seconds,
        "recompilations": report.recompilations,
        "notes": report.notes,
        "summary": report.summary(),
    }


def not_waited():
    """Steps that change nothing in place, after which sync(wait=True) returns early; and the same with a real wait."""
    weights = torch.rand(600, 600, device=torch_xla.device())
    found = []
    for wait in (lambda: torch_xla.sync(wait=True), lambda: (torch_xla.sync(), wait_for_xla())):
        clock, begun = StepClock(), 0.0
        for number, _ in enumerate(clock([torch.ones(8)] * 12)):
            if number == 1:  # the first step does not count
                begun = time.perf_counter()
            for _ in range(12):
                weights = torch.tanh(weights @ weights)
            wait()
        wait_for_xla()
        report = clock.report()
        found.append({"share": report.wall_seconds / (time.perf_counter() - begun), "notes": report.notes})
    return found


def counted():
    """Everything once or so, at known numbers."""
    device = torch_xla.device()
    torch_xla.sync(wait=True)
    before = xla_counts()
    values = torch.ones(1000, device=device)  # is no transfer: XLA makes it on the device
    sent = torch.arange(1000, dtype=torch.float32).to(device)
    for _ in range(3):
        ((values + sent) * 2).sum().item()
    sent.cpu()
    torch.nonzero(sent)
    torch_xla.sync(wait=True)
    seen = xla_counts() - before
    return {**seen, "advice": compile_advice(seen, 3)}


def main():
    device = torch_xla.device()
    found = {
        "exact": {
            "MpDeviceLoader": exact(lambda: MpDeviceLoader(Source(), device)),
            "every second": exact(lambda: MpDeviceLoader(Source(), device, batches_per_execution=2)),
            "PerDeviceLoader": exact(lambda: ParallelLoader(Source(), [device]).per_device_loader(device)),
            "XlaFeed": exact(lambda: tpufeed.device_loader(Source(), "xla")),
        },
        "not waited": not_waited(),
        "two epochs of one": two_epochs_of_one(),
        "left early": left_early(),
        "traced": traced(),
        "short": short(),
        "counted": counted(),
    }
    queues = {"loader_prefetch_size": 1, "device_prefetch_size": 1}
    loaders = {
        "MpDeviceLoader": lambda source: MpDeviceLoader(source, device, **queues),
        "XlaFeed": lambda source, **options: tpufeed.device_loader(source, "xla", **options),
    }
    for number, (name, loader_of) in enumerate(loaders.items()):
        rows = 8 * (number + 1)  # a graph once compiled stays so
        found[name] = {
            "slow": trained(loader_of(Source(14, lambda _, rows=rows: rows, seconds=0.05))),
            "changing": trained(loader_of(Source(5, lambda step, rows=rows: rows + step))),
        }
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(sys.argv[2])
    found["page"] = said.getvalue()
    Path(sys.argv[1]).write_text(json.dumps(found))


main()
