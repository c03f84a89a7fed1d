"""Plan the number of processes and threads that decode."""

import logging
import os
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler

from tpufeed.dataset.reader import Dataset
from tpufeed.engines.engine import available_cores
from tpufeed.errors import OptionError
from tpufeed.images.custom import Custom
from tpufeed.images.validation import shown
from tpufeed.loaders.options import LoaderOptions
from tpufeed.storage.registry import url_scheme

_logger = logging.getLogger(__name__)

_ENVIRONMENT = "TPUFEED_PROCESSES"
# Threads of one process meet at the GIL, processes cost memory: 80 MB each.
_CORES_A_PROCESS = 4


@dataclass(frozen=True, slots=True)
class Workers:
    """`threads` in each of so many processes; 0 are those of this process alone."""

    processes: int
    threads: int

    @property
    def decoding(self) -> int:
        """Threads of all processes together."""
        return max(1, self.processes) * self.threads


def plan_workers(dataset: Dataset, options: LoaderOptions) -> Workers:
    """Return the numbers that the options say, or that fit the cores of this rank.

    Raises:
        OptionError: processes are asked for, and they cannot have the dataset or an op.
    """
    cores = max(1, available_cores() // _ranks_of_this_host())
    wanted = _wanted() if options.processes is None else options.processes
    processes = min(cores, max(_CORES_A_PROCESS, cores // _CORES_A_PROCESS)) if wanted is None else int(wanted)
    obstacle = _obstacle(dataset, options) if processes else ""
    if obstacle and options.processes:
        raise OptionError(f"{obstacle}. Worker processes cannot have that; give processes=0 instead of {processes}")
    if obstacle:
        _logger.info("%s: threads of this process decode", obstacle)
        processes = 0
    return Workers(processes, options.threads or max(1, cores // max(1, processes)))


def _wanted() -> int | None:
    text = os.environ.get(_ENVIRONMENT)
    if not text:
        return None
    if not text.isdecimal():
        raise OptionError(f"{_ENVIRONMENT} in the environment is a number of processes, not {shown(text)}")
    return int(text)


def _obstacle(dataset: Dataset, options: LoaderOptions) -> str:
    for url in (dataset.url, dataset.shards.url):
        if url_scheme(url) == "memory":
            return f"{url} is memory of this process"
    for op in options.ops or ():
        if isinstance(op, Custom) and op.obstacle:
            return op.obstacle
        try:
            crosses = type(op).__module__ != "__main__" and bool(ForkingPickler.dumps(op))
        except Exception:  # noqa: BLE001  # whatever an op's class makes of it
            crosses = False
        if not crosses:
            return f"{type(op).__name__} is of __main__, or cannot be pickled"
    return "" if hasattr(os, "memfd_create") else "this system has no memfd_create"


def _ranks_of_this_host() -> int:
    """Count the ranks of this host, as torchrun and others say, or `torch_xla.launch`."""
    text = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("PJRT_LOCAL_PROCESS_COUNT", "")
    return max(1, int(text)) if text.isdecimal() else 1
