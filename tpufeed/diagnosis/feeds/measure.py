"""One measurement of a benchmark, in a process of its own: no framework's threads disturb the next."""

import os
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from tpufeed.diagnosis.feeds.devices import Subject, feed
from tpufeed.diagnosis.feeds.loaders import open_loader
from tpufeed.diagnosis.feeds.options import BenchOptions, check_loaders
from tpufeed.diagnosis.results import Run
from tpufeed.engines.child import Child, ChildDiedError, Failure, stop_all
from tpufeed.errors import LoaderError
from tpufeed.images.ops import parse_op

_ENTRY = "tpufeed.diagnosis.feeds.measure:serve"
_LONGEST_SECONDS = 900.0  # to import frameworks, to start workers, to stage and to compile


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Order for one measurement; holds everything that it needs to be made in another process."""

    url: str
    loader: str
    options: BenchOptions


def measure(measurement: Measurement) -> Run:
    """Make the measurement, here.

    Raises:
        UsageError: a dataset, split, device or package that is not there.
        Exception: whatever the loader raises.
    """
    options, choice = measurement.options, measurement.options.choice
    check_loaders([measurement.loader], options)
    if choice.kind == "xla" or measurement.loader == "xla":
        from tpufeed.loaders.xla import runtime  # noqa: F401  # torch_xla cannot be imported after TensorFlow
    from tpufeed.dataset.reader import open_dataset

    dataset = open_dataset(measurement.url)
    batch_size = options.images_a_step
    ops = None if options.ops is None else [parse_op(text) for text in options.ops]
    given = {"ops": ops, "threads": options.threads, "processes": options.processes}
    opened = open_loader(measurement.loader, dataset, options.split, batch_size, given)
    source = "shards" if dataset.manifest.cache is None else "cache"
    subject = Subject(f"{measurement.url}, {measurement.loader}", measurement.url, measurement.loader, source)
    try:
        return feed(choice, batch_size, opened, options.limits, subject)
    finally:
        opened.close()


def measure_apart(measurement: Measurement) -> Run:
    """Make the measurement in a new process, which is gone in the end, with all that it has started.

    Raises:
        TpufeedError: as `measure`.
        LoaderError: the process died, or takes longer than a quarter of an hour.
    """
    what = f"{measurement.url}, {measurement.loader}"
    child = Child(_ENTRY, variables=_variables(measurement), apart=True, one_thread=False)
    try:
        child.begin(_ENTRY, measurement)
        if not wait([child.fileno()], _LONGEST_SECONDS + (measurement.options.limits.seconds or 0)):
            raise LoaderError(
                f"{what}: not done after {_LONGEST_SECONDS:.0f} s; the loader hangs, or the steps are too many"
            )
        run: Run = child.receive()
    except ChildDiedError:
        how, printed = child.ending()[1], child.output().splitlines() or ["it said nothing"]
        raise LoaderError(f"{what}: the measuring process ended {how}: {printed[-1]}") from None
    finally:
        stop_all([child], 0.0)
    return run


def _variables(measurement: Measurement) -> dict[str, str]:
    """Return the variables that the child has beside those of this process."""
    choice = measurement.options.choice
    found = {} if "TF_CPP_MIN_LOG_LEVEL" in os.environ else {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if choice.kind == "xla":
        found["PJRT_DEVICE"] = choice.platform.upper()
    if choice.kind == "jax":
        found["JAX_PLATFORMS"] = choice.platform
    elif measurement.loader == "jax":
        found["JAX_PLATFORMS"] = "cpu"  # its batches are looked at
    return found


def serve(measurement: Measurement, connection: Connection) -> None:
    """Make the measurement in the other process, for as long as its launcher lives."""
    threading.Thread(target=_end_with, args=[connection], daemon=True).start()
    try:
        run = measure(measurement)
    except Exception as error:  # noqa: BLE001  # the launcher raises it
        what = f"{measurement.url}, {measurement.loader}: the measuring process failed: "
        connection.send(Failure.of(error, what))
    else:
        connection.send(run)


def _end_with(launcher: Connection) -> None:
    """End at once when the launcher hangs up, which asks for nothing more."""
    wait([launcher])
    os._exit(1)
