"""Run tasks on Apache Beam: Dataflow, Flink, Spark, or Beam's own direct runner on this host.

The runner decides how often to try a task that fails or loses its worker (Dataflow: four times).

Beam works in a child process, see `beampipeline`, because its direct runner cannot be stopped and all runners print a
lot.
"""

import argparse
import importlib.util
import pickle
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from tpufeed._version import __version__
from tpufeed.engines.engine import NOTHING, Done, Events, Job, Progress, task_name
from tpufeed.engines.preflight import HostView, view_here
from tpufeed.errors import BuildError, LoaderError, MissingExtraError, OptionError, TaskError
from tpufeed.processes.child import Child, ChildDiedError, stop_all

ENTRY = "tpufeed.engines.beampipeline:serve"

_LISTEN_SECONDS = 0.5
_START_SECONDS = 600.0  # to import Beam from a slow disk and to check arguments
_CANCEL_SECONDS = 20.0  # for a service to cancel a pipeline
_SOURCES_OF_PACKAGES = (
    "--sdk_container_image",
    "--requirements_file",
    "--setup_file",
    "--extra_package",
    "--environment_config",
)


class Ready(NamedTuple):
    """Beam has accepted the arguments. `elsewhere` means that its runner works outside the child process."""

    elsewhere: bool


class Work(NamedTuple):
    """A pickled `Job`, pickled tasks with their numbers, and the launcher's view of them.

    A worker with another version of tpufeed receives bytes: it reports its version even if it cannot unpickle them.
    """

    job: bytes
    tasks: Sequence[tuple[int, bytes]]
    launcher: HostView


class Failed(NamedTuple):
    """The pipeline has failed. `number` is the task that failed, or None if unknown."""

    message: str
    number: int | None = None


Message = Ready | Progress | Failed | None  # None: the pipeline has succeeded


class BeamEngine:
    """An `Engine` that passes `arguments` to Beam, e.g. `("--runner=DataflowRunner", "--region=...", ...)`.

    Raises:
        OptionError: no runner is named.
        MissingExtraError: Beam is not installed.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments, self.runner = tuple(arguments), ""
        parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
        parser.add_argument("--runner")
        with suppress(argparse.ArgumentError):
            self.runner = parser.parse_known_args(self.arguments)[0].runner or ""
        if not self.runner:
            raise OptionError(
                "the engine beam needs a runner: end the command with `-- --runner=DataflowRunner ...`, or with "
                "FlinkRunner, SparkRunner or DirectRunner"
            )
        if importlib.util.find_spec("apache_beam") is None:
            raise MissingExtraError("apache_beam", "beam")
        self._child: Child | None = None
        self._elsewhere = False  # see `Ready`
        self._prepared = False

    def describe(self) -> str:
        """Describe what remote workers need, and how to install it."""
        release = ".".join(platform.python_version_tuple()[:2])
        need = f"tpufeed {__version__} on Python {release}"
        if "direct" in self.runner.lower():
            return f"engine: Beam's {self.runner}, on this host"
        given = [argument for argument in self.arguments if argument.startswith(_SOURCES_OF_PACKAGES)]
        if given:
            return f"engine: Beam's {self.runner}. Workers need {need}, which {' '.join(given)} must provide"
        image = f"FROM apache/beam_python{release}_sdk:{version('apache-beam')}"
        return (
            f"engine: Beam's {self.runner}. Workers need {need}. Do this once, in a folder that holds "
            "only tpufeed's wheel:\n"
            f"  printf '{image}\\nCOPY *.whl /wheels/\\n"
            'RUN pip install "$(echo /wheels/*.whl)[gcs]"\\n\' > Dockerfile\n'
            "  docker build -t IMAGE . && docker push IMAGE\n"
            "and after `--`: --sdk_container_image=IMAGE"
        )

    @contextmanager
    def prepare(self, entry: str) -> Iterator[None]:
        """Start Beam's process, and yield when it has accepted the arguments. Raises OptionError if it rejects them."""
        if self._prepared:
            yield
            return
        self._prepared = True
        try:
            self._start()
            yield
        finally:
            # If an error has left a `run` open, the child ends now and not when the garbage is collected.
            self._prepared = False
            self._stop()

    def run(self, job: Job, tasks: Sequence[Any]) -> Events:
        if not tasks:
            return
        try:
            child = self._child or self._start()
            pickled_job = pickle.dumps(job)
            pickled = [(number, pickle.dumps(task)) for number, task in enumerate(tasks)]
            view = view_here(pickled_job, pickled[0][1])
            if view.problem:
                raise BuildError(view.problem)
            child.send(Work(pickled_job, pickled, view))
            while True:
                if not wait([child.fileno()], _LISTEN_SECONDS):
                    yield NOTHING
                    continue
                message = self._receive(child)
                if isinstance(message, Failed):
                    if message.number is None:
                        raise BuildError(message.message)
                    raise TaskError(f"{task_name(tasks[message.number])}: {message.message}")
                if message is None:
                    break
                assert isinstance(message, Progress), "a pipeline sends no other message"
                yield message
            # Beam adds up counts and does not say which tasks are done. At the end all are.
            yield from map(Done, range(len(tasks)))
        # Also on GeneratorExit: if the caller stops iterating, the pipeline stops.
        except BaseException:
            self._stop()
            raise
        if not self._prepared:
            self._stop()

    def _start(self) -> Child:
        """Start Beam's process, and wait until it has accepted the arguments."""
        # Python processes that a runner starts inherit this variable, but not the child's own -P.
        self._child = child = Child(ENTRY, variables={"PYTHONSAFEPATH": "1"}, apart=True)
        self._elsewhere = False
        try:
            child.begin(ENTRY, self.arguments)
            if not wait([child.fileno()], _START_SECONDS):
                raise BuildError(
                    f"Beam's process has not started within {_START_SECONDS:g} s. Does "
                    f"`python -c 'import apache_beam'` return here? {child.output()}".strip()
                )
            message = self._receive(child)
            assert isinstance(message, Ready), "this is its first message"
            self._elsewhere = message.elsewhere
        except BaseException:
            self._stop()
            raise
        return child

    def _stop(self) -> None:
        """End Beam's process and all that it has started. Cancel a pipeline that runs elsewhere first."""
        child, self._child = self._child, None
        if child is not None:
            stop_all([child], _CANCEL_SECONDS if self._elsewhere else 0.0)

    def _receive(self, child: Child) -> Message:
        try:
            message: Message = child.receive()
        except ChildDiedError:
            running = "The pipeline may still run elsewhere" if self._elsewhere else "Out of memory?"
            how, printed = child.ending()[1], child.output()
            raise BuildError(f"Beam's process ended {how}. {running} {printed}".strip()) from None
        except LoaderError as error:  # it cannot import Beam
            raise BuildError(str(error)) from None
        return message
