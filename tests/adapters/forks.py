"""Run programs as forks of one process that has imported their frameworks: that takes longer than most of them.

forks.py MODULES RUNS FOLDER [together]

RUNS is JSON, a list of {"command": [script, ...], "cwd": ..., "env": {...}}. Each writes to FOLDER, to NUMBER.out and
NUMBER.err. The statuses with which they ended are printed as JSON; if they run together, first the ids of processes.
A framework's runtime starts in each fork, so MODULES must not start it.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

SECONDS = 280  # end a program that hangs
kept = None


def run(number, folder, command, cwd=None, env=None):
    for stream, name in ((1, "out"), (2, "err")):
        with Path(folder, f"{number}.{name}").open("w") as file:
            os.dup2(file.fileno(), stream)
    os.environ.update(env or {})
    os.chdir(cwd or ".")
    sys.argv, sys.path[0] = command, str(Path(command[0]).resolve().parent)
    globals()["kept"] = runpy.run_path(command[0], run_name="__main__")  # what is open stays so until the process ends


def main(modules, runs, folder, together=""):
    gc.disable()
    for name in modules.split(","):
        importlib.import_module(name)
    gc.freeze()  # else each fork's collector looks through all frameworks, and copies their memory as it does
    gc.enable()
    children, statuses = [], []
    for number, given in enumerate(json.loads(runs)):
        child = os.fork()
        if not child:
            if not together:
                signal.alarm(SECONDS)
            run(number, folder, **given)
            sys.exit()
        children.append(child)
        if not together:
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if together:
        print(json.dumps(children), flush=True)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(statuses))


if __name__ == "__main__":
    main(*sys.argv[1:])
