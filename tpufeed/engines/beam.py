"""Tasks on Apache Beam: Dataflow, Flink, Spark, or Beam's own direct runner on this host.

What is said here is said to a process of its own in which Beam works, see `beamhost`.

Elsewhere the runner decides how often a task is tried that fails, or whose worker is lost (Dataflow: four times).
Beam's direct runner hangs when a worker process dies; then it is started again with the tasks that are left.
"""

import argparse
import importlib.util
import logging
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import tpufeed
from tpufeed.engines.beamhost import NO_TASK, Died, Ended, Failed, Ready, TaskEvent
from tpufeed.engines.beamprocess import BeamProcess, how_ended
from tpufeed.engines.deaths import SILENCE_SECONDS, Deaths, silent_death
from tpufeed.engines.engine import NOTHING, Done, Event, Job, Progress, task_name
from tpufeed.errors import BuildError, MissingExtraError, OptionError, TaskError, TpufeedError

_logger = logging.getLogger(__name__)

_IDLE_DEATHS_ALLOWED = 2
_END_SECONDS = 10.0  # for a local pipeline to end after its last task
_START_SECONDS = 120.0  # for a local pipeline to begin its first task, of which seconds are usual
_SOURCES_OF_PACKAGES = (
    "--sdk_container_image",
    "--requirements_file",
    "--setup_file",
    "--extra_package",
    "--environment_config",
)


class BeamEngine:
    """An `Engine` that hands `arguments` to Beam, as in `("--runner=DataflowRunner", "--region=...", ...)`.

    Where Beam's own runner works on this host, and a worker says nothing for `silence_seconds`, it counts as dead.
    """

    def __init__(self, arguments: Sequence[str], silence_seconds: float = SILENCE_SECONDS) -> None:
        self.arguments = tuple(arguments)
        self.runner = _find_runner(self.arguments)
        if importlib.util.find_spec("apache_beam") is None:
            raise MissingExtraError("apache_beam", "beam")
        self._silence_seconds = silence_seconds
        self._processes: list[BeamProcess] = []  # one at the most
        self._prepared = False

    def describe(self) -> str:
        """How workers elsewhere come to have what they need: what there is to say of that before a build."""
        release = ".".join(platform.python_version_tuple()[:2])
        need = f"tpufeed {tpufeed.__version__} on Python {release}"
        if "direct" in self.runner.lower():
            return f"engine: Beam's {self.runner}, on this host"
        given = [argument for argument in self.arguments if argument.startswith(_SOURCES_OF_PACKAGES)]
        if given:
            return f"engine: {self.runner} of Beam; workers need {need}, which has to come from {' '.join(given)}"
        image = f"FROM apache/beam_python{release}_sdk:{version('apache-beam')}"
        return (
            f"engine: {self.runner} of Beam; workers need {need}. Once:\n"
            f"  printf '{image}\\nRUN pip install \"tpufeed[gcs]=={tpufeed.__version__}\"\\n' > Dockerfile\n"
            "  docker build -t IMAGE . && docker push IMAGE\n"
            "and after `--`: --sdk_container_image=IMAGE"
        )

    @contextmanager
    def prepare(self, entry: str) -> Iterator[None]:
        """Beam's process is up, and has taken the arguments, when this has begun; else OptionError."""
        if self._prepared:
            yield
            return
        self._prepared = True
        try:
            self._processes = [BeamProcess(self.arguments)]
            yield
        finally:
            self._prepared = False
            # Where an error has left a `run` open, its process goes now and not when somebody collects the garbage.
            self._stop()

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Event]:
        ledger = _Ledger(tasks)
        try:
            while ledger.waiting:
                if not self._processes:
                    self._processes = [BeamProcess(self.arguments)]
                (process,) = self._processes
                process.begin(job, [(number, tasks[number]) for number in sorted(ledger.waiting)])
                ledger.begin()
                yield from self._follow(process, ledger)
                if ledger.waiting or not self._prepared:
                    self._stop()
        except BaseException:
            self._stop()
            raise

    def _follow(self, process: BeamProcess, ledger: "_Ledger") -> Iterator[Event]:
        """Until the pipeline has ended, or a worker has died that its runner waits for."""
        while True:
            messages = list(process.receive())
            for message in messages:
                if isinstance(message, TpufeedError):
                    raise message
                if isinstance(message, Failed | str):
                    raise ledger.error(message)
                if isinstance(message, Died):
                    if not process.tells:
                        raise BuildError(
                            f"the process that watches the pipeline died, {how_ended(message.code)}. Does the pipeline "
                            f"still run? {process.tail()}"
                        )
                    yield ledger.bury(how_ended(message.code))
                    return
                if isinstance(message, Ended):
                    yield from ledger.finish()
                    return
                if not isinstance(message, Ready):
                    yield from ledger.note(message)
            if ledger.silent(self._silence_seconds):
                yield ledger.bury(silent_death(self._silence_seconds), silent=True)
                return
            if process.tells and not ledger.waiting and ledger.stuck(_END_SECONDS):
                self._stop()  # all is done, and it does not end
                return
            if process.tells and ledger.stuck(patience := max(self._silence_seconds, _START_SECONDS)):
                yield ledger.bury(f"killed after it had begun no task for {patience:g} s", silent=True)
                return
            if not messages:
                yield NOTHING

    def _stop(self) -> None:
        for process in self._processes:
            process.stop()
        self._processes = []


