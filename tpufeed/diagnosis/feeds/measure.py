"""One measurement of a benchmark, in a process of its own: no framework's threads disturb the next.

    python -m tpufeed.diagnosis.feeds.measure LAUNCHER < measurement.json

prints one line: the run, or the error that kept it from being made. It ends with the process LAUNCHER.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import msgspec

from tpufeed import errors
from tpufeed.diagnosis.feeds.devices import Subject, feed
from tpufeed.diagnosis.feeds.loaders import open_loader
from tpufeed.diagnosis.feeds.options import BenchOptions, check_loaders
from tpufeed.diagnosis.results import Run
from tpufeed.engines.launch import search_path, wait_for_end
from tpufeed.errors import LoaderError, TpufeedError
from tpufeed.images.parsing import parse_op

_LONGEST_SECONDS = 900.0  # to import frameworks, to start workers, to stage and to compile


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Order for one measurement; holds everything that it needs to be made in another process."""

    url: str
    loader: str
    options: BenchOptions


class Answer(msgspec.Struct):
    """Answer of the other process: a run, or the class and the text of a `TpufeedError`."""

    run: Run | None = None
    error: str = ""
    text: str = ""


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
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tpufeed.diagnosis.feeds.measure", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(measurement),
        start_new_session=True,  # a loader's workers go with it
    )
    try:
        output, printed = process.communicate(
            msgspec.json.encode(measurement), timeout=_LONGEST_SECONDS + (measurement.options.limits.seconds or 0)
        )
    except subprocess.TimeoutExpired:
        raise LoaderError(
            f"{measurement.url}, {measurement.loader}: not done after {_LONGEST_SECONDS:.0f} s; the loader hangs, or "
            "the steps are too many"
        ) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = output.splitlines()
    if process.returncode or not lines:
        said = printed.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise LoaderError(
            f"{measurement.url}, {measurement.loader}: the measuring process ended with exit code "
            f"{process.returncode}: {said[-1]}"
        )
    answer = msgspec.json.decode(lines[-1], type=Answer)
    if answer.run is None:
        kind: type[TpufeedError] = getattr(errors, answer.error, LoaderError)
        error = kind.__new__(kind)  # some are made of other arguments than of their text
        error.args = (answer.text,)
        raise error
    return answer.run


def _environment(measurement: Measurement) -> dict[str, str]:
    choice = measurement.options.choice
    found = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    found["PYTHONPATH"] = search_path()
    if choice.kind == "xla":
        found["PJRT_DEVICE"] = choice.platform.upper()
    if choice.kind == "jax":
        found["JAX_PLATFORMS"] = choice.platform
    elif measurement.loader == "jax":
        found["JAX_PLATFORMS"] = "cpu"  # its batches are looked at
    return found


def main() -> None:
    """The other process."""
    threading.Thread(target=_end_with, args=[int(sys.argv[1])], daemon=True).start()
    sent = sys.stdout.buffer
    sys.stdout = sys.stderr  # what frameworks print is no answer
    try:
        answer = Answer(run=measure(msgspec.json.decode(sys.stdin.buffer.read(), type=Measurement)))
    except TpufeedError as error:
        answer = Answer(error=type(error).__name__, text=str(error))
    sent.write(msgspec.json.encode(answer) + b"\n")
    sent.flush()


def _end_with(launcher: int) -> None:
    wait_for_end(launcher)
    os._exit(1)


if __name__ == "__main__":
    main()
