"""Tasks as a pipeline of Apache Beam: made and watched in `beamhost`, run by Beam's workers wherever they are."""

import io
import os
import pickle
import platform
import re
import threading
import traceback
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any
from urllib.parse import quote, unquote

import apache_beam as beam
from apache_beam.metrics.metric import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, StandardOptions, TypeOptions
from apache_beam.runners.runner import PipelineResult, PipelineState

import tpufeed
from tpufeed.engines.beamhost import EVENTS, NO_TASK, Failed, TaskEvent, Work
from tpufeed.engines.engine import NOTHING, Progress
from tpufeed.engines.hosts import HostView, check_host, run_pickled, view_here
from tpufeed.errors import BuildError, OptionError

_NAMESPACE = "tpufeed"
_BLOCK_TASKS = 1000
_START_SECONDS = 10.0
_SHOWN_CHARACTERS = 3000
# What a worker says comes back within a runner's report of a trace, escaped or not, in one piece or several times.
_FAILURE = re.compile(r"\[tpufeed:(-?\d+):([\w.~/%-]*)\]")
_LOCAL = {"DirectRunner", "SwitchingDirectRunner", "FnApiRunner", "BundleBasedDirectRunner"}
_STRICT = _LOCAL | {"DataflowRunner", "TestDataflowRunner", "TestDirectRunner"}


class WorkerFailure(Exception):
    """How a worker fails: for whoever reads its log, and so that it is found in whatever a runner reports of that."""

    @classmethod
    def of(cls, number: int, message: str) -> "WorkerFailure":
        """Of a task, or, with `NO_TASK`, of a host."""
        what = "" if number == NO_TASK else f"task {number}: "
        return cls(f"{what}{message}\n[tpufeed:{number}:{quote(message)}]")


def check_arguments(arguments: Sequence[str]) -> bool:
    """Whether the runner of these arguments runs tasks on this host.

    Raises:
        OptionError: Beam, or what is done with it here, does not take them.
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
    return runner in _LOCAL


class Pipeline:
    """One run of tasks."""

    def __init__(self, arguments: Sequence[str], work: Work) -> None:
        self._arguments, self._work = arguments, work
        self._result: PipelineResult | None = None
        self._seen = NOTHING
        self._started = threading.Event()

    def start(self) -> None:
        """Raises PipelineError as `wait` does: some runners are done when they have started."""
        try:
            with _explained():
                self._result = self._make().run()
        finally:
            self._started.set()

    def _make(self) -> beam.Pipeline:
        work, pipeline = self._work, beam.Pipeline(options=_make_options(self._arguments))
        (
            pipeline
            | "Plan" >> beam.Create(pack(work.tasks))
            | "Tasks" >> beam.FlatMap(unpack).with_output_types(tuple[int, bytes])
            | "Deal" >> beam.Reshuffle()
            | "Run" >> beam.ParDo(RunTask(work))
        )
        return pipeline

    def wait(self) -> None:
        """Until it has ended well. Raises PipelineError where it does not."""
        assert self._result is not None
        with _explained():
            self._result.wait_until_finish()
            state = self._result.state
        if state != PipelineState.DONE:
            raise PipelineError(Failed(f"the Beam pipeline ended as {state}"))

    def cancel(self) -> None:
        """Where it runs elsewhere, also when it is just about to begin there."""
        self._started.wait(_START_SECONDS)
        if self._result is not None and not PipelineState.is_terminal(self._result.state):
            with suppress(Exception):  # it has ended meanwhile, or nobody answers
                self._result.cancel()

    def progress(self) -> Progress:
        """What was done since the last call; nothing where the runner does not say."""
        assert self._result is not None
        totals = dict.fromkeys(Progress._fields, 0)
        try:
            query = self._result.metrics().query(MetricsFilter().with_namespace(_NAMESPACE))
        except Exception:  # noqa: BLE001  # it does not say, or not now
            return NOTHING
        for metric in query["counters"]:
            totals[metric.key.metric.name] += metric.committed or metric.attempted or 0
        before, self._seen = self._seen, Progress(**totals)
        return self._seen.minus(before)


class PipelineError(Exception):
    """A pipeline did not end well."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


class RunTask(beam.DoFn):
    """Runs tasks on a worker, in a process that has nothing of the launcher's memory.

    Pickled by its name; its state is bytes and strings, so that it can be read where another version is installed.
    """

    def __init__(self, work: Work) -> None:
        self._job, (_, self._first_task) = work.job, work.tasks[0]
        self._launcher = work.launcher
        self._events: int | None = None

    def setup(self) -> None:
        try:
            check_host(view_here(self._job, self._first_task), HostView(*self._launcher))
        except BuildError as error:
            raise WorkerFailure.of(NO_TASK, str(error)) from None
        self._counters = [Metrics.counter(_NAMESPACE, field) for field in Progress._fields]
        path = os.environ.get(EVENTS)
        if path:
            self._events = os.open(path, os.O_WRONLY)

    def process(self, element: tuple[int, bytes], *args: Any, **kwargs: Any) -> None:
        number, task = element

        def report(progress: Progress) -> None:
            self._tell("p", number, progress)
            for counter, count in zip(self._counters, progress, strict=True):
                if count:  # of none, another thread may tell, which Beam does not count for
                    counter.inc(count)

        self._tell("b", number)
        message = run_pickled(self._job, task, report)
        if message is not None:
            raise WorkerFailure.of(number, message)
        self._tell("d", number)

    def teardown(self) -> None:
        if self._events is not None:
            os.close(self._events)
            self._events = None

    def _tell(self, kind: str, number: int, progress: Progress = NOTHING) -> None:
        if self._events is not None:
            os.write(self._events, TaskEvent(kind, os.getpid(), number, progress).encode())


def _make_options(arguments: Sequence[str]) -> PipelineOptions:
    options = PipelineOptions(list(arguments))
    setup = options.view_as(SetupOptions)
    if setup.save_main_session:
        raise OptionError("there is nothing of a main session in this pipeline: leave out --save_main_session")
    if options.view_as(StandardOptions).streaming:
        raise OptionError("a build has an end: leave out --streaming")
    # Beam's DirectRunner would else fetch another one, Prism, from the net and run that. There is no trigger here.
    options.view_as(TypeOptions).allow_unsafe_triggers = True
    return options


def pack(tasks: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """In blocks: a service takes 10 MB of pipeline at the most, and tasks resemble one another."""
    return [zlib.compress(pickle.dumps(tasks[i : i + _BLOCK_TASKS])) for i in range(0, len(tasks), _BLOCK_TASKS)]


def unpack(block: bytes) -> Iterator[tuple[int, bytes]]:
    """The tasks of a block, on a worker."""
    yield from pickle.loads(zlib.decompress(block))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of whatever kind a runner has
        raise PipelineError(explain("".join(traceback.format_exception(error)))) from error


def explain(text: str) -> Failed:
    """What a runner's report of a failure comes to."""
    found = _FAILURE.search(text)
    if found:
        return Failed(unquote(found[2]), int(found[1]))
    if re.search(r"No module named \W*tpufeed", text):
        return Failed(
            f"a worker of Beam has no tpufeed; the launcher has tpufeed {tpufeed.__version__} on Python "
            f"{platform.python_version()}. Install it there: with --sdk_container_image, say (docs/scaleout.md)"
        )
    return Failed(f"the Beam pipeline failed: {text.strip()[-_SHOWN_CHARACTERS:]}")
