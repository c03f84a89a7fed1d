"""The command `tpufeed` as a fork of one process that has imported it: to start Python takes longer than most commands.

Its workers are new interpreters as ever.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
_COMMANDS = ("sharding.build", "sharding.append", "cache.build", "builds.compact", "adoption.adopt")
CONTEXT.set_forkserver_preload(
    [*(f"tpufeed.{name}" for name in (*_COMMANDS, "engines.processes")), "tests.faults.remote", "gcsfs"]
)


def _run(words: Sequence[str], hook: Path, environment: Mapping[str, str], streams: Sequence[Path]) -> None:
    from tpufeed.cli import main

    os.setsid()
    for number, stream in enumerate(streams, 1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # that of this environment
    sys.path.insert(0, str(hook.parent))  # workers have our path
    sys.argv = ["tpufeed", *words]
    runpy.run_path(str(hook))
    main()


class Forked:
    """What tests need of a `Popen` of the command in a new session. It first runs `hook`, a file of Python."""

    def __init__(self, words: Sequence[object], hook: Path, environment: Mapping[str, str]) -> None:
        self.args, number = list(map(str, words)), len(list(hook.parent.glob("*.out")))
        self._streams = [hook.with_name(f"{number}.{name}") for name in ("out", "err")]
        for stream in self._streams:
            stream.touch()
        self._process = CONTEXT.Process(target=_run, args=(self.args, hook, dict(environment), self._streams))
        self._process.start()
        self.pid, self.kill = self._process.pid, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def communicate(self) -> tuple[str, str]:
        self._process.join()
        out, err = (stream.read_text() for stream in self._streams)
        return out, err
