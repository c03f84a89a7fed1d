"""Do a task of a build: make a shard of each variant in temporary files, put the shards, then the report.

Builds differ in how they make records, see `TaskContext.write`.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from tpufeed.builds.destination import Destination, Owner, Reject, Report, ShardReport
from tpufeed.builds.plan import PlanHeader, Task, TaskRef, read_task
from tpufeed.dataset.manifest import Levels, Markers
from tpufeed.dataset.naming import counted
from tpufeed.dataset.schema import record_layout
from tpufeed.dataset.writer import ShardWriter
from tpufeed.engines.engine import NOTHING, Progress, ReportProgress
from tpufeed.storage.store import open_store

_PROGRESS_SECONDS = 0.2
_PULSE_SECONDS = 30.0
_SLOWEST_BYTES_A_SECOND = 100_000


@dataclass(slots=True)
class Output:
    """Shards and counts that a task makes. Its progress is reported a few times a second."""

    writers: Sequence[ShardWriter]  # of the shards, one for each variant
    report_progress: ReportProgress  # tells the engine
    class_counts: list[int]  # samples of each class
    images: Counter[str] = field(default_factory=Counter)  # by how they were stored
    odd: Counter[str] = field(default_factory=Counter)  # odd cases that a policy dealt with
    rejects: list[Reject] = field(default_factory=list)  # inputs not taken
    heights: Counter[int] = field(default_factory=Counter)  # images by their height, not of a cache
    widths: Counter[int] = field(default_factory=Counter)
    levels: Levels = msgspec.UNSET  # the least and the greatest value, of images that are not `RGB8`
    markers: Markers | msgspec.UnsetType = msgspec.UNSET  # restart markers of kept JPEGs
    digests: bytes | msgspec.UnsetType = msgspec.UNSET  # of the input images, see `builds.digests`
    retries: int = 0  # repeated requests for the input
    _done: list[int] = field(default_factory=lambda: [0, 0, 0])  # images, bytes and rejects since the last report
    _due: float = field(default_factory=lambda: time.monotonic() + _PROGRESS_SECONDS)

    def add(self, images: int = 0, size: int = 0, rejects: int = 0, labels: Iterable[int] = ()) -> None:
        """Count images (one per variant of a sample) of `size` bytes in all, and a sample for its classes."""
        for label in labels:
            if label >= 0:  # not an unlabelled sample's
                self.class_counts[label] += 1
        done = self._done
        done[0] += images
        done[1] += size
        done[2] += rejects
        if time.monotonic() >= self._due:
            self.report_progress(Progress(*done))
            self._done, self._due = [0, 0, 0], time.monotonic() + _PROGRESS_SECONDS

    def reject(self, reject: Reject) -> None:
        """Add an input that cannot be taken."""
        self.rejects.append(reject)
        self.add(rejects=len(self.writers))

    @contextmanager
    def putting(self, size_bytes: int) -> Iterator[None]:
        """Report now and then that the task is alive, while bytes are put without being counted.

        Stops after the time that a slow link needs for `size_bytes`: then the launcher may treat the worker as hung.
        """
        self._due = 0.0
        self.add()  # reports all that was counted
        pulses, ended = int(size_bytes / _SLOWEST_BYTES_A_SECOND / _PULSE_SECONDS), threading.Event()

        def pulse() -> None:
            with suppress(OSError):  # the listener is gone
                for _ in range(pulses):
                    if ended.wait(_PULSE_SECONDS):
                        return
                    self.report_progress(NOTHING)

        thread = threading.Thread(target=pulse, name="tpufeed-pulse", daemon=True)
        if pulses:
            with suppress(RuntimeError):  # a thread cannot be started: the put matters more
                thread.start()
        try:
            yield
        finally:
            ended.set()
            if thread.ident is not None:  # it has started
                thread.join()


@dataclass(frozen=True, slots=True)
class TaskContext(ABC):
    """Context that all tasks of a build share. It is small and picklable.

    Attributes:
        destination: URL of the destination.
        header: header of the plan.
        owner: the run that the destination belongs to. None if lost files are made again.
    """

    destination: str
    header: PlanHeader
    owner: Owner | None

    def open_destination(self) -> Destination:
        """Open the destination on this host."""
        return Destination(open_store(self.destination, follow=False), self.owner)

    def check(self) -> None:  # noqa: B027  # most hosts can do the work
        """Raise BuildError on a host that cannot do the work."""

    @abstractmethod
    def write(self, task: Task, output: Output) -> None:
        """Write the records of a task."""

    def see(self, task: Task) -> dict[str, str]:
        """Return the versions, by URL, that this host sees of the files that a task needs."""
        return {}


def run(context: TaskContext, ref: TaskRef, report_progress: ReportProgress) -> None:
    """Make the shards that `ref` refers to."""
    context.check()
    destination = context.open_destination()
    store = destination.store
    if destination.read_report(ref, context.header.run_id) is not None:  # another run of the same build was faster
        return
    task, shards = read_task(store, ref), list[ShardReport]()
    with store.temporary_folder() as folder:
        output, made = make_shards(context, task, folder, report_progress)
        with output.putting(sum(writer.offsets[-1] for writer in output.writers)):
            for name, path, writer in made:
                size, lengths = writer.offsets[-1], tuple(np.diff(writer.offsets).tolist())
                full_name = counted(name, len(lengths))
                stored = destination.put(full_name, path, size, writer.crc32c)
                generation = stored.version if store.generations else None
                shards.append(ShardReport(full_name, size, writer.crc32c, lengths, generation))
    report = Report(
        task.number,
        tuple(shards),
        tuple(output.class_counts),
        dict(output.images),
        tuple(output.rejects),
        dict(output.odd),
        store.retries + output.retries,
        markers=output.markers,
        digests=output.digests,
        heights=output.heights,
        widths=output.widths,
        levels=output.levels,
    )
    # Last: without its report a task counts as not done, and its shards as orphans.
    destination.put_report(report)


def make_shards(
    context: TaskContext, task: Task, folder: Path, report_progress: ReportProgress
) -> tuple[Output, list[tuple[str, Path, ShardWriter]]]:
    """Write the shards of a task to files in `folder`. Return each with its name in the plan."""
    header, layout = context.header, record_layout(context.header.features)
    names = header.shard_names(task)
    paths = [folder / f"shard-{number}" for number in range(len(names))]
    with ExitStack() as stack:
        writers = [stack.enter_context(closing(ShardWriter(path, layout))) for path in paths]
        output = Output(writers, report_progress, [0] * len(header.class_names))
        context.write(task, output)
    return output, list(zip(names, paths, writers, strict=True))


def reach(context: TaskContext, ref: TaskRef) -> dict[str, str]:
    """Return the versions that this host sees of the destination and of the task's files, see `Job.reach`."""
    context.check()
    destination = context.open_destination()
    seen = destination.see(context.header.run_id)
    return seen | context.see(read_task(destination.store, ref)) if seen else seen