@dataclass(slots=True)
class _Begun:
    """A task that a process has begun on this host, its progress, and when something was last heard of it."""

    pid: int
    progress: Progress
    heard: float


class _Ledger:
    """How far which task is."""

    def __init__(self, tasks: Sequence[Any]) -> None:
        self.waiting = set(range(len(tasks)))
        self._tasks = tasks
        self._begun: dict[int, _Begun] = {}
        self._deaths = Deaths(tasks)
        self._idle_deaths = 0
        self._news = time.monotonic()

    def begin(self) -> None:
        """A pipeline begins with what is waiting."""
        self._news = time.monotonic()

    def note(self, message: Progress | TaskEvent) -> Iterator[Event]:
        """The events that a message stands for."""
        self._news = time.monotonic()
        if isinstance(message, Progress):
            yield message
        elif message.number not in self.waiting:
            return  # done already: some runners repeat what has ended beside a failure
        elif message.kind == "b":
            self._begun[message.number] = _Begun(message.pid, NOTHING, time.monotonic())
        elif message.kind == "p":
            task = self._begun[message.number]
            task.progress = task.progress.plus(message.progress)
            task.heard = time.monotonic()
            yield message.progress
        else:
            del self._begun[message.number]
            self.waiting.remove(message.number)
            yield Done(message.number)

    def finish(self) -> Iterator[Event]:
        """All that is left has ended well."""
        numbers = sorted(self.waiting)
        self.waiting.clear()
        yield from map(Done, numbers)

    def silent(self, seconds: float) -> bool:
        """Whether nothing was heard of a task for so long."""
        return any(time.monotonic() - task.heard >= seconds for task in self._begun.values())

    def stuck(self, seconds: float) -> bool:
        """Whether no task is begun and nothing was heard for so long: Beam's local runner can hang at its start."""
        return not self._begun and time.monotonic() - self._news >= seconds

    def error(self, failed: Failed | str) -> BuildError:
        """What to raise for a failure."""
        if isinstance(failed, str):
            return BuildError(failed)
        number, message = failed.number, failed.message
        return BuildError(message) if number == NO_TASK else TaskError(f"{task_name(self._tasks[number])}: {message}")

    def bury(self, death: str, silent: bool = False) -> Progress:
        """Note that a worker is dead.

        Returns:
            The progress of all tasks that were begun, taken back.

        Raises:
            BuildError: that has come too often; a TaskError that names the task where it was one's.
        """
        advice = "Out of memory? Try fewer --direct_num_workers"
        begun = list(self._begun.items())
        longest = min((task.heard for _, task in begun), default=0.0)
        killers = [n for n, task in begun if (task.heard == longest if silent else not _is_running(task.pid))]
        self._idle_deaths += not killers
        if self._idle_deaths > _IDLE_DEATHS_ALLOWED:
            raise BuildError(f"{self._idle_deaths} worker processes of Beam died without a task, the last one {death}")
        for number in killers:
            name = self._deaths.note(number, death, advice)
            _logger.warning("%s: a worker process of Beam died, %s; Beam begins anew with what is left", name, death)
        self._begun.clear()
        taken_back = NOTHING
        for _, task in begun:
            taken_back = taken_back.minus(task.progress)
        return taken_back


def _find_runner(arguments: tuple[str, ...]) -> str:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    parser.add_argument("--runner")
    try:
        runner: str | None = parser.parse_known_args(arguments)[0].runner
    except argparse.ArgumentError:
        runner = None
    if not runner:
        raise OptionError(
            "the engine beam needs a runner: end the command with `-- --runner=DataflowRunner ...`, or FlinkRunner, "
            "SparkRunner, DirectRunner"
        )
    return runner


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
