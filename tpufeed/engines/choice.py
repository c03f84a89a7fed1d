"""Find an engine by its name. `SerialEngine` is here, too, as it needs no other process."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pkgutil import resolve_name
from typing import Any

from tpufeed.engines.engine import Done, Engine, Events, Job, Progress, task_name
from tpufeed.engines.processes import ProcessEngine
from tpufeed.errors import OptionError, TaskError
from tpufeed.options import Count, checked
from tpufeed.processes.limits import available_cores, failure_message, memory_left

LOCAL, RAY, BEAM = "local", "ray", "beam"
# A worker takes 45 MB, and pixels of the image at hand: 72 MB for 24 megapixels. A container may have many cores and
# little memory.
_WORKER_BYTES = 256 << 20
_NAMES = (LOCAL, RAY, BEAM)


@checked()
def make_engine(
    name: str | None = None,
    workers: Count | None = None,
    ray_address: str | None = None,
    beam_arguments: Sequence[str] = (),
) -> Engine:
    """Return the engine called `name`. None means "local": worker processes, or only this process for one worker.

    Args:
        name: "local", "ray" or "beam".
        workers: number of workers of "local" (default: one per core and per 256 MiB of free memory) or "ray".
        ray_address: address for "ray", see `RayEngine`.
        beam_arguments: arguments for "beam", see `BeamEngine`.

    Raises:
        OptionError: there is no such engine, or an option is for another engine.
        MissingExtraError: the engine is not installed.
    """
    if name is not None and name not in _NAMES:
        raise OptionError(f"there is no engine {name!r}. The engines are {', '.join(_NAMES)}")
    if ray_address is not None and name != RAY:
        raise OptionError(f"--ray-address {ray_address} is for --engine ray")
    if beam_arguments and name != BEAM:
        given = " ".join(beam_arguments)
        raise OptionError(f"unexpected argument {given!r}. Only --engine beam takes arguments after `--`")
    if name == RAY:
        from tpufeed.engines.ray import RayEngine

        return RayEngine("auto" if ray_address is None else ray_address, workers)
    if name == BEAM:
        from tpufeed.engines.beam import BeamEngine

        if workers is not None:
            raise OptionError("Beam has its own options for the number of workers, see docs/scaleout.md")
        return BeamEngine(beam_arguments)
    count = workers or default_workers()
    return ProcessEngine(count) if count > 1 else SerialEngine()


def default_workers() -> int:
    """Return the number of worker processes that cores and memory of this host, or its container, have room for."""
    cores, left = available_cores(), memory_left()
    return cores if left is None else max(1, min(cores, left // _WORKER_BYTES))


def choose_engine(engine: Engine | str | None, workers: int | None, hidden: Sequence[str] = ()) -> Engine:
    """Return the requested engine. `hidden` are URLs of stores that only this process can read.

    Raises:
        OptionError: as `make_engine` does, or an `Engine` has another number of workers, or its workers cannot read a
            store.
        MissingExtraError: the engine is not installed.
    """
    if isinstance(engine, str | None):
        found, name = make_engine(engine, workers), engine
    else:
        found, name = engine, type(engine).__name__
        if workers not in (None, getattr(engine, "workers", None)):
            raise OptionError(f"workers={workers} is not for engine={name}, which has its own number of workers")
    if not hidden or isinstance(found, SerialEngine):
        return found
    if engine in (None, LOCAL):
        return SerialEngine()
    raise OptionError(f"only this process can read {hidden[0]}, and no worker of engine={name!r} can")


class SerialEngine:
    """An `Engine` without parallelism."""

    def describe(self) -> str:
        return ""

    def prepare(self, entry: str) -> AbstractContextManager[None]:
        return nullcontext()

    def run(self, job: Job, tasks: Sequence[Any]) -> Events:
        function = resolve_name(job.entry)
        for index, task in enumerate(tasks):
            progress: list[Progress] = []
            try:
                function(job.context, task, progress.append)
            except Exception as error:  # bugs, too, as in a worker
                raise TaskError(f"{task_name(task)}: {failure_message(error)}") from error
            yield from progress
            yield Done(index)
