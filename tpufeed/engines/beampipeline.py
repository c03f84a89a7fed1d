"""Run tasks as a pipeline of Apache Beam: a child of the launcher creates and watches it, Beam's workers run it."""

import io
import os
import pickle
import platform
import re
import signal
import threading
import traceback
import zlib
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, suppress
from multiprocessing.connection import Connection
from operator import sub
from typing import Any
from urllib.parse import quote, unquote

import apache_beam as beam
from apache_beam.metrics.metric import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    TypeOptions,
)
from apache_beam.runners.runner import PipelineResult, PipelineState

from tpufeed._version import __version__
from tpufeed.engines.beam import Failed, Message, Ready, Work
from tpufeed.engines.engine import NOTHING, Progress
from tpufeed.engines.preflight import check_hosts, run_pickled, view_here
from tpufeed.errors import BuildError, OptionError, TpufeedError
from tpufeed.processes.child import Failure

_NAMESPACE = "tpufeed"
_BLOCK_TASKS = 1000
_METRICS_SECONDS = 5.0
_START_SECONDS = 10.0
_SHOWN_CHARACTERS = 3000
# A worker's message comes back in the trace that a runner reports, escaped or not, once or several times.
_FAILURE = re.compile(r"\[tpufeed:(\d*):([\w.~/%-]*)\]")
_LOCAL = {"DirectRunner", "SwitchingDirectRunner", "FnApiRunner", "BundleBasedDirectRunner"}
_STRICT = _LOCAL | {"DataflowRunner", "TestDataflowRunner", "TestDirectRunner"}


def serve(arguments: tuple[str, ...], connection: Connection) -> None:
    """Check the arguments, then run the pipelines that are requested, until the launcher hangs up."""
    pipeline: BeamPipeline | None = None
    try:
        try:
            elsewhere = check_arguments(arguments)
        except TpufeedError as error:
            connection.send(Failure.of(error))
            return
        connection.send(Ready(elsewhere))
        while True:
            work: Work = connection.recv()
            pipeline = BeamPipeline(arguments, work, connection)
            # It runs in a thread. This thread notices when the launcher hangs up, and cancels the pipeline.
            threading.Thread(target=pipeline.run, daemon=True).start()
    except (EOFError, ConnectionError):
        return
    finally:
        if pipeline is not None and elsewhere:
            pipeline.cancel()
        os.killpg(0, signal.SIGKILL)  # including this process: threads of the direct runner may never end


def check_arguments(arguments: Sequence[str]) -> bool:
    """Return True if the runner of these arguments runs tasks outside this process.

    Raises:
        OptionError: Beam rejects the arguments, or they do not fit a build.
    """
    complaint = io.StringIO()
    leftovers: list[str] = []
    try:
        with redirect_stderr(complaint):
            options = _make_options(arguments)
            options.get_all_options(
                add_extra_args_fn=lambda parser: leftovers.extend(parser.parse_known_args(list(arguments))[1])
            )
            runner = type(beam.Pipeline(options=options).runner).__name__
    except SystemExit:
        raise OptionError(f"Beam rejects its arguments: {complaint.getvalue().strip().splitlines()[-1]}") from None
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(f"Beam rejects its arguments: {error}") from error
    if leftovers and runner in _STRICT:
        raise OptionError(f"Beam's {runner} does not know {' '.join(leftovers)}: correct the arguments after `--`")
    if runner in _LOCAL and options.view_as(DirectOptions).direct_running_mode == "multi_processing":
        raise OptionError(
            "Beam's direct runner hangs if one of its worker processes dies: leave out "
            "--direct_running_mode=multi_processing, or leave out --engine beam and give --workers"
        )
    return runner not in _LOCAL


