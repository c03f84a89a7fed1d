"""The preflight check of a build on other hosts: each must have the same versions and see the same files."""

import pickle
import platform
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pkgutil import resolve_name

from tpufeed._version import __version__
from tpufeed.engines.engine import Job, ReportProgress, TaskFunction
from tpufeed.errors import BuildError, install_command
from tpufeed.processes.limits import failure_message

_SHARED_ADVICE = (
    "Is that a local folder of one host? Put source and destination where all hosts see the same files: in a bucket, "
    "or in a folder that all of them mount"
)


@dataclass(frozen=True, slots=True)
class HostView:
    """A host's view: its versions, and the files that it sees.

    Attributes:
        host: name of the host.
        python: version of Python.
        tpufeed: version of tpufeed, or None if it is not installed.
        problem: why the host cannot do the work, empty if no reason is known.
        places: result of `Job.reach` there.
    """

    host: str
    python: str
    tpufeed: str | None
    problem: str = ""
    places: Mapping[str, str] = field(default_factory=dict)


def view_here(job: bytes, task: bytes) -> HostView:
    """Return this host's view of a pickled job and its first task."""
    problem, places = "", dict[str, str]()
    try:
        loaded, _ = _load_job(job)
        if loaded.reach:
            places = dict(resolve_name(loaded.reach)(loaded.context, pickle.loads(task)))
    except Exception as error:  # noqa: BLE001  # the launcher raises it
        problem = failure_message(error)
        if isinstance(error, FileNotFoundError):
            problem += f". {_SHARED_ADVICE}"
    return HostView(socket.gethostname(), platform.python_version(), __version__, problem, places)


def check_hosts(views: Iterable[HostView], launcher: HostView) -> None:
    """Raise BuildError if a host cannot do the work of the launcher. The message names each such host, and a remedy."""
    problems = list[str]()
    for view in views:
        unlike = [url for url, version in launcher.places.items() if view.places.get(url) != version]
        if view.tpufeed is None:
            problems.append(
                f"{view.host} has no tpufeed ({view.problem}). The launcher has tpufeed {launcher.tpufeed} on Python "
                f"{launcher.python}. Install it there as here: {install_command()} (docs/scaleout.md)"
            )
        # Another patch version of Python writes the same bytes. Another minor version may not.
        elif (view.tpufeed, view.python.rpartition(".")[0]) != (launcher.tpufeed, launcher.python.rpartition(".")[0]):
            problems.append(
                f"{view.host} has tpufeed {view.tpufeed} on Python {view.python}, the launcher has tpufeed "
                f"{launcher.tpufeed} on Python {launcher.python}. Install the same versions on both: the bytes of a "
                "dataset depend on them"
            )
        elif view.problem:
            problems.append(f"{view.host} cannot do the work of {launcher.host}: {view.problem}")
        elif unlike:
            is_there = unlike[0] in view.places
            what = f"sees another version of {unlike[0]} than" if is_there else f"does not see {unlike[0]}, unlike"
            problems.append(f"{view.host} {what} the launcher on {launcher.host}. {_SHARED_ADVICE}")
    if problems:
        raise BuildError("\n".join(dict.fromkeys(problems)))


def run_pickled(job: bytes, task: bytes, report_progress: ReportProgress) -> str | None:
    """Run a pickled task of a pickled job, and return the message of its failure, or None if it succeeded."""
    try:
        loaded, function = _load_job(job)
        function(loaded.context, pickle.loads(task), report_progress)
    except Exception as error:  # noqa: BLE001  # the launcher raises it
        return failure_message(error)
    return None


@lru_cache(maxsize=1)
def _load_job(data: bytes) -> tuple[Job, TaskFunction]:
    """Load a job once per process, as a process may run many tasks: unpickling the context of a cache opens its source.

    Raises:
        BuildError: something that the job needs cannot be imported here.
    """
    try:
        job: Job = pickle.loads(data)
        return job, resolve_name(job.entry)
    except (ImportError, AttributeError) as error:
        raise BuildError(
            f"a worker cannot import what the job needs: {error}. Move what `__main__` defines into a module that can "
            "be imported on every host"
        ) from error
