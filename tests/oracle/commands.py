"""Commands in processes of their own, which are killed at one of their puts, or run side by side."""

import os
import pickle
import random
import signal
import tempfile
import time
import traceback
from dataclasses import dataclass
from typing import Any

from tpufeed.storage.local import LocalStore

CHANGES = ("put", "put_file", "delete")
KILLED, FAILED = 97, 98  # exit codes
SECONDS = 60  # and a command hangs


@dataclass
class Outcome:
    """How a command ended: with a value, an error, or killed."""

    value: Any = None
    error: str = ""  # the names of its classes, innermost first, and what it says
    killed: bool = False
    crashed: bool = False  # an error that is none of tpufeed, or no answer

    @property
    def done(self):
        return not self.error and not self.killed

    def is_a(self, *names):
        return any(name in self.error.split(":")[0].split(" ") for name in names)


def watch_changes(before, after):
    """Call `before` and `after` with the number of each change of a store, from 1."""
    state = {"count": 0, "inside": False}

    def wrap(call):
        def change(store, *args, **kwargs):
            if state["inside"]:  # a put is a put of a file
                return call(store, *args, **kwargs)
            state["count"] += 1
            before(state["count"])
            state["inside"] = True
            try:
                return call(store, *args, **kwargs)
            finally:
                state["inside"] = False
                after(state["count"])

        return change

    for name in CHANGES:
        setattr(LocalStore, name, wrap(getattr(LocalStore, name)))


def kill_at(number, is_after):
    """Kill this process at its change `number`, before or after it is made."""

    def strike(count):
        if count == number:
            os._exit(KILLED)

    watch_changes(*((lambda _: None, strike) if is_after else (strike, lambda _: None)))


def dawdle(seed):
    """Wait now and then, as drawn, so that others come in between."""
    draw = random.Random(seed)

    def wait(_):
        if draw.random() < 0.5:
            time.sleep(draw.random() * 0.01)

    wait(0)
    watch_changes(wait, wait)


def run(temporary, *works):
    """Run functions at once, each in a fork of this process; returns the outcome of each.

    Args:
        temporary: where the forks have their temporary files.
        works: pairs of what is called first, `dawdle` say, and of what gives the value.
    """
    begun = [start(temporary, *work) for work in works]
    return [finish(*each) for each in begun]


def start(temporary, prepare, work):
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = FAILED
    try:
        signal.alarm(SECONDS)
        tempfile.tempdir = str(temporary)
        prepare()
        try:
            answer = Outcome(work())
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the outcome
            names = [each.__name__ for each in type(error).__mro__]
            crashed = "TpufeedError" not in names
            said = traceback.format_exc() if crashed else error
            answer = Outcome(error=f"{' '.join(names)}: {said}", crashed=crashed)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        code = 0
    finally:
        os._exit(code)


def finish(child, reading):
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == KILLED:
        return Outcome(killed=True)
    if status:
        return Outcome(error=f"process: it ended with status {status}", crashed=True)
    return pickle.loads(data)