class BeamPipeline:
    """One run of tasks. It sends its progress and its end through the connection, each as a `Message`."""

    def __init__(self, arguments: Sequence[str], work: Work, connection: Connection) -> None:
        self._connection = connection
        self._pipeline = beam.Pipeline(options=_make_options(arguments))
        (
            self._pipeline
            | "Plan" >> beam.Create(pack(work.tasks))
            | "Tasks" >> beam.FlatMap(unpack).with_output_types(tuple[int, bytes])
            # Beam fuses consecutive steps: without a reshuffle, one worker would run all tasks of a block.
            | "Deal" >> beam.Reshuffle()
            | "Run" >> beam.ParDo(RunTask(work))
        )
        self._result: PipelineResult | None = None
        self._seen = NOTHING
        self._started, self._ended = threading.Event(), threading.Event()

    def run(self) -> None:
        """Run the pipeline to its end. Only the direct runner's `run` waits for it, that of others returns at once."""
        telling = threading.Thread(target=self._tell, daemon=True)
        try:
            try:
                self._result = self._pipeline.run()
            finally:
                self._started.set()
            telling.start()
            self._result.wait_until_finish()
            state = self._result.state
            failed = None if state == PipelineState.DONE else Failed(f"the Beam pipeline ended as {state}")
        except Exception as error:  # noqa: BLE001  # each runner has its own errors
            failed = explain("".join(traceback.format_exception(error)))
        self._ended.set()
        # The thread was not started if `run` raised. Otherwise the last progress has to be sent before the end.
        if telling.ident is not None:
            telling.join()
        self._send(failed)

    def cancel(self) -> None:
        """Stop the pipeline, even if it is about to start."""
        self._started.wait(_START_SECONDS)
        if self._result is not None and not PipelineState.is_terminal(self._result.state):
            with suppress(Exception):  # it has just ended, or the service does not answer
                self._result.cancel()

    def _tell(self) -> None:
        """Send progress every few seconds, and once more at the end."""
        while not self._ended.wait(_METRICS_SECONDS):
            self._send(self._progress())
        self._send(self._progress())

    def _progress(self) -> Progress:
        """Return the work done since the last call, or `NOTHING` if the runner does not report it."""
        assert self._result is not None
        totals = dict.fromkeys(Progress._fields, 0)
        try:
            query = self._result.metrics().query(MetricsFilter().with_namespace(_NAMESPACE))
        except Exception:  # noqa: BLE001  # the runner has no metrics, or not now
            return NOTHING
        for metric in query["counters"]:
            # Some runners never commit a count. Their attempted counts include tasks that were tried several times.
            totals[metric.key.metric.name] += metric.committed or metric.attempted or 0
        before, self._seen = self._seen, Progress(**totals)
        return Progress(*map(sub, self._seen, before))

    def _send(self, message: Message) -> None:
        with suppress(OSError):  # the launcher has hung up
            self._connection.send(message)


class WorkerFailure(Exception):
    """A task, or a host if the number is None, has failed. `explain` finds the message in a runner's report."""

    @classmethod  # not an __init__ with two arguments, because runners pickle the error
    def of(cls, number: int | None, message: str) -> "WorkerFailure":
        """Return a failure whose message is also readable in a worker's log."""
        what, tag = ("", "") if number is None else (f"task {number}: ", number)
        return cls(f"{what}{message}\n[tpufeed:{tag}:{quote(message)}]")


class RunTask(beam.DoFn):
    """Runs tasks on a worker.

    It is pickled by name, and its state is bytes and strings: a worker with another version can read it.
    """

    def __init__(self, work: Work) -> None:
        self._job, (_, self._first_task) = work.job, work.tasks[0]
        self._launcher = work.launcher

    # Beam calls it in each worker before the first element. Hosts that join late are then checked, too.
    def setup(self) -> None:
        try:
            check_hosts([view_here(self._job, self._first_task)], self._launcher)
        except BuildError as error:
            raise WorkerFailure.of(None, str(error)) from None
        self._counters = [Metrics.counter(_NAMESPACE, field) for field in Progress._fields]

    def process(self, element: tuple[int, bytes], *args: Any, **kwargs: Any) -> None:
        number, task = element

        def report(progress: Progress) -> None:
            for counter, count in zip(self._counters, progress, strict=True):
                if count:  # zeros may come from another thread, in which Beam cannot count
                    counter.inc(count)

        message = run_pickled(self._job, task, report)
        if message is not None:
            raise WorkerFailure.of(number, message)


def _make_options(arguments: Sequence[str]) -> PipelineOptions:
    options = PipelineOptions(list(arguments))
    setup = options.view_as(SetupOptions)
    if setup.save_main_session:
        raise OptionError("this pipeline uses nothing from the main session: leave out --save_main_session")
    if options.view_as(StandardOptions).streaming:
        raise OptionError("a build is a batch pipeline: leave out --streaming")
    # Otherwise Beam's DirectRunner downloads and runs another runner, Prism. This pipeline has no triggers.
    options.view_as(TypeOptions).allow_unsafe_triggers = True
    return options


def pack(tasks: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """Return tasks in compressed blocks, because a service only accepts pipelines of up to 10 MB."""
    return [zlib.compress(pickle.dumps(tasks[i : i + _BLOCK_TASKS])) for i in range(0, len(tasks), _BLOCK_TASKS)]


def unpack(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tasks of a block, on a worker."""
    yield from pickle.loads(zlib.decompress(block))


def explain(text: str) -> Failed:
    """Return the failure that a runner reports in `text`."""
    found = _FAILURE.search(text)
    if found:
        return Failed(unquote(found[2]), int(found[1]) if found[1] else None)
    if re.search(r"No module named \W*tpufeed", text):
        return Failed(
            f"a worker of Beam has no tpufeed. The launcher has tpufeed {__version__} on Python "
            f"{platform.python_version()}. Install it there, e.g. with --sdk_container_image (docs/scaleout.md)"
        )
    return Failed(f"the Beam pipeline failed: {text.strip()[-_SHOWN_CHARACTERS:]}")
