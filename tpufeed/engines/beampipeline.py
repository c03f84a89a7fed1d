"""Tasks as a pipeline of Apache Beam: a child of the launcher makes and watches it, Beam's workers run it."""

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

import tpufeed
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
# What a worker says comes back within a runner's report of a trace, escaped or not, in one piece or several times.
_FAILURE = re.compile(r"\[tpufeed:(\d*):([\w.~/%-]*)\]")
_LOCAL = {"DirectRunner", "SwitchingDirectRunner", "FnApiRunner", "BundleBasedDirectRunner"}
_STRICT = _LOCAL | {"DataflowRunner", "TestDataflowRunner", "TestDirectRunner"}


def serve(arguments: tuple[str, ...], connection: Connection) -> None:
    """Check the arguments, then run pipelines as they are asked for, until the launcher leaves."""
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
            # In a thread, so that this one hears the launcher hang up in mid-pipeline, and cancels the pipeline.
            threading.Thread(target=pipeline.run, daemon=True).start()
    except (EOFError, ConnectionError):
        return
    finally:
        if pipeline is not None and elsewhere:
            pipeline.cancel()
        os.killpg(0, signal.SIGKILL)  # this process, too: threads of the direct runner may never end


def check_arguments(arguments: Sequence[str]) -> bool:
    """Return true if the runner of these arguments runs tasks in other processes than this one.

    Raises:
        OptionError: Beam does not take them, or they do not fit a build.
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
        raise OptionError(
            f"Beam does not take its arguments: {complaint.getvalue().strip().splitlines()[-1]}"
        ) from None
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(f"Beam does not take its arguments: {error}") from error
    if leftovers and runner in _STRICT:
        raise OptionError(f"Beam's {runner} knows no {' '.join(leftovers)}: correct what stands after `--`")
    if runner in _LOCAL and options.view_as(DirectOptions).direct_running_mode == "multi_processing":
        raise OptionError(
            "Beam's direct runner hangs when one of its worker processes dies: leave out "
            "--direct_running_mode=multi_processing, or leave out --engine beam and give --workers"
        )
    return runner not in _LOCAL


class BeamPipeline:
    """One run of tasks. Its progress and its end go through the connection, each as a `Message`."""

    def __init__(self, arguments: Sequence[str], work: Work, connection: Connection) -> None:
        self._work, self._connection = work, connection
        self._pipeline = beam.Pipeline(options=_make_options(arguments))
        (
            self._pipeline
            | "Plan" >> beam.Create(pack(work.tasks))
            | "Tasks" >> beam.FlatMap(unpack).with_output_types(tuple[int, bytes])
            # Beam fuses steps that follow each other: without this one worker would run all tasks of a block.
            | "Deal" >> beam.Reshuffle()
            | "Run" >> beam.ParDo(RunTask(work))
        )
        self._result: PipelineResult | None = None
        self._seen = NOTHING
        self._started, self._ended = threading.Event(), threading.Event()

    def run(self) -> None:
        """Run the pipeline to its end. `run` of the direct runner returns only then, `run` of others at once."""
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
        except Exception as error:  # noqa: BLE001  # each runner has its own
            failed = explain("".join(traceback.format_exception(error)))
        self._ended.set()
        # It was not started if `run` raised. If it was, its last progress has to be sent before the end is.
        if telling.ident is not None:
            telling.join()
        self._send(failed)

    def cancel(self) -> None:
        """Stop the pipeline, also when it is just about to begin."""
        self._started.wait(_START_SECONDS)
        if self._result is not None and not PipelineState.is_terminal(self._result.state):
            with suppress(Exception):  # it has ended meanwhile, or nobody answers
                self._result.cancel()

    def _tell(self) -> None:
        """Send progress every few seconds, and once more at the end."""
        while not self._ended.wait(_METRICS_SECONDS):
            self._send(self._progress())
        self._send(self._progress())

    def _progress(self) -> Progress:
        """Return what was done since the last call; nothing if the runner does not say."""
        assert self._result is not None
        totals = dict.fromkeys(Progress._fields, 0)
        try:
            query = self._result.metrics().query(MetricsFilter().with_namespace(_NAMESPACE))
        except Exception:  # noqa: BLE001  # it does not say, or not now
            return NOTHING
        for metric in query["counters"]:
            # Some runners never commit a count. What they attempted has tasks that were tried again more than once.
            totals[metric.key.metric.name] += metric.committed or metric.attempted or 0
        before, self._seen = self._seen, Progress(**totals)
        return Progress(*map(sub, self._seen, before))

    def _send(self, message: Message) -> None:
        with suppress(OSError):  # nobody listens any more
            self._connection.send(message)


class WorkerFailure(Exception):
    """A task, or with number None a host, has failed. `explain` finds the text again in a runner's report."""

    @classmethod  # no __init__ of two arguments: runners pickle it
    def of(cls, number: int | None, message: str) -> "WorkerFailure":
        """Return a failure whose message is readable in a worker's log, too."""
        what, tag = ("", "") if number is None else (f"task {number}: ", number)
        return cls(f"{what}{message}\n[tpufeed:{tag}:{quote(message)}]")


class RunTask(beam.DoFn):
    """Runs tasks on a worker.

    It is pickled by its name; its state is bytes and strings, so that a worker with another version can read it.
    """

    def __init__(self, work: Work) -> None:
        self._job, (_, self._first_task) = work.job, work.tasks[0]
        self._launcher = work.launcher

    # Beam calls it in each worker before that one's first element: hosts that join late are checked as well.
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
                if count:  # zeros may come from another thread, which Beam does not count for
                    counter.inc(count)

        message = run_pickled(self._job, task, report)
        if message is not None:
            raise WorkerFailure.of(number, message)


def _make_options(arguments: Sequence[str]) -> PipelineOptions:
    options = PipelineOptions(list(arguments))
    setup = options.view_as(SetupOptions)
    if setup.save_main_session:
        raise OptionError("there is nothing of a main session in this pipeline: leave out --save_main_session")
    if options.view_as(StandardOptions).streaming:
        raise OptionError("a build has an end: leave out --streaming")
    # Otherwise Beam's DirectRunner fetches another one, Prism, from the net and runs that. There is no trigger here.
    options.view_as(TypeOptions).allow_unsafe_triggers = True
    return options


def pack(tasks: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """Return tasks in compressed blocks: a service takes a pipeline of at most 10 MB."""
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
            f"a worker of Beam has no tpufeed; the launcher has tpufeed {tpufeed.__version__} on Python "
            f"{platform.python_version()}. Install it there: with --sdk_container_image, say (docs/scaleout.md)"
        )
    return Failed(f"the Beam pipeline failed: {text.strip()[-_SHOWN_CHARACTERS:]}")
